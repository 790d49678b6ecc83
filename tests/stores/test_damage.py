"""What a store says of a journal that was cut, bent or edited: at most the torn end is lost, and all else is loud."""

from __future__ import annotations

import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from counterfoil.core.codec import first_link, link
from counterfoil.core.events import Recorded, TurnOpened
from counterfoil.errors import JournalDamaged
from counterfoil.stores import log
from counterfoil.stores.protocol import Damage, Head, entry_of
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.journals import Pen, fresh, pen_for
from tests.stores.processes import AheadClock

EVENTS = 8
FRAME = 4096 + 24


async def written(path: Path, events: int = EVENTS) -> Pen:
    """A run with some events in an open store: its last pages stand in the log only."""
    store = SqliteStore(path)
    pen = await fresh(store, "r")
    for turn in range(1, events):
        await pen.note(turn)
    return pen


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def copied(path: Path, to: Path, log_bytes: bytes) -> Path:
    """What a crash leaves: the database and its log, and no index."""
    to.mkdir()
    shutil.copy(path, to / "store.db")
    (to / "store.db-wal").write_bytes(log_bytes)
    return to / "store.db"


async def goes_on(path: Path, least: int) -> int:
    """Open what is left, check that it is sound, write on, open it again; return how many events were left."""
    store = SqliteStore(path, clock=later())
    left = len(await store.events("r"))
    assert left >= least, f"{least} events were acknowledged, and {left} are left"
    assert await store.verify() == []
    pen = await pen_for(store, "r")
    await pen.note(90)
    await pen.note(91)
    await store.close()
    again = SqliteStore(path)
    events = await again.events("r")
    assert [recorded.event for recorded in events[-2:]] == [TurnOpened(turn=90), TurnOpened(turn=91)]
    assert len(events) == left + 2
    assert await again.verify() == []
    await again.close()
    return left


def later() -> AheadClock:
    """A clock by which the leases of the copied store are over."""
    clock = AheadClock()
    clock.advance(timedelta(hours=1))
    return clock


def log_of(path: Path) -> bytes:
    return Path(f"{path}-wal").read_bytes()


def cuts(length: int, last: int) -> list[int]:
    """Where to cut: densely round every frame's edges, and here and there in between."""
    start = length - last
    edges = [start + frame for frame in range(0, last + 1, FRAME)]
    near = {edge + offset for edge in edges for offset in (-1, 0, 1, 7, 8, 23, 24, 25)}
    return sorted({cut for cut in near | set(range(start, length, 997)) if start <= cut < length})


async def torn(tmp_path: Path, step: int | None) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    before = len(log_of(path))
    await pen.note(EVENTS)
    whole = log_of(path)
    last = len(whole) - before
    assert last > 0
    assert last % FRAME == 0
    where = cuts(len(whole), last) if step is None else range(before, len(whole), step)
    lost = 0
    for cut in where:
        copy = copied(path, tmp_path / str(cut), whole[:cut])
        lost += await goes_on(copy, EVENTS) == EVENTS
        shutil.rmtree(copy.parent)
    assert lost == len(where), "a record of which the end is missing was read"
    assert await goes_on(copied(path, tmp_path / "whole", whole), EVENTS + 1) == EVENTS + 1
    await pen.store.close()


@pytest.mark.incident("9a")
async def test_incident_9a_a_log_torn_in_its_last_record_loses_that_record_at_most(tmp_path: Path) -> None:
    await torn(tmp_path, step=None)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.incident("9a")
async def test_incident_9a_a_log_torn_at_every_byte_of_its_last_record(tmp_path: Path) -> None:
    await torn(tmp_path, step=1)


@pytest.mark.incident("9a")
async def test_incident_9a_a_log_damaged_in_the_middle_is_loud_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    whole = log_of(path)
    frames = (len(whole) - 32) // FRAME
    assert frames > 10
    for number in range(0, frames - 6, 3):
        for offset in (0, 5, 9, 17, 24, 1000, FRAME - 1):
            bent = bytearray(whole)
            bent[32 + number * FRAME + offset] ^= 0x40
            copy = copied(path, tmp_path / f"{number}-{offset}", bytes(bent))
            with pytest.raises(JournalDamaged, match="damaged, before writes that were acknowledged") as loud:
                SqliteStore(copy)
            assert "backup" in loud.value.remedy
            assert {file.name for file in copy.parent.iterdir()} == {"store.db", "store.db-wal"}
            assert log_of(copy) == bytes(bent)
    await pen.store.close()


