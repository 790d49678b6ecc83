"""Public incidents K5 to K15: repeating ids, dangling calls, storage, values, changed code, cancel, lost replies.

Judged by the provider's ledger, the model's own count and the tools' notes, all outside of the killed process.
"""

import asyncio
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import counterfoil as cf
from counterfoil.core.events import Cancelled, Completed, EvidenceTaken, Receipt, Recorded, Rejected, Verdict
from counterfoil.core.mail import Cancel, GiveVerdict, encode_item
from counterfoil.core.state import AFTER_END, fold
from counterfoil.runtime.model import Exchange
from counterfoil.stores.clock import SystemClock
from counterfoil.stores.sqlite import SqliteStore
from tests.incidents import flows, flows_k5
from tests.incidents.life import Bench, Ended
from tests.waiting import until, until_async

K5 = "tests.incidents.flows_k5:"


def told(ended: Ended) -> list[list[str]]:
    """All that the model was told, turn by turn."""
    assert ended.status == "completed", ended
    found: list[list[str]] = json.loads(ended.said["output"])
    return found


def journal(store: Path, run_id: str = "r1") -> list[Recorded]:
    async def read() -> list[Recorded]:
        opened = cf.open_store(store)
        try:
            return await opened.events(run_id)
        finally:
            await opened.close()

    return asyncio.run(read())


def post(store: Path, item_id: str, item: Any) -> None:
    async def send() -> None:
        opened = cf.open_store(store)
        try:
            await opened.post("r1", item_id, encode_item(item))
        finally:
            await opened.close()

    asyncio.run(send())


def settle(bench: Bench, verdict: Verdict, receipt: bytes = b"null") -> None:
    """A person's verdict on call 1.1, as the journal stands."""
    raw = Raw(receipt) if verdict is Verdict.APPLIED else Raw()
    seen = journal(bench.store)[-1].position
    post(bench.store, "v1", GiveVerdict(call="1.1", verdict=verdict, by="dana", reason="asked", receipt=raw, seen=seen))


# K5. Ids that repeat, are empty, or change.


@pytest.mark.parametrize("kill", ["before:receipt+turn_opened", "after:receipt+turn_opened", "replied:2"])
def test_incident_5a_an_id_that_returns_in_a_later_turn_is_another_call(bench: Bench, kill: str) -> None:
    bench.live(K5 + "same_id_each_turn", KILL=kill)
    ended = bench.live(K5 + "same_id_each_turn")
    assert told(ended) == [['"what is known of a"'], ['"what is known of b"']]
    assert "read b" in bench.notes.read_text()
    assert bench.asked()[1] == 1


@pytest.mark.parametrize("kill", ["after:receipt", "entered:read:2"])
def test_incident_5b_two_calls_of_one_id_are_two_calls_and_each_has_its_result(bench: Bench, kill: str) -> None:
    bench.live(K5 + "same_id_in_one_turn", KILL=kill)
    ended = bench.live(K5 + "same_id_in_one_turn")
    assert told(ended) == [['"what is known of a"', '"what is known of b"']]
    assert bench.notes.read_text().split("\n").count("read a") == 1, "a settled sibling does not run again"
    assert bench.asked() == {1: 1, 2: 1}


def test_incident_5b_calls_with_no_id_at_all_are_two_calls(bench: Bench) -> None:
    bench.live(K5 + "no_ids_in_one_turn", KILL="effect:pay")
    told(bench.live(K5 + "no_ids_in_one_turn"))
    assert [effect.arguments["amount"] for effect in bench.provider.ledger.effects(endpoint="pay")] == [1, 2]
    assert len(bench.provider.ledger.effects_by_key()) == 2


@pytest.mark.parametrize("kill", ["", "replied:2", "effect:pay:2"])
def test_incident_5d_a_repeated_id_does_not_end_the_session(bench: Bench, kill: str) -> None:
    if kill:
        bench.live(K5 + "same_id_pays_twice", KILL=kill)
    told(bench.live(K5 + "same_id_pays_twice"))
    assert [effect.arguments["amount"] for effect in bench.provider.ledger.effects(endpoint="pay")] == [1, 2]


# K6. Dangling calls in the history.


