"""What each method of the SQLite store does to its tables, over a cursor, inside a transaction that others began.

It must not know threads or event loops, and no method here commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from counterfoil.core.codec import first_link, from_micros, link, to_micros
from counterfoil.core.events import Recorded, SenderProof, Status
from counterfoil.errors import JournalDamaged, LeaseLost, NoSuchRun
from counterfoil.stores import rows
from counterfoil.stores.clock import Clock
from counterfoil.stores.lease import Sight, sight
from counterfoil.stores.protocol import Appended, Claimed, Entry, Head, Mail, Owned, Refused, Tombstone

FENCE_BITS = 40
"""The low bits of a fence count owners; the bits above are the store's epoch."""
OWNERS = (1 << FENCE_BITS) - 1


class Tables:
    """The store's tables.

    Args:
        path: of the database, for messages.
        clock: of the store.
        statements: by name, from ``sql/sqlite.sql``.
    """

    def __init__(self, path: Path, clock: Clock, statements: Mapping[str, str]) -> None:
        self.path = path
        self.clock = clock
        self.sql = statements

    # Events.

    def start(self, cursor: sqlite3.Cursor, head: Head, first: Entry) -> Head | Tombstone:
        """Write a head and its first event, or return what is there."""
        known = self.head(cursor, head.run_id)
        if known is not None:
            return known
        if link(first_link(head.run_id), 1, first.at_us, 0, first.body) != first.link or first.position != 1:
            raise ValueError(f"run {head.run_id}: its first event is not chained to the run's id")
        now_us = self.clock.now_us()
        due_us = None if head.due is None else to_micros(head.due)
        labels = msgspec.json.encode(head.labels)
        changing = (1, first.link, head.status.value, due_us, int(head.incident), now_us)
        fixed = (head.run_id, head.flow, head.entry, head.fingerprint, head.input_digest, labels)
        cursor.execute(self.sql["insert_run"], (*changing, int(head.verify_first), now_us, *fixed))
        event = (head.run_id, 1, first.at_us, 0, first.kind, first.link, first.body)
        cursor.execute(self.sql["insert_event"], event)
        made = self.head(cursor, head.run_id)
        assert made is not None
        return made

    def append(self, cursor: sqlite3.Cursor, update: tuple[Any, ...], entries: Sequence[Entry]) -> Appended | Refused:
        """Write events, if the one statement that checks all says so.

        Args:
            cursor: in a write transaction.
            update: position, link, status, due, incident, time; run, fence, position, mark, owner; owner, boot id.
            entries: the events.
        """
        if cursor.execute(self.sql["append"], update).rowcount != 1:
            return self._why_not(cursor, update, entries)
        run_id, fence, insert = update[6], update[7], self.sql["insert_event"]
        for entry in entries:
            event = (run_id, entry.position, entry.at_us, fence, entry.kind, entry.link, entry.body)
            cursor.execute(insert, event)
        return Appended(position=update[0])

    def _why_not(self, cursor: sqlite3.Cursor, update: tuple[Any, ...], entries: Sequence[Entry]) -> Appended | Refused:
        run_id, fence, at, mail, me = update[6:11]
        row = self.run(cursor, run_id)
        head = rows.head_of(row)
        if head.fence != fence:
            return Refused(why="fence", head=head)
        if head.owner != me or self.sight(cursor, me).over:
            return Refused(why="lease", head=head)
        if head.position != at:
            written = cursor.execute(self.sql["written"], (row[0], at, len(entries))).fetchall()
            if written == [(entry.position, fence, entry.link) for entry in entries]:
                return Appended(position=update[0])  # It was written before, and only the acknowledgement was lost.
            return Refused(why="position", head=head)
        if head.mail != mail:
            return Refused(why="mail", head=head)
        raise JournalDamaged(f"run {run_id}: an append was refused, and nothing about it is wrong")

    # Reading.

    def head(self, cursor: sqlite3.Cursor, run_id: str) -> Head | Tombstone | None:
        """Return a run's head, or what pruning left of it, or None."""
        row = cursor.execute(self.sql["head"], (run_id,)).fetchone()
        if row is not None:
            return rows.head_of(row)
        row = cursor.execute(self.sql["tombstone"], (run_id,)).fetchone()
        return None if row is None else rows.tombstone_of(row)

    def run(self, cursor: sqlite3.Cursor, run_id: str) -> rows.Row:
        """Return the head's row.

        Raises:
            NoSuchRun: there is none.
        """
        row: rows.Row | None = cursor.execute(self.sql["head"], (run_id,)).fetchone()
        if row is None:
            raise NoSuchRun(f"there is no run {run_id!r} in {self.path}")
        return row

    def events(self, cursor: sqlite3.Cursor, run_id: str, after: int) -> list[Recorded]:
        """Return the events after a position, checked against their chain and the head."""
        row = self.run(cursor, run_id)
        stored = cursor.execute(self.sql["events"], (row[0], after)).fetchall()
        before = rows.start_link(run_id, after, stored)
        found, last = rows.recorded(run_id, stored, after, before)
        rows.meets_head(rows.head_of(row), after + len(found), last)
        return found

    def find(self, cursor: sqlite3.Cursor, status: tuple[Status, ...], flow: str | None, limit: int) -> list[Head]:
        """Return heads, newest first."""
        wanted = (len(status), msgspec.json.encode(status).decode(), int(flow is not None), flow, limit)
        return [rows.head_of(row) for row in cursor.execute(self.sql["heads"], wanted)]

    # Owning runs.

    def claim(self, cursor: sqlite3.Cursor, run_id: str, me: str, taken: list[Claimed]) -> Claimed | Owned | None:
        """Take a run.

        Args:
            cursor: in a write transaction.
            run_id: the run.
            me: the incarnation that takes it.
            taken: learns what was taken, so that it can be given back if nobody hears of it. Where it is not empty this
                is another try, after a commit of which nobody knows whether it reached the disk.
        """
        row = cursor.execute(self.sql["head"], (run_id,)).fetchone()
        if row is None:
            return None
        if self.sight(cursor, me).over:
            raise LeaseLost(f"the lease was lost while run {run_id} was being claimed")
        run_no, fence, holder = row[0], row[8], row[9]
        if holder == me and any(before.head.fence == fence for before in taken):
            return taken[0]
        seen = self.sight(cursor, holder) if holder else None
        if seen is not None and not seen.over:
            return Owned(owner=holder, proof=seen.proof, detail=seen.detail, free_at=seen.free_at)
        if seen is not None:
            self.record_death(cursor, holder, seen)
        next_fence = (self.epoch(cursor) << FENCE_BITS) | ((fence & OWNERS) + 1)
        change = (next_fence, me, self.clock.now_us(), run_no, fence, holder)
        changed = cursor.execute(self.sql["claim"], change).rowcount
        assert changed == 1
        cursor.execute(self.sql["insert_life"], (run_no, next_fence, me))
        head = self.head(cursor, run_id)
        assert isinstance(head, Head)
        taken[:] = [Claimed(head=head, previous=holder, proof=None if seen is None else seen.proof)]
        return taken[0]

    def release(self, cursor: sqlite3.Cursor, run_id: str, me: str, fence: int) -> None:
        """Give a run up, if it is held under this fence."""
        cursor.execute(self.sql["release"], (run_id, fence, me))

    def give_back(self, cursor: sqlite3.Cursor, me: str, taken: list[Claimed]) -> None:
        """Give up what was taken."""
        for claimed in taken:
            self.release(cursor, claimed.head.run_id, me, claimed.head.fence)

    def give_all_back(self, cursor: sqlite3.Cursor, held: list[tuple[str, bool]]) -> None:
        """Give up what incarnations hold, and record those as released whose attempts have ended."""
        for incarnation, ended in held:
            cursor.execute(self.sql["release_all"], (incarnation,))
            if ended:
                self._end(cursor, incarnation, SenderProof.RELEASED)

    def sight(self, cursor: sqlite3.Cursor, incarnation: str) -> Sight:
        """Say what is known of an incarnation."""
        return sight(cursor.execute(self.sql["lease"], (incarnation,)).fetchone(), self.clock, self.path)

    def record_death(self, cursor: sqlite3.Cursor, incarnation: str, seen: Sight) -> None:
        """Keep a proof of death, which the owner file cannot give for ever."""
        if seen.proof is SenderProof.DEAD and not seen.recorded:
            self._end(cursor, incarnation, SenderProof.DEAD)

    def _end(self, cursor: sqlite3.Cursor, incarnation: str, how: SenderProof) -> None:
        cursor.execute(self.sql["end_lease"], (how.value, self.clock.now_us(), incarnation))

    def epoch(self, cursor: sqlite3.Cursor) -> int:
        """Return the store's epoch: how often it was restored from a backup."""
        return int(cursor.execute(self.sql["epoch"]).fetchone()[0])

    def restored(self, cursor: sqlite3.Cursor, me: str) -> int:
        """Begin a new epoch: no fence or lease from before is worth anything, and open runs look before they act."""
        epoch = self.epoch(cursor) + 1
        cursor.execute(self.sql["raise_epoch"], (epoch,))
        cursor.execute(self.sql["move_fences"], (epoch << FENCE_BITS, OWNERS))
        cursor.execute(self.sql["void_leases"], (me,))
        cursor.execute(self.sql["verify_open_runs"])
        return epoch

    # The mailbox.

    def post(self, cursor: sqlite3.Cursor, run_id: str, item_id: str, body: bytes) -> int:
        """Put an item into a run's mailbox, grow its mark and wake it; return the mark."""
        row = self.run(cursor, run_id)
        run_no, mark = row[0], row[10] + 1
        known = cursor.execute(self.sql["posted"], (run_no, item_id)).fetchone()
        if known is not None:
            return int(known[0])
        now_us = self.clock.now_us()
        cursor.execute(self.sql["insert_mail"], (run_no, mark, item_id, now_us, body))
        cursor.execute(self.sql["mark"], (mark, now_us, run_no))
        return int(mark)

    def mail(self, cursor: sqlite3.Cursor, run_id: str, after: int) -> list[Mail]:
        """Return the items after a mark, oldest first."""
        return [
            Mail(number=number, item_id=item_id, body=body, posted_at=from_micros(posted_us))
            for number, item_id, body, posted_us in cursor.execute(self.sql["mail"], (run_id, after))
        ]
