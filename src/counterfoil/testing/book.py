"""The reference provider's own side of its ledger: what arrived, what took effect, which keys it remembers.

It must not know HTTP, and it does not fail on purpose: what goes wrong is done by the provider. An effect and what is
remembered of its key are one transaction, so a SIGKILL of the provider leaves both or neither; a power failure may take
the last ones (WAL with synchronous=normal).
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from counterfoil.testing.behaviour import Behaviour, FaultKind

_APPLICATION_ID = 0x43464C47  # "CFLG", so that no other database is taken for a ledger and written to.

_SCHEMA = f"""
begin immediate;
create table effects(
    id integer primary key, endpoint text not null, object_id text not null, key text not null, reference text not null,
    arguments text not null, result text not null, applied_at real not null, visible_at real not null);
create index effects_by_object on effects(endpoint, object_id);
create index effects_by_reference on effects(endpoint, reference);
create table requests(
    id integer primary key, endpoint text not null, method text not null, key text not null, reference text not null,
    arguments text not null, at real not null, answer text not null);
create table keys(
    endpoint text not null, key text not null, arguments text not null, status integer not null, result text not null,
    first_at real not null, primary key(endpoint, key));
create table behaviours(endpoint text primary key, body text not null, fired integer not null default 0);
create table pending(id integer primary key, write text not null, behaviour text not null, due_at real not null);
create table clock(offset_s real not null);
insert into clock values(0);
pragma application_id = {_APPLICATION_ID};
commit;
"""


@dataclass(frozen=True, kw_only=True)
class Write:
    """A request for an effect, once it has been read.

    Args:
        method: POST creates, PUT sets.
        endpoint: the operation.
        object_id: of a PUT, from its path.
        key: the idempotency key; empty: none.
        reference: what lookups find the effect by; empty: nothing.
        arguments: the body without the key, as JSON with sorted names, so that equal arguments are equal texts.
        only_new: of a PUT, it asked that nothing be there yet.
    """

    method: Literal["POST", "PUT"]
    endpoint: str
    object_id: str | None
    key: str
    reference: str
    arguments: str
    only_new: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """Where its key means something."""
        return self.endpoint, self.key

    def is_keyed(self, behaviour: Behaviour) -> bool:
        """Return whether its key makes a repeat harmless. A PUT is repeatable by itself, and performed each time."""
        return self.method == "POST" and bool(self.key) and behaviour.honour_keys


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A write that was accepted and is applied later: under which number, in what manner, and when."""

    id: int
    write: Write
    behaviour: Behaviour
    due_at: float


@dataclass(frozen=True)
class Outcome:
    """How a write ended: status and body of the answer, and the word for the ledger."""

    status: int
    body: dict[str, Any]
    word: str
    replayed: bool = False


class BookClosed(Exception):
    """The provider stops; nothing more is written, and nobody waits any longer."""


