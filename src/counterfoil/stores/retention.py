"""Pruning: an old, ended run becomes a tombstone, and what no run names any more goes too.

It must not touch a run that could still matter: with an incident, an abandoned obligation, unread mail or damage.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import msgspec

from counterfoil.core.events import Decided, Dispatched, Recorded, SenderProof, call_id
from counterfoil.core.state import RunState, fold
from counterfoil.errors import JournalDamaged, NoSuchRun
from counterfoil.stores import rows
from counterfoil.stores.lease import sight
from counterfoil.stores.protocol import Head
from counterfoil.stores.tables import Tables


def prunable(cursor: sqlite3.Cursor, tables: Tables, before_us: int) -> list[str]:
    """Return the ids of runs that ended, without an incident, and have not changed since."""
    return [run_id for (run_id,) in cursor.execute(tables.sql["prunable"], (before_us,))]


def bury(cursor: sqlite3.Cursor, tables: Tables, run_id: str, before_us: int, *, keep_keys: bool) -> bool:
    """Turn one run into a tombstone, if all of it says that it may be; return whether it was."""
    try:
        row = tables.run(cursor, run_id)
        head = rows.head_of(row)
        events = tables.events(cursor, run_id, 0)
    except (NoSuchRun, JournalDamaged):
        return False  # Somebody else pruned it; or it is evidence of a fault, which `verify` shows.
    state = fold(events)
    held = bool(head.owner) and not tables.sight(cursor, head.owner).over
    old = row[18] < before_us
    if held or not old or not settled(head, state):
        return False
    dispatched = _keys(events)
    keys = tuple(dispatched) if keep_keys else ()
    now_us = tables.clock.now_us()
    output = bytes(state.output) or None
    what = (run_id, head.flow, head.input_digest, head.status.value, output)
    grave = (*what, msgspec.json.encode(keys), int(bool(dispatched)), now_us)
    cursor.execute(tables.sql["insert_tombstone"], grave)
    for name in ("delete_events", "delete_mailbox", "delete_lives", "delete_run"):
        cursor.execute(tables.sql[name], (row[0],))
    return True


def settled(head: Head, state: RunState) -> bool:
    """Tell whether nothing about a run is open: nobody was told wrong, nothing is owed, and no mail is unread."""
    quiet = not head.incident and not state.incident and not state.abandoned
    return quiet and head.status.terminal and state.status is head.status and state.mail >= head.mail


def _keys(events: list[Recorded]) -> list[str]:
    """Return the keys of all calls that were ever dispatched, in order."""
    planned: dict[str, str] = {}
    sent: dict[str, str] = {}
    for recorded in events:
        match recorded.event:
            case Decided(turn=turn, calls=calls):
                planned |= {call_id(turn, call.position): call.key for call in calls}
            case Dispatched(call=call):
                sent[call] = planned.get(call, "")
            case _:
                pass
    return list(sent.values())


def forget(cursor: sqlite3.Cursor, tables: Tables, before_us: int) -> int:
    """Delete old tombstones of runs that had no effect; return how many."""
    return cursor.execute(tables.sql["forget_tombstones"], (before_us,)).rowcount


def ended_leases(cursor: sqlite3.Cursor, tables: Tables, me: str) -> list[tuple[str, str]]:
    """Return the incarnations, with their owner files, that will do no more and that no run names.

    A death is recorded first. One whose lease is over and whose process may live is kept while its lock is held.
    """
    ended = []
    for row in cursor.execute(tables.sql["unnamed_leases"], (me,)).fetchall():
        seen = sight(row, tables.clock, tables.path)
        tables.record_death(cursor, row[0], seen)
        if seen.over and seen.proof is not SenderProof.ALIVE:
            ended.append((row[0], str(tables.path.parent / row[8]) if row[8] else ""))
    return ended


def forget_leases(cursor: sqlite3.Cursor, tables: Tables, ended: list[tuple[str, str]]) -> None:
    """Delete owner files and lease rows, in this order: what was known of each stands in the store already."""
    for incarnation, path in ended:
        if path:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        cursor.execute(tables.sql["delete_lease"], (incarnation,))
