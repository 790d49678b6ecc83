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

import msgspec

from counterfoil.core.codec import from_micros, to_micros
from counterfoil.core.events import Recorded, SenderProof, Status
from counterfoil.errors import JournalDamaged, LeaseLost, NoSuchRun, StoreUnavailable, UnsafeStore
from counterfoil.stores import migrate, rows, sql
from counterfoil.stores.clock import Clock, SystemClock
from counterfoil.stores.commits import ALONE, READ, WRITE, Commits
from counterfoil.stores.connection import close, connect, translate
from counterfoil.stores.lease import Incarnation, LeaseKeeper, Sight, sight
from counterfoil.stores.protocol import (
    Appended,
    Claimed,
    Entry,
    Head,
    HeadChange,
    Mail,
    Observation,
    Owned,
    Refused,
    Tombstone,
)

FENCE_BITS = 40
"""The low bits of a fence count owners; the bits above are the store's epoch."""
_OWNERS = (1 << FENCE_BITS) - 1


class SqliteStore:
    """A store in one file. Safe for several threads, event loops and processes of one host; not for a forked child.

    Args:
        path: of the file; made if it is not there.
        lease: how long this worker may be silent before its runs may be taken.
        namespace: under which keys are minted; random when the store is made, and kept in it.
        clock: for tests.
        busy_timeout: how long a write waits for another process before it is `StoreBusy`.

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
    ) -> None:
        self.path = Path(path).resolve()
        self._clock = clock if clock is not None else SystemClock()
        self._pid = os.getpid()
        self._closed = False
        self._namespace = self._prepare(namespace, busy_timeout)
        self._sql = self.statements
        self._commits = Commits(self.path, self._clock, busy_timeout)
        self._keeper = LeaseKeeper(self.path, self._clock, lease, self._commits, self._sql)
        weakref.finalize(self, _abandon, self._pid, self._commits, self._keeper)

    def _prepare(self, namespace: bytes | str | None, busy_timeout: timedelta) -> bytes:
        given = namespace.encode() if isinstance(namespace, str) else namespace
        if given is not None and not given:
            raise UnsafeStore("an empty namespace protects nothing", remedy="Leave it out, or name one.")
        if not self.path.parent.is_dir():
            raise StoreUnavailable(f"{self.path.parent} is no folder", remedy="Make the folder, or check --store.")
        try:
            migrate.look(self.path)
            connection = connect(self.path, self._clock, busy_timeout)
            try:
                return migrate.bring_up_to_date(connection, self.path, self._clock, given)
            finally:
                close(connection)
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
        """Transactions that this store has committed for its callers."""
        return self._commits.count

    def now(self) -> datetime:
        """Return store time, in UTC."""
        return from_micros(self._clock.now_us())

    # Writing events.

    async def start(self, head: Head, first: Entry) -> Head | Tombstone:
        """Write a run's head and first event; where the id is known, write nothing and return what is there."""
        if first.position != 1:
            raise ValueError(f"a run's first event has position 1, not {first.position}")
        found: Head | Tombstone = await self._call(WRITE, self._start, head, first)
        return found

    def _start(self, cursor: sqlite3.Cursor, head: Head, first: Entry) -> Head | Tombstone:
        known = self._head(cursor, head.run_id)
        if known is not None:
            return known
        now_us = self._clock.now_us()
        due_us = None if head.due is None else to_micros(head.due)
        labels = msgspec.json.encode(head.labels)
        changing = (1, first.link, head.status.value, due_us, int(head.incident), now_us)
        fixed = (head.run_id, head.flow, head.entry, head.fingerprint, head.input_digest, labels)
        row = (*changing, int(head.verify_first), now_us, *fixed)
        ((run_no,),) = cursor.execute(self._sql["insert_run"], row).fetchall()
        event = (run_no, 1, first.at_us, 0, first.kind, first.link, first.body)
        cursor.execute(self._sql["insert_event"], event)
        made = self._head(cursor, head.run_id)
        assert made is not None
        return made

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
        check = (run_id, fence, at, mail, me, me, self._clock.boot_id())
        written: Appended | Refused = await self._call(WRITE, self._append, change + check, entries)
        return written

    def _append(self, cursor: sqlite3.Cursor, update: tuple[Any, ...], entries: Sequence[Entry]) -> Appended | Refused:
        updated = cursor.execute(self._sql["append"], update).fetchall()
        if not updated:
            return self._why_not(cursor, update, entries)
        run_no, fence, insert = updated[0][0], update[7], self._sql["insert_event"]
        for entry in entries:
            event = (run_no, entry.position, entry.at_us, fence, entry.kind, entry.link, entry.body)
            cursor.execute(insert, event)
        return Appended(position=update[0])

    def _why_not(self, cursor: sqlite3.Cursor, update: tuple[Any, ...], entries: Sequence[Entry]) -> Appended | Refused:
        run_id, fence, at, mail, me = update[6:11]
        row = self._run(cursor, run_id)
        head = rows.head_of(row)
        if head.fence != fence:
            return Refused(why="fence", head=head)
        if head.owner != me or self._sight(cursor, me).over:
            return Refused(why="lease", head=head)
        if head.position != at:
            written = cursor.execute(self._sql["written"], (row[0], at, len(entries))).fetchall()
            if written == [(entry.position, fence, entry.link) for entry in entries]:
                return Appended(position=update[0])  # It was written before, and only the acknowledgement was lost.
            return Refused(why="position", head=head)
        if head.mail != mail:
            return Refused(why="mail", head=head)
        raise JournalDamaged(f"run {run_id}: an append was refused, and nothing about it is wrong")

    # Reading.

    async def head(self, run_id: str) -> Head | Tombstone | None:
        """Return a run's head, or what pruning left of it, or None."""
        found: Head | Tombstone | None = await self._call(READ, self._head, run_id)
        return found

    def _head(self, cursor: sqlite3.Cursor, run_id: str) -> Head | Tombstone | None:
        row = cursor.execute(self._sql["head"], (run_id,)).fetchone()
        if row is not None:
            return rows.head_of(row)
        row = cursor.execute(self._sql["tombstone"], (run_id,)).fetchone()
        return None if row is None else rows.tombstone_of(row)

    def _run(self, cursor: sqlite3.Cursor, run_id: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = cursor.execute(self._sql["head"], (run_id,)).fetchone()
        if row is None:
            raise NoSuchRun(f"there is no run {run_id!r} in {self.path}")
        return row

    async def events(self, run_id: str, after: int = 0) -> list[Recorded]:
        """Return the events after a position, checked against their hash chain and the head.

        Raises:
            NoSuchRun: there is no such run.
            JournalDamaged: naming the first event that is missing, changed or torn.
        """
        found: list[Recorded] = await self._call(READ, self._events, run_id, after)
        return found

    def _events(self, cursor: sqlite3.Cursor, run_id: str, after: int) -> list[Recorded]:
        row = self._run(cursor, run_id)
        stored = cursor.execute(self._sql["events"], (row[0], after)).fetchall()
        link = rows.start_link(run_id, after, stored)
        found, link = rows.recorded(run_id, stored, after, link)
        rows.meets_head(rows.head_of(row), after + len(found), link)
        return found

    async def find(self, *, status: Sequence[Status] = (), flow: str | None = None, limit: int = 1000) -> list[Head]:
        """Return heads, newest first."""
        found: list[Head] = await self._call(READ, self._find, tuple(status), flow, limit)
        return found

    def _find(self, cursor: sqlite3.Cursor, status: tuple[Status, ...], flow: str | None, limit: int) -> list[Head]:
        wanted = (len(status), msgspec.json.encode(status).decode(), int(flow is not None), flow, limit)
        return [rows.head_of(row) for row in cursor.execute(self._sql["heads"], wanted)]

    # Owning runs.

    async def claim(self, run_id: str) -> Claimed | Owned | None:
        """Take the run, if nobody holds it or its holder's lease is over or its holder is dead; None: no such run.

        A lost lease is replaced first, as by `renew`.
        """
        await self.renew()
        taken: list[int] = []
        me = self._keeper.current.incarnation
        try:
            claimed: Claimed | Owned | None = await self._call(WRITE, self._claim, run_id, me, taken)
        except BaseException:
            # Nobody learns that the run was taken (cancelled, or a lost acknowledgement), so it is given up again.
            self._commits.send(WRITE, self._give_back, run_id, me, taken)
            raise
        return claimed

    def _claim(self, cursor: sqlite3.Cursor, run_id: str, me: str, taken: list[int]) -> Claimed | Owned | None:
        row = cursor.execute(self._sql["head"], (run_id,)).fetchone()
        if row is None:
            return None
        if self._sight(cursor, me).over:
            raise LeaseLost(f"the lease was lost while run {run_id} was being claimed")
        run_no, fence, holder = row[0], row[8], row[9]
        seen = self._sight(cursor, holder) if holder else None
        if seen is not None and not seen.over:
            return Owned(owner=holder, proof=seen.proof, detail=seen.detail, free_at=seen.free_at)
        if seen is not None:
            self._record_death(cursor, holder, seen)
        epoch = cursor.execute(self._sql["epoch"]).fetchone()[0]
        next_fence = (epoch << FENCE_BITS) | ((fence & _OWNERS) + 1)
        change = (next_fence, me, self._clock.now_us(), run_no, fence, holder)
        changed = cursor.execute(self._sql["claim"], change).rowcount
        assert changed == 1
        cursor.execute(self._sql["insert_life"], (run_no, next_fence, me))
        taken[:] = [next_fence]
        head = self._head(cursor, run_id)
        assert isinstance(head, Head)
        return Claimed(head=head, previous=holder, proof=None if seen is None else seen.proof)

    def _give_back(self, cursor: sqlite3.Cursor, run_id: str, me: str, taken: list[int]) -> None:
        for fence in taken:
            cursor.execute(self._sql["release"], (run_id, fence, me))

    async def release(self, run_id: str, *, fence: int) -> None:
        """Give the run up, if it is still ours under this fence."""
        me = self._keeper.current.incarnation
        await self._call(WRITE, self._give_back, run_id, me, [fence])

    async def renew(self) -> bool:
        """Take a new incarnation after the lease was lost, or the first; return whether one was needed."""
        if self._keeper.current.alive():
            return False
        taken: bool = await self._call(ALONE, self._keeper.take)
        return taken

    async def observe(self, incarnation: str) -> Observation:
        """Look whether an incarnation still lives: `released`, `dead`, `alive` or `expired`, never guessed from a pid.

        A death is recorded, so that later observers agree even when the owner file is gone.
        """
        seen: Sight = await self._call(READ, self._sight, incarnation)
        if seen.proof is SenderProof.DEAD and not seen.recorded:
            await self._call(WRITE, self._record_death, incarnation, seen)
        return Observation(proof=seen.proof, detail=seen.detail)

    def _sight(self, cursor: sqlite3.Cursor, incarnation: str) -> Sight:
        return sight(cursor.execute(self._sql["lease"], (incarnation,)).fetchone(), self._clock)

    def _record_death(self, cursor: sqlite3.Cursor, incarnation: str, seen: Sight) -> None:
        if seen.proof is SenderProof.DEAD and not seen.recorded:
            ended = (SenderProof.DEAD.value, self._clock.now_us(), incarnation)
            cursor.execute(self._sql["end_lease"], ended)

    # The mailbox.

    async def post(self, run_id: str, item_id: str, body: bytes) -> int:
        """Put an item into a run's mailbox, grow its mark and wake it, in one transaction; return the mark. Unfenced.

        Raises:
            NoSuchRun: there is no such run.
        """
        mark: int = await self._call(WRITE, self._post, run_id, item_id, body)
        return mark

    def _post(self, cursor: sqlite3.Cursor, run_id: str, item_id: str, body: bytes) -> int:
        row = self._run(cursor, run_id)
        run_no, mark = row[0], row[10] + 1
        known = cursor.execute(self._sql["posted"], (run_no, item_id)).fetchone()
        if known is not None:
            return int(known[0])
        now_us = self._clock.now_us()
        cursor.execute(self._sql["insert_mail"], (run_no, mark, item_id, now_us, body))
        cursor.execute(self._sql["mark"], (mark, now_us, run_no))
        return int(mark)

    async def mail(self, run_id: str, after: int) -> list[Mail]:
        """Return the items after a mark, oldest first."""
        found: list[Mail] = await self._call(READ, self._mail, run_id, after)
        return found

    def _mail(self, cursor: sqlite3.Cursor, run_id: str, after: int) -> list[Mail]:
        return [
            Mail(number=number, item_id=item_id, body=body, posted_at=from_micros(posted_us))
            for number, item_id, body, posted_us in cursor.execute(self._sql["mail"], (run_id, after))
        ]

    # Ending.

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
        try:
            if held := self._keeper.held():
                await self._commits.call(WRITE, self._give_all_back, held, attempts_ended)
        except (StoreUnavailable, JournalDamaged):
            attempts_ended = False  # Nothing was given up: the lock stays, and its end will prove what it can.
        finally:
            await self._commits.join()
        if attempts_ended:
            self._keeper.let_go(remove=True)

    def _give_all_back(self, cursor: sqlite3.Cursor, held: list[str], attempts_ended: bool) -> None:  # noqa: FBT001 - work takes its arguments by position
        for incarnation in held:
            cursor.execute(self._sql["release_all"], (incarnation,))
            if attempts_ended:
                ended = (SenderProof.RELEASED.value, self._clock.now_us(), incarnation)
                cursor.execute(self._sql["end_lease"], ended)

    async def _call(self, mode: int, function: Callable[..., Any], *args: Any) -> Any:
        if os.getpid() != self._pid:
            self._refuse_child()
        if self._closed:
            raise StoreUnavailable(f"{self.path}: the store is closed", remedy="Open it again.")
        return await self._commits.call(mode, function, *args)

    def _refuse_child(self) -> NoReturn:
        """A child that acts has noticed that it is one: it lets go of the lock that it inherited."""
        self._keeper.let_go(remove=False)
        raise UnsafeStore(
            f"{self.path} was opened by process {self._pid}; its forked child {os.getpid()} cannot use it",
            remedy="Open the store again in the child, after the fork.",
        )


def _abandon(pid: int, commits: Commits, keeper: LeaseKeeper) -> None:
    """End the threads of a store that was dropped without being closed; its owner lock goes with the process."""
    if os.getpid() == pid:
        keeper.stop()
        commits.stop()
