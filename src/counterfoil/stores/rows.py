"""Rows to structs and back: the head, the tombstone, and the events with their hash chain.

It must not run a statement; every store's rows come in this order of columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from counterfoil.core.codec import decode, first_link, from_micros, link
from counterfoil.core.events import Recorded, Status
from counterfoil.errors import JournalDamaged
from counterfoil.stores.protocol import Head, Tombstone, entry_kind

Row = tuple[Any, ...]


def head_of(row: Row) -> Head:
    """Return the head that a row of the statements ``head`` and ``heads`` holds.

    Raises:
        JournalDamaged: it holds something else.
    """
    try:
        return _head_of(row)
    except (ValueError, TypeError, msgspec.DecodeError) as error:
        raise JournalDamaged(f"run {row[1]}: its head cannot be read: {error}") from error


def _head_of(row: Row) -> Head:
    return Head(
        run_id=row[1],
        flow=row[2],
        entry=row[3],
        fingerprint=row[4],
        status=Status(row[5]),
        position=row[6],
        link=row[7],
        fence=row[8],
        owner=row[9],
        mail=row[10],
        due=moment(row[11]),
        lives=row[12],
        incident=bool(row[13]),
        verify_first=bool(row[14]),
        input_digest=row[15],
        labels=msgspec.json.decode(row[16], type=dict[str, str]),
        created_at=from_micros(row[17]),
        updated_at=from_micros(row[18]),
    )


def tombstone_of(row: Row) -> Tombstone:
    """Return the tombstone that a row holds."""
    return Tombstone(
        run_id=row[0],
        flow=row[1],
        input_digest=row[2],
        status=Status(row[3]),
        output=row[4],
        keys=msgspec.json.decode(row[5], type=tuple[str, ...]),
        pruned_at=from_micros(row[6]),
    )


def moment(micros: int | None) -> datetime | None:
    """Return a moment, or None for none."""
    return None if micros is None else from_micros(micros)


def recorded(run_id: str, rows: Iterable[Row], after: int, link_before: bytes) -> tuple[list[Recorded], bytes]:
    """Decode events and check each against the one before; return them and the last link.

    Args:
        run_id: the run, for the message.
        rows: position, time, fence, kind, link and body, by position.
        after: position of the event before the first.
        link_before: that event's link; see `counterfoil.core.codec.first_link` for the first.

    Raises:
        JournalDamaged: naming the first event that is missing, changed or torn.
    """
    found: list[Recorded] = []
    position = after
    for at, at_us, fence, kind, its_link, body in rows:
        position += 1
        if at != position:
            raise JournalDamaged(f"run {run_id}: event {position} is missing")
        if not isinstance(body, bytes) or (link_before := link(link_before, position, at_us, fence, body)) != its_link:
            raise JournalDamaged(f"run {run_id}: event {position} ({kind}) was changed after it was written")
        try:
            event = decode(body)
        except msgspec.DecodeError as error:
            raise JournalDamaged(f"run {run_id}: event {position} ({kind}) cannot be read: {error}") from error
        if entry_kind(event) != kind:
            raise JournalDamaged(f"run {run_id}: event {position} is a {entry_kind(event)}, filed as {kind}")
        found.append(Recorded(position, from_micros(at_us), fence, event))
    return found, link_before


def start_link(run_id: str, after: int, rows: list[Row]) -> bytes:
    """Return the link before the first event wanted; take the event that holds it off the rows, where it is one."""
    if after == 0:
        return first_link(run_id)
    if not rows or rows[0][0] != after:
        raise JournalDamaged(f"run {run_id}: event {after} is missing")
    return bytes(rows.pop(0)[4])


def meets_head(head: Head, position: int, its_link: bytes) -> None:
    """Check that the journal ends where its head says.

    Raises:
        JournalDamaged: it does not.
    """
    if position != head.position:
        raise JournalDamaged(
            f"run {head.run_id}: event {min(position, head.position) + 1} is missing: "
            f"the journal ends at {position} and its head at {head.position}"
        )
    if its_link != head.link:
        raise JournalDamaged(f"run {head.run_id}: event {position} is not the one that the head names")
