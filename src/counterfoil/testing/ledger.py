"""The reference provider's book: every effect and every request, in a file that outlives whoever was killed.

It must not know HTTP. A test reads it with `Ledger`; only the provider writes it, with `Book`.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

_SCHEMA = """
create table if not exists effects(
    id integer primary key, endpoint text not null, object_id text not null, key text not null, reference text not null,
    arguments text not null, result text not null, applied_at real not null, visible_at real not null);
create table if not exists requests(
    id integer primary key, endpoint text not null, method text not null, key text not null, reference text not null,
    arguments text not null, at real not null, answer text not null);
create table if not exists keys(
    endpoint text not null, key text not null, arguments text not null, status integer not null, result text not null,
    first_at real not null, primary key(endpoint, key));
create table if not exists behaviours(endpoint text primary key, body text not null, fired integer not null default 0);
create table if not exists clock(offset_s real not null);
"""

FaultKind = Literal[
    "apply_late",
    "drop_response",
    "reset_before",
    "reset_after",
    "error_before",
    "error_after",
    "slow",
    "slow_before",
]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What an endpoint does. The defaults are a provider that keeps its promises.

    Args:
        honour_keys: one effect per key. Off: keys are ignored, as undocumented ones are.
        key_window_s: how long a key is remembered, in seconds, counted from the first request; None: for ever.
        on_changed_arguments: a known key with other arguments: ``refuse`` (409), ``first`` (answer of the first) or
            ``run`` (a second effect).
        in_flight: a known key whose first request is still worked on: ``refuse`` (409) or ``wait``.
        cache_failures: a failed first answer is replayed to the same key.
        lookup_lag_s: how long after it is applied an effect becomes visible to lookups, in seconds.
        lookup: ``on``, ``off`` (404), ``error`` (500) or ``lie_absent`` (always an empty list).
        client_ids: the body field ``id`` names the object; creating it twice conflicts (409).
        fault: what goes wrong; None: nothing.
        seconds: how long, for ``apply_late``, ``slow`` and ``slow_before``.
        times: on how many requests the fault fires; None: on all.
    """

    honour_keys: bool = True
    key_window_s: float | None = 86400.0
    on_changed_arguments: Literal["refuse", "first", "run"] = "refuse"
    in_flight: Literal["refuse", "wait"] = "refuse"
    cache_failures: bool = False
    lookup_lag_s: float = 0.0
    lookup: Literal["on", "off", "error", "lie_absent"] = "on"
    client_ids: bool = False
    fault: FaultKind | None = None
    seconds: float = 1.0
    times: int | None = None

    @classmethod
    def from_json(cls, body: Any) -> Behaviour:
        """Return the behaviour that a JSON object names. Raises `ValueError` naming the field and what it may be."""
        if not isinstance(body, dict):
            raise ValueError("a behaviour is a JSON object")  # noqa: TRY004 - one error type for all bad input
        known = {field.name for field in fields(cls)}
        for name, value in body.items():
            if name not in known:
                raise ValueError(f"unknown field {name!r}; there are: {', '.join(sorted(known))}")
            allowed = _ALLOWED[name]
            if not allowed(value):
                raise ValueError(f"{name}={value!r} is not allowed; it is {_WORDS[name]}")
        return cls(**body)


def _choice(*choices: object) -> tuple[Any, str]:
    return (lambda value: value in choices), "one of " + ", ".join(map(str, choices))


def _flag() -> tuple[Any, str]:
    return (lambda value: isinstance(value, bool)), "true or false"


def _number(*, none: bool = False) -> tuple[Any, str]:
    def check(value: object) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        return number or (none and value is None)

    return check, "a number of at least 0" + (" or null" if none else "")


