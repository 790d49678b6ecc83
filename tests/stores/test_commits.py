"""Group commit: one commit and one sync for all that is queued, and nobody fails for another's write."""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from counterfoil.core.events import TurnOpened
from counterfoil.errors import NoSuchRun, StoreUnavailable
from counterfoil.stores import commits
from counterfoil.stores.commits import READ, WRITE
from counterfoil.stores.protocol import Appended
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.journals import fresh, start
from tests.stores.processes import ROOT, worker


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "store.db")
    yield store
    await store.close()


async def test_an_append_is_one_commit(store: SqliteStore) -> None:
    pen = await fresh(store, "r")
    before = store.commits
    for turn in range(1, 11):
        await pen.note(turn)
    assert store.commits == before + 10
    await pen.must(TurnOpened(turn=11), TurnOpened(turn=12), TurnOpened(turn=13))
    assert store.commits == before + 11, "several events of one append are one commit"


async def test_what_is_queued_at_once_is_committed_at_once(store: SqliteStore) -> None:
    pens = [await fresh(store, f"r{number}") for number in range(100)]
    before = store.commits
    await asyncio.gather(*(pen.note(1) for pen in pens))
    assert store.commits - before <= 5
    for pen in pens:
        assert len(await store.events(pen.run_id)) == 2


