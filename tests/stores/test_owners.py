"""Proof of death: what the kernel says of real processes that are killed, stopped, forked and followed by children."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from counterfoil.core.events import SenderProof
from counterfoil.errors import StoreUnavailable
from counterfoil.stores import owner
from counterfoil.stores.protocol import Claimed, Owned
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.journals import Pen, fresh, start
from tests.stores.processes import AheadClock, Worker, worker

pytestmark = pytest.mark.skipif(not owner.LOCKS, reason="nothing proves a death on this platform")

HOUR = timedelta(hours=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def clock() -> AheadClock:
    return AheadClock()


@pytest.fixture
async def store(path: Path, clock: AheadClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=clock)
    yield store
    await store.close()


@pytest.fixture
def other(path: Path, store: SqliteStore) -> Iterator[Worker]:
    with worker(path) as running:
        yield running


def owner_folder(path: Path) -> Path:
    return Path(f"{path}.owners")


def owner_file(path: Path, incarnation: str) -> Path:
    return owner_folder(path) / incarnation


def owner_files(path: Path) -> list[str]:
    folder = owner_folder(path)
    return [file.name for file in folder.iterdir()] if folder.exists() else []


async def proof(store: SqliteStore, incarnation: str) -> SenderProof:
    return (await store.observe(incarnation)).proof


async def test_a_killed_owner_is_dead_at_once_and_its_run_is_taken(store: SqliteStore, other: Worker) -> None:
    theirs = other.do("fresh", "r")
    other.do("write", "r", 3)
    assert isinstance(await store.claim("r"), Owned)
    assert await proof(store, theirs["incarnation"]) is SenderProof.ALIVE
    other.kill()
    assert await proof(store, theirs["incarnation"]) is SenderProof.DEAD
    answer = await store.claim("r")
    assert isinstance(answer, Claimed)
    assert (answer.previous, answer.proof) == (theirs["incarnation"], SenderProof.DEAD)
    assert answer.head.fence == theirs["fence"] + 1
    await Pen(store, answer.head).note(9)
    assert len(await store.events("r")) == 5


async def test_a_claim_alone_sees_the_death_and_keeps_it(store: SqliteStore, other: Worker, path: Path) -> None:
    name = other.do("fresh", "r")["incarnation"]
    other.kill()
    answer = await store.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.proof is SenderProof.DEAD
    owner_file(path, name).unlink()
    assert await proof(store, name) is SenderProof.DEAD, "the proof went with the file"


async def test_a_death_that_was_seen_stays_proven_without_the_file(
    store: SqliteStore, other: Worker, path: Path
) -> None:
    name = other.do("fresh", "r")["incarnation"]
    other.kill()
    assert await proof(store, name) is SenderProof.DEAD
    owner_file(path, name).unlink()
    later = SqliteStore(path)
    assert await proof(later, name) is SenderProof.DEAD
    await later.close()


async def test_a_stopped_owner_is_alive_however_long(store: SqliteStore, other: Worker, clock: AheadClock) -> None:
    theirs = other.do("fresh", "r")
    other.stop()
    assert await proof(store, theirs["incarnation"]) is SenderProof.ALIVE
    assert isinstance(await store.claim("r"), Owned)
    clock.advance(HOUR)
    assert await proof(store, theirs["incarnation"]) is SenderProof.ALIVE
    answer = await store.claim("r")
    assert isinstance(answer, Claimed), "its lease is over, so the run may be taken; its effects may still land"
    assert answer.proof is SenderProof.ALIVE


async def test_a_frozen_owner_that_wakes_writes_nothing(store: SqliteStore, other: Worker, clock: AheadClock) -> None:
    other.do("fresh", "r")
    other.stop()
    clock.advance(HOUR)
    answer = await store.claim("r")
    assert isinstance(answer, Claimed)
    await Pen(store, answer.head).note(1)
    before = await store.events("r")
    other.ask("write", "r", 1)
    other.go_on()
    with pytest.raises(AssertionError, match="the worker ended"):  # Its write was refused, and it fell over that.
        other.hear()
    assert await store.events("r") == before


async def test_a_forked_child_that_lives_keeps_its_dead_parent_alive(store: SqliteStore, other: Worker) -> None:
    name = other.do("fresh", "r")["incarnation"]
    child = other.do("fork")
    other.kill()
    try:
        assert await proof(store, name) is SenderProof.ALIVE, "a copy of the sender is still there, and may send"
    finally:
        os.kill(child, signal.SIGKILL)
    while await proof(store, name) is SenderProof.ALIVE:
        pass  # It is nobody's child here, so nobody can wait for it; it dies at once.
    assert await proof(store, name) is SenderProof.DEAD


@pytest.mark.parametrize("inherit", [False, True])
async def test_a_started_program_holds_the_lock_only_if_it_is_handed_on(
    inherit: bool, store: SqliteStore, other: Worker
) -> None:
    name = other.do("fresh", "r")["incarnation"]
    child = other.do("popen", inherit=inherit)
    other.kill()
    try:
        assert await proof(store, name) is (SenderProof.ALIVE if inherit else SenderProof.DEAD)
    finally:
        os.kill(child, signal.SIGKILL)


async def test_a_forked_child_cannot_act_for_its_parent(store: SqliteStore, other: Worker) -> None:
    name = other.do("fresh", "r")["incarnation"]
    seen = other.do("fork_and_act", "r")
    assert seen["status"] == 0
    assert not seen["alive"]
    assert len(seen["errors"]) == 3
    assert all("unsafe_store" in error and "forked child" in error for error in seen["errors"])
    assert all("Open the store again in the child" in error for error in seen["errors"])
    assert seen["closed"], "the child still holds the lock"
    assert await proof(store, name) is SenderProof.ALIVE
    assert other.do("write", "r", 2) == 3, "the child's end harmed its parent's store"
    assert await store.verify() == []
    other.kill()
    assert await proof(store, name) is SenderProof.DEAD


async def test_a_pid_proves_nothing(store: SqliteStore, other: Worker, path: Path) -> None:
    """The number of a dead worker may belong to an unrelated process by now, and that of a live one to nobody."""
    dead = other.do("fresh", "dead")["incarnation"]
    other.kill()
    with worker(path) as living:
        alive = living.do("fresh", "alive")["incarnation"]
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE leases SET pid = ? WHERE incarnation = ?", (os.getpid(), dead))
            connection.execute("UPDATE leases SET pid = ? WHERE incarnation = ?", (other.pid, alive))
        connection.close()
        assert await proof(store, dead) is SenderProof.DEAD
        assert await proof(store, alive) is SenderProof.ALIVE
        assert isinstance(await store.claim("dead"), Claimed)
        assert isinstance(await store.claim("alive"), Owned)


@pytest.mark.parametrize("column,value", [("token", "'x'"), ("inode", "inode + 1"), ("device", "device + 1")])
async def test_a_free_lock_on_another_file_proves_nothing(
    column: str, value: str, store: SqliteStore, other: Worker, path: Path, clock: AheadClock
) -> None:
    name = other.do("fresh", "r")["incarnation"]
    other.kill()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE leases SET {column} = {value} WHERE incarnation = ?", (name,))
    connection.close()
    assert isinstance(await store.claim("r"), Owned)
    clock.advance(HOUR)
    assert await proof(store, name) is SenderProof.EXPIRED
    answer = await store.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.proof is SenderProof.EXPIRED


async def test_a_file_in_its_place_proves_nothing(
    store: SqliteStore, other: Worker, path: Path, clock: AheadClock
) -> None:
    """A copy of a store brings its owner files along: the same name and token, another inode."""
    name = other.do("fresh", "r")["incarnation"]
    file = owner_file(path, name)
    token = file.read_bytes()
    file.rename(f"{path}.moved")
    file.write_bytes(token)
    assert isinstance(await store.claim("r"), Owned), "its owner lives"
    clock.advance(HOUR)
    assert await proof(store, name) is SenderProof.EXPIRED
    file.unlink()
    assert await proof(store, name) is SenderProof.EXPIRED


async def test_a_look_does_not_stand_for_a_life(store: SqliteStore, other: Worker, path: Path) -> None:
    """Two that look at once: neither may take the other's look for the owner."""
    name = other.do("fresh", "r")["incarnation"]
    other.kill()
    with sqlite3.connect(path) as connection:
        file, device, inode, token = connection.execute(
            "SELECT owner_file, device, inode, token FROM leases WHERE incarnation = ?", (name,)
        ).fetchone()
    connection.close()
    expected = owner.OwnerFile(path=str(path.parent / file), device=device, inode=inode, token=token)
    looking = os.open(expected.path, os.O_RDONLY)
    try:
        owner.fcntl.flock(looking, owner.fcntl.LOCK_SH)  # What another's look does.
        assert owner.probe(expected) == "free"
        assert await proof(store, name) is SenderProof.DEAD
    finally:
        os.close(looking)


