"""Looking without touching: what is broken, by name, and the facts that `doctor` shows.

It must not mend anything.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec

from counterfoil.core.codec import decode, first_link, link
from counterfoil.errors import JournalDamaged
from counterfoil.stores import rows
from counterfoil.stores.filesystem import mount_of
from counterfoil.stores.lease import sight
from counterfoil.stores.protocol import Damage, LeaseInfo, StoreInfo, entry_kind
from counterfoil.stores.tables import Tables


def run_ids(cursor: sqlite3.Cursor, tables: Tables) -> list[str]:
    """Return the ids of all runs that are not pruned."""
    return [run_id for (run_id,) in cursor.execute(tables.sql["run_ids"])]


def damage(cursor: sqlite3.Cursor, tables: Tables, run_id: str) -> list[Damage]:
    """Check one run: each event in its place, unchanged and readable, and the head at the journal's end."""
    row = tables.run(cursor, run_id)
    try:
        head = rows.head_of(row)
    except JournalDamaged as error:
        return [Damage(run_id=run_id, position=0, what=error.message)]
    found: list[Damage] = []
    position, before = 0, first_link(run_id)
    for stored in cursor.execute(tables.sql["events"], (row[0], 0)):
        at, its_link = stored[0], stored[4]
        if at != position + 1:
            span = f"event {position + 1}" if at == position + 2 else f"events {position + 1} to {at - 1}"
            found.append(Damage(run_id=run_id, position=position + 1, what=f"{span} missing"))
        else:
            found += [Damage(run_id=run_id, position=at, what=what) for what in _wrong(stored, before)]
        position, before = at, its_link  # Chained to what is stored, so that each change is named by itself.
    if position != head.position:
        what = f"the journal ends at {position} and its head at {head.position}"
        found.append(Damage(run_id=run_id, position=min(position, head.position) + 1, what=what))
    elif before != head.link:
        found.append(Damage(run_id=run_id, position=position, what="the last event is not the one its head names"))
    count, first, last = cursor.execute(tables.sql["mailbox_span"], (row[0],)).fetchone()
    if (count, first, last) != (head.mail, 1, head.mail):
        what = f"the mailbox holds {count} items up to number {last}, and its mark is {head.mail}"
        found.append(Damage(run_id=run_id, position=0, what=what))
    return found


def _wrong(stored: rows.Row, before: bytes) -> Iterator[str]:
    at, at_us, fence, kind, its_link, body = stored
    if not isinstance(body, bytes) or link(before, at, at_us, fence, body) != its_link:
        yield f"event {at} ({kind}) was changed after it was written, or the one before it was"
        return
    try:
        event = decode(body)
    except msgspec.DecodeError as error:
        yield f"event {at} ({kind}) cannot be read: {error}"
        return
    if entry_kind(event) != kind:
        yield f"event {at} is a {entry_kind(event)}, filed as {kind}"


def stray(cursor: sqlite3.Cursor, tables: Tables) -> list[Damage]:
    """Check what belongs to no run, and the pages of the file."""
    found = [
        Damage(run_id=f"(number {run_no})", position=0, what="there are events, and no head")
        for (run_no,) in cursor.execute(tables.sql["stray_events"])
    ]
    pages = [row[0] for row in cursor.execute("PRAGMA quick_check(10)")]
    if pages != ["ok"]:
        found += [Damage(run_id="", position=0, what=f"the file: {line}") for line in pages]
    return found


def info(cursor: sqlite3.Cursor, tables: Tables, mounts: Path) -> StoreInfo:
    """Return the facts of a store."""
    meta = dict(cursor.execute(tables.sql["meta"]).fetchall())
    counts = cursor.execute(tables.sql["count_runs"]).fetchall()
    owned = dict(cursor.execute(tables.sql["count_owned"]).fetchall())
    mount = mount_of(tables.path, mounts)
    names = {"database": tables.path, "log": Path(f"{tables.path}-wal"), "index": Path(f"{tables.path}-shm")}
    return StoreInfo(
        place=str(tables.path),
        engine=f"SQLite {sqlite3.sqlite_version}",
        schema=int(meta["schema"]),
        format=int(meta["format"]),
        epoch=int(meta["epoch"]),
        journal_mode=str(cursor.execute("PRAGMA journal_mode").fetchone()[0]),
        synchronous=_level(cursor.execute("PRAGMA synchronous").fetchone()[0]),
        file_system="" if mount is None else mount.type,
        bytes_used={name: path.stat().st_size for name, path in names.items() if path.exists()},
        bytes_free=shutil.disk_usage(tables.path.parent).free,
        runs={status: count for status, count, _ in counts},
        incidents=sum(incidents for _, _, incidents in counts),
        tombstones=int(cursor.execute(tables.sql["count_tombstones"]).fetchone()[0]),
        leases=tuple(
            _lease(row, tables, int(owned.get(row[0], 0))) for row in cursor.execute(tables.sql["leases"]).fetchall()
        ),
    )


def _level(number: int) -> str:
    return ("off", "normal", "full", "extra")[number]


def _lease(row: rows.Row, tables: Tables, runs: int) -> LeaseInfo:
    seen = sight(row, tables.clock, tables.path)
    return LeaseInfo(
        incarnation=row[0], proof=seen.proof, detail=seen.detail, pid_namespace=row[7], free_at=seen.free_at, runs=runs
    )
