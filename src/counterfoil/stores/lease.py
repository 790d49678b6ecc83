"""Leases of worker incarnations: taken with the first claim, renewed by a thread of their own, lost for good when late.

It must not decide who may take a run: it says what is known of an incarnation.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

from counterfoil.core.codec import from_micros
from counterfoil.core.events import SenderProof
from counterfoil.errors import CounterfoilError, StoreUnavailable
from counterfoil.stores import owner
from counterfoil.stores.clock import Clock, host, pid_namespace
from counterfoil.stores.commits import Commits
from counterfoil.stores.connection import close, connect, roll_back
from counterfoil.stores.thread import OwnedThread

_MICROSECOND = timedelta(microseconds=1)


class Incarnation:
    """One lease: `counterfoil.stores.protocol.Lease` as SQLite keeps it.

    It is bound to its incarnation. Whoever checks before a dispatch keeps the one under which the run was claimed: the
    store's next one says nothing about it.

    Attributes:
        file: the owner file, while it is held.
        outlived: something that was dispatched may go on sending after its run was let go; closing the store does then
            not say that it has ended, and only the end of the process proves it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pid = os.getpid()
        self._until_us = 0
        self._id = secrets.token_hex(16)
        self.file: owner.OwnerFile | None = None
        self.outlived = False

    @property
    def incarnation(self) -> str:
        """Random, never reused."""
        return self._id

    @property
    def owner_fd(self) -> int | None:
        """Descriptor of the owner file, for children that must hold the lock too; None before the lease is taken."""
        return self.file.fd if self.file is not None and self.file.fd >= 0 else None

    def alive(self) -> bool:
        """Whether this worker may still dispatch, by its own clock. Never in a forked child."""
        return self._clock.boottime_us() < self._until_us and os.getpid() == self._pid

    def extend(self, until_us: int) -> None:
        """Note that the lease was taken or renewed."""
        self._until_us = until_us

    def lose(self) -> None:
        """Note that it is over."""
        self._until_us = 0


class Sight(Struct, frozen=True, kw_only=True):
    """What is known of an incarnation.

    Args:
        proof: strongest first, as in `SenderProof`.
        detail: host and pid, for people.
        over: its lease is over, so its runs may be taken, whatever the proof.
        recorded: the proof stands in the store already.
        free_at: when the lease ends if it is not renewed, in store time.
    """

    proof: SenderProof
    detail: str
    over: bool
    recorded: bool
    free_at: datetime | None = None


def sight(row: tuple[Any, ...] | None, clock: Clock, database: Path) -> Sight:
    """Judge a lease row, and look at the owner file it names beside the database.

    Another boot id proves nothing by itself, a container may have its own: such a lease is over, and no more is known.
    Where there are no boot ids, a lease that has longer to run than it was made for is from before a restart.
    """
    if row is None:
        return Sight(proof=SenderProof.EXPIRED, detail="its lease is not known any more", over=True, recorded=True)
    _, boot_id, length_us, expires_us, ended, its_host, pid, _, file, device, inode, token = row
    detail = f"pid {pid} on {its_host}"
    if ended:
        return Sight(proof=SenderProof(ended), detail=detail, over=True, recorded=True)
    same_boot = boot_id == clock.boot_id()
    left_us = expires_us - clock.boottime_us()
    over = not same_boot or not 0 < left_us <= length_us
    free_at = None if over else from_micros(clock.now_us() + left_us)
    seen = "unclear"
    if same_boot and boot_id:
        path = str(database.parent / file) if file else ""
        seen = owner.probe(owner.OwnerFile(path=path, device=device, inode=inode, token=token))
    if seen == "free":
        return Sight(proof=SenderProof.DEAD, detail=detail, over=True, recorded=False)
    proof = SenderProof.ALIVE if seen == "held" or not over else SenderProof.EXPIRED
    return Sight(proof=proof, detail=detail, over=over, recorded=False, free_at=free_at)


