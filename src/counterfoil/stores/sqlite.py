"""The default store: one SQLite file, its write-ahead log, and a folder of owner files beside it. No server.

It must not decide anything about a run: it compares numbers and writes bytes.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from counterfoil.core.codec import from_micros, to_micros
from counterfoil.core.events import Recorded, SenderProof, Status
from counterfoil.errors import JournalDamaged, LeaseLost, StoreUnavailable, UnsafeStore
from counterfoil.stores import inspection, migrate, retention, sql
from counterfoil.stores.clock import Clock, SystemClock
from counterfoil.stores.commits import ALONE, READ, WRITE, Commits
from counterfoil.stores.connection import translate
from counterfoil.stores.filesystem import MOUNTS, refuse_remote
from counterfoil.stores.lease import Incarnation, LeaseKeeper, Sight
from counterfoil.stores.protocol import (
    Appended,
    Claimed,
    Damage,
    Entry,
    Head,
    HeadChange,
    Mail,
    Observation,
    Owned,
    Refused,
    StoreInfo,
    Tombstone,
)
from counterfoil.stores.tables import Tables

_MICROSECOND = timedelta(microseconds=1)


class SqliteStore:
    """A store in one file. Safe for several threads, event loops and processes of one host; not for a forked child.

    Args:
        path: of the file; made if it is not there.
        lease: how long this worker may be silent before its runs may be taken.
        namespace: under which keys are minted; random when the store is made, and kept in it.
        clock: for tests.
        busy_timeout: how long a write waits for another process before it is `StoreBusy`.
        mounts: the kernel's list of mounts; for tests.

    Raises:
        UnsafeStore, FormatTooNew, JournalDamaged, StoreUnavailable: it cannot be opened, and nothing was written.
    """

    statements: ClassVar[Mapping[str, str]] = sql.statements("sqlite")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease: timedelta = timedelta(seconds=30),
        namespace: bytes | str | None = None,
        clock: Clock | None = None,
        busy_timeout: timedelta = timedelta(seconds=5),
        mounts: Path = MOUNTS,
    ) -> None:
        self.path = _resolved(path)
        self._clock = clock if clock is not None else SystemClock()
        self._boot_id = self._clock.boot_id()
        self._mounts = mounts
        self._pid = os.getpid()
        self._closed = False
        refuse_remote(self.path, mounts)
        self._namespace = self._prepare(namespace, busy_timeout)
        self._tables = Tables(self.path, self._clock, self.statements)
        self._commits = Commits(self.path, self._clock, busy_timeout)
        self._keeper = LeaseKeeper(self.path, self._clock, lease, self._commits, self.statements)
        weakref.finalize(self, _abandon, self._pid, self._commits, self._keeper)

    def _prepare(self, namespace: bytes | str | None, busy_timeout: timedelta) -> bytes:
        given = namespace.encode() if isinstance(namespace, str) else namespace
        if given is not None and not given:
            raise UnsafeStore("an empty namespace protects nothing", remedy="Leave it out, or name one.")
        if not self.path.parent.is_dir():
            raise StoreUnavailable(f"{self.path.parent} is no folder", remedy="Make the folder, or check --store.")
        try:
            return migrate.prepare(self.path, self._clock, busy_timeout, given)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    @property
    def namespace(self) -> bytes:
        """The secret under which keys are minted."""
        return self._namespace

    @property
    def lease(self) -> Incarnation:
        """This incarnation's lease, taken with the first claim. Keep the one under which a run was claimed."""
        return self._keeper.current

    @property
    def commits(self) -> int:
        """Group commits of writes so far."""
        return self._commits.count

    def now(self) -> datetime:
        """Return store time, in UTC."""
        return from_micros(self._clock.now_us())

    async def start(self, head: Head, first: Entry) -> Head | Tombstone:
        """Write a run's head and first event; where the id is known, write nothing and return what is there."""
        found: Head | Tombstone = await self._call(WRITE, self._tables.start, head, first)
        return found

    async def head(self, run_id: str) -> Head | Tombstone | None:
        """Return a run's head, or what pruning left of it, or None."""
        if not _is_text(run_id):
            return None
        found: Head | Tombstone | None = await self._call(READ, self._tables.head, run_id)
        return found

    async def events(self, run_id: str, after: int = 0) -> list[Recorded]:
        """Return the events after a position, checked against their hash chain and the head.

        Raises:
            NoSuchRun: there is no such run.
            JournalDamaged: naming the first event that is missing, changed or torn.
        """
        found: list[Recorded] = await self._call(READ, self._tables.events, run_id, after)
        return found

    async def append(
        self, run_id: str, *, fence: int, at: int, mail: int, entries: Sequence[Entry], head: HeadChange
    ) -> Appended | Refused:
        """Write events after position ``at``, if fence, lease, position and mailbox mark hold; else nothing."""
        position = at
        for entry in entries:
            position += 1
            if entry.position != position:
                raise ValueError(f"run {run_id}: event {entry.position} does not follow event {position - 1}")
        if position == at:
            raise ValueError(f"run {run_id}: there is nothing to append")
        due_us = None if head.due is None else to_micros(head.due)
        last = entries[-1]
        me = self._keeper.current.incarnation
        change = (position, last.link, head.status.value, due_us, int(head.incident), last.at_us)
        check = (run_id, fence, at, mail, me, me, self._boot_id)
        written: Appended | Refused = await self._call(WRITE, self._tables.append, change + check, entries)
        return written

    async def claim(self, run_id: str) -> Claimed | Owned | None:
        """Take the run, if nobody holds it or its holder's lease is over or its holder is dead; None: no such run.

        A lost lease is replaced first, as by `renew`.
        """
        await self.renew()
        lease = self._keeper.current
        try:
            return await self._claim(run_id, lease.incarnation)
        except LeaseLost:  # It was ended in the store (a restore), or just now.
            lease.lose()
        await self.renew()
        return await self._claim(run_id, self._keeper.current.incarnation)

    async def _claim(self, run_id: str, me: str) -> Claimed | Owned | None:
        taken: list[Claimed] = []
        try:
            claimed: Claimed | Owned | None = await self._call(WRITE, self._tables.claim, run_id, me, taken)
        except BaseException:
            # Nobody learns that the run was taken (cancelled, or a lost acknowledgement), so it is given up again.
            self._commits.send(WRITE, self._tables.give_back, me, taken)
            raise
        return claimed

    async def renew(self) -> bool:
        """Take a new incarnation after the lease was lost, or the first; return whether one was needed."""
        if self._keeper.current.alive():
            return False
        taken: bool = await self._call(ALONE, self._keeper.take)
        return taken

    async def release(self, run_id: str, *, fence: int) -> None:
        """Give the run up, if it is still ours under this fence."""
        me = self._keeper.current.incarnation
        await self._call(WRITE, self._tables.release, run_id, me, fence)

    async def observe(self, incarnation: str) -> Observation:
        """Look whether an incarnation still lives: `released`, `dead`, `alive` or `expired`, never guessed from a pid.

        A death is recorded, so that later observers agree even when the owner file is gone.
        """
        if any(one.incarnation == incarnation for one in self._keeper.held()):
            return Observation(proof=SenderProof.ALIVE, detail=f"pid {self._pid}, this process")
        seen: Sight = await self._call(READ, self._tables.sight, incarnation)
        if seen.proof is SenderProof.DEAD and not seen.recorded:
            await self._call(WRITE, self._tables.record_death, incarnation, seen)
        return Observation(proof=seen.proof, detail=seen.detail)

    async def post(self, run_id: str, item_id: str, body: bytes) -> int:
        """Put an item into a run's mailbox, grow its mark and wake it, in one transaction; return the mark. Unfenced.

        Raises:
            NoSuchRun: there is no such run.
        """
        mark: int = await self._call(WRITE, self._tables.post, run_id, item_id, body)
        return mark

    async def mail(self, run_id: str, after: int) -> list[Mail]:
        """Return the items after a mark, oldest first."""
        found: list[Mail] = await self._call(READ, self._tables.mail, run_id, after)
        return found

    async def find(self, *, status: Sequence[Status] = (), flow: str | None = None, limit: int = 1000) -> list[Head]:
        """Return heads, newest first."""
        found: list[Head] = await self._call(READ, self._tables.find, tuple(status), flow, limit)
        return found

    async def prune(
        self, *, older_than: timedelta, keep_keys: bool = True, forget_after: timedelta | None = None
    ) -> int:
        """Turn ended runs without incident, open obligation or unread mail into tombstones; return how many.

        Args:
            older_than: how long nothing may have happened to a run.
            keep_keys: keep the keys of its calls in the tombstone.
            forget_after: how old a tombstone of a run *without effects* may become; None: as old as the store. Those
                of runs with effects stay for good.
        """
        before_us = self._clock.now_us() - older_than // _MICROSECOND
        count = 0
        for run_id in await self._call(READ, retention.prunable, self._tables, before_us):
            count += await self._call(WRITE, _bury, self._tables, run_id, before_us, keep_keys)
        if forget_after is not None:
            before_us = self._clock.now_us() - forget_after // _MICROSECOND
            await self._call(WRITE, retention.forget, self._tables, before_us)
        ended = await self._call(WRITE, retention.ended_leases, self._tables, self._keeper.current.incarnation)
        if ended:
            await self._call(WRITE, retention.forget_leases, self._tables, ended)
        return count

    async def verify(self, run_id: str | None = None) -> list[Damage]:
        """Check hash chains, gaps and heads of one run or all (then the file too); return what is broken, by name."""
        found: list[Damage] = []
        try:
            ids = [run_id] if run_id is not None else await self._call(READ, inspection.run_ids, self._tables)
            for each in ids:
                found += await self._call(READ, inspection.damage, self._tables, each)
            if run_id is None:
                found += await self._call(READ, inspection.stray, self._tables)
        except JournalDamaged as error:
            found.append(Damage(run_id=run_id or "", position=0, what=f"the file: {error.message}"))
        return found

    async def restored(self) -> int:
        """Note that this file was restored from a backup; return the new epoch.

        Every owner from before loses its runs and its lease, and open runs look up before they dispatch.
        """
        me = self._keeper.current.incarnation
        epoch: int = await self._call(WRITE, self._tables.restored, me)
        return epoch

    async def info(self) -> StoreInfo:
        """Return the facts that `doctor` shows."""
        found: StoreInfo = await self._call(READ, inspection.info, self._tables, self._mounts)
        return found

    async def close(self, *, attempts_ended: bool = True) -> None:
        """Give all runs up and close. It may be called again.

        Args:
            attempts_ended: nothing that was dispatched can still send (threads and children have ended too). If not,
                the owner lock is kept until this process ends, and only then does anybody take it for dead.
        """
        if os.getpid() != self._pid:  # A forked child has no right and no thread; it lets go of its copy of the lock.
            self._keeper.let_go(remove=False)
            return
        first, self._closed = not self._closed, True
        if not first:
            await self._commits.join()
            return
        await self._keeper.join()
        held = [(one.incarnation, attempts_ended and not one.outlived) for one in self._keeper.held()]
        try:
            if held:
                await self._commits.call(WRITE, self._tables.give_all_back, held)
        except (StoreUnavailable, JournalDamaged):
            held = []  # Nothing was given up: the locks stay, and their end will prove what it can.
        finally:
            await self._commits.join()
        self._keeper.let_go(remove=True, only={incarnation for incarnation, ended in held if ended})

    async def _call(self, mode: int, function: Callable[..., Any], *args: Any) -> Any:
        if os.getpid() != self._pid:
            self._refuse_child()
        if self._closed:
            raise StoreUnavailable(f"{self.path}: the store is closed", remedy="Open it again.")
        return await self._commits.call(mode, function, *args)

    def _refuse_child(self) -> NoReturn:
        """Refuse; a child that acts has noticed that it is one, and lets go of the lock that it inherited."""
        self._keeper.let_go(remove=False)
        raise UnsafeStore(
            f"{self.path} was opened by process {self._pid}; its forked child {os.getpid()} cannot use it",
            remedy="Open the store again in the child, after the fork.",
        )


def _bury(cursor: sqlite3.Cursor, tables: Tables, run_id: str, before_us: int, keep_keys: bool) -> bool:  # noqa: FBT001 - work takes its arguments by position
    return retention.bury(cursor, tables, run_id, before_us, keep_keys=keep_keys)


def _abandon(pid: int, commits: Commits, keeper: LeaseKeeper) -> None:
    """End the threads of a store that was dropped without being closed; its owner lock goes with the process."""
    if os.getpid() == pid:
        keeper.stop()
        commits.stop()


def _is_text(run_id: str) -> bool:
    """Tell whether an id can stand in a database: half a surrogate pair, as of an odd command line, cannot."""
    try:
        run_id.encode()
    except UnicodeEncodeError:
        return False
    return True


def _resolved(path: str | os.PathLike[str]) -> Path:
    try:
        resolved = Path(path).resolve()
    except (RuntimeError, OSError) as error:  # Python 3.11 and 3.12 raise the first for a link that leads to itself.
        raise StoreUnavailable(f"{os.fspath(path)}: {error}", remedy="Check --store.") from error
    if resolved.is_dir():
        raise UnsafeStore(f"{resolved} is a folder, not a file", remedy="Name a file in it.")
    return resolved