class Book:
    """The provider's side of the ledger. An effect and what is remembered of its key are one transaction.

    Args:
        path: the file; made if it is not there.

    Raises:
        OSError: the file cannot be opened, or it is something else than a ledger and was left as it is.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self._db = _opened(path)
        except sqlite3.Error as error:
            raise OSError(f"{path} cannot be used as a ledger: {error}") from error
        self._offset_s: float = self._db.execute("select offset_s from clock").fetchone()[0]
        self._busy: set[tuple[str, str]] = set()
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # A key was freed, the clock was moved, the book was closed.

    def now(self) -> float:
        """Return the provider's time, in seconds since 1970."""
        return time.time() + self._offset_s

    def advance(self, seconds: float) -> None:
        """Move the provider's clock on, for good, and wake who waits by it."""
        with self._transaction() as db:
            db.execute("update clock set offset_s = offset_s + ?", (seconds,))
            [offset_s] = db.execute("select offset_s from clock").fetchone()
        with self._changed:
            self._offset_s = offset_s
            self._changed.notify_all()

    def wait_until(self, at: float) -> None:
        """Wait by the provider's clock. Raises `BookClosed` when the provider stops first."""
        with self._changed:
            while not self._closed and (left_s := at - self.now()) > 0:
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            self._check_open()

    def behaviour(self, endpoint: str) -> Behaviour:
        """Return an endpoint's behaviour."""
        with self._transaction() as db:
            return _behaviour(db, endpoint)[0]

    def behave(self, endpoint: str, behaviour: Behaviour) -> None:
        """Set an endpoint's behaviour; its fault counts from here."""
        with self._transaction() as db:
            db.execute(
                "insert or replace into behaviours(endpoint, body, fired) values(?, ?, 0)",
                (endpoint, json.dumps(asdict(behaviour))),
            )

    def receive(self, write: Write) -> tuple[int, Behaviour, FaultKind | None]:
        """Write a request down as it comes in; return its number, how to treat it, and its fault, which counts now."""
        with self._transaction() as db:
            number = self._note(db, write.endpoint, write.method, write.key, write.reference, write.arguments)
            behaviour, fired = _behaviour(db, write.endpoint)
            if behaviour.fault is None or (behaviour.times is not None and fired >= behaviour.times):
                return number, behaviour, None
            db.execute("update behaviours set fired = fired + 1 where endpoint = ?", (write.endpoint,))
            return number, behaviour, behaviour.fault

    def receive_lookup(self, endpoint: str, reference: str, arguments: dict[str, str]) -> tuple[int, Behaviour]:
        """Write a lookup down as it comes in; return its number, and how to treat it."""
        with self._transaction() as db:
            number = self._note(db, endpoint, "GET", "", reference, json.dumps(arguments))
            return number, _behaviour(db, endpoint)[0]

    def refused(self, method: str, endpoint: str, word: str) -> None:
        """Write down a request that could not be read."""
        with self._transaction() as db:
            number = self._note(db, endpoint, method, "", "", "{}")
            db.execute("update requests set answer=? where id=?", (word, number))

    def answered(self, request: int, word: str) -> None:
        """Write down how a request was answered."""
        with self._transaction() as db:
            db.execute("update requests set answer=? where id=?", (word, request))

    def begin(self, write: Write, behaviour: Behaviour) -> Outcome | None:
        """Return the answer that a known key has already, or None: go on, the key is now in flight until `end`."""
        if not write.is_keyed(behaviour):
            return None
        with self._changed:
            while write.place in self._busy:
                if behaviour.in_flight == "refuse":
                    return Outcome(409, {"error": "in_flight", "message": "this key is being worked on"}, "in_flight")
                self._changed.wait()
                self._check_open()
            known = self._known(write, behaviour)
            if known is None:
                self._busy.add(write.place)
            return known

    def end(self, write: Write, behaviour: Behaviour) -> None:
        """The key is no longer in flight. Only for whom `begin` gave the key to."""
        if write.is_keyed(behaviour):
            with self._changed:
                self._busy.discard(write.place)
                self._changed.notify_all()

    def remember(self, write: Write, behaviour: Behaviour, outcome: Outcome) -> None:
        """Remember a failed answer, where the provider caches failures."""
        with self._transaction() as db:
            self._remember(db, write, behaviour, outcome)

    def accept(self, write: Write, behaviour: Behaviour, due_at: float) -> Pending:
        """Take a write that is applied later, in this life of the provider or the next."""
        with self._transaction() as db:
            number = db.execute(
                "insert into pending(write, behaviour, due_at) values(?, ?, ?)",
                (json.dumps(asdict(write)), json.dumps(asdict(behaviour)), due_at),
            ).lastrowid
        assert number is not None
        return Pending(id=number, write=write, behaviour=behaviour, due_at=due_at)

    def take_up(self) -> list[Pending]:
        """Return what an earlier life accepted and did not apply; the keys of it are in flight again."""
        with self._transaction() as db:
            rows = db.execute("select id, write, behaviour, due_at from pending order by due_at, id").fetchall()
            left = [
                Pending(id=row[0], write=Write(**json.loads(row[1])), behaviour=_read(row[2]), due_at=row[3])
                for row in rows
            ]
            self._busy |= {late.write.place for late in left if late.write.is_keyed(late.behaviour)}
        return left

    def apply(
        self, write: Write, behaviour: Behaviour, *, failure: Outcome | None = None, pending: int | None = None
    ) -> Outcome:
        """Make the effect: one row, and the key with it, in one transaction.

        Args:
            write: what to do.
            behaviour: of the endpoint when the write came in.
            failure: what the key answers from now on instead of the result.
            pending: the number under which the write was accepted.
        """
        with self._transaction() as db:
            if pending is not None:
                db.execute("delete from pending where id = ?", (pending,))
            chosen = write.object_id
            if write.method == "POST" and behaviour.client_ids:
                chosen = json.loads(write.arguments).get("id")
                if chosen is not None and _exists(db, write.endpoint, chosen):
                    return Outcome(409, {"error": "exists", "message": f"{chosen} exists already"}, "exists")
            if write.only_new and chosen is not None and _exists(db, write.endpoint, chosen):
                return Outcome(412, {"error": "exists", "message": f"{chosen} exists already"}, "exists")
            outcome = self._take_effect(db, write, behaviour, chosen)
            self._remember(db, write, behaviour, failure or outcome)
            return outcome

    def find(self, endpoint: str, reference: str) -> list[dict[str, Any]]:
        """Return the visible objects that carry a reference, as it left them, oldest first."""
        with self._transaction() as db:
            rows = db.execute(
                "select object_id, result from effects where endpoint=? and reference=? and visible_at <= ?"
                " order by id",
                (endpoint, reference, self.now()),
            ).fetchall()
        latest: dict[str, str] = dict(rows)  # An object that was set several times is one object still.
        return [{**json.loads(result), "reference": reference} for result in latest.values()]

    def get(self, endpoint: str, object_id: str) -> dict[str, Any] | None:
        """Return a visible object as it was last written, or None."""
        with self._transaction() as db:
            row = db.execute(
                "select result, reference from effects where endpoint=? and object_id=? and visible_at <= ?"
                " order by id desc limit 1",
                (endpoint, object_id, self.now()),
            ).fetchone()
        return {**json.loads(row[0]), "reference": row[1]} if row else None

    def totals(self) -> dict[str, int]:
        """Return how many effects and requests there were."""
        with self._transaction() as db:
            return {
                table: db.execute(f"select count(*) from {table}").fetchone()[0]  # noqa: S608 - two literals
                for table in ("effects", "requests")
            }

    def close(self) -> None:
        """Close the file; who still waits or writes meets `BookClosed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._db.close()

    def _check_open(self) -> None:
        if self._closed:
            raise BookClosed

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._check_open()
            self._db.execute("begin immediate")
            try:
                yield self._db
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")

    def _note(
        self, db: sqlite3.Connection, endpoint: str, method: str, key: str, reference: str, arguments: str
    ) -> int:
        number = db.execute(
            "insert into requests(endpoint, method, key, reference, arguments, at, answer)"
            " values(?, ?, ?, ?, ?, ?, 'none')",
            (endpoint, method, key, reference, arguments, self.now()),
        ).lastrowid
        assert number is not None
        return number

    def _known(self, write: Write, behaviour: Behaviour) -> Outcome | None:
        self._check_open()
        row = self._db.execute(
            "select arguments, status, result, first_at from keys where endpoint=? and key=?",
            (write.endpoint, write.key),
        ).fetchone()
        window_s = behaviour.key_window_s
        if row is None or (window_s is not None and self.now() >= row[3] + window_s):
            return None
        if row[0] == write.arguments or behaviour.on_changed_arguments == "first":
            return Outcome(row[1], json.loads(row[2]), "replayed", replayed=True)
        if behaviour.on_changed_arguments == "refuse":
            return Outcome(409, {"error": "mismatch", "message": "this key was used with other arguments"}, "mismatch")
        return None

    def _remember(self, db: sqlite3.Connection, write: Write, behaviour: Behaviour, outcome: Outcome) -> None:
        if write.is_keyed(behaviour):
            db.execute(
                "insert or replace into keys values(?, ?, ?, ?, ?, ?)",
                (write.endpoint, write.key, write.arguments, outcome.status, json.dumps(outcome.body), self.now()),
            )

    def _take_effect(self, db: sqlite3.Connection, write: Write, behaviour: Behaviour, chosen: str | None) -> Outcome:
        [number] = db.execute("select coalesce(max(id), 0) + 1 from effects").fetchone()
        object_id = chosen or _free_id(db, write.endpoint, number)
        result = {"id": object_id, "endpoint": write.endpoint, "arguments": json.loads(write.arguments)}
        place = (number, write.endpoint, object_id, write.key, write.reference)
        now = self.now()
        db.execute(
            "insert into effects values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*place, write.arguments, json.dumps(result), now, now + behaviour.lookup_lag_s),
        )
        return Outcome(201, result, "applied")


def _opened(path: str | Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
    try:
        _prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection) -> None:
    [application_id] = db.execute("pragma application_id").fetchone()
    [tables] = db.execute("select count(*) from sqlite_schema").fetchone()
    if tables and application_id != _APPLICATION_ID:
        raise sqlite3.DatabaseError("it is another database")
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=normal")
    if not tables:
        db.executescript(_SCHEMA)


def _read(body: str) -> Behaviour:
    return Behaviour.from_json(json.loads(body))


def _behaviour(db: sqlite3.Connection, endpoint: str) -> tuple[Behaviour, int]:
    """Return an endpoint's behaviour, and how often its fault has fired."""
    row = db.execute("select body, fired from behaviours where endpoint=?", (endpoint,)).fetchone()
    return (_read(row[0]), row[1]) if row else (Behaviour(), 0)


def _exists(db: sqlite3.Connection, endpoint: str, object_id: str) -> bool:
    row = db.execute("select 1 from effects where endpoint=? and object_id=?", (endpoint, object_id)).fetchone()
    return row is not None


def _free_id(db: sqlite3.Connection, endpoint: str, number: int) -> str:
    """Return an id that counts, so that a demo prints the same twice, and that steps over ids which callers chose."""
    while _exists(db, endpoint, f"{endpoint}-{number}"):
        number += 1
    return f"{endpoint}-{number}"
