"""The reference provider's ledger as a judge reads it: from its file, while the provider runs or after it died.

It must not write, and it asks the provider nothing: a judge does not take the word of the judged. `Book` writes it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_Row = TypeVar("_Row", bound="Effect | Request")
_POLL_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Something that really happened.

    Args:
        id: its number, from 1, in the order of events.
        endpoint: the operation.
        object_id: what was created or set.
        key: the idempotency key of the request; empty: it had none.
        reference: what lookups find it by; empty: it has none.
        arguments: the body of the request, without the key.
        result: what the request was (or would have been) answered.
        applied_at: seconds since 1970 on the provider's clock.
    """

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
    """Something that was asked, and how it was answered.

    Args:
        id: its number, from 1, in the order of arrival.
        endpoint: the operation.
        method: POST and PUT ask for an effect, GET looks one up.
        key: the idempotency key; empty: it had none.
        reference: the reference it carried, or looked for.
        arguments: the body, without the key; of a lookup by id, the id.
        at: seconds since 1970 on the provider's clock.
        answer: ``applied``, ``replayed``, an error code or the fault; of a lookup ``found``, ``absent`` or
            ``lookup`` and its knob; ``none`` while there is no answer, for good if the provider died over it.
    """

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
        path: the file given to the provider as ``--ledger``. Each method opens it anew, from any process or thread.

    Raises:
        sqlite3.Error: from every method, where the file is not there or is no ledger.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def effects(self, key: str | None = None, endpoint: str | None = None, *, after: int = 0) -> list[Effect]:
        """Return what really happened, oldest first.

        Args:
            key: only with this idempotency key.
            endpoint: only of this endpoint.
            after: only those with a higher number.
        """
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
            for row in self._rows("effects", columns, key, endpoint, after)
        ]

    def requests(self, key: str | None = None, endpoint: str | None = None, *, after: int = 0) -> list[Request]:
        """Return what was asked, oldest first. A working key hides a repeat from the effects, never from these.

        Args:
            key: only with this idempotency key.
            endpoint: only to this endpoint.
            after: only those with a higher number.
        """
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
            for row in self._rows("requests", columns, key, endpoint, after)
        ]

    def effects_by_key(self) -> dict[str, int]:
        """Return how often each key (or, without a key, each reference) had its effect; those with neither are ''."""
        return dict(Counter(effect.key or effect.reference for effect in self.effects()))

    def count(self) -> int:
        """Return the number of effects."""
        return len(self.effects())

    def newest(self) -> tuple[int, int]:
        """Return the numbers of the newest effect and the newest request: what comes later has higher ones."""
        with self._open() as connection:
            row = connection.execute(
                "select (select coalesce(max(id), 0) from effects), (select coalesce(max(id), 0) from requests)"
            ).fetchone()
        return int(row[0]), int(row[1])

    def wait_for_effects(
        self, count: int, *, key: str | None = None, endpoint: str | None = None, timeout_s: float = 10.0
    ) -> list[Effect]:
        """Wait until something has really happened, as a test does before it kills the agent.

        Args:
            count: how many effects at least.
            key: only with this idempotency key.
            endpoint: only of this endpoint.
            timeout_s: how long to wait, in real time.

        Raises:
            TimeoutError: there were fewer.
        """
        return _wait(lambda: self.effects(key, endpoint), count, "effects", timeout_s)

    def wait_for_requests(
        self, count: int, *, key: str | None = None, endpoint: str | None = None, timeout_s: float = 10.0
    ) -> list[Request]:
        """Wait until something was asked, answered or not.

        Args:
            count: how many requests at least, lookups included.
            key: only with this idempotency key.
            endpoint: only to this endpoint.
            timeout_s: how long to wait, in real time.

        Raises:
            TimeoutError: there were fewer.
        """
        return _wait(lambda: self.requests(key, endpoint), count, "requests", timeout_s)

    def _rows(self, table: str, columns: str, key: str | None, endpoint: str | None, after: int = 0) -> list[Any]:
        with self._open() as connection:
            return connection.execute(
                f"select {columns} from {table}"  # noqa: S608 - both are written in this file
                " where id > ? and (? is null or key = ?) and (? is null or endpoint = ?) order by id",
                (after, key, key, endpoint, endpoint),
            ).fetchall()

    def _open(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=10))


def _wait(read: Callable[[], list[_Row]], count: int, what: str, timeout_s: float) -> list[_Row]:
    give_up = time.monotonic() + timeout_s
    while len(found := read()) < count:
        if time.monotonic() >= give_up:
            raise TimeoutError(f"{len(found)} {what} after {timeout_s:g} s, not {count}")
        time.sleep(_POLL_S)
    return found
