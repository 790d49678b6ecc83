"""What bad input gets: a clear error or a settled fact, and nothing lost."""

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from pydantic import AfterValidator

import counterfoil as cf
from counterfoil.core.events import Receipt, Rejected
from counterfoil.errors import DefinitionError, NoSuchRun, RunOwned
from counterfoil.runtime import patience
from counterfoil.stores.sqlite import SqliteStore
from tests.runtime.outside import Outside, agent, calling, events, kinds
from tests.waiting import until_async

ONE_MIB = 1 << 20


def recording(entered: list[Any]) -> cf.Tool:
    @cf.tool
    def send(to: str, times: int = 1) -> str:
        """Send."""
        entered.append((to, times))
        return "sent"

    return send


def told(request: cf.ModelRequest) -> dict[str, Any]:
    return {"text": json.dumps([[result.content, result.error] for result in request.history[-1].results])}


def model_that_asks(*calls: cf.ToolCall) -> cf.ScriptedModel:
    def decide(request: cf.ModelRequest) -> Any:
        return cf.Decision(calls=calls) if request.turn == 1 else told(request)

    return cf.ScriptedModel(decide, check_history=True)


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        ("sned", "{}", "UnknownTool: there is no tool 'sned'; there are: send"),
        ("send", "{}", "InvalidArguments: send: to: Field required"),
        ("send", '{"to": "a", "times": "many"}', "InvalidArguments: send: times: Input should be a valid integer"),
        ("send", '{"to": "a", "bcc": "b"}', "InvalidArguments: send: bcc: Extra inputs are not permitted"),
        ("send", "[1]", "InvalidArguments: send: arguments"),
        ("send", "", "MalformedArguments: the arguments are no JSON"),
        ("send", '{"to": "a"', "MalformedArguments: the arguments are no JSON"),
        ("send", '{"to": NaN}', "MalformedArguments: the arguments are no JSON"),
        ("send", "[" * 5000 + "]" * 5000, "MalformedArguments: the arguments are no JSON"),
        ("send", '{"to": "\ud800"}', "MalformedArguments: the arguments are no JSON"),
    ],
)
async def test_a_call_that_cannot_be_made_is_settled_as_an_error_that_the_model_reads(
    store: SqliteStore, name: str, arguments: str, says: str
) -> None:
    entered: list[Any] = []
    model = model_that_asks(cf.ToolCall(name=name, arguments=arguments, id="x"))
    flow = cf.Agent("test", version="1", model=model, tools=[recording(entered)])
    result = await cf.arun(flow, 1, run_id="r1", store=store)
    assert result.status is cf.Status.COMPLETED
    [[content, error]] = json.loads(result.output)
    assert (content.startswith(says), error, entered) == (True, True, [])
    assert "dispatched" not in kinds(await events(store))


async def test_a_validator_that_raises_what_it_likes_refuses_its_call_and_not_the_decision(store: SqliteStore) -> None:
    def picky(value: str) -> str:
        raise KeyError(value)

    @cf.tool
    def send(to: Annotated[str, AfterValidator(picky)]) -> str:
        """Send."""
        raise AssertionError("entered")

    model = model_that_asks(cf.ToolCall(name="send", arguments='{"to": "a"}'))
    result = await cf.arun(cf.Agent("test", version="1", model=model, tools=[send]), 1, run_id="r1", store=store)
    assert json.loads(result.output) == [["InvalidArguments: send: KeyError: 'a'", True]]