@pytest.mark.incident("9a")
async def test_incident_9a_a_log_whose_beginning_is_damaged_is_loud(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    whole = log_of(path)
    for offset in range(32):
        bent = bytearray(whole)
        bent[offset] ^= 0x40
        copy = copied(path, tmp_path / str(offset), bytes(bent))
        with pytest.raises(JournalDamaged, match="first 32 bytes are damaged"):
            SqliteStore(copy)
    await pen.store.close()


async def test_a_log_that_was_begun_anew_is_sound(tmp_path: Path) -> None:
    """Behind the newest frames stand those of an earlier round: whole, and of no meaning."""
    path = tmp_path / "store.db"
    pen = await written(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
    connection.close()
    await pen.note(EVENTS)
    whole = log_of(path)
    assert len(whole) > 32 + 10 * FRAME
    assert await goes_on(copied(path, tmp_path / "copy", whole), EVENTS + 1) == EVENTS + 1
    other = SqliteStore(path)  # While the first is at work.
    assert len(await other.events("r")) == EVENTS + 1
    await other.close()
    await pen.store.close()


def test_a_log_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter(["frame 3 is damaged", None])
    monkeypatch.setattr(log, "_damaged", lambda content: next(seen))
    log.refuse_damage(tmp_path / "store.db")
    assert next(seen, "all was asked for") == "all was asked for"


def test_a_log_that_is_taken_away_while_it_is_looked_for_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last who closes a store deletes its log, between any two looks of ours."""
    monkeypatch.setattr(Path, "exists", lambda self: True)
    log.refuse_damage(tmp_path / "store.db")


EDITS = [
    ("UPDATE events SET body = CAST(replace(body, '3', '4') AS BLOB) WHERE position = 4", 4, "changed"),
    ("UPDATE events SET body = replace(body, '3', '4') WHERE position = 4", 4, "changed"),
    ("UPDATE events SET at_us = at_us + 1 WHERE position = 4", 4, "changed"),
    ("UPDATE events SET fence = fence + 1 WHERE position = 4", 4, "changed"),
    ("UPDATE events SET link = zeroblob(32) WHERE position = 4", 4, "changed"),
    ("UPDATE events SET kind = 'receipt' WHERE position = 4", 4, "filed as receipt"),
    ("DELETE FROM events WHERE position = 4", 4, "missing"),
    ("DELETE FROM events WHERE position = 1", 1, "missing"),
    ("DELETE FROM events WHERE position = 8", 8, "ends at 7 and its head at 8"),
    ("UPDATE events SET position = 9 WHERE position = 8", 8, "missing"),
    ("UPDATE runs SET position = 7", 8, "ends at 8 and its head at 7"),
    ("UPDATE runs SET link = zeroblob(32)", 8, "not the one"),
]


@pytest.mark.parametrize("edit,position,what", EDITS, ids=[edit for edit, _, _ in EDITS])
async def test_an_edited_journal_is_named_by_its_event(edit: str, position: int, what: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    await fresh(pen.store, "sound")
    change(path, edit.replace("WHERE", "WHERE run_no = 1 AND") if "WHERE" in edit else f"{edit} WHERE run_no = 1")
    with pytest.raises(JournalDamaged, match=rf"run r: .*event {position}\b") as loud:
        await pen.store.events("r")
    assert "counterfoil verify" in loud.value.remedy
    found = await pen.store.verify()
    assert found[0].run_id == "r"
    assert found[0].position == position
    assert what in found[0].what
    assert await pen.store.verify("r") == found
    assert await pen.store.verify("sound") == []
    assert len(await pen.store.events("sound")) == 1
    await pen.store.close()


async def test_an_event_that_is_chained_and_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path, events=3)
    events = await pen.store.events("r")
    body, last = b'{"kind":"from_another_world"}', events[-1]
    connection = sqlite3.connect(path)
    before, at_us = connection.execute(
        "SELECT (SELECT link FROM events WHERE position = 2), at_us FROM events WHERE position = 3"
    ).fetchone()
    connection.close()
    forged = link(before, 3, at_us, last.fence, body)
    change(path, "UPDATE events SET body = ?, link = ? WHERE position = 3", body, forged)
    change(path, "UPDATE runs SET link = ?", forged)
    with pytest.raises(JournalDamaged, match=r"event 3 .* cannot be read"):
        await pen.store.events("r")
    (found,) = await pen.store.verify()
    assert (found.position, "cannot be read" in found.what) == (3, True)
    await pen.store.close()


async def test_a_torn_prefix_is_seen_from_the_middle_too(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    assert len(await pen.store.events("r", after=5)) == 3
    change(path, "UPDATE events SET link = zeroblob(32) WHERE position = 5")
    with pytest.raises(JournalDamaged, match="event 6"):
        await pen.store.events("r", after=5)
    with pytest.raises(JournalDamaged, match=r"event 21 is missing|event 20 is missing"):
        await pen.store.events("r", after=20)
    await pen.store.close()


async def test_several_gaps_are_all_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    for position in (3, 4, 6):
        change(path, "DELETE FROM events WHERE position = ?", position)
    found = await pen.store.verify("r")
    assert [(damage.position, damage.what) for damage in found] == [
        (3, "events 3 to 4 missing"),
        (6, "event 6 missing"),
    ]
    await pen.store.close()


@pytest.mark.parametrize(
    "edit,what",
    [
        ("UPDATE runs SET mail = 5", "its mark is 5"),
        ("DELETE FROM mailbox WHERE number = 1", "the mailbox holds 1 items"),
        ("UPDATE runs SET status = 'lost'", "head cannot be read"),
        ("UPDATE runs SET labels = 'x'", "head cannot be read"),
    ],
)
async def test_a_damaged_head_or_mailbox_is_named(edit: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    for item in ("a", "b"):
        await pen.store.post("r", item, b"{}")
    change(path, edit)
    (found,) = await pen.store.verify()
    assert found.run_id == "r"
    assert what in found.what
    await pen.store.close()


async def test_events_without_a_head_are_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path)
    change(path, "DELETE FROM runs")
    assert await pen.store.verify() == [Damage(run_id="(number 1)", position=0, what="there are events, and no head")]
    await pen.store.close()


async def test_a_damaged_page_is_loud_and_verify_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    pen = await written(path, events=200)
    await pen.store.close()
    content = bytearray(path.read_bytes())
    page = content.find(b'{"kind":"turn_opened"') // 4096
    content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(bytes(content))
    store = SqliteStore(path)
    with pytest.raises(JournalDamaged, match="malformed"):
        await store.events("r")
    found = await store.verify()
    assert found
    assert "malformed" in found[0].what
    assert await store.head("r") is not None, "one damaged table must not hide the others"
    await store.close()


async def test_a_damaged_run_is_not_pruned(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    clock = later()
    store = SqliteStore(path, clock=clock)
    for run_id in ("damaged", "sound"):
        pen = await fresh(store, run_id)
        await pen.finish(key="k")
        await store.release(run_id, fence=pen.fence)
    change(path, "UPDATE events SET fence = 9 WHERE run_no = 1 AND position = 3")
    clock.advance(timedelta(hours=1))
    assert await store.prune(older_than=timedelta(minutes=1)) == 1
    assert [head.run_id for head in await store.find()] == ["damaged"]
    assert [damage.position for damage in await store.verify()] == [3]
    await store.close()


async def test_a_first_event_that_is_not_chained_to_its_run_is_not_written(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    event = TurnOpened(turn=1)
    first = entry_of(Recorded(1, store.now(), 0, event), first_link("another"))
    with pytest.raises(ValueError, match="not chained to the run's id"):
        await store.start(Head(run_id="r", flow="f"), first)
    assert await store.head("r") is None
    await store.close()


async def test_a_store_without_its_namespace_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await SqliteStore(path).close()
    change(path, "DELETE FROM meta WHERE name = 'namespace'")
    with pytest.raises(JournalDamaged, match="no key can be minted"):
        SqliteStore(path)
