"""Group commit: one thread owns the connection, takes all that is queued, and commits it at once.

It must not know what it commits: work is a function over a cursor. No answer leaves before its commit is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from counterfoil.errors import StoreUnavailable
from counterfoil.stores.clock import Clock
from counterfoil.stores.connection import busy, close, connect, roll_back, translate
from counterfoil.stores.thread import OwnedThread

READ: Final = 0
"""Reads from one snapshot."""
WRITE: Final = 1
"""Shares a transaction with the other writes that are queued."""
ALONE: Final = 2
"""Begins and commits by itself: for rare work that must know that it is durable before the next begins."""

_BEGIN: Final = {READ: "BEGIN", WRITE: "BEGIN IMMEDIATE"}
_MOST: Final = 256  # Work in one batch, so that the first of it does not wait for ever.

# (mode, function over a cursor, its other arguments, loop to answer on, future). No loop: nobody waits.
Work: TypeAlias = tuple[int, Callable[..., Any], tuple[Any, ...], Any, Any]


class Commits:
    """The database thread of one open store.

    Attributes:
        count: group commits of writes.
        pause: while it is set the thread waits before its next batch, so that the lease's renewal finds the lock free.
    """

    def __init__(self, path: Path, clock: Clock, busy_timeout: timedelta) -> None:
        self._path = path
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._closed = False
        self.count = 0
        self.pause: threading.Event | None = None
        self._thread = OwnedThread("counterfoil-store", self._run)

    async def call(self, mode: int, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on the database thread and return its answer once it is durable."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._queue.put((mode, function, args, loop, future))
        if self._closed:
            self._refuse_the_rest()
        return await future

    def send(self, mode: int, function: Callable[..., Any], *args: Any) -> None:
        """Run a function after all that is queued; nobody waits for its answer."""
        self._queue.put((mode, function, args, None, None))

    def stop(self) -> None:
        """Let the thread finish what is queued, close the connection and end. It may be asked for twice."""
        self._queue.put(None)

    async def join(self) -> None:
        """Stop the thread and return when it has ended."""
        self.stop()
        await self._thread.join()

    def _run(self) -> None:
        # The connection lives in this frame only: no other thread, and no forked child, can touch it.
        connection: sqlite3.Connection | None = None
        going_on = True
        while going_on:
            batch, going_on = self._take()
            if (pause := self.pause) is not None:
                pause.wait(1.0)
            if batch:
                connection = self._perform(connection, batch)
        if connection is not None:
            close(connection)
        self._closed = True
        self._refuse_the_rest()

    def _take(self) -> tuple[list[Work], bool]:
        """Wait for work and take all there is; False: this is the last of it."""
        batch: list[Work] = []
        work = self._queue.get()
        get = self._queue.get_nowait
        try:
            while work is not None:
                batch.append(work)
                if len(batch) == _MOST:
                    return batch, True
                work = get()
        except Empty:
            return batch, True
        return batch, False

    def _perform(self, connection: sqlite3.Connection | None, batch: list[Work]) -> sqlite3.Connection | None:
        """Do all of a batch and answer; return the connection to go on with, None if it must be opened anew."""
        for group in _groups(batch):
            try:
                if connection is None:
                    connection = connect(self._path, self._clock, self._busy_timeout)
                results = self._transact(connection, group)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
                connection = _recover(connection, error)
                if len(group) == 1 or _busy(error):
                    self._fail(group, error)
                else:  # One of them is poisoned, and the others must not fail with it.
                    for work in group:
                        connection = self._perform(connection, [work])
            else:
                _answer(group, results)
        return connection

    def _transact(self, connection: sqlite3.Connection, group: list[Work]) -> list[Any]:
        mode = group[0][0]
        cursor = connection.cursor()
        if mode == ALONE:
            return [work[1](cursor, *work[2]) for work in group]
        cursor.execute(_BEGIN[mode])
        results = [work[1](cursor, *work[2]) for work in group]
        cursor.execute("COMMIT")
        if mode == WRITE:
            self.count += 1
        return results

    def _fail(self, group: list[Work], error: Exception) -> None:
        for _, _, _, loop, future in group:
            if loop is None:
                continue
            shown: Exception = error
            if isinstance(error, sqlite3.Error):
                shown = translate(error, self._path)
                shown.__cause__ = error
            _send(loop, [(future, None, shown)])

    def _refuse_the_rest(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                work = self._queue.get_nowait()
                if work is not None:
                    closed = StoreUnavailable(f"{self._path}: the store is closed", remedy="Open it again.")
                    self._fail([work], closed)


def _groups(batch: list[Work]) -> list[list[Work]]:
    """Sort a batch into transactions: all writes, all reads (so that they see the writes), the rest one by one."""
    if len(batch) == 1:
        return [batch]
    writes = [work for work in batch if work[0] == WRITE]
    reads = [work for work in batch if work[0] == READ]
    return [group for group in (writes, reads) if group] + [[work] for work in batch if work[0] == ALONE]


def _recover(connection: sqlite3.Connection | None, error: Exception) -> sqlite3.Connection | None:
    """Give the transaction up. After an I/O error the handle is never used again."""
    if connection is None:
        return None
    try:
        roll_back(connection)
    except sqlite3.Error:
        close(connection)
        return None
    if isinstance(error, sqlite3.Error) and not busy(error):
        close(connection)
        return None
    return connection


def _busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and busy(error)


def _answer(group: list[Work], results: list[Any]) -> None:
    """Wake each event loop once, with all that is for it."""
    if len(group) == 1:
        _, _, _, loop, future = group[0]
        if loop is not None:
            _send(loop, [(future, results[0], None)])
        return
    loops: dict[Any, list[tuple[Any, Any, Exception | None]]] = {}
    for (_, _, _, loop, future), result in zip(group, results, strict=True):
        if loop is not None:
            loops.setdefault(loop, []).append((future, result, None))
    for loop, answers in loops.items():
        _send(loop, answers)


def _send(loop: Any, answers: list[tuple[Any, Any, Exception | None]]) -> None:
    try:
        loop.call_soon_threadsafe(_deliver, answers)
    except RuntimeError:
        return  # The loop is closed, so nobody waits any more.


def _deliver(answers: list[tuple[Any, Any, Exception | None]]) -> None:
    for future, result, error in answers:
        if future.done():
            continue  # Its waiter was cancelled.
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