class LeaseKeeper:
    """Holds this store's incarnation, renews its lease, and takes a new one once it is lost."""

    def __init__(
        self, path: Path, clock: Clock, length: timedelta, commits: Commits, statements: Mapping[str, str]
    ) -> None:
        self._path = path
        self._clock = clock
        self._length_us = length // _MICROSECOND
        self._commits = commits
        self._sql = statements
        self._stopping = threading.Event()
        self._thread: OwnedThread | None = None
        self.current = Incarnation(clock)
        self.past: list[Incarnation] = []

    def take(self, cursor: sqlite3.Cursor) -> bool:
        """Take a lease if there is none: a new owner file, a new row, durable. Return whether one was taken."""
        if self.current.alive():
            return False
        lost = self.current if self.current.file is not None else None
        fresh = self.current if lost is None else Incarnation(self._clock)
        before_us = self._clock.boottime_us()
        folder = Path(f"{self._path}.owners")
        try:
            fresh.file = owner.hold(folder, fresh.incarnation)
        except OSError as error:
            raise StoreUnavailable(f"{folder}: no owner file can be made ({error.strerror})") from error
        try:
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute(self._sql["insert_lease"], self._row(fresh, fresh.file))
            cursor.execute("COMMIT")
        except BaseException:
            owner.let_go(fresh.file, remove=True)
            fresh.file = None
            if lost is None:
                self.current = Incarnation(self._clock)  # The row may be there all the same: no name is used again.
            raise
        fresh.extend(before_us + self._length_us)
        if lost is not None:
            self.past.append(lost)
        self.current = fresh
        if self._thread is None:
            self._thread = OwnedThread("counterfoil-lease", self._keep)
        return True

    def _row(self, fresh: Incarnation, file: owner.OwnerFile) -> tuple[Any, ...]:
        return (
            fresh.incarnation,
            self._clock.boot_id(),
            self._length_us,
            self._length_us,
            host(),
            os.getpid(),
            pid_namespace(),
            # Without the folder: a container may see it under another name than the rest of the machine.
            str(Path(file.path).relative_to(self._path.parent)) if file.path else "",
            file.device,
            file.inode,
            file.token,
            self._clock.now_us(),
        )

    def stop(self) -> None:
        """Renew no more; the local lease is over at once."""
        self._stopping.set()
        self.current.lose()

    async def join(self) -> None:
        """Stop, and return when the renewal's thread has ended."""
        self.stop()
        if self._thread is not None:
            await self._thread.join()

    def held(self) -> list[Incarnation]:
        """Return all incarnations this store had whose owner files it still holds."""
        return [one for one in (*self.past, self.current) if one.file is not None]

    def let_go(self, *, remove: bool, only: set[str] | None = None) -> None:
        """Close the owner files of some incarnations, or all, and remove them if they are no longer needed."""
        for one in self.held():
            if one.file is not None and (only is None or one.incarnation in only):
                owner.let_go(one.file, remove=remove)
                one.file = None

    def _keep(self) -> None:
        connection: sqlite3.Connection | None = None  # In this frame only, as the writer's is.
        third_s = self._length_us / 3e6
        wait_s = third_s
        while not self._stopping.wait(wait_s):
            lease = self.current
            try:
                if connection is None:
                    connection = connect(self._path, self._clock, timedelta(seconds=min(third_s, 1.0)))
                self._renew(connection, lease)
                wait_s = third_s
            except (sqlite3.Error, OSError, CounterfoilError):
                wait_s = third_s / 10  # The disk is full, or the lock was never free: until the lease is over, again.
                if connection is not None:
                    close(connection)
                connection = None
        if connection is not None:
            close(connection)

    def _renew(self, connection: sqlite3.Connection, lease: Incarnation) -> None:
        if not lease.alive():
            return
        self._commits.pause = turn = threading.Event()
        try:
            before_us = self._clock.boottime_us()
            connection.execute("BEGIN IMMEDIATE")
            renewed = connection.execute(
                self._sql["renew_lease"], (self._length_us, lease.incarnation, self._clock.boot_id())
            ).rowcount
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                roll_back(connection)
            raise
        finally:
            self._commits.pause = None
            turn.set()
        if renewed == 1:
            lease.extend(before_us + self._length_us)
        else:
            lease.lose()