def test_incident_6a_a_killed_read_runs_again_and_the_history_is_whole(bench: Bench) -> None:
    bench.live(K5 + "one_read", KILL="entered:read")
    assert told(bench.live(K5 + "one_read")) == [['"what is known of x"']]
    assert bench.asked() == {1: 1, 2: 1}


async def test_incident_6a_the_model_of_these_tests_refuses_an_unpaired_history() -> None:
    """The judge itself: what 'wrong' would have met."""
    model = cf.ScriptedModel([{"text": "one"}, {"text": "two"}], check_history=True)
    asked = cf.Decision(calls=(cf.ToolCall(name="read", arguments="{}", id="a"),))
    unpaired = cf.ModelRequest(
        turn=2, instructions="", input=1, history=[Exchange(decision=asked, results=())], tools=()
    )
    with pytest.raises(cf.ModelError, match="every call needs its result"):
        await model.decide(unpaired)


def test_incident_6b_no_failure_is_invented_for_a_lost_call(bench: Bench) -> None:
    bench.live(K5 + "mail_sent_again_on_error", KILL="effect:mail")
    for _ in range(2):
        ended = bench.live(K5 + "mail_sent_again_on_error")
        assert (ended.code, ended.said["unknown"]) == (3, ["1.1"])
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1}), "no model call until a person has looked"
    settle(bench, Verdict.APPLIED)
    assert told(bench.live(K5 + "mail_sent_again_on_error")) == [["null"]]
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1, 2: 1})


def test_incident_6b_the_same_story_told_wrong_sends_twice(bench: Bench) -> None:
    """The planted fault: the ledger sees it, so the test above could have failed."""
    bench.live(K5 + "mail_declared_repeatable", KILL="effect:mail")
    told(bench.live(K5 + "mail_declared_repeatable"))
    assert bench.effects("mail") == 2


def mailing(function: Any, **declared: Any) -> cf.Agent:
    return flows_k5.flow(flows.calls(("mail", {})), flows_k5.told, tools=[cf.tool(name="mail", **declared)(function)])


