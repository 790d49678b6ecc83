"""The core that every host shares: decide, claim, settle, resolve, finish."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import counterfoil as cf
from counterfoil.core.events import Dispatched, Proof, Receipt, Verdict
from counterfoil.core.mail import Cancel, Evidence, GiveVerdict, encode_item
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState
from counterfoil.errors import DefinitionError, NoSuchRun, VerdictRefused
from counterfoil.runtime.attempts import Attempts, Refusal
from counterfoil.stores.sqlite import SqliteStore
from tests.runtime.outside import events, kinds

TWO_CALLS = cf.Decision(
    text="two",
    calls=(cf.ToolCall(name="pay", arguments='{"n":1}', id="a"), cf.ToolCall(name="pay", arguments='{"n":2}', id="b")),
)


@cf.tool(contract=cf.Keyed(remembered_for=cf.FOREVER))
async def pay(n: int, *, call: cf.Call) -> str:
    """Pay."""
    return f"paid {n}"


@cf.tool
async def mail(n: int) -> str:
    """Send."""
    return f"sent {n}"


def host(*tools: cf.Tool, **options: Any) -> cf.Agent:
    return cf.Agent("host", version="1", model=cf.ScriptedModel([]), tools=tools or (pay, mail), **options)


class Asked:
    """A host's model, and how often it was asked."""

    def __init__(self, decision: cf.Decision = TWO_CALLS) -> None:
        self.times = 0
        self.decision = decision

    async def __call__(self) -> cf.Decision:
        self.times += 1
        return self.decision


async def test_a_slot_is_decided_once_and_read_back_in_every_life(store: SqliteStore) -> None:
    ask = Asked()
    for _ in range(3):
        async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
            assert await run.decide(1, "d1", ask) == TWO_CALLS
    assert ask.times == 1


async def test_two_hosts_tasks_that_decide_at_once_ask_once(store: SqliteStore) -> None:
    ask = Asked()
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        assert await asyncio.gather(*(run.decide(1, "d1", ask) for _ in range(5))) == [TWO_CALLS] * 5
    assert ask.times == 1


async def test_a_decided_slot_asked_with_another_request_is_blocked_and_no_exception(store: SqliteStore) -> None:
    ask = Asked()
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await run.decide(1, "d1", ask)
        held = await run.decide(1, "d2", ask)
        assert isinstance(held, cf.Hold)
        assert (held.because, "d1" in held.note, "d2" in held.note) == ("request-changed", True, True)
        assert run.journal.state.status is cf.Status.BLOCKED
        assert await run.decide(1, "d1", ask) == TWO_CALLS
    assert ask.times == 1


async def test_calls_are_claimed_side_by_side_settled_once_and_replayed(store: SqliteStore) -> None:
    entered: list[str] = []

    async def make(run: cf.Run, call: str) -> str:
        answer = await run.claim(call)
        if isinstance(answer, cf.Go):
            assert isinstance(await run.claim(call), cf.Hold), "it is under way here"
            entered.append(answer.call.key)
            settled = await run.settle(call, cf.Done(f"paid {call}"))
            assert isinstance(settled, cf.Replay)
            return settled.result.content
        assert isinstance(answer, cf.Replay)
        return answer.result.content

    for _ in range(2):
        async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
            await run.decide(1, "d1", Asked())
            assert [*await asyncio.gather(make(run, "1.1"), make(run, "1.2"))] == ['"paid 1.1"', '"paid 1.2"']
    assert (len(entered), len(set(entered))) == (2, 2)
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await run.decide(2, "d2", Asked(cf.Decision(text="end")))
        assert isinstance(await run.claim("1.2"), cf.Replay), "a call of an earlier turn is replayed too"
        assert await run.finish() is None
        assert run.journal.state.status is cf.Status.COMPLETED
    before = len(await events(store))
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        assert await run.decide(1, "d1", Asked()) == TWO_CALLS
        assert isinstance(await run.decide(3, "d3", Asked()), cf.Hold)
        await run.finish()
    assert len(await events(store)) == before, "nothing is written to a run that has ended"