async def test_a_loop_is_woken_once_for_a_batch(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pens = [await fresh(store, f"r{number}") for number in range(50)]
    wakes: list[int] = []
    send = commits._send
    monkeypatch.setattr(commits, "_send", lambda loop, answers: (wakes.append(len(answers)), send(loop, answers)))
    await asyncio.gather(*(pen.note(1) for pen in pens))
    assert sum(wakes) == 50
    assert len(wakes) <= 5


STRACE = shutil.which("strace")
COUNTED = """
import asyncio, sys
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.journals import fresh

async def main():
    store = SqliteStore(sys.argv[1])
    pens = [await fresh(store, f"r{number}") for number in range(21)]
    open(sys.argv[1] + ".begin", "w").close()
    for turn in range(1, 41):
        await pens[0].note(turn)
    open(sys.argv[1] + ".middle", "w").close()
    await asyncio.gather(*(pen.note(1) for pen in pens[1:]))
    open(sys.argv[1] + ".end", "w").close()
    await store.close()

asyncio.run(main())
"""


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_a_commit_is_one_sync_of_the_log(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert STRACE is not None
    watched = [
        STRACE,
        "-f",
        "-y",
        "-e",
        "trace=openat,fsync,fdatasync",
        "-o",
        str(trace),
        sys.executable,
        "-c",
        COUNTED,
    ]
    done = subprocess.run([*watched, str(tmp_path / "store.db")], cwd=ROOT, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr
    begin, middle, end = (
        next(number for number, line in enumerate(lines) if f"store.db.{mark}" in line)
        for lines in [trace.read_text().splitlines()]
        for mark in ("begin", "middle", "end")
    )
    lines = trace.read_text().splitlines()

    def syncs(first: int, last: int) -> int:
        calls = [line for line in lines[first:last] if re.search(r"\bf(data)?sync\(", line)]
        assert all("store.db-wal>" in line for line in calls)
        return len(calls)

    assert syncs(begin, middle) == 40, "one sync for each append, no more and no less"
    assert 1 <= syncs(middle, end) <= 5, "20 appends at once share their syncs"


async def test_a_poisoned_write_fails_alone(store: SqliteStore) -> None:
    pens = [await fresh(store, f"r{number}") for number in range(5)]

    def poison(cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT INTO meta (name, value) VALUES ('half', 'written')")
        raise ZeroDivisionError("poison")

    def broken(cursor: sqlite3.Cursor) -> None:
        cursor.execute("INSERT INTO meta (name, value) VALUES ('half', 'written')")
        cursor.execute("INSERT INTO runs (run_no) VALUES (NULL)")

    works = [pen.note(1) for pen in pens[:3]]
    works += [store._commits.call(WRITE, poison), store._commits.call(WRITE, broken), store.post("nobody", "i", b"{}")]
    works += [pen.note(1) for pen in pens[3:]]
    answers = await asyncio.gather(*works, return_exceptions=True)
    assert [type(answer) for answer in answers[3:6]] == [ZeroDivisionError, StoreUnavailable, NoSuchRun]
    assert [answers[number] for number in (0, 1, 2, 6, 7)] == [None] * 5
    for pen in pens:
        assert len(await store.events(pen.run_id)) == 2
    left = await store._commits.call(
        READ, lambda cursor: cursor.execute("SELECT 1 FROM meta WHERE name = 'half'").fetchall()
    )
    assert left == []


async def test_reads_see_the_writes_that_were_queued_before(store: SqliteStore) -> None:
    pen = await fresh(store, "r")
    for turn in range(1, 6):
        _, events = await asyncio.gather(pen.note(turn), store.events("r"))
        assert len(events) == turn + 1


async def test_no_answer_leaves_before_its_commit(store: SqliteStore) -> None:
    """What is seen of a batch that fails as a whole is what was tried again, one by one."""
    seen: list[bool] = []

    def write(cursor: sqlite3.Cursor) -> str:
        cursor.execute("INSERT INTO meta (name, value) VALUES ('one', 1)")
        return "written"

    def again(cursor: sqlite3.Cursor) -> bool:
        known = cursor.execute("SELECT 1 FROM meta WHERE name = 'one'").fetchone() is not None
        seen.append(known)
        if len(seen) == 1:
            raise ZeroDivisionError("the batch goes down")
        return known

    answers = await asyncio.gather(store._commits.call(WRITE, write), store._commits.call(WRITE, again))
    assert answers == ["written", True]
    assert seen == [True, True]


# Threads and event loops.


def test_several_event_loops_one_after_the_other(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    pen = asyncio.run(fresh(store, "r"))
    for turn in range(1, 4):
        asyncio.run(pen.note(turn))
    assert len(asyncio.run(store.events("r"))) == 4
    asyncio.run(store.close())


def test_several_event_loops_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")

    async def work(name: str) -> None:
        pen = await fresh(store, name)
        for turn in range(1, 21):
            await pen.note(turn)

    threads = [threading.Thread(target=asyncio.run, args=(work(f"r{number}"),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [head.position for head in asyncio.run(store.find())] == [21] * 4
    assert asyncio.run(store.verify()) == []
    asyncio.run(store.close())


def test_a_loop_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    asyncio.run(start(store, "r"))
    held, go = threading.Event(), threading.Event()

    async def leave() -> None:
        def wait(cursor: sqlite3.Cursor) -> None:
            held.set()
            go.wait()

        waiting = asyncio.ensure_future(store._commits.call(READ, wait))
        await asyncio.to_thread(held.wait)
        waiting.cancel()

    asyncio.run(leave())
    go.set()
    assert asyncio.run(store.head("r")) is not None
    asyncio.run(store.close())


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("counterfoil")]


async def test_no_thread_outlives_the_store(tmp_path: Path) -> None:
    before = ours()
    store = SqliteStore(tmp_path / "store.db", lease=timedelta(hours=1))
    await fresh(store, "r")
    assert len(ours()) == len(before) + 2
    await asyncio.gather(store.close(), store.close())
    assert ours() == before


async def test_no_thread_outlives_a_store_that_is_dropped(tmp_path: Path) -> None:
    before = ours()
    store = SqliteStore(tmp_path / "store.db", lease=timedelta(hours=1))
    await fresh(store, "r")
    threads = [thread for thread in ours() if thread not in before]
    del store
    gc.collect()
    for thread in threads:
        thread.join(timeout=10)
    assert ours() == before


def test_importing_starts_nothing() -> None:
    code = (
        "import threading, sys; import counterfoil.stores.sqlite, counterfoil.stores.open; "
        "sys.exit(threading.active_count() != 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_program_that_forgets_to_close_ends(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.journals import fresh
store = SqliteStore(sys.argv[1])
asyncio.run(fresh(store, "r"))
"""
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path / "store.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


async def test_what_is_asked_while_the_store_closes_is_answered(store: SqliteStore) -> None:
    await start(store, "r")
    asked = [asyncio.ensure_future(store.head("r")) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    late = asyncio.ensure_future(store._commits.call(READ, lambda cursor: None))
    answers = await asyncio.gather(*asked, late, return_exceptions=True)
    assert all(answer is not None for answer in answers), "somebody was left to wait for ever"
    assert isinstance(answers[-1], StoreUnavailable)


# Several processes.


async def test_two_processes_write_to_different_runs(store: SqliteStore, tmp_path: Path) -> None:
    with worker(tmp_path / "store.db") as other:
        other.do("fresh", "theirs")
        mine = await fresh(store, "mine")
        other.ask("write", "theirs", 200)
        for turn in range(1, 201):
            await mine.note(turn)
        assert other.hear() == 201
    for run_id in ("mine", "theirs"):
        assert len(await store.events(run_id)) == 201
    assert await store.verify() == []


async def test_a_run_moves_from_process_to_process(store: SqliteStore, tmp_path: Path) -> None:
    with worker(tmp_path / "store.db") as one, worker(tmp_path / "store.db") as other:
        one.do("fresh", "r")
        for _ in range(3):
            for here, there in ((one, other), (other, one)):
                here.do("write", "r", 2)
                assert "owned" in there.do("claim", "r")
                here.do("release", "r")
                assert "fence" in there.do("claim", "r")
    events = await store.events("r")
    assert len(events) == 13
    fences = [recorded.fence for recorded in events[1:]]
    assert fences == sorted(fences)


# Size.


async def test_an_event_costs_little_room(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    pen = await fresh(store, "r")

    def used(cursor: sqlite3.Cursor) -> int:
        pages = (
            cursor.execute("PRAGMA page_count").fetchone()[0] - cursor.execute("PRAGMA freelist_count").fetchone()[0]
        )
        return int(pages * cursor.execute("PRAGMA page_size").fetchone()[0])

    before = await store._commits.call(READ, used)
    entries = pen.entries(*(TurnOpened(turn=turn, digest="d" * 64) for turn in range(1, 2001)))
    assert isinstance(await pen.put(entries), Appended)
    after = await store._commits.call(READ, used)
    overhead = (after - before - sum(len(entry.body) for entry in entries)) / len(entries)
    assert overhead <= 120, f"{overhead:.0f} bytes beside each body"
    await store.close()