async def test_half_a_surrogate_pair_in_a_reply_does_not_lose_the_reply(store: SqliteStore) -> None:
    asks: list[int] = []

    def decide(request: cf.ModelRequest) -> Any:
        asks.append(request.turn)
        call = cf.ToolCall(name="torn\udc00", arguments="{}", id="\ud800")
        return cf.Decision(text="torn \ud83d", calls=(call,)) if request.turn == 1 else {"text": "done"}

    flow = cf.Agent("test", version="1", model=cf.ScriptedModel(decide), tools=[])
    assert (await cf.arun(flow, 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert asks == [1, 2]


@pytest.mark.parametrize("ids", [("", ""), ("same", "same")])
async def test_calls_with_one_id_or_none_stay_two_calls(store: SqliteStore, ids: tuple[str, str]) -> None:
    entered: list[Any] = []
    asked = [cf.ToolCall(name="send", arguments='{"to": "a"}', id=each) for each in ids]
    flow = cf.Agent("test", version="1", model=model_that_asks(*asked), tools=[recording(entered)])
    result = await cf.arun(flow, 1, run_id="r1", store=store)
    assert (len(entered), len(json.loads(result.output))) == (2, 2)


def _deep() -> Any:
    value: Any = []
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, (1, 2), float("nan"), 2**70, "\ud800", _deep(), "x" * 1_000_001, [float("inf")]]
)
async def test_a_result_that_cannot_be_stored_is_settled_as_applied_and_never_run_again(
    store: SqliteStore, value: Any
) -> None:
    entered: list[int] = []

    @cf.tool
    def send() -> Any:
        """Send."""
        entered.append(1)
        return value

    for _ in range(3):
        assert (await cf.arun(agent(send), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    [receipt] = [event for event in await events(store) if isinstance(event, Receipt)]
    assert receipt.unstored is not None
    assert (len(entered), receipt.proof, receipt.unstored.size > 0) == (1, "response", True)


async def test_an_exception_after_the_request_left_is_decided_like_a_crash(
    store: SqliteStore, outside: Outside
) -> None:
    outside.behave(fault="drop_response", times=1)

    async def post(call: cf.Call) -> str:
        answer = await call.http.post(outside.url, json={"a": 1})
        return str(answer.json()["id"])

    @cf.tool(contract=cf.Keyed(remembered_for=cf.FOREVER))
    async def keyed(*, call: cf.Call) -> str:
        """Send."""
        return await post(call)

    assert (await cf.arun(agent(keyed), 1, run_id="keyed", store=store)).status is cf.Status.COMPLETED
    assert (outside.effects, len(outside.requests)) == (1, 2), "repeated under the same key"

    outside.behave(fault="drop_response", times=1)

    @cf.tool
    async def once(*, call: cf.Call) -> str:
        """Send."""
        return await post(call)

    for _ in range(2):
        result = await cf.arun(agent(once), 1, run_id="once", store=store)
        assert (result.status, result.unknown) == (cf.Status.UNKNOWN, ("1.1",))
    assert (outside.effects, len(outside.requests)) == (2, 3), "not repeated"


async def test_a_flow_that_differs_is_blocked_and_each_difference_named(store: SqliteStore) -> None:
    entered: list[Any] = []
    stopped = agent(recording(entered), turns=[calling("send", to="a")], limits=cf.Limits(turns=1))
    assert (await cf.arun(stopped, 1, run_id="r1", store=store)).because == "limit"

    @cf.tool(contract=cf.Repeatable(), name="send")
    def changed(to: str, urgent: bool = False) -> int:
        """Send it."""
        return 1

    model = cf.ScriptedModel([{"text": "another script"}])
    other = cf.Agent("test", version="2", model=model, tools=[changed], instructions="Be kind.")
    result = await cf.arun(other, 1, run_id="r1", store=store)
    assert (result.status, result.because, result.exit_code) == (cf.Status.BLOCKED, "flow-changed", 5)
    tool = {f"tool send: {each}" for each in ("arguments", "contract", "description", "result")}
    assert {each.where for each in result.differences} == tool | {"flow version", "instructions", "model script"}
    assert all(each.journal != each.now for each in result.differences)


async def test_a_second_process_on_the_same_run_is_told_who_has_it(store: SqliteStore) -> None:
    child = (
        "import sys, counterfoil as cf\n"
        "flow = cf.Agent('test', version='1', model=cf.ScriptedModel([{'text': 'x'}]))\n"
        "try: cf.run(flow, 1, run_id='r1', store=sys.argv[1])\n"
        "except cf.CounterfoilError as error: print(error); sys.exit(error.exit_code)\n"
    )

    @cf.tool(contract=cf.Read())
    def look() -> str:
        """Run another process, while this one owns the run."""
        other = subprocess.run(
            [sys.executable, "-c", child, str(store.path)], check=False, capture_output=True, text=True
        )
        return f"{other.returncode} {other.stdout}"

    await cf.arun(agent(look), 1, run_id="r1", store=store)
    [receipt] = [event for event in await events(store) if isinstance(event, Receipt)]
    said = json.loads(bytes(receipt.result))
    assert said.startswith("75 run r1 is held by another worker")
    assert str(os.getpid()) in said


async def test_a_known_id_with_another_input_is_refused_and_the_run_left_alone(store: SqliteStore) -> None:
    entered: list[Any] = []
    flow = agent(recording(entered), turns=[calling("send", to="a")])
    await cf.arun(flow, {"a": 1, "b": 2}, run_id="r1", store=store)
    before = await events(store)
    assert (await cf.arun(flow, {"b": 2, "a": 1}, run_id="r1", store=store)).status is cf.Status.COMPLETED
    with pytest.raises(cf.CounterfoilError, match="another input") as caught:
        await cf.arun(flow, {"a": 1}, run_id="r1", store=store)
    assert (caught.value.code, caught.value.exit_code, len(await events(store))) == ("input_mismatch", 2, len(before))


@pytest.mark.parametrize("run_id", ["", " a", "a\nb", "x" * 201, "\x1b[31m"])
async def test_an_id_that_cannot_be_shown_is_refused(store: SqliteStore, run_id: str) -> None:
    with pytest.raises(cf.CounterfoilError, match="run id"):
        await cf.arun(agent(), 1, run_id=run_id, store=store)


# A full disk and a locked database, at each of the three writes.


class Trouble:
    """Keeps the store from writing, for real, until it is over."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind = folder, kind
        self.store = folder / "counterfoil.db"
        self._lock: sqlite3.Connection | None = None

    def begin(self) -> None:
        if self.kind == "locked":
            self._lock = sqlite3.connect(self.store, isolation_level=None, check_same_thread=False)
            self._lock.execute("BEGIN IMMEDIATE")
            return
        with (self.folder / "filler").open("wb", buffering=0) as filler:
            for size in (4096, 512, 1):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError:
                    pass

    def end(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        (self.folder / "filler").unlink(missing_ok=True)


@pytest.fixture(params=["full", "locked"])
def trouble(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    monkeypatch.setattr(patience, "STORE_PATIENCE_S", 0.3)
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = False
    if request.param == "full":
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ONE_MIB}", "none", str(folder)]
        tried = subprocess.run(mount, check=False, capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"a really full disk needs a small tmpfs, and this user may not mount one: {tried.stderr}")
        mounted = True
    made = Trouble(folder, request.param)
    try:
        yield made
    finally:
        made.end()
        if mounted:
            # Lazily: a worker that could not give its run up keeps its owner lock until its process ends.
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def late_sender(outside: Outside, before: Callable[[], None], after: Callable[[], None]) -> cf.Tool:
    @cf.tool(contract=cf.Keyed(remembered_for=cf.FOREVER), dispatch="late")
    async def send(*, call: cf.Call) -> str:
        """Send; its own mark is a write of its own."""
        before()
        answer = await call.http.post(outside.url, json={"a": 1})
        after()
        return str(answer.json()["id"])

    return send


def nothing() -> None:
    """Go on."""


async def lives(trouble: Trouble, flow: cf.Agent) -> cf.RunResult:
    store = SqliteStore(trouble.store, busy_timeout=timedelta(milliseconds=50), lease=timedelta(seconds=2))
    try:
        return await cf.arun(flow, 1, run_id="r1", store=store)
    finally:
        await store.close()


async def later(trouble: Trouble, flow: cf.Agent) -> cf.RunResult:
    """Live again once the lease is over that the first life could not give up: its process is this one."""
    results: list[cf.RunResult] = []

    async def lived() -> bool:
        with contextlib.suppress(RunOwned):
            results.append(await lives(trouble, flow))
        return bool(results)

    await until_async(lived, "the lease of the first life is over")
    return results[0]


@pytest.mark.parametrize("write", ["decision", "dispatch", "receipt"])
async def test_trouble_at_a_write_loses_nothing_and_repeats_nothing(
    trouble: Trouble, outside: Outside, write: str
) -> None:
    asks: list[int] = []
    begin = {"armed": trouble.begin}

    def once() -> None:
        begin.pop("armed", nothing)()

    def decide(request: cf.ModelRequest) -> Any:
        asks.append(request.turn)
        if write == "decision":
            once()
        return calling("send") if request.turn == 1 else {"text": "done"}

    tool = late_sender(outside, once if write == "dispatch" else nothing, once if write == "receipt" else nothing)
    flow = cf.Agent("test", version="1", model=cf.ScriptedModel(decide), tools=[tool])
    with pytest.raises(cf.CounterfoilError) as caught:
        await lives(trouble, flow)
    assert caught.value.exit_code == 74
    sent_before = outside.effects
    assert sent_before == (1 if write == "receipt" else 0), "a decision is not acted on, a dispatch not sent"
    trouble.end()
    assert (await later(trouble, flow)).status is cf.Status.COMPLETED
    assert outside.effects == 1
    assert len(outside.requests) == (2 if write == "receipt" else 1), "a lost receipt is recovered by its contract"
    assert asks == ([1, 1, 2] if write == "decision" else [1, 2]), "only an unsaved decision is asked for again"


async def test_a_receipt_is_written_again_until_the_trouble_is_over(
    trouble: Trouble, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "STORE_PATIENCE_S", 30.0)
    store = SqliteStore(trouble.store, busy_timeout=timedelta(milliseconds=50))
    append, failed = store.append, []

    async def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return await append(*args, **kwargs)
        except cf.CounterfoilError as error:
            failed.append(error.code)
            trouble.end()
            raise

    store.append = watched  # type: ignore[method-assign]  # it only looks on
    try:
        flow = agent(late_sender(outside, nothing, trouble.begin))
        assert (await cf.arun(flow, 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    finally:
        await store.close()
    assert failed == ["store_busy" if trouble.kind == "locked" else "store_unavailable"]
    assert (outside.effects, len(outside.requests)) == (1, 1)


async def test_rejected_calls_and_lost_decisions_never_look_alike(store: SqliteStore) -> None:
    """The N-th recovery: a rejected call stays rejected, however often the run is resumed."""
    model = model_that_asks(cf.ToolCall(name="nope", arguments="{}"))
    flow = cf.Agent("test", version="1", model=model, tools=[])
    outputs = {(await cf.arun(flow, 1, run_id="r1", store=store)).output for _ in range(3)}
    assert len(outputs) == 1
    assert len([event for event in await events(store) if isinstance(event, Rejected)]) == 1


class Panic(BaseException):
    """As Rust extensions raise: not derived from `Exception`."""


@pytest.mark.parametrize("error", [Panic("at the disco"), StopIteration(1), BaseExceptionGroup("two", [Panic()])])
@pytest.mark.parametrize("is_async", [True, False])
async def test_no_class_of_exception_keeps_a_tool_or_its_lookup_under_way_for_ever(
    is_async: bool, error: BaseException, store: SqliteStore
) -> None:
    entered: list[str] = []

    async def send(*, call: cf.Call) -> str:
        """Send."""
        entered.append("send")
        raise error

    async def find(call: cf.Call) -> cf.Found[str]:
        entered.append("find")
        raise error

    def send_sync(*, call: cf.Call) -> str:
        """Send."""
        entered.append("send")
        raise error

    def find_sync(call: cf.Call) -> cf.Found[str]:
        entered.append("find")
        raise error

    declared = cf.tool(name="send", contract=cf.Lookup(settles_in=timedelta(0)), lookups=1)
    tool = declared(send if is_async else send_sync)
    tool.lookup(find if is_async else find_sync)
    async with asyncio.timeout(10):
        result = await cf.arun(agent(tool), 1, run_id="r1", store=store)
    assert (result.status, result.unknown) == (cf.Status.UNKNOWN, ("1.1",))
    assert entered == ["send", "find"]


async def test_no_class_of_exception_keeps_a_question_to_the_model_open_for_ever(store: SqliteStore) -> None:
    def decide(request: cf.ModelRequest) -> Any:
        raise Panic("at the disco")

    flow = cf.Agent("test", version="1", model=cf.ScriptedModel(decide), tools=())
    async with asyncio.timeout(10):
        result = await cf.arun(flow, 1, run_id="r1", store=store)
    assert result.status is cf.Status.BLOCKED
    assert "Panic: at the disco" in result.note


async def test_what_is_no_id_and_what_is_no_json_is_said_in_a_line(store: SqliteStore) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(DefinitionError, match="is no JSON value"):
        await cf.arun(agent(recording([])), endless, run_id="r1", store=store)
    for no_number in (float("nan"), {"amounts": [1.5, float("inf")]}):  # It would be stored as null.
        with pytest.raises(DefinitionError, match="the input of run r1 is no JSON value"):
            await cf.arun(agent(recording([])), no_number, run_id="r1", store=store)
    assert await store.head("r1") is None
    with pytest.raises(DefinitionError, match="a run id is text, not int"):
        await cf.arun(agent(recording([])), 1, run_id=cast("Any", 5), store=store)
    with pytest.raises(NoSuchRun):
        await cf.aresume(agent(recording([])), "\udcff", store=store)


@pytest.mark.parametrize(
    "answer, status",
    [
        (cf.Several(cast("Any", 5)), cf.Status.UNKNOWN),
        (cf.Several(cast("Any", "ab")), cf.Status.UNKNOWN),
        (cf.Several(cast("Any", iter([1, 2]))), cf.Status.UNKNOWN),
        (cf.Several(()), cf.Status.UNKNOWN),
        (cf.CannotTell(cast("Any", None)), cf.Status.UNKNOWN),
        (cf.Found(1, matches=cast("Any", "yes")), cf.Status.COMPLETED),
        (cf.Found, cf.Status.UNKNOWN),
    ],
)
async def test_a_lookup_that_answers_nonsense_proves_nothing_and_does_not_break_the_run(
    answer: Any, status: cf.Status, store: SqliteStore
) -> None:
    @cf.tool(contract=cf.Lookup(settles_in=timedelta(0)), lookups=1)
    def send() -> None:
        """Send."""
        raise TimeoutError

    send.lookup(lambda call: answer)
    assert (await cf.arun(agent(send), 1, run_id="r1", store=store)).status is status