async def test_an_outcome_that_proves_nothing_is_decided_by_contract(store: SqliteStore) -> None:
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        one_each = cf.Decision(calls=(TWO_CALLS.calls[0], cf.ToolCall(name="mail", arguments='{"n":2}')))
        await run.decide(1, "d1", Asked(one_each))
        first = await run.claim("1.1")
        assert isinstance(first, cf.Go)
        assert await run.settle("1.1", cf.Unsure(TimeoutError())) is None
        again = await run.claim("1.1")
        assert isinstance(again, cf.Go)
        assert (again.call.attempt, again.call.key) == (2, first.call.key)
        await run.settle("1.1", cf.Done("paid"))
        assert isinstance(await run.claim("1.2"), cf.Go)
        await run.settle("1.2", cf.Unsure(TimeoutError()))
        held = await run.claim("1.2")
        assert isinstance(held, cf.Hold)
        assert (held.because, run.journal.state.status) == ("unknown", cf.Status.UNKNOWN)
        with pytest.raises(VerdictRefused, match=r"1\.1 is settled already"):
            await run.resolve(GiveVerdict(call="1.1", verdict=Verdict.APPLIED, by="dana", reason="", receipt=Raw(b"1")))
        await run.resolve(GiveVerdict(call="1.2", verdict=Verdict.NOT_APPLIED, by="dana", reason="asked"))
        told = await run.claim("1.2")
        assert isinstance(told, cf.Replay)
        assert (told.result.error, "It was not done: asked" in told.result.content) == (True, True)


async def test_slots_count_from_one(store: SqliteStore) -> None:
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        with pytest.raises(DefinitionError, match="slot 0: slots count from 1"):
            await run.decide(0, "d0", Asked())


async def unknown_mail(run: cf.Run) -> None:
    """Claim the second tool's one call and leave it unknown."""
    await run.decide(1, "d1", Asked(cf.Decision(calls=(cf.ToolCall(name="mail", arguments='{"n":1}'),))))
    assert isinstance(await run.claim("1.1"), cf.Go)
    await run.settle("1.1", cf.Unsure(TimeoutError()))
    assert isinstance(await run.claim("1.1"), cf.Hold)


async def test_a_call_that_a_person_gave_up_is_held_and_not_told_as_an_answer(store: SqliteStore) -> None:
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await unknown_mail(run)
        await run.resolve(GiveVerdict(call="1.1", verdict=Verdict.ABANDON, by="dana", reason="nobody knows"))
        held = await run.claim("1.1")
        assert isinstance(held, cf.Hold)
        assert (held.because, "nobody knows" in held.note) == ("abandoned", True)


async def test_a_verdict_that_evidence_overtook_is_refused_to_its_face(store: SqliteStore) -> None:
    post = store.post
    receipt = Receipt(call="1.1", attempt=1, proof=Proof.RESPONSE, result=Raw(b'"sent 1"'))

    async def overtaken(run_id: str, item_id: str, body: bytes) -> Any:
        await post(run_id, "evidence", encode_item(Evidence(sender=1, fact=receipt)))
        return await post(run_id, item_id, body)

    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await unknown_mail(run)
        store.post = overtaken  # type: ignore[method-assign]  # a moment that no test could hit
        verdict = GiveVerdict(call="1.1", verdict=Verdict.NOT_APPLIED, by="dana", reason="asked")
        with pytest.raises(VerdictRefused, match=r"call 1\.1 is settled already \(applied\)"):
            await run.resolve(verdict)
        told = await run.claim("1.1")
        assert isinstance(told, cf.Replay)
        assert (told.result.content, told.result.error) == ('"sent 1"', False)


