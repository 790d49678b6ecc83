"""Asking the model: errors that pass and errors that do not, and what a run may spend over all its lives."""

import asyncio
from typing import Any, cast

import pytest

import counterfoil as cf
from counterfoil.core.events import AskFailed, Decided, TurnOpened
from counterfoil.errors import DefinitionError
from counterfoil.runtime import perform
from counterfoil.stores.sqlite import SqliteStore
from tests.runtime.outside import agent, calling, events


class Failing:
    """A model that raises what it is given, then says it is done."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.asks = 0

    def describe(self) -> dict[str, str]:
        return {"model": "failing"}

    async def decide(self, request: cf.ModelRequest) -> cf.Decision:
        self.asks += 1
        if self.errors:
            raise self.errors.pop(0)
        return cf.Decision(text="done")


def asking(model: Failing) -> cf.Agent:
    return cf.Agent("test", version="1", model=model)


async def test_an_error_that_may_pass_is_tried_again_and_each_ask_is_written_down(store: SqliteStore) -> None:
    model = Failing(cf.ModelError("overloaded", retryable=True))
    result = await cf.arun(asking(model), 1, run_id="r1", store=store)
    assert (result.status, result.output, model.asks) == (cf.Status.COMPLETED, "done", 2)
    found = await events(store)
    assert [event.ask for event in found if isinstance(event, TurnOpened)] == [1, 2]
    [failed] = [event for event in found if isinstance(event, AskFailed)]
    assert (failed.failure.kind, failed.failure.message, failed.retryable) == ("ModelError", "overloaded", True)


async def test_an_outage_makes_the_run_wait_and_the_next_life_asks_as_often_again(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perform, "MODEL_ASKS", 2)
    for life in (1, 2):
        model = Failing(*[cf.ModelError("down", retryable=True)] * 9)
        result = await cf.arun(asking(model), 1, run_id="r1", store=store)
        assert (result.status, result.because, model.asks) == (cf.Status.WAITING, "model-unavailable", 2), life
    assert (await cf.arun(asking(Failing()), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED


@pytest.mark.parametrize("error", [cf.ModelError("no access", retryable=False), ValueError("a bug"), KeyError("x")])
async def test_an_error_that_does_not_pass_blocks_and_never_fails_the_run(store: SqliteStore, error: Any) -> None:
    model = Failing(error)
    result = await cf.arun(asking(model), 1, run_id="r1", store=store)
    assert (result.status, result.because, model.asks) == (cf.Status.BLOCKED, "model-refused", 1)
    assert type(error).__name__ in result.note
    assert (await cf.arun(asking(Failing()), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED


@pytest.mark.parametrize(
    "answer, says",
    [
        (None, "NoneType, not a Decision"),
        ({"text": "done"}, "dict, not a Decision"),
        (cf.Decision(text=cast("Any", None)), "Decision.text of type NoneType, not str"),
        (cf.Decision(usage=cast("Any", {"usd": 1})), "Decision.usage of type dict, not Usage"),
        (cf.Decision(usage=cf.Usage(input_tokens=cast("Any", 1.5))), "Usage.input_tokens of type float, not int"),
        (cf.Decision(usage=cf.Usage(output_tokens=True)), "Usage.output_tokens of type bool, not int"),
        (cf.Decision(calls=cast("Any", None)), "Decision.calls of type NoneType, not tuple"),
        (cf.Decision(calls=cast("Any", ({"name": "send"},))), "a call of type dict, not a ToolCall"),
        (
            cf.Decision(calls=(cf.ToolCall(name="send", arguments=cast("Any", {"to": "a"})),)),
            "ToolCall.arguments of type dict, not str",
        ),
    ],
)
async def test_a_decision_that_is_none_blocks_with_a_sentence_and_the_next_life_asks_again(
    store: SqliteStore, answer: Any, says: str
) -> None:
    class Odd(Failing):
        async def decide(self, request: cf.ModelRequest) -> cf.Decision:
            return cast("cf.Decision", answer)

    result = await cf.arun(asking(Odd()), 1, run_id="r1", store=store)
    assert (result.status, result.because) == (cf.Status.BLOCKED, "model-refused")
    assert result.note == f"ModelError: the model returned {says}"
    assert (await cf.arun(asking(Failing()), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED

    async def ask() -> cf.Decision:
        return cast("cf.Decision", answer)

    async with cf.open_run(asking(Failing()), 1, run_id="r2", store=store) as host:
        with pytest.raises(cf.ModelError, match=f"^the model returned {says}$"):
            await host.decide(1, "sha256:x", ask)


@pytest.mark.parametrize("model", [None, "gpt", type("Half", (), {"decide": lambda: None})()])
def test_what_cannot_be_asked_is_refused_as_a_model(model: Any) -> None:
    with pytest.raises(DefinitionError, match=r"flow test: \w+ is not a model, for it has no describe\(\)"):
        cf.Agent("test", version="1", model=model)


async def test_a_cancellation_that_leaks_out_of_an_adapter_is_an_error_and_hangs_nothing(store: SqliteStore) -> None:
    result = await asyncio.wait_for(
        cf.arun(asking(Failing(asyncio.CancelledError())), 1, run_id="r1", store=store), timeout=30
    )
    assert (result.status, result.because) == (cf.Status.BLOCKED, "model-refused")


async def test_a_tool_that_raises_a_cancellation_of_its_own_hangs_nothing(store: SqliteStore) -> None:
    @cf.tool(contract=cf.Read())
    async def leaks() -> None:
        """Leak."""
        raise asyncio.CancelledError

    result = await asyncio.wait_for(cf.arun(agent(leaks), 1, run_id="r1", store=store), timeout=30)
    assert result.status is cf.Status.COMPLETED


def spending(usage: cf.Usage, **limits: Any) -> cf.Agent:
    @cf.tool(contract=cf.Read())
    async def look() -> str:
        """Look."""
        return "seen"

    call = cf.ToolCall(name="look", arguments="{}")

    def decide(request: cf.ModelRequest) -> cf.Decision:
        return cf.Decision(calls=(call,) if request.turn < 50 else (), usage=usage)

    model = cf.ScriptedModel(decide)
    return cf.Agent("test", version="1", model=model, tools=[look], limits=cf.Limits(**limits))


@pytest.mark.parametrize(
    "limits, decisions, note",
    [
        ({"turns": 3}, 3, "turns: 3 of 3 used"),
        ({"tokens": 25}, 3, "tokens: 30 of 25 used"),
        ({"usd": 0.75}, 3, "usd: 0.7500 of 0.7500 used"),
    ],
)
async def test_what_is_spent_adds_up_over_all_lives(store: SqliteStore, limits: Any, decisions: int, note: str) -> None:
    usage = cf.Usage(input_tokens=6, output_tokens=4, usd=0.25)
    for _ in range(3):
        stop = asyncio.Event()

        def after_one(event: Any, stop: asyncio.Event = stop) -> None:
            if isinstance(event, Decided):
                stop.set()

        await cf.arun(spending(usage, **limits), 1, run_id="r1", store=store, progress=after_one, stop=stop)
    for _ in range(2):
        result = await cf.arun(spending(usage, **limits), 1, run_id="r1", store=store)
        assert (result.status, result.because, result.note) == (cf.Status.BLOCKED, "limit", note)
    assert len([event for event in await events(store) if isinstance(event, Decided)]) == decisions


async def test_a_limit_on_calls_stops_before_the_call_and_counts_over_all_lives(store: SqliteStore) -> None:
    entered: list[int] = []

    @cf.tool
    async def work() -> None:
        """Work."""
        entered.append(1)

    flow = agent(work, turns=[calling("work", "work", "work")], limits=cf.Limits(calls=2))
    for _ in range(3):
        result = await cf.arun(flow, 1, run_id="r1", store=store)
        assert (result.status, result.because, result.note) == (cf.Status.BLOCKED, "limit", "calls: 2 of 2 used")
    assert len(entered) == 2
