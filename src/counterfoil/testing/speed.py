"""Measurements, each beside what it is judged by: runs next to raw commits, imports next to a bare interpreter.

It must not judge: it returns numbers, and `counterfoil bench` says what was aimed at.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from counterfoil.errors import CounterfoilError
from counterfoil.runtime.agent import arun
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.workload import turns_flow

CHILD = "counterfoil.testing.speed_child"
WARM_UP = 20
"""Turns of a run that is made before any clock starts, so that nothing is measured that happens once."""

_TABLE = """CREATE TABLE IF NOT EXISTS rows (
    run_no INTEGER NOT NULL, position INTEGER NOT NULL, at_us INTEGER NOT NULL, fence INTEGER NOT NULL,
    kind TEXT NOT NULL, link BLOB NOT NULL, body BLOB NOT NULL, PRIMARY KEY (run_no, position)
) WITHOUT ROWID"""


class Rate(Struct, frozen=True):
    """How fast something went, and what it cost this process: all its threads, in milliseconds of CPU each."""

    per_s: float
    cpu_ms: float


class Beside(Struct, frozen=True):
    """Something, and the raw rate of single-row commits directly before and after it."""

    ours: Rate
    before: Rate
    after: Rate

    @property
    def ratio(self) -> float:
        """How fast it was, as a part of the raw rate."""
        return 2 * self.ours.per_s / (self.before.per_s + self.after.per_s)


@contextmanager
def folder(under: Path) -> Iterator[Path]:
    """Yield a new folder, and remove it with all that is in it."""
    with TemporaryDirectory(prefix="counterfoil-bench-", dir=under) as made:
        yield Path(made)


def beside_raw(under: Path, seconds: float, body_bytes: int, measure: Callable[[Path, float], Rate]) -> Beside:
    """Measure something between two measurements of the raw rate, which show a disk that changes its mind."""
    with folder(under) as place:
        before = raw_commits(place, seconds / 2, body_bytes)
        ours = measure(place, seconds)
        return Beside(ours, before, raw_commits(place, seconds / 2, body_bytes))


def raw_commits(place: Path, seconds: float, body_bytes: int) -> Rate:
    """Commit one row at a time, durably, and nothing else: the journal's table, without index, check or head."""
    connection = sqlite3.connect(place / "raw.db", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_TABLE)
        first = connection.execute("SELECT coalesce(max(position), 0) + 1 FROM rows").fetchone()[0]
        body, link = bytes(body_bytes), bytes(32)
        count, cpu, begun = 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - begun < seconds:
            row = (first + count, time.time_ns() // 1000, link, body)
            connection.execute("INSERT INTO rows VALUES (1, ?, ?, 1, 'receipt', ?, ?)", row)
            count += 1
        return _rate(count, begun, cpu)
    finally:
        connection.close()


def one_run(place: Path, seconds: float) -> Rate:
    """Return records of one run: a record is one durable commit of its journal, two for each turn."""
    return asyncio.run(_measure(place, seconds, runs=1))[0]


def many_runs(place: Path, seconds: float, runs: int = 50) -> Rate:
    """Return turns, two records each, of so many runs at once in one process."""
    return asyncio.run(_measure(place, seconds, runs=runs))[1]


async def _measure(place: Path, seconds: float, *, runs: int) -> tuple[Rate, Rate]:
    """Return the rate of commits and the rate of turns of runs that end when the time is over."""
    store = SqliteStore(place / "runs.db")
    try:
        known = store.commits  # Runs are named by it, so that several measurements may share a file.
        await arun(turns_flow(lambda turn: turn <= WARM_UP), "warm", run_id=f"warm-{known}", store=store)
        ends = time.perf_counter() + seconds
        turns = 0

        def wanted(turn: int) -> bool:
            nonlocal turns
            go_on = turn == 1 or time.perf_counter() < ends
            turns += go_on
            return go_on

        flow, first = turns_flow(wanted), store.commits
        flow.manifest  # noqa: B018 - made once for a flow, not for each run
        cpu, begun = time.process_time(), time.perf_counter()
        results = await asyncio.gather(
            *(arun(flow, "go", run_id=f"{known}-{number}", store=store) for number in range(runs))
        )
        commits = store.commits - first
        measured = _rate(commits, begun, cpu), _rate(turns, begun, cpu)
        broken = [result for result in results if result.output != "done"]
        if broken:
            raise CounterfoilError(f"a run of the benchmark did not end: {broken[0]}")
        return measured
    finally:
        await store.close()


def record_bytes(place: Path) -> int:
    """Return how many bytes of events a record holds: what a raw commit must carry to be the same work."""
    asyncio.run(_record(place))
    connection = sqlite3.connect(place / "runs.db")
    try:
        events = connection.execute("SELECT sum(length(body)) FROM events WHERE position > 10").fetchone()[0]
        turns = connection.execute("SELECT count(*) FROM events WHERE position > 10 AND kind = 'receipt'").fetchone()[0]
        return int(events / turns / 2)
    finally:
        connection.close()


async def _record(place: Path) -> None:
    store = SqliteStore(place / "runs.db")
    await arun(turns_flow(lambda turn: turn <= 2 * WARM_UP), "warm", run_id="warm", store=store)
    await store.close()


def _rate(count: int, begun: float, cpu: float) -> Rate:
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    return Rate(count / elapsed, used / count * 1000)


@contextmanager
def one_core() -> Iterator[bool]:
    """Keep this process on one core for a while; yield whether that can be done here."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, cores)


def child(*words: str) -> str:
    """Run Python with these words and return what it printed. Raises where it failed."""
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
    if done.returncode not in (0, -signal.SIGKILL):
        raise CounterfoilError(f"a child process of the benchmark failed: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def process_ms(*words: str) -> float:
    """Return how long a whole process takes, from before it is started until it has ended."""
    begun = time.perf_counter()
    child(*words)
    return (time.perf_counter() - begun) * 1000


class Growth(Struct, frozen=True):
    """How one run grew: CPU of a turn and bytes stored for each turn, at each length."""

    cpu_ms: dict[int, float]
    turn_bytes: dict[int, float]


def grow(place: Path, lengths: list[int]) -> Growth:
    """Drive one run in a child that dies by SIGKILL at the last length; keep its store as it was at each."""
    said = child("-m", CHILD, "grow", str(place), ",".join(str(length) for length in lengths))
    cpu_ms = {int(length): float(cpu) for length, cpu in (line.split() for line in said.splitlines())}
    empty = (place / "0.db").stat().st_size
    sizes = {length: ((place / f"{length}.db").stat().st_size - empty) / length for length in lengths}
    return Growth(cpu_ms, sizes)


class Resumed(Struct, frozen=True):
    """How long it took from a process's start to the next new call of a killed run, and the process's CPU till then."""

    wall_ms: float
    cpu_ms: float


def resume(place: Path, length: int) -> Resumed:
    """Resume the run that `grow` left at this length, in a new process, on a copy of its store."""
    with folder(place) as copy:
        shutil.copy(place / f"{length}.db", copy / "run.db")
        begun = time.monotonic()
        said = child("-m", CHILD, "resume", str(copy / "run.db"), str(length + 1)).split()
    if len(said) != 3 or said[2] != "True":  # noqa: PLR2004 - monotonic clock, CPU, whether it is the call wanted
        raise CounterfoilError(f"a resumed run of the benchmark went astray: {said}")
    return Resumed((float(said[0]) - begun) * 1000, float(said[1]) * 1000)


class Hello(Struct, frozen=True):
    """A program that makes a run of one turn, as a whole process."""

    wall_ms: float
    cpu_ms: float
    peak_mb: float


def hello(place: Path) -> Hello:
    """Run the smallest program there is, on a new store."""
    with folder(place) as new:
        begun = time.perf_counter()
        said = child("-m", CHILD, "hello", str(new / "run.db"))
        wall_ms = (time.perf_counter() - begun) * 1000
    cpu_ms, peak_mb, _status = said.split()
    return Hello(wall_ms, float(cpu_ms), float(peak_mb))


class Start(Struct, frozen=True):
    """How long something took at a process's start, and its CPU."""

    wall_ms: float
    cpu_ms: float


def import_ms(modules: str) -> Start:
    """Return how long a new interpreter needs to import something, its own start left out."""
    clocks = "time.perf_counter() * 1000, time.process_time() * 1000"
    timed = f"import time; a, b = {clocks}; import {modules}; c, d = {clocks}; print(c - a, d - b)"
    wall_ms, cpu_ms = child("-c", timed).split()
    return Start(float(wall_ms), float(cpu_ms))