@pytest.mark.parametrize("first", ["not sent", "unsure"])
async def test_a_second_attempt_is_a_repeat_only_where_the_first_may_have_been_sent(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    check = Attempts.last_check

    def refuses_the_first(self: Attempts, before: CallState, attempt: int, because: Rule) -> Refusal | None:
        late = first == "not sent" and attempt == 1
        return Refusal("the lease is about to end") if late else check(self, before, attempt, because)

    monkeypatch.setattr(Attempts, "last_check", refuses_the_first)
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await run.decide(1, "d1", Asked())
        go = await run.claim("1.1")
        if first == "unsure":
            await run.settle("1.1", cf.Unsure(TimeoutError()))
            go = await run.claim("1.1")
        assert isinstance(go, cf.Go)
        assert (go.call.attempt, go.call.repeat) == (2, first == "unsure")
        await run.settle("1.1", cf.Done("paid"))
        [receipt] = [event for event in await events(store) if isinstance(event, Receipt)]
        assert receipt.proof is (Proof.REPEAT if first == "unsure" else Proof.RESPONSE)


async def test_a_certain_no_is_told_to_the_model(store: SqliteStore) -> None:
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await run.decide(1, "d1", Asked())
        await run.claim("1.1")
        assert await run.settle("1.1", cf.NotDone(ValueError("no such account"))) is None
        told = await run.claim("1.1")
        assert isinstance(told, cf.Replay)
        assert told.result.content == "ValueError: no such account"


async def test_a_late_tool_claimed_by_a_host_has_its_mark_already(store: SqliteStore) -> None:
    late = cf.tool(contract=cf.Keyed(remembered_for=cf.FOREVER), dispatch="late", name="pay")(pay.function)
    async with cf.open_run(host(late), 1, run_id="r1", store=store) as run:
        await run.decide(1, "d1", Asked())
        go = await run.claim("1.1")
        assert isinstance(go, cf.Go)
        await asyncio.wait_for(go.call.sending(), 30)
        assert [event.call for event in await events(store) if isinstance(event, Dispatched)] == ["1.1"]
        await run.settle("1.1", cf.Done("paid"))


async def test_a_changed_flow_is_held_and_shown_as_blocked(store: SqliteStore) -> None:
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await run.decide(1, "d1", Asked())
    async with cf.open_run(host(instructions="new"), 1, run_id="r1", store=store) as run:
        held = await run.claim("1.1")
        assert isinstance(held, cf.Hold)
        assert (held.because, run.journal.state.status) == ("flow-changed", cf.Status.BLOCKED)
        paused = run.journal.state.paused
        assert paused is not None
        assert [each.where for each in paused.differences] == ["instructions"]
        assert isinstance(await run.decide(2, "d2", Asked()), cf.Hold)


async def test_a_cancel_is_seen_by_the_next_claim_and_ends_the_run(store: SqliteStore) -> None:
    async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
        await run.decide(1, "d1", Asked())
        go = await run.claim("1.1")
        await store.post("r1", "c", encode_item(Cancel(by="dana")))
        held = await run.claim("1.2")
        assert isinstance(held, cf.Hold)
        assert isinstance(go, cf.Go)
        assert "cancelled" not in kinds(await events(store)), "no end while a call is under way"
        await run.settle("1.1", cf.Done("paid"))
        await run.claim("1.2")
        assert run.journal.state.status is cf.Status.CANCELLED


async def test_a_lost_lease_is_a_hold_and_the_outcome_is_evidence(store: SqliteStore) -> None:
    other = SqliteStore(store.path)
    try:
        async with cf.open_run(host(), 1, run_id="r1", store=store) as run:
            await run.decide(1, "d1", Asked())
            assert isinstance(await run.claim("1.1"), cf.Go)
            await other.restored()
            held = await run.settle("1.1", cf.Done("paid"))
            assert isinstance(held, cf.Hold)
            assert held.because == "lease-lost"
            assert isinstance(await run.claim("1.2"), cf.Hold)
        async with cf.open_run(host(), 1, run_id="r1", store=other) as run:
            told = await run.claim("1.1")
            assert isinstance(told, cf.Replay)
            assert told.result.content == '"paid"'
            assert "evidence_taken" in kinds(await events(other))
    finally:
        await other.close()


async def test_limits_hold_a_claim_and_a_decision(store: SqliteStore) -> None:
    limited = host(limits=cf.Limits(calls=1, turns=1))
    async with cf.open_run(limited, 1, run_id="r1", store=store) as run:
        await run.decide(1, "d1", Asked())
        assert isinstance(await run.claim("1.1"), cf.Go)
        await run.settle("1.1", cf.Done("paid"))
        held = await run.claim("1.2")
        assert isinstance(held, cf.Hold)
        assert (held.because, held.note) == ("limit", "calls: 1 of 1 used")
    async with cf.open_run(host(limits=cf.Limits(turns=1)), 1, run_id="r2", store=store) as run:
        await run.decide(1, "d1", Asked(cf.Decision()))
        stopped = await run.decide(2, "d2", Asked())
        assert isinstance(stopped, cf.Hold)
        assert stopped.note == "turns: 1 of 1 used"


async def test_a_pruned_run_is_not_run_again(store: SqliteStore) -> None:
    flow = cf.Agent("host", version="1", model=cf.ScriptedModel([{"text": "the answer"}]))
    await cf.arun(flow, 1, run_id="r1", store=store)
    assert await store.prune(older_than=timedelta(0)) == 1
    answer = await cf.arun(flow, 1, run_id="r1", store=store)
    assert (answer.status, answer.output, answer.note) == (cf.Status.COMPLETED, "the answer", "pruned")
    with pytest.raises(cf.CounterfoilError, match="another input"):
        await cf.arun(flow, 2, run_id="r1", store=store)
    with pytest.raises(NoSuchRun, match="ended as completed and was pruned"):
        async with cf.open_run(flow, 1, run_id="r1", store=store):
            pass


# guard.


async def test_a_guarded_call_returns_its_typed_value_and_replays_it(store: SqliteStore) -> None:
    @dataclass
    class Refund:
        amount: int

    entered: list[int] = []

    @cf.tool
    def refund(amount: int) -> Refund:
        """Refund."""
        entered.append(amount)
        return Refund(amount)

    for _ in range(2):
        done = await cf.aguard("order-1", refund, {"amount": 5}, store=store)
        assert (done.done, done.value, entered) == (True, Refund(5), [5])
    with pytest.raises(cf.CounterfoilError, match="another input"):
        await cf.aguard("order-1", refund, {"amount": 6}, store=store)
    with pytest.raises(cf.CounterfoilError, match="valid integer"):
        await cf.aguard("order-2", refund, {"amount": "many"}, store=store)
    with pytest.raises(cf.CounterfoilError, match="no JSON values"):
        await cf.aguard("order-2", refund, {"amount": object()}, store=store)
    assert await store.head("order-2") is None


async def test_a_guarded_call_says_what_else_became_of_it(store: SqliteStore) -> None:
    @cf.tool
    def refused() -> None:
        """Be refused."""
        raise cf.NotApplied("no such order")

    @cf.tool
    def lost() -> None:
        """Lose the answer."""
        raise ConnectionResetError

    @cf.tool
    def unstorable() -> Any:
        """Return what cannot be kept."""
        return object()

    no = await cf.aguard("a", refused, {}, store=store)
    assert (no.status, no.done, no.error and no.error.message) == (cf.Status.COMPLETED, False, "no such order")
    unknown = await cf.aguard("b", lost, {}, store=store)
    assert (unknown.status, unknown.done, unknown.because) == (cf.Status.UNKNOWN, False, "unknown")
    kept = await cf.aguard("c", unstorable, {}, store=store)
    assert (kept.done, kept.value, kept.note.startswith("done; its result could not be stored")) == (True, None, True)


async def test_a_guarded_result_that_no_longer_fits_its_type_is_a_named_error(store: SqliteStore) -> None:
    @cf.tool(name="count")
    def before() -> list[str]:
        """Count."""
        return ["a"]

    @cf.tool(name="count")
    def after() -> list[int]:
        """Count."""
        raise AssertionError("entered again")

    await cf.aguard("a", before, {}, store=store)
    with pytest.raises(cf.CounterfoilError, match="does not fit its declared type any more"):
        await cf.aguard("a", after, {}, store=store)


# No trace is a receipt.


async def test_a_perfect_trace_log_and_transcript_settle_nothing(store: SqliteStore, tmp_path: Path) -> None:
    """The thirteenth promise: beside the store lie files that tell everything, and none of it is believed."""
    told = (
        '{"run": "r1", "call": "1.1", "tool": "mail", "status": "ok", "result": "sent 1", "key": "k", "at": 1}\n'
        "span mail[1.1] OK 12ms result='sent 1'\nassistant: I have sent the mail.\ntool(1.1): sent 1\n"
    )

    @cf.tool(name="mail")
    async def lost_reply(n: int) -> str:
        """Send; the trace says it worked, and the answer is lost."""
        for name in ("trace.jsonl", "run.log", "transcript.txt", "counterfoil.log", "counterfoil.db.trace"):
            (tmp_path / name).write_text(told)
        raise ConnectionResetError("sent 1")

    turns: list[dict[str, Any]] = [{"text": told, "calls": [{"name": "mail", "arguments": {"n": 1}}]}, {"text": "done"}]
    flow = cf.Agent("t", version="1", model=cf.ScriptedModel(turns), tools=[lost_reply], instructions=told)
    for _ in range(3):
        result = await cf.arun(flow, told, run_id="r1", store=store, labels={"transcript": told})
        assert (result.status, result.unknown) == (cf.Status.UNKNOWN, ("1.1",))
    assert "receipt" not in kinds(await events(store))