_FIELDS: dict[str, tuple[Any, str]] = {
    "honour_keys": _flag(),
    "key_window_s": _number(none=True),
    "on_changed_arguments": _choice("refuse", "first", "run"),
    "in_flight": _choice("refuse", "wait"),
    "cache_failures": _flag(),
    "lookup_lag_s": _number(),
    "lookup": _choice("on", "off", "error", "lie_absent"),
    "client_ids": _flag(),
    "fault": _choice(None, *get_args(FaultKind)),
    "seconds": _number(),
    "times": _number(none=True),
}
_ALLOWED = {name: check for name, (check, _) in _FIELDS.items()}
_WORDS = {name: words for name, (_, words) in _FIELDS.items()}


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Something that really happened."""

    id: int
    endpoint: str
    object_id: str
    key: str
    reference: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    applied_at: float


@dataclass(frozen=True, kw_only=True)
class Request:
    """Something that was asked, and how it was answered (``applied``, ``replayed``, an error code or the fault)."""

    id: int
    endpoint: str
    method: str
    key: str
    reference: str
    arguments: dict[str, Any]
    at: float
    answer: str


class Ledger:
    """Reads a provider's book straight from its file, whether or not the provider runs.

    Args:
        path: the file given to the provider as ``--ledger``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def effects(self, key: str | None = None, endpoint: str | None = None) -> list[Effect]:
        """Return what really happened, oldest first."""
        columns = "id, endpoint, object_id, key, reference, arguments, result, applied_at"
        return [
            Effect(
                id=row[0],
                endpoint=row[1],
                object_id=row[2],
                key=row[3],
                reference=row[4],
                arguments=json.loads(row[5]),
                result=json.loads(row[6]),
                applied_at=row[7],
            )
            for row in self._rows("effects", columns, key, endpoint)
        ]

    def requests(self, key: str | None = None, endpoint: str | None = None) -> list[Request]:
        """Return what was asked, oldest first. A working key hides a repeat from the effects, never from these."""
        columns = "id, endpoint, method, key, reference, arguments, at, answer"
        return [
            Request(
                id=row[0],
                endpoint=row[1],
                method=row[2],
                key=row[3],
                reference=row[4],
                arguments=json.loads(row[5]),
                at=row[6],
                answer=row[7],
            )
            for row in self._rows("requests", columns, key, endpoint)
        ]

    def effects_by_key(self) -> dict[str, int]:
        """Return how often each key (or, without a key, each reference) had its effect."""
        return dict(Counter(effect.key or effect.reference for effect in self.effects()))

    def count(self) -> int:
        """Return the number of effects."""
        return len(self.effects())

    def _rows(self, table: str, columns: str, key: str | None, endpoint: str | None) -> list[Any]:
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(
                f"select {columns} from {table}"  # noqa: S608 - both are written in this file
                " where (? is null or key = ?) and (? is null or endpoint = ?) order by id",
                (key, key, endpoint, endpoint),
            ).fetchall()
        finally:
            connection.close()


@dataclass(frozen=True)
class Outcome:
    """How a write ended: status and body of the answer, and the word for the ledger."""

    status: int
    body: dict[str, Any]
    word: str
    replayed: bool = False


