"""What a turn costs that needs no clock: commits, syncs and bytes. And what `import counterfoil` does not load."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

import counterfoil as cf
from counterfoil.core.contracts import Contract
from counterfoil.runtime.tools import Tool
from counterfoil.stores.protocol import Appended, Entry, HeadChange, Refused
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.workload import Turns, step_tool, turns_flow

SHORT, LONG = 3, 9
SOON = timedelta(seconds=1)


class CountingStore(SqliteStore):
    """A store that counts what it is asked to make durable."""

    appends = 0

    async def append(
        self, run_id: str, *, fence: int, at: int, mail: int, entries: Sequence[Entry], head: HeadChange
    ) -> Appended | Refused:
        self.appends += 1
        return await super().append(run_id, fence=fence, at=at, mail=mail, entries=entries, head=head)


async def appends_of(path: Path, called: Tool, turns: int, calls: int = 1) -> int:
    """Appends of a whole run; each is one group commit of a store that serves one run."""
    store = CountingStore(path)
    model = Turns(lambda turn: turn <= turns, calls)
    flow = cf.Agent("turns", version="1", model=model, tools=[called], limits=cf.Limits(turns=None))
    known = store.commits
    result = await cf.arun(flow, "go", run_id="r", store=store)
    commits = store.commits - known
    await store.close()
    assert result.status is cf.Status.COMPLETED
    assert model.asked == turns + 1
    assert 0 <= commits - store.appends <= 4, "the start, the lease, the claim and the release are commits, too"
    return store.appends


async def commits_per_turn(folder: Path, called: Tool, calls: int = 1) -> float:
    short = await appends_of(folder / "short.db", called, SHORT, calls)
    long = await appends_of(folder / "long.db", called, LONG, calls)
    return (long - short) / (LONG - SHORT)


def with_lookup(contract: Contract, *, late: bool = False) -> Tool:
    called = step_tool(contract, late=late)

    @called.lookup
    async def find(call: cf.Call) -> cf.Absent:
        return cf.Absent()

    return called


@pytest.mark.parametrize(
    "called,commits",
    [
        pytest.param(step_tool(cf.Read()), 2, id="read"),
        pytest.param(step_tool(cf.Keyed(remembered_for=cf.FOREVER)), 2, id="keyed"),
        pytest.param(with_lookup(cf.ClientId()), 2, id="client-id"),
        pytest.param(step_tool(cf.Repeatable()), 2, id="repeatable"),
        pytest.param(with_lookup(cf.Transactional()), 2, id="transactional"),
        pytest.param(step_tool(cf.OneShot()), 2, id="one-shot-at-entry"),
        pytest.param(with_lookup(cf.Lookup(settles_in=SOON)), 2, id="lookup-at-entry"),
        pytest.param(step_tool(cf.OneShot(), late=True), 3, id="one-shot-late"),
        pytest.param(with_lookup(cf.Lookup(settles_in=SOON), late=True), 3, id="lookup-late"),
    ],
)
async def test_commits_of_a_turn_are_as_many_as_the_design_says(tmp_path: Path, called: Tool, commits: int) -> None:
    assert await commits_per_turn(tmp_path, called) == commits


@pytest.mark.parametrize("calls", [1, 2, 5])
async def test_calls_one_after_the_other_cost_one_commit_each_and_one_for_the_decision(
    tmp_path: Path, calls: int
) -> None:
    assert await commits_per_turn(tmp_path, step_tool(), calls) == calls + 1


CHILD = """
import asyncio, sys
from datetime import timedelta
import counterfoil as cf
from counterfoil.testing.workload import turns_flow

async def main():
    store = cf.open_store(sys.argv[1], lease=timedelta(hours=1))
    await cf.arun(turns_flow(lambda turn: turn <= int(sys.argv[2])), "go", run_id="r", store=store)
    await store.close()
    print(store.commits)

asyncio.run(main())
"""


def syncs_and_commits(folder: Path, turns: int) -> tuple[int, int]:
    """Syncs as the kernel saw them, and commits as the store counts them."""
    report = folder / f"{turns}.txt"
    tracer = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", str(report)]
    child = [sys.executable, "-c", CHILD, str(folder / f"{turns}.db"), str(turns)]
    done = subprocess.run([*tracer, *child], capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("left out: this machine lets nobody trace a process")
    assert done.returncode == 0, done.stderr
    counts = re.findall(
        r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?f(?:data)?sync$", report.read_text(), re.MULTILINE
    )
    return sum(int(count) for count in counts), int(done.stdout)


@pytest.mark.skipif(shutil.which("strace") is None, reason="left out: there is no strace to count syncs with")
def test_one_sync_for_each_commit(tmp_path: Path) -> None:
    few_syncs, few_commits = syncs_and_commits(tmp_path, 5)
    more_syncs, more_commits = syncs_and_commits(tmp_path, 35)
    assert more_commits - few_commits == 2 * 30
    assert more_syncs - few_syncs == more_commits - few_commits


def stored(folder: Path, turns: int) -> int:
    """Size of a store that holds one run of so many turns of 200 B of arguments and a result of 500 B."""
    path = folder / f"{turns}.db"
    flow = turns_flow(lambda turn: turn <= turns)
    assert cf.run(flow, "go", run_id="r", store=path).status is cf.Status.COMPLETED
    assert not Path(f"{path}-wal").exists(), "closing the store folds its log into the file"
    return path.stat().st_size


def test_bytes_of_a_turn_are_few_and_stay_the_same(tmp_path: Path) -> None:
    short, middle, long = (stored(tmp_path, turns) for turns in (150, 300, 600))
    early, late = (middle - short) / 150, (long - middle) / 300
    assert max(early, late) <= 1500
    assert late == pytest.approx(early, rel=0.05)


NOT_NEEDED = {
    "web": ["fastapi", "starlette", "uvicorn", "aiohttp", "flask", "django", "jinja2", "http.server"],
    "command line": ["typer", "click", "rich", "argparse"],
    "HTTP": ["httpx", "httpx2", "httpcore", "requests", "urllib3", "http.client"],
    "database servers": ["psycopg", "psycopg2", "asyncpg", "sqlalchemy"],
    "models": ["openai", "anthropic", "google", "mistralai", "litellm"],
    "what only some need": ["pydantic", "tenacity", "yaml", "hypothesis", "pytest"],
}


def modules_after(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("kind", NOT_NEEDED)
def test_importing_counterfoil_loads_nothing_of_the_kind(kind: str) -> None:
    before = modules_after("")
    assert (modules_after("import counterfoil") - before).isdisjoint(NOT_NEEDED[kind])


def test_a_run_that_sends_nothing_by_http_loads_no_http_library(tmp_path: Path) -> None:
    program = f"""
import counterfoil as cf
from counterfoil.testing.workload import turns_flow
result = cf.run(turns_flow(lambda turn: turn <= 1), "go", run_id="r", store={str(tmp_path / "r.db")!r})
assert result.status == "completed", result
"""
    assert modules_after(program).isdisjoint({"httpx", "httpx2", "httpcore", "rich", "typer", "openai"})


def test_the_counting_store_counts(tmp_path: Path) -> None:
    """The proof above would hold of a store that counts nothing, too."""
    assert asyncio.run(appends_of(tmp_path / "r.db", step_tool(), 1)) >= 3
