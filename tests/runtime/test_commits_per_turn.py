"""Commits per turn are as the design's table says: counted by the store itself, turn by turn."""

from datetime import timedelta
from typing import Any

import pytest

import counterfoil as cf
from counterfoil.stores.sqlite import SqliteStore
from tests.runtime.outside import agent, calling

FOREVER = cf.FOREVER


def made(contract: cf.Contract | None, **declared: Any) -> cf.Tool:
    @cf.tool(contract=contract, name="work", **declared)
    async def work(*, call: cf.Call) -> str:
        """Work."""
        await call.sending()
        return "done"

    @work.lookup
    async def find(call: cf.Call) -> Any:
        return cf.Absent()

    return work


async def commits_of_second_turn(store: SqliteStore, tool: cf.Tool, calls: int = 1, **options: Any) -> list[list[str]]:
    """What each append of the second turn held. An open turn is written together with the receipt before it."""
    appends: list[list[str]] = []
    append = store.append

    async def counted(*args: Any, entries: Any, **kwargs: Any) -> Any:
        appends.append([entry.kind for entry in entries])
        return await append(*args, entries=entries, **kwargs)

    store.append = counted  # type: ignore[method-assign]  # it only counts
    turns = [calling("work"), calling(*(["work"] * calls)), calling("work")]
    flow = agent(tool, turns=turns, **options)
    assert (await cf.arun(flow, 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    opened = [number for number, kinds in enumerate(appends) if "turn_opened" in kinds]
    return appends[opened[1] + 1 : opened[2] + 1]


@pytest.mark.parametrize(
    "contract, declared, commits",
    [
        (cf.Read(), {}, 2),
        (cf.Keyed(remembered_for=FOREVER), {}, 2),
        (cf.ClientId(), {}, 2),
        (cf.Repeatable(), {}, 2),
        (cf.Transactional(), {}, 2),
        (cf.OneShot(), {}, 2),
        (None, {}, 2),
        (cf.Lookup(settles_in=timedelta(0)), {}, 2),
        (cf.OneShot(), {"dispatch": "late"}, 3),
        (cf.Keyed(remembered_for=FOREVER), {"dispatch": "late"}, 3),
    ],
)
async def test_commits_of_a_turn_with_one_call(store: SqliteStore, contract: Any, declared: Any, commits: int) -> None:
    appends = await commits_of_second_turn(store, made(contract, **declared))
    assert len(appends) == commits, appends
    assert appends[0][0] == "decided"
    assert appends[-1] == ["receipt", "turn_opened"]
    if isinstance(contract, cf.Read):
        assert not any("dispatched" in kinds for kinds in appends), "a read without limit needs no record"


async def test_a_limited_read_has_its_record(store: SqliteStore) -> None:
    appends = await commits_of_second_turn(store, made(cf.Read()), limits=cf.Limits(calls=9))
    assert appends == [["decided", "dispatched"], ["receipt", "turn_opened"]]


@pytest.mark.parametrize("calls", [2, 5])
async def test_calls_in_sequence_cost_one_commit_more_than_they_are(store: SqliteStore, calls: int) -> None:
    appends = await commits_of_second_turn(store, made(cf.OneShot()), calls)
    assert len(appends) == calls + 1, appends


async def test_the_store_commits_as_often_as_it_is_asked_and_no_more(store: SqliteStore) -> None:
    flow = agent(made(cf.OneShot()))
    await cf.arun(flow, 1, run_id="warm", store=store)
    before = store.commits
    await cf.arun(flow, 1, run_id="r1", store=store)
    # start, claim, turn opened, decision + dispatch, receipt + turn opened, decision + end, release
    assert store.commits - before == 7
