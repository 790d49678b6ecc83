"""Trouble from outside: a lock that is held, a disk that is full, a write that fails, a lease that is not renewed."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from counterfoil.core.events import Decided, SenderProof, Status, TurnOpened
from counterfoil.errors import JournalDamaged, StoreBusy, StoreUnavailable
from counterfoil.stores import commits, connection
from counterfoil.stores.lease import LeaseKeeper
from counterfoil.stores.protocol import Appended, Claimed, Owned, Refused
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.clock import ManualClock
from counterfoil.testing.journals import Pen, fresh, pen_for, start

SHORT = timedelta(milliseconds=50)


def owner_files(store: SqliteStore) -> list[str]:
    folder = Path(f"{store.path}.owners")
    return [file.name for file in folder.iterdir()] if folder.exists() else []


@contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the write lock as another process would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield holder
        holder.execute("ROLLBACK")


# A lock that is held.


async def test_a_locked_store_is_busy_and_then_fine(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", busy_timeout=SHORT)
    pens = [await fresh(store, f"r{number}") for number in range(3)]
    with write_lock(store.path):
        answers = await asyncio.gather(*(pen.note(1) for pen in pens), return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreBusy] * 3
        assert len(await store.events("r0")) == 1, "reading needs no lock"
        with pytest.raises(StoreBusy, match="another process holds the write lock") as refusal:
            await store.claim("another")
    assert refusal.value.exit_code == 74
    for pen in pens:
        await pen.note(1)
        assert len(await store.events(pen.run_id)) == 2
    assert store._commits._thread.ended is False
    await store.close()


async def test_a_lock_that_is_let_go_in_time_is_not_noticed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    pen = await fresh(store, "r")
    with write_lock(store.path):
        writing = asyncio.ensure_future(pen.note(1))
        await asyncio.sleep(0)
    await writing
    assert pen.position == 2
    await store.close()


async def test_a_store_that_cannot_say_goodbye_is_closed_all_the_same(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", busy_timeout=SHORT)
    other = SqliteStore(tmp_path / "store.db")
    await fresh(store, "r")
    name = store.lease.incarnation
    with write_lock(store.path):
        await store.close()
    assert (await other.observe(name)).proof is SenderProof.ALIVE, "nothing says that it released anything"
    assert isinstance(await other.claim("r"), Owned)
    await other.close()


# A disk that is full.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte. It needs the right to mount."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all the room that is left."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


async def test_a_full_disk_at_append_writes_nothing_and_is_fine_again_later(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "store.db")
    pen = await fresh(store, "r")
    other = await fresh(store, "other")
    await pen.note(1)
    filler = fill(small_disk)
    big = pen.entries(Decided(turn=1, text="x" * 60_000), TurnOpened(turn=2))
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="the disk is full") as refusal:
            await pen.put(big)
    assert not isinstance(refusal.value, StoreBusy)
    assert "Free the disk" in refusal.value.remedy
    assert len(await store.events("r")) == 2, "half of it was written"
    assert await store.verify() == []
    filler.unlink()
    assert await pen.put(big) == Appended(position=4)
    await other.note(1)
    assert await store.verify() == []
    await store.close()
    again = SqliteStore(small_disk / "store.db")
    assert len(await again.events("r")) == 4
    await again.close()


async def test_a_full_disk_is_called_full_by_whoever_opens_it_and_can_still_be_read(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "store.db")
    await (await fresh(store, "r")).note(1)
    filler = fill(small_disk)
    assert len(await store.events("r")) == 2
    assert (await store.info()).bytes_free == 0
    filler.unlink()
    await store.close()
    filler = fill(small_disk)
    with pytest.raises(StoreUnavailable, match="the disk is full"):  # The index of the log needs some room.
        SqliteStore(small_disk / "store.db")
    filler.unlink()
    again = SqliteStore(small_disk / "store.db")
    assert len(await again.events("r")) == 2
    await again.close()


# A write that fails.


class Failing:
    """A connection on which a statement fails when it is told to, before or after it took effect."""

    def __init__(self, real: sqlite3.Connection, plan: dict[str, Any]) -> None:
        self._real, self._plan = real, plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def cursor(self) -> Any:
        return FailingCursor(self._real.cursor(), self._plan)


class FailingCursor:
    def __init__(self, real: sqlite3.Cursor, plan: dict[str, Any]) -> None:
        self._real, self._plan = real, plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, statement: str, *args: Any) -> Any:
        if statement != self._plan.get("statement") or self._plan["times"] == 0:
            return self._real.execute(statement, *args)
        self._plan["times"] -= 1
        if self._plan["after"]:
            self._real.execute(statement, *args)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode, error.sqlite_errorname = self._plan["code"], "SQLITE_IOERR_FSYNC"
        raise error


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    plan: dict[str, Any] = {"code": sqlite3.SQLITE_IOERR, "after": False, "times": 0, "opened": 0}

    def connect(*args: Any) -> Any:
        plan["opened"] += 1
        return Failing(connection.connect(*args), plan)

    monkeypatch.setattr(commits, "connect", connect)
    return plan


@pytest.fixture
async def store(plan: dict[str, Any], tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "store.db")
    yield store
    plan["times"] = 0
    await store.close()


async def test_after_an_io_error_the_handle_is_never_used_again(store: SqliteStore, plan: dict[str, Any]) -> None:
    pen = await fresh(store, "r")
    assert plan["opened"] == 1
    plan.update(statement="COMMIT", times=1)
    entries = pen.entries(TurnOpened(turn=1))
    with pytest.raises(StoreUnavailable, match="disk I/O error") as refusal:
        await pen.put(entries)
    assert refusal.value.__cause__ is not None
    assert await pen.put(entries) == Appended(position=2)
    assert plan["opened"] == 2
    assert await store.verify() == []


async def test_a_commit_that_failed_and_took_effect_is_no_conflict(store: SqliteStore, plan: dict[str, Any]) -> None:
    pen = await fresh(store, "r")
    plan.update(statement="COMMIT", times=1, after=True)
    entries = pen.entries(TurnOpened(turn=1))
    with pytest.raises(StoreUnavailable):
        await pen.put(entries)
    assert await pen.put(entries) == Appended(position=2)
    assert len(await store.events("r")) == 2


@pytest.mark.parametrize("after", [False, True])
async def test_a_batch_whose_commit_fails_is_tried_one_by_one(
    after: bool, store: SqliteStore, plan: dict[str, Any]
) -> None:
    pens = [await fresh(store, f"r{number}") for number in range(4)]
    await start(store, "new")
    plan.update(statement="COMMIT", times=1, after=after)
    works = [store.claim("new"), *(pen.note(1) for pen in pens), store.post("r0", "item", b"{}")]
    claimed, *rest = await asyncio.gather(*works)
    assert isinstance(claimed, Claimed), "its own first try was taken for another owner"
    assert claimed.head.lives == 1
    assert rest == [None] * 4 + [1]
    for pen in pens:
        assert len(await store.events(pen.run_id)) == 2


async def test_a_claim_of_which_nobody_heard_is_given_back(store: SqliteStore, plan: dict[str, Any]) -> None:
    await fresh(store, "another")
    await start(store, "r")
    plan.update(statement="COMMIT", times=1, after=True)
    with pytest.raises(StoreUnavailable):
        await store.claim("r")
    assert isinstance(await store.claim("r"), Claimed), "it was ours, and nobody knew"


@pytest.mark.parametrize("after", [False, True])
async def test_a_lease_that_may_not_have_been_written_is_not_held(
    after: bool, store: SqliteStore, plan: dict[str, Any]
) -> None:
    await start(store, "r")
    plan.update(statement="COMMIT", times=1, after=after)
    with pytest.raises(StoreUnavailable):
        await store.claim("r")
    assert not store.lease.alive()
    assert store.lease.owner_fd is None
    assert owner_files(store) == []
    assert isinstance(await store.claim("r"), Claimed)


async def test_a_damaged_file_is_not_called_unavailable(store: SqliteStore, plan: dict[str, Any]) -> None:
    pen = await fresh(store, "r")
    plan.update(statement="COMMIT", times=1, code=sqlite3.SQLITE_CORRUPT)
    with pytest.raises(JournalDamaged):
        await pen.note(1)


# A lease that is renewed, or not.


def keeper(store: SqliteStore) -> LeaseKeeper:
    return store._keeper


BRIEF = timedelta(seconds=0.6)  # Its thread wakes three times as often; the store's own clock stands still meanwhile.


def until_renewed(store: SqliteStore, clock: ManualClock) -> None:
    """Let half a lease pass, and wait until its thread has seen that."""
    lease = store.lease
    clock.advance(BRIEF / 2)
    wait_for(lambda: lease._until_us == clock.boottime_us() + BRIEF // timedelta(microseconds=1))


def wait_for(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not happened():
        pause.wait(0.001)


async def test_a_lease_is_renewed_while_the_loop_is_blocked(tmp_path: Path) -> None:
    """A blocking tool starves nobody: the renewal has a thread of its own."""
    clock = ManualClock()
    store = SqliteStore(tmp_path / "store.db", lease=BRIEF, clock=clock)
    pen = await fresh(store, "r")
    lease = store.lease
    for _ in range(4):  # Longer than a lease, and the loop does nothing.
        until_renewed(store, clock)
    assert lease.alive()
    await pen.note(1)
    await store.close()


async def test_a_lease_is_renewed_under_a_stream_of_writes(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "store.db", lease=BRIEF, clock=clock)
    pens = [await fresh(store, f"r{number}") for number in range(8)]
    stop = False

    async def write(pen: Pen) -> int:
        while not stop:
            await pen.note(1)
        return pen.position

    writing = [asyncio.ensure_future(write(pen)) for pen in pens]
    for _ in range(4):
        await asyncio.to_thread(until_renewed, store, clock)
    stop = True
    assert all(position > 1 for position in await asyncio.gather(*writing))
    await store.close()


async def test_a_renewal_that_cannot_be_written_lets_the_lease_end(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "store.db", lease=BRIEF, clock=clock, busy_timeout=SHORT)
    pen = await fresh(store, "r")
    lease = store.lease
    until = lease._until_us
    tried = threading.Event()
    renew = keeper(store)._renew

    def watched(*args: Any) -> None:
        try:
            renew(*args)
        except sqlite3.OperationalError:
            tried.set()
            raise

    keeper(store)._renew = watched  # type: ignore[method-assign] # to see that it was tried
    with write_lock(store.path):
        await asyncio.to_thread(tried.wait)
        assert lease._until_us == until
        assert lease.alive()
        clock.advance(BRIEF)
        assert not lease.alive()
    answer = await pen.write(TurnOpened(turn=1))
    assert isinstance(answer, Refused)
    assert answer.why == "lease"
    assert await store.renew()
    assert store.lease.alive()
    assert not lease.alive()
    assert isinstance(await store.claim("r"), Claimed)
    await store.close()


async def test_a_renewal_stretches_the_lease_from_before_it_left(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "store.db", lease=timedelta(seconds=30), clock=clock)
    await fresh(store, "r")
    clock.advance(timedelta(seconds=20))
    with closing(connection.connect(store.path, clock, SHORT)) as own:
        keeper(store)._renew(own, store.lease)
        assert store.lease._until_us == clock.boottime_us() + 30_000_000
        (stored,) = own.execute("SELECT expires_us FROM leases").fetchone()
        assert store.lease._until_us <= stored
        clock.advance(timedelta(seconds=30))
        store.lease.extend(clock.boottime_us() + 1)  # Even if this worker were wrong about its own lease:
        keeper(store)._renew(own, store.lease)
    assert not store.lease.alive(), "an expired lease was renewed"
    await store.close()


async def test_one_row_renews_any_number_of_runs(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "store.db", lease=BRIEF, clock=clock)
    for number in range(20):
        await fresh(store, f"r{number}")
    until_renewed(store, clock)
    (lease,) = (await store.info()).leases
    assert lease.runs == 20
    await store.close()


async def test_where_no_boot_is_named_a_restart_ends_the_leases(tmp_path: Path) -> None:
    clock = ManualClock(boot_id="")
    one, other = (SqliteStore(tmp_path / "store.db", clock=clock) for _ in range(2))
    await fresh(one, "r")
    assert isinstance(await other.claim("r"), Owned)
    clock.reboot("")
    answer = await other.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.proof is SenderProof.EXPIRED
    await one.close()
    await other.close()


@pytest.mark.parametrize("where", ["platform", "file system"])
async def test_without_file_locks_a_lease_is_all_there_is(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "platform":
        monkeypatch.setattr("counterfoil.stores.owner.LOCKS", False)
    else:

        def flock(fd: int, how: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr("counterfoil.stores.owner.fcntl.flock", flock)
    clock = ManualClock()
    one, other = (SqliteStore(tmp_path / "store.db", clock=clock) for _ in range(2))
    pen = await fresh(one, "r")
    assert one.lease.owner_fd is None
    await pen.note(1)
    assert isinstance(await other.claim("r"), Owned)
    assert (await other.observe(one.lease.incarnation)).proof is SenderProof.ALIVE
    clock.advance(timedelta(seconds=31))
    assert (await other.observe(one.lease.incarnation)).proof is SenderProof.EXPIRED
    assert isinstance(await other.claim("r"), Claimed)
    await one.close()
    await other.close()
    assert owner_files(one) == []


@pytest.mark.incident("9h")
async def test_incident_9h_order_is_by_position_whatever_the_clock_says(tmp_path: Path) -> None:
    folds = []
    for name, back in (("back", timedelta(seconds=10)), ("still", timedelta(0)), ("on", timedelta(seconds=-10))):
        clock = ManualClock()
        store = SqliteStore(tmp_path / f"{name}.db", clock=clock)
        pen = await fresh(store, "r")
        for turn in range(1, 4):
            clock.set_wall_back(back)
            await pen.must(TurnOpened(turn=turn), Decided(turn=turn, text=str(turn)), status=Status.RUNNING)
        await store.close()
        again = SqliteStore(tmp_path / f"{name}.db", clock=clock)
        events = await again.events("r")
        assert [recorded.position for recorded in events] == list(range(1, 8))
        folds.append([recorded.event for recorded in events])
        assert await again.verify() == []
        await again.close()
    assert folds[0] == folds[1] == folds[2]


async def test_a_run_that_is_taken_over_is_continued_by_the_new_owner_only(tmp_path: Path) -> None:
    clock = ManualClock()
    one, other = (SqliteStore(tmp_path / "store.db", clock=clock) for _ in range(2))
    late = await fresh(one, "r")
    clock.advance(timedelta(seconds=31))
    pen = await pen_for(other, "r")
    answers = await asyncio.gather(late.write(TurnOpened(turn=1)), pen.write(TurnOpened(turn=2)))
    assert isinstance(answers[0], Refused)
    assert isinstance(answers[1], Appended)
    await one.close()
    await other.close()