async def test_an_ordinary_end_is_a_release(store: SqliteStore, other: Worker, path: Path) -> None:
    name = other.do("fresh", "r")["incarnation"]
    other.do("close")
    assert await proof(store, name) is SenderProof.RELEASED
    assert owner_files(path) == []
    answer = await store.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.previous == ""


async def test_an_end_with_senders_left_is_proven_by_the_death(store: SqliteStore, other: Worker) -> None:
    name = other.do("fresh", "r")["incarnation"]
    other.do("close", attempts_ended=False)
    assert await proof(store, name) is SenderProof.ALIVE
    assert isinstance(await store.claim("r"), Claimed), "the run itself was given up"
    other.kill()
    assert await proof(store, name) is SenderProof.DEAD


async def test_a_store_that_is_dropped_lets_nobody_believe_it_released(path: Path, store: SqliteStore) -> None:
    dropped = SqliteStore(path)
    await fresh(dropped, "r")
    name = dropped.lease.incarnation
    del dropped
    assert await proof(store, name) is SenderProof.ALIVE


async def test_pruning_keeps_the_files_of_the_dead_while_a_run_names_them(
    store: SqliteStore, other: Worker, path: Path, clock: AheadClock
) -> None:
    name = other.do("fresh", "r")["incarnation"]
    other.kill()
    file = owner_file(path, name)
    assert await store.prune(older_than=timedelta(0)) == 0
    assert file.exists()
    answer = await store.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.proof is SenderProof.DEAD
    await Pen(store, answer.head).finish()
    await store.release("r", fence=answer.head.fence)
    clock.advance(HOUR)
    assert await store.prune(older_than=timedelta(minutes=1)) == 1
    assert not file.exists()
    assert {lease.incarnation for lease in (await store.info()).leases} == {store.lease.incarnation}


async def test_the_lock_is_taken_with_the_first_claim_and_not_before(store: SqliteStore, path: Path) -> None:
    await start(store, "r")
    await store.find()
    assert owner_files(path) == []
    assert store.lease.owner_fd is None
    assert not store.lease.alive()
    await store.claim("r")
    assert store.lease.owner_fd is not None
    assert not os.get_inheritable(store.lease.owner_fd)
    assert store.lease.alive()


async def test_a_folder_that_cannot_be_made_is_named(path: Path, store: SqliteStore) -> None:
    await start(store, "r")
    folder = owner_folder(path)
    folder.write_text("in the way")
    with pytest.raises(StoreUnavailable, match=r"store\.db\.owners: no owner file can be made"):
        await store.claim("r")
    assert not store.lease.alive()
    folder.unlink()
    assert isinstance(await store.claim("r"), Claimed)