class Book:
    """The provider's side of the ledger. An effect and what is remembered of its key are one transaction."""

    def __init__(self, path: str | Path) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=normal")
        self._db.executescript(_SCHEMA)
        self._offset_s = (self._db.execute("select sum(offset_s) from clock").fetchone()[0]) or 0.0
        self._busy: set[tuple[str, str]] = set()
        self._freed = threading.Condition(self._lock)

    def now(self) -> float:
        """Return the provider's time, in seconds since 1970."""
        return time.time() + self._offset_s

    def advance(self, seconds: float) -> None:
        """Move the provider's clock on, for good."""
        with self._lock:
            self._db.execute("insert into clock values(?)", (seconds,))
            self._offset_s += seconds

    def behaviour(self, endpoint: str) -> Behaviour:
        """Return an endpoint's behaviour."""
        with self._lock:
            row = self._db.execute("select body from behaviours where endpoint=?", (endpoint,)).fetchone()
        return Behaviour(**json.loads(row[0])) if row else Behaviour()

    def behave(self, endpoint: str, behaviour: Behaviour) -> None:
        """Set an endpoint's behaviour; its fault counts from here."""
        with self._lock:
            self._db.execute(
                "insert or replace into behaviours(endpoint, body, fired) values(?, ?, 0)",
                (endpoint, json.dumps(asdict(behaviour))),
            )

    def take_fault(self, endpoint: str, behaviour: Behaviour) -> FaultKind | None:
        """Return the fault of this request, and count it."""
        if behaviour.fault is None:
            return None
        with self._lock:
            changed = self._db.execute(
                "update behaviours set fired = fired + 1 where endpoint=? and (? is null or fired < ?)",
                (endpoint, behaviour.times, behaviour.times),
            ).rowcount
        return behaviour.fault if changed else None

    def request(self, endpoint: str, method: str, key: str, reference: str, arguments: str) -> int:
        """Write a request down as it comes in; return its number."""
        with self._lock:
            cursor = self._db.execute(
                "insert into requests(endpoint, method, key, reference, arguments, at, answer)"
                " values(?, ?, ?, ?, ?, ?, 'none')",
                (endpoint, method, key, reference, arguments, self.now()),
            )
            return int(cursor.lastrowid or 0)

    def answered(self, request: int, word: str) -> None:
        """Write down how a request was answered."""
        with self._lock:
            self._db.execute("update requests set answer=? where id=?", (word, request))

    def begin(self, endpoint: str, key: str, arguments: str, behaviour: Behaviour) -> Outcome | None:
        """Return the answer that a known key has already, or None: go on, the key is now in flight."""
        if not (key and behaviour.honour_keys):
            return None
        with self._freed:
            while (endpoint, key) in self._busy:
                if behaviour.in_flight == "refuse":
                    return Outcome(409, {"error": "in_flight", "message": "this key is being worked on"}, "in_flight")
                self._freed.wait()
            row = self._db.execute(
                "select arguments, status, result, first_at from keys where endpoint=? and key=?", (endpoint, key)
            ).fetchone()
            window = behaviour.key_window_s
            if row is None or (window is not None and self.now() >= row[3] + window):
                self._busy.add((endpoint, key))
                return None
            if row[0] == arguments or behaviour.on_changed_arguments == "first":
                return Outcome(row[1], json.loads(row[2]), "replayed", replayed=True)
            if behaviour.on_changed_arguments == "refuse":
                return Outcome(
                    409, {"error": "mismatch", "message": "this key was used with other arguments"}, "mismatch"
                )
            self._busy.add((endpoint, key))
            return None

    def end(self, endpoint: str, key: str) -> None:
        """The key is no longer in flight."""
        with self._freed:
            self._busy.discard((endpoint, key))
            self._freed.notify_all()

    def remember(self, endpoint: str, key: str, arguments: str, outcome: Outcome) -> None:
        """Remember a failed answer, where the provider caches failures."""
        with self._lock:
            self._db.execute(
                "insert or replace into keys values(?, ?, ?, ?, ?, ?)",
                (endpoint, key, arguments, outcome.status, json.dumps(outcome.body), self.now()),
            )

    def apply(
        self, endpoint: str, key: str, reference: str, arguments: str, behaviour: Behaviour, object_id: str | None
    ) -> Outcome:
        """Make the effect: one row, and the key with it, in one transaction."""
        with self._lock:
            self._db.execute("begin immediate")
            try:
                outcome = self._apply(endpoint, key, reference, arguments, behaviour, object_id)
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
            return outcome

    def _apply(
        self, endpoint: str, key: str, reference: str, arguments: str, behaviour: Behaviour, object_id: str | None
    ) -> Outcome:
        wanted = json.loads(arguments).get("id") if behaviour.client_ids and object_id is None else object_id
        if behaviour.client_ids and object_id is None:
            taken = self._db.execute(
                "select 1 from effects where endpoint=? and object_id=?", (endpoint, str(wanted))
            ).fetchone()
            if taken:
                return Outcome(409, {"error": "exists", "message": f"{wanted} exists already"}, "exists")
        now = self.now()
        number = self._db.execute("select coalesce(max(id), 0) + 1 from effects").fetchone()[0]
        name = str(wanted) if wanted is not None else f"{endpoint}-{number}"
        result = {"id": name, "endpoint": endpoint, "arguments": json.loads(arguments)}
        self._db.execute(
            "insert into effects values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (number, endpoint, name, key, reference, arguments, json.dumps(result), now, now + behaviour.lookup_lag_s),
        )
        if key and behaviour.honour_keys:
            self._db.execute(
                "insert or replace into keys values(?, ?, ?, 201, ?, ?)",
                (endpoint, key, arguments, json.dumps(result), now),
            )
        return Outcome(201, result, "applied")

    def find(self, endpoint: str, reference: str) -> list[dict[str, Any]]:
        """Return the visible objects that carry a reference, oldest first."""
        with self._lock:
            rows = self._db.execute(
                "select result from effects where endpoint=? and reference=? and visible_at <= ? order by id",
                (endpoint, reference, self.now()),
            ).fetchall()
        return [json.loads(row[0]) for row in rows]

    def get(self, endpoint: str, object_id: str) -> dict[str, Any] | None:
        """Return an object as it was last written, or None."""
        with self._lock:
            row = self._db.execute(
                "select result, reference from effects where endpoint=? and object_id=? order by id desc",
                (endpoint, object_id),
            ).fetchone()
        return {**json.loads(row[0]), "reference": row[1]} if row else None

    def totals(self) -> dict[str, int]:
        """Return how many effects and requests there were."""
        with self._lock:
            return {
                table: self._db.execute(f"select count(*) from {table}").fetchone()[0]  # noqa: S608 - two literals
                for table in ("effects", "requests")
            }

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
