"""Every store through the same cases; the same cases through broken stores, so that none of them can fall asleep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from counterfoil.errors import JournalDamaged
from counterfoil.stores import sql
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing import append_cases, conformance, keeping_cases, owner_cases
from counterfoil.testing.workers import Case, Make

STORES: dict[str, Callable[[Path], Make]] = {
    "sqlite": lambda folder: lambda clock, lease: SqliteStore(folder / "store.db", clock=clock, lease=lease),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("case", conformance.CASES, ids=conformance.name)
async def test_conformance(case: Case, store: str, tmp_path: Path) -> None:
    await conformance.check(case, STORES[store](tmp_path))


LEASE_CHECK = "EXISTS ( SELECT 1 FROM leases WHERE incarnation = ? AND boot_id = ? AND ended = '' AND expires_us > boottime_us() )"  # noqa: E501 - it is one piece of SQL

# What is taken out of which statement, what stands in its place, and the case that sees it.
FAULTS: list[tuple[str, str, str, str, Case]] = [
    ("no fence check", "append", "fence = ?", "? > 0", append_cases.a_stale_fence_writes_nothing),
    ("no owner check", "append", "owner = ?", "? <> ''", append_cases.a_fence_counts_only_with_its_owner),
    ("no owner check, after a release", "append", "owner = ?", "? <> ''", append_cases.a_released_run_is_not_written),
    ("no lease check", "append", "expires_us > boottime_us()", "1", append_cases.an_expired_lease_writes_nothing),
    (
        "the lease is compared with NULL, which is never true, so that its negation lets all pass",
        "append",
        LEASE_CHECK,
        LEASE_CHECK.replace("EXISTS", "NOT EXISTS").replace("expires_us > boottime_us()", "expires_us < NULL"),
        append_cases.an_expired_lease_writes_nothing,
    ),
    (
        "the lease is judged by the wall clock",
        "append",
        "expires_us > boottime_us()",
        "expires_us - boottime_us() > updated_us - taken_us - 30000000",
        append_cases.a_clock_turned_back_revives_no_lease,
    ),
    (
        "no position check",
        "append",
        "position = ? AND mail",
        "? >= 0 AND mail",
        append_cases.a_wrong_position_writes_nothing,
    ),
    (
        "older positions pass",
        "append",
        "position = ? AND mail",
        "position <= ? AND mail",
        append_cases.a_wrong_position_writes_nothing,
    ),
    ("no mail check", "append", "mail = ?", "? >= 0", append_cases.unread_mail_stops_a_write),
    (
        "mail is compared with NULL",
        "append",
        "mail = ?",
        "(mail <> ?) IS NOT NULL",
        append_cases.unread_mail_stops_a_write,
    ),
    ("old mail passes", "append", "mail = ?", "mail >= ?", owner_cases.mail_between_fold_and_write_is_seen),
    ("a release by anybody", "release", "owner = ?", "? <> ''", owner_cases.only_the_owner_releases),
    ("a release under any fence", "release", "fence = ?", "? > 0", owner_cases.only_the_owner_releases),
    (
        "a claim forgets the life",
        "claim",
        "lives = lives + 1",
        "lives = lives",
        owner_cases.a_claim_counts_a_life_and_grows_the_fence,
    ),
    ("a claim leaves the due time", "claim", ", due_us = NULL", "", owner_cases.a_claim_takes_the_due_time_away),
    ("mail wakes nobody", "mark", "due_us = ?", "due_us = max(coalesce(due_us, 0), ?)", owner_cases.mail_wakes_a_run),
    ("every item is new", "posted", "item_id = ?", "item_id = ? || 'x'", owner_cases.mail_is_kept_in_order_and_once),
    (
        "a restore leaves the fences",
        "move_fences",
        "fence = ? | (fence & ?)",
        "fence = fence + 0 * (? + ?)",
        keeping_cases.a_restore_ends_every_fence_and_lease,
    ),
]


def broken(statement: str, old: str, new: str) -> type[SqliteStore]:
    """A store with one fault planted in one statement."""
    text = sql.statements("sqlite")[statement]
    assert text.count(old) == 1, f"{statement} no longer says {old!r}: {text}"

    class Broken(SqliteStore):
        statements = MappingProxyType({**sql.statements("sqlite"), statement: text.replace(old, new)})

    return Broken


@pytest.mark.parametrize("fault,statement,old,new,case", FAULTS, ids=[fault[0] for fault in FAULTS])
async def test_a_planted_fault_is_seen(
    fault: str, statement: str, old: str, new: str, case: Case, tmp_path: Path
) -> None:
    store = broken(statement, old, new)

    def make(clock: Any, lease: Any) -> SqliteStore:
        return store(tmp_path / "store.db", clock=clock, lease=lease)

    # Any other error would be a slip in the planted SQL.
    with pytest.raises((AssertionError, JournalDamaged)):
        await conformance.check(case, make)