@pytest.fixture
def here(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The bench, for flows that run in this process."""
    monkeypatch.setattr(flows, "URL", bench.provider.url)
    monkeypatch.setenv("ASKS", str(bench.folder / "asks"))
    monkeypatch.setenv("NOTES", str(bench.notes))
    return bench


async def cancelled(agent: cf.Agent, store: Any, when: Callable[[], object]) -> None:
    """Run until something holds, and cancel the task that runs it."""
    task = asyncio.ensure_future(cf.arun(agent, "go", run_id="r1", store=store))
    await until_async(when, "the tool is entered")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def kinds(events: list[Recorded]) -> list[str]:
    return [type(recorded.event).__name__ for recorded in events]


async def test_incident_6c_a_cancelled_task_leaves_no_call_without_its_outcome(here: Bench) -> None:
    async def mail(*, call: cf.Call) -> dict[str, Any]:
        sent = await asyncio.to_thread(flows.post, "mail", call.key, {"to": "dana"}, keyed=False)
        await asyncio.Event().wait()  # the answer never comes
        return sent

    store = cf.open_store(here.store)
    try:
        await cancelled(mailing(mail), store, lambda: here.effects("mail"))
        result = await cf.aresume(mailing(mail), "r1", store=store)
        assert (result.status, result.unknown) == (cf.Status.UNKNOWN, ("1.1",))
        assert (here.effects("mail"), here.asked()) == (1, {1: 1})
        assert "Rejected" not in kinds(await store.events("r1"))
    finally:
        await store.close()


async def test_incident_6c_what_was_cancelled_before_its_intent_is_made_by_the_next_life(here: Bench) -> None:
    entered = asyncio.Event()
    gate = asyncio.Event()

    async def slow_read() -> str:
        entered.set()
        await gate.wait()
        return "read"

    slow = cf.tool(contract=cf.Read(), name="slow_read")(slow_read)
    agent = flows_k5.flow(flows.calls(("slow_read", {}), ("mail", {})), flows_k5.told, tools=[slow, flows.mail])
    store = cf.open_store(here.store)
    try:
        await cancelled(agent, store, entered.is_set)
        assert here.effects("mail") == 0
        assert "Dispatched" not in kinds(await store.events("r1"))
        gate.set()
        assert (await cf.aresume(agent, "r1", store=store)).status is cf.Status.COMPLETED
        assert (here.effects("mail"), here.asked()) == (1, {1: 1, 2: 1})
    finally:
        await store.close()


async def test_incident_6f_a_cancelled_sync_tool_runs_on_and_its_late_answer_is_heard(here: Bench) -> None:
    entered, gate = threading.Event(), threading.Event()

    def mail(*, call: cf.Call) -> dict[str, Any]:
        entered.set()
        assert gate.wait(60)
        return flows.post("mail", call.key, {"to": "dana"}, keyed=False)

    store = cf.open_store(here.store)
    try:
        await cancelled(mailing(mail), store, entered.is_set)
        assert "Cancelled" not in kinds(await store.events("r1")), "its thread goes on; nobody says it was cancelled"
        again = await cf.aresume(mailing(mail), "r1", store=store, patience=timedelta(0))
        assert again.status is cf.Status.UNKNOWN
        assert not await store.mail("r1", 0)
        gate.set()
        await until_async(lambda: here.effects("mail"), "the thread sends all the same")
        await until_async(lambda: store.mail("r1", 0), "its answer is put into the mailbox")
        settled = await cf.aresume(mailing(mail), "r1", store=store)
        assert (settled.status, settled.incident) == (cf.Status.COMPLETED, False)
        assert here.effects("mail") == 1
    finally:
        await store.close()


@pytest.mark.parametrize("dispatch, status, effects", [("entry", "unknown", 0), ("late", "completed", 1)])
async def test_incident_6f_a_cancelled_async_tool_has_no_effect_and_a_late_one_says_so(
    here: Bench, dispatch: Any, status: str, effects: int
) -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    async def mail(*, call: cf.Call) -> dict[str, Any]:
        entered.set()
        await gate.wait()
        await call.sending()
        return await asyncio.to_thread(flows.post, "mail", call.key, {"to": "dana"}, keyed=False)

    store = cf.open_store(here.store)
    try:
        await cancelled(mailing(mail, dispatch=dispatch), store, entered.is_set)
        assert here.effects("mail") == 0
        gate.set()
        again = await cf.aresume(mailing(mail, dispatch=dispatch), "r1", store=store)
        assert (again.status.value, here.effects("mail")) == (status, effects)
        not_sent = [event for event in await store.events("r1") if getattr(event.event, "ending", "") == "not_sent"]
        assert bool(not_sent) is (dispatch == "late")
    finally:
        await store.close()


# K9. Storage trouble.


def locked_while_the_receipt_is_written(bench: Bench, **env: str) -> tuple[Any, sqlite3.Connection]:
    """Stop a life directly after its mail was sent, lock its store, and let it go on until three writes have failed."""
    trouble = bench.folder / "trouble"
    process = bench.begin(
        K5 + "mail_sent_again_on_error", STOP="effect:mail", BUSY_S="0.1", TROUBLE=str(trouble), **env
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    lock = sqlite3.connect(bench.store, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    process.send_signal(signal.SIGCONT)
    until(lambda: trouble.exists() and len(trouble.read_text().splitlines()) >= 3, "three writes have failed")
    assert set(trouble.read_text().splitlines()) == {"store_busy receipt+turn_opened"}
    return process, lock


def test_incident_9d_a_locked_store_delays_the_receipt_and_does_not_repeat_the_call(bench: Bench) -> None:
    process, lock = locked_while_the_receipt_is_written(bench, KILL="after:receipt+turn_opened")
    lock.execute("ROLLBACK")
    lock.close()
    bench.end(process, killed=True)
    told(bench.live(K5 + "mail_sent_again_on_error"))
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1, 2: 1})


def test_incident_9d_a_receipt_that_could_never_be_written_leaves_the_call_unknown(bench: Bench) -> None:
    process, lock = locked_while_the_receipt_is_written(bench)
    process.kill()
    bench.end(process, killed=True)
    lock.execute("ROLLBACK")
    lock.close()
    ended = bench.live(K5 + "mail_sent_again_on_error")
    assert (ended.code, ended.said["unknown"]) == (3, ["1.1"])
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1})


@pytest.mark.parametrize("flow, why", [("huge_answer", "larger than 1000000 bytes"), ("live_answer", "come back")])
def test_incident_9f_a_result_that_cannot_be_stored_is_a_settled_fact(bench: Bench, flow: str, why: str) -> None:
    bench.live(K5 + flow, KILL="after:receipt+turn_opened")
    [[content]] = told(bench.live(K5 + flow))
    assert content.startswith("Done. Its result could not be stored")
    [receipt] = [recorded.event for recorded in journal(bench.store) if isinstance(recorded.event, Receipt)]
    assert receipt.unstored is not None
    assert why in receipt.unstored.why
    assert (len(receipt.unstored.sha256), bench.effects("mail"), bench.asked()) == (64, 1, {1: 1, 2: 1})


class Backwards(SystemClock):
    """The wall clock of a machine whose time is set back by ten seconds between any two looks."""

    def __init__(self) -> None:
        super().__init__()
        self._now_us = super().now_us()

    def now_us(self) -> int:
        self._now_us -= 10_000_000
        return self._now_us


class Still(SystemClock):
    """All in one microsecond."""

    def __init__(self) -> None:
        super().__init__()
        self._now_us = super().now_us()

    def now_us(self) -> int:
        return self._now_us


@pytest.mark.parametrize("clock", [Backwards, Still])
async def test_incident_9h_a_run_goes_the_same_way_whatever_its_clock_says(here: Bench, clock: Any) -> None:
    def send() -> str:
        flows_k5.note("sent")
        return "sent"

    states = []
    for number, each in enumerate((SystemClock(), clock())):
        store = SqliteStore(here.folder / f"{number}.db", clock=each, namespace="the same keys")
        try:
            assert (await cf.arun(mailing(send), "go", run_id="r1", store=store)).status is cf.Status.COMPLETED
            events = await store.events("r1")
            states.append([kinds(events), *(plain(fold(events[:prefix])) for prefix in range(1, len(events) + 1))])
        finally:
            await store.close()
    assert states[0] == states[1]
    assert here.notes.read_text().splitlines() == ["sent", "sent"], "one for each of the two runs"


def plain(state: Any) -> dict[str, Any]:
    """A state without what is of its process and its moment."""
    named = {name: getattr(state, name) for name in state.__struct_fields__ if name not in ("incarnation", "latest")}
    named["calls"] = [(call.id, call.outcome and call.outcome.kind, len(call.open_attempts)) for call in state.calls]
    return {name: bytes(value) if isinstance(value, Raw) else value for name, value in named.items()}


# K10. Values.


def test_incident_10a_arguments_are_the_same_values_and_types_in_every_life(bench: Bench) -> None:
    bench.live(K5 + "values_in", KILL="entered:take")
    told(bench.live(K5 + "values_in"))
    first, second = bench.notes.read_text().splitlines()
    assert first == second
    pieces = ("<Colour.BLUE: 'blue'>", "<Size.SMALL: 1>", "Decimal('10.10')", "tzinfo=", "b'\\x01'", "UUID(", "(1,")
    assert [piece for piece in pieces if piece not in first] == []


def test_incident_10a_a_result_comes_back_as_the_same_value_and_type(bench: Bench) -> None:
    bench.live(K5 + "values_out", KILL="after:receipt+turn_opened")
    told(bench.live(K5 + "values_out"))
    assert bench.notes.read_text().splitlines() == ["give"]
    [receipt] = [recorded.event for recorded in journal(bench.store) if isinstance(recorded.event, Receipt)]
    back = flows_k5.give.result.load(receipt.result)
    assert repr(vars(back) | {"tags": sorted(back.tags)}) == repr(
        vars(flows_k5.EVERYTHING) | {"at": back.at, "tags": ["a", "b"]}
    )
    assert (back.at, back.at.utcoffset()) == (flows_k5.EVERYTHING.at, flows_k5.EVERYTHING.at.utcoffset())


def test_incident_10c_a_renamed_type_stops_the_run_and_is_named(bench: Bench) -> None:
    bench.live(K5 + "before_the_deploy", KILL="after:receipt+turn_opened")
    ended = bench.live(K5 + "after_the_deploy")
    assert (ended.code, ended.status) == (5, "blocked")
    assert [difference["where"] for difference in ended.said["differences"]] == ["tool fetch: result"]
    assert (bench.effects("mail"), bench.asked()) == (0, {1: 1}), "no call and no question under the changed flow"
    assert bench.live(K5 + "before_the_deploy").status == "completed"
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1, 2: 1, 3: 1})


@pytest.mark.parametrize(
    "flow, text",
    [
        ("custom_error", "OutOfStock: only 2 of spoons left"),
        ("holding_error", "Holding: ('the connection broke', <socket.socket"),
    ],
)
def test_incident_10d_an_exception_is_kept_as_plain_data_and_read_without_its_class(
    bench: Bench, flow: str, text: str
) -> None:
    bench.live(K5 + flow, KILL="replied:2")
    [[content]] = told(bench.live(K5 + flow))
    assert content.startswith(text)
    assert bench.asked() == {1: 1, 2: 2}
    [rejected] = [recorded.event for recorded in journal(bench.store) if isinstance(recorded.event, Rejected)]
    assert f"{rejected.failure.kind}: {rejected.failure.message}" == content
    assert bytes(rejected.failure.data) in (b"", b'["spoons",2]'), "only what is plain JSON"


# K13. Cancel and ends.


def test_incident_13a_a_cancel_survives_a_kill(bench: Bench) -> None:
    process = bench.begin(K5 + "read_then_mail", STOP="entered:read")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    post(bench.store, "c1", Cancel(by="dana", reason="wrong customer"))
    process.kill()
    bench.end(process, killed=True)
    for _ in range(2):
        ended = bench.live(K5 + "read_then_mail")
        assert (ended.code, ended.status) == (6, "cancelled")
    assert (bench.effects("mail"), bench.asked()) == (0, {1: 1})
    assert [type(recorded.event) for recorded in journal(bench.store)].count(Cancelled) == 1


def test_incident_13c_an_end_is_never_rewritten_by_a_worker_that_missed_it(bench: Bench) -> None:
    """A worker is frozen with its receipt in hand; another ends the run; the first wakes up with its old view."""
    frozen = bench.begin(K5 + "mail_sent_again_on_error", STOP="before:receipt+turn_opened", LEASE_S="0.3")
    _, status = os.waitpid(frozen.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)

    def taken_over() -> bool:
        ended = bench.live(K5 + "mail_sent_again_on_error", LEASE_S="0.3")
        return ended.said.get("error") != "run_owned"

    until(taken_over, "the lease of the frozen worker is over")
    settle(bench, Verdict.APPLIED, b'"it arrived"')
    assert bench.live(K5 + "mail_sent_again_on_error").status == "completed"
    ended_at = len(journal(bench.store))
    frozen.send_signal(signal.SIGCONT)
    woken = bench.end(frozen)
    assert woken.status == "completed", "it looks again, and finds the end"
    events = journal(bench.store)
    [end] = [recorded.position for recorded in events if isinstance(recorded.event, Completed)]
    after = [recorded.event for recorded in events if recorded.position > end]
    assert all(isinstance(event, AFTER_END) for event in after)
    assert any(isinstance(event, EvidenceTaken) for event in after), "what it held in its hand is kept"
    assert (end <= ended_at, bench.effects("mail"), bench.asked()) == (True, 1, {1: 1, 2: 1})


# K15. The model's whole reply.


@pytest.mark.parametrize("kill", ["after:decided", "entered:read:2"])
def test_incident_15d_the_whole_reply_is_restored_and_not_asked_for_again(bench: Bench, kill: str) -> None:
    bench.live(K5 + "whole_reply", KILL=kill)
    ended = bench.live(K5 + "whole_reply")
    assert ended.status == "completed"
    assert json.loads(ended.said["output"]) == {
        "same": True,
        "results": ['"what is known of odd é spaces"', '"what is known of x"'],
    }
    assert bench.asked() == {1: 1, 2: 1}
