"""A run's next action: the gates in order, then each open call's recovery. One row, one situation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from counterfoil.core import plan
from counterfoil.core.contracts import Keyed, Terms
from counterfoil.core.events import (
    Answer,
    AskFailed,
    AttemptEnded,
    Cancelled,
    Completed,
    Ending,
    Failure,
    SenderProof,
    Verdict,
    VerdictGiven,
)
from counterfoil.core.limits import Limits
from counterfoil.core.recovery import Hold
from counterfoil.core.rules import Rule
from tests.core.story import Story, view

SURE, UNSURE = Ending.NOT_APPLIED, Ending.UNSURE


def told(action: plan.Action) -> str:
    """Return an action in a few words."""
    match action:
        case plan.ForCall(call=call, move=move, attempt=attempt, record=record):
            number = f" attempt {attempt}" if attempt else ""
            return f"{type(move).__name__.lower()} {call.id} {move.because}{number}{'' if record else ' unrecorded'}"
        case plan.AskModel(turn=turn, ask=ask, because=because):
            return f"ask model turn {turn} ask {ask} {because}"
        case plan.Await(until=until, because=because):
            return f"await {because}{' until' if until else ''}"
        case plan.Pause(status=status, because=because, note=note):
            return f"pause {status} {because}{f' ({note})' if note else ''}"
        case plan.Finish(status=status, because=because):
            return f"finish {status} {because}"
        case plan.Stop(because=because):
            return f"stop {because}"


def next_of(story: Story, flow: plan.FlowView | None = None, flying: str = "", **own: bool) -> str:
    """Return what comes next. ``flying`` names what is under way: calls, ``?call`` for a lookup, ``model``."""
    words = flying.split()
    in_flight = plan.InFlight(
        attempts=frozenset((word, 1) for word in words if word[0].isdigit()),
        lookups=frozenset(word[1:] for word in words if word[0] == "?"),
        asking="model" in words,
    )
    return told(plan.next_action(story.state, flow or view(), story.now, plan.Ownership(**own), in_flight))


S = Story
PAY, BOTH = "pay", ("pay", "mail")
FAILED = Failure(kind="Overloaded", message="busy")


def unsure(call: str = "1.1", *tools: str) -> Story:
    return S().decided(*(tools or BOTH)).sent(call).ended(call, UNSURE)


ROWS: list[tuple[str, Story, dict[str, Any], str]] = [
    # The ordinary course.
    ("a new run", S(), {}, "ask model turn 1 ask 1 next-turn"),
    ("asked, and no decision was saved", S().asked(), {}, "ask model turn 1 ask 2 ask-again"),
    ("asked, under way here", S().asked(), {"flying": "model"}, "await in-flight"),
    ("a decision", S().decided(*BOTH), {}, "dispatch 1.1 never-sent attempt 1"),
    ("its first call is under way", S().decided(*BOTH).sent("1.1"), {"flying": "1.1"}, "await in-flight"),
    ("its first call is settled", S().decided(*BOTH).sent("1.1").receipt("1.1"), {}, "dispatch 1.2 never-sent attempt 1"),
    ("all are settled", S().decided(PAY).sent("1.1").receipt("1.1"), {}, "ask model turn 2 ask 1 next-turn"),
    ("no more calls", S().decided(PAY).sent("1.1").receipt("1.1").decided(), {}, "finish completed finished"),
    ("a settled call's late twin is still under way", S().decided(PAY).sent("1.1").receipt("1.1"), {"flying": "1.1"}, "await in-flight"),
    ("a read needs no record", S().decided("look"), {}, "dispatch 1.1 never-sent attempt 1 unrecorded"),
    ("a limited read needs one", S(Limits(calls=9)).decided("look"), {}, "dispatch 1.1 never-sent attempt 1"),
    ("an invalid call", S().decided("!nope", "pay"), {}, "reject 1.1 invalid-call"),
    ("an invalid call, stopped", S().decided("!nope").cancel(), {}, "reject 1.1 invalid-call"),
    ("an invalid call after a valid one of its tool", S().decided("pay", "!pay"), {}, "reject 1.2 invalid-call"),
    ("a call after an open one of its tool", S().decided("pay", "pay").sent("1.1"), {}, "unknown 1.1 no-evidence"),
    ("a call after a refused one of its tool", S().decided("pay", "pay").sent("1.1").ended("1.1", SURE), {}, "reject 1.1 definite-no"),
    ("a call before a refused one of its tool", S().decided("pay", "pay").sent("1.2").ended("1.2", SURE), {}, "reject 1.2 definite-no"),
    ("a call beside one of another tool", S().decided("look", "pay").sent("1.2"), {}, "unknown 1.2 no-evidence"),
    # In parallel where the tools say so.
    ("parallel, one under way", S().decided(*BOTH).sent("1.1"), {"flow": view("pay", "mail"), "flying": "1.1"}, "dispatch 1.2 never-sent attempt 1"),
    ("only the later one says so", S().decided(*BOTH).sent("1.1"), {"flow": view("mail"), "flying": "1.1"}, "await in-flight"),
    ("only the earlier one says so", S().decided(*BOTH).sent("1.1"), {"flow": view("pay"), "flying": "1.1"}, "await in-flight"),
    # Recovery.
    ("one shot, lost", unsure(), {}, "unknown 1.1 no-evidence"),
    ("one shot, declared", unsure().unknown("1.1"), {}, "pause unknown unknown (call 1.1: no-evidence)"),
    ("another reason than the one declared", unsure().unknown("1.1", Rule.WINDOW_OVER), {}, "unknown 1.1 no-evidence"),
    ("keyed, lost", unsure("1.1", "ticket"), {}, "dispatch 1.1 repeat-keyed attempt 2"),
    ("refused", S().decided(PAY).sent("1.1").ended("1.1", SURE), {}, "reject 1.1 definite-no"),
    ("lookup, sender not looked at", S().decided("find").sent("1.1").life(), {}, "observe 1.1 look-at-sender"),
    ("lookup, first look", S().decided("find").sent("1.1").life().seen(SenderProof.DEAD), {}, "ask 1.1 look-early"),
    ("lookup, a look under way", S().decided("find").sent("1.1").life().seen(SenderProof.DEAD), {"flying": "?1.1"}, "await in-flight"),
    ("lookup, settling", S().decided("find").sent("1.1").life().seen(SenderProof.DEAD).looked("1.1", Answer.ABSENT), {}, "await settling until"),
    ("lookup, found", S().decided("find").sent("1.1").life().looked("1.1", Answer.FOUND), {}, "settle 1.1 found"),
    # One unknown: nothing new is dispatched, what is under way is awaited.
    ("unknown beside a planned call", unsure().unknown("1.1"), {"flow": view("pay", "mail")}, "pause unknown unknown (call 1.1: no-evidence)"),
    ("unknown beside one under way", S().decided(*BOTH).sent("1.1").sent("1.2").ended("1.1", UNSURE).unknown("1.1"), {"flying": "1.2"}, "await in-flight"),
    ("unknown in another life, in the middle of a wait", S().decided("find", "pay").sent("1.1").unknown("1.1").life().seen(SenderProof.DEAD).looked("1.1", Answer.ABSENT), {"flow": view("find", "pay")}, "await settling until"),
    ("unknown beside a wait", S().decided("pay", "find").sent("1.1").sent("1.2").ended("1.1", UNSURE).unknown("1.1").ended("1.2", UNSURE).looked("1.2", Answer.ABSENT), {}, "await settling until"),
    ("unknown, licensed again", unsure("1.1", "ticket").unknown("1.1", Rule.SCOPE_CHANGED), {}, "dispatch 1.1 repeat-keyed attempt 2"),
    # Cancel.
    ("cancelled, nothing open", S().decided(*BOTH).cancel(), {}, "finish cancelled cancel"),
    ("cancelled, under way", S().decided(PAY).sent("1.1").cancel(), {"flying": "1.1"}, "await in-flight"),
    ("cancelled, open, no repeat", unsure("1.1", "ticket").cancel(), {}, "unknown 1.1 stopped-open"),
    ("cancelled, open, declared", unsure("1.1", "ticket").cancel().unknown("1.1", Rule.STOPPED_OPEN), {}, "pause unknown unknown (call 1.1: stopped-open)"),
    ("cancelled, open, the tool is missing", S().decided("find").sent("1.1").life().cancel(), {"flow": view(without="find")}, "pause blocked flow-changed"),
    ("cancelled, planned, the tool is missing", S().decided("find").cancel(), {"flow": view(without="find")}, "finish cancelled cancel"),
    ("cancelled, a read open, its tool missing", S(Limits(calls=9)).decided("look").sent("1.1").life().cancel(), {"flow": view(without="look")}, "finish cancelled cancel"),
    ("cancelled while asked", S().asked().cancel(), {}, "finish cancelled cancel"),
    # A changed flow.
    ("changed, planned", S().decided(PAY), {"flow": view(differences=True)}, "pause blocked flow-changed"),
    ("changed, settled", S().decided(PAY).sent("1.1").receipt("1.1"), {"flow": view(differences=True)}, "pause blocked flow-changed"),
    ("changed, keyed and open: not unknown", unsure("1.1", "ticket"), {"flow": view(differences=True)}, "pause blocked flow-changed"),
    ("changed, one shot: unknown all the same", unsure(), {"flow": view(differences=True)}, "unknown 1.1 no-evidence"),
    ("changed, the lookup goes on", S().decided("find").sent("1.1").life().seen(SenderProof.DEAD), {"flow": view(differences=True)}, "ask 1.1 look-early"),
    ("the tool is missing, and no difference named", S().decided(PAY), {"flow": view(without="pay")}, "pause blocked flow-changed"),
    ("the tool is missing, keyed and open", unsure("1.1", "ticket"), {"flow": view(without="ticket")}, "pause blocked flow-changed"),
    ("an earlier call's tool is missing", S().decided(*BOTH), {"flow": view("mail", without="pay")}, "pause blocked flow-changed"),
    ("the tool is missing, one shot open", unsure(), {"flow": view(without="pay")}, "unknown 1.1 no-evidence"),
    ("the tool is missing, found before", S().decided("find").sent("1.1").looked("1.1", Answer.FOUND), {"flow": view(without="find")}, "settle 1.1 found"),
    # Draining.
    ("draining, planned", S().decided(PAY), {"draining": True}, "pause waiting interrupted"),
    ("draining, under way", S().decided(PAY).sent("1.1"), {"flying": "1.1", "draining": True}, "await in-flight"),
    ("draining, a look is left to the next life", S().decided("find").sent("1.1").life(), {"draining": True}, "pause waiting interrupted"),
    ("draining, a wait is left as well", S().decided("find").sent("1.1").life().seen(SenderProof.DEAD).looked("1.1", Answer.ABSENT), {"draining": True}, "pause waiting interrupted"),
    ("draining, unknown", unsure().unknown("1.1"), {"draining": True}, "pause unknown unknown (call 1.1: no-evidence)"),
    ("draining, asked", S().asked(), {"draining": True}, "pause waiting interrupted"),
    ("draining, at the very end", S().decided(), {"draining": True}, "finish completed finished"),
    # Limits.
    ("calls used up", S(Limits(calls=1)).decided(*BOTH).sent("1.1").receipt("1.1"), {}, "pause blocked limit (calls: 1 of 1 used)"),
    ("calls used up, its own repeat", S(Limits(calls=1)).decided("ticket").sent("1.1").ended("1.1", UNSURE), {}, "dispatch 1.1 repeat-keyed attempt 2"),
    ("calls raised by the flow", S(Limits(calls=1)).decided(*BOTH).sent("1.1").receipt("1.1"), {"flow": view(limits=Limits(calls=2))}, "dispatch 1.2 never-sent attempt 1"),
    ("turns used up", S(Limits(turns=1)).decided(PAY).sent("1.1").receipt("1.1"), {}, "pause blocked limit (turns: 1 of 1 used)"),
    # The model.
    ("failed, to be asked again", S().asked().add(AskFailed(turn=1, ask=1, failure=FAILED, retry_at=Story().now)), {}, "ask model turn 1 ask 2 ask-again"),
    ("failed, not yet", S().asked().add(AskFailed(turn=1, ask=1, failure=FAILED, retry_at=Story().now + timedelta(hours=1))), {}, "await backoff until"),
    ("failed, due this moment", S().asked().add(AskFailed(turn=1, ask=1, failure=FAILED, retry_at=Story().now + timedelta(seconds=2))), {}, "ask model turn 1 ask 2 ask-again"),
    ("failed for now", S().asked().add(AskFailed(turn=1, ask=1, failure=FAILED)), {}, "pause waiting model-unavailable (Overloaded: busy)"),
    ("failed for good", S().asked().add(AskFailed(turn=1, ask=1, failure=FAILED, retryable=False)), {}, "pause blocked model-refused (Overloaded: busy)"),
    # Gates.
    ("lease lost", S().decided(PAY), {"mine": False}, "stop lease-lost"),
    ("completed", S().decided().add(Completed(output=Story().state.input)), {}, "stop finished"),
    ("cancelled for good, lease lost", S().add(Cancelled()), {"mine": False}, "stop finished"),
    # A person.
    ("abandoned, nothing else open", unsure().add(VerdictGiven(call="1.1", verdict=Verdict.ABANDON, by="d", reason="r")), {}, "finish failed abandoned"),
    ("abandoned, another open", S().decided(*BOTH).sent("1.1").sent("1.2").ended("1.2", UNSURE).add(VerdictGiven(call="1.1", verdict=Verdict.ABANDON, by="d", reason="r")), {}, "unknown 1.2 no-evidence"),
    ("not applied, dispatch", unsure().add(VerdictGiven(call="1.1", verdict=Verdict.NOT_APPLIED, by="d", reason="r", then="dispatch")), {}, "dispatch 1.1 never-sent attempt 2"),
    # A restored store.
    ("restored, planned one shot", S().decided(PAY).life(lost=True), {}, "unknown 1.1 unverifiable"),
    ("restored, planned read", S().decided("look").life(lost=True), {}, "dispatch 1.1 never-sent attempt 1 unrecorded"),
    ("restored, a person cleared it", S().decided(PAY).life(lost=True).add(VerdictGiven(call="1.1", verdict=Verdict.NOT_APPLIED, by="d", reason="r", then="dispatch")), {}, "dispatch 1.1 never-sent attempt 1"),
]  # fmt: skip


@pytest.mark.parametrize("story,more,wanted", [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_next(story: Story, more: dict[str, Any], wanted: str) -> None:
    assert next_of(story, **more) == wanted


def test_terms_are_journaled_once_and_again_where_they_changed() -> None:
    story = Story().decided("ticket")
    first = plan.next_action(story.state, view(), story.now, plan.Ownership(), plan.InFlight())
    assert isinstance(first, plan.ForCall)
    assert first.terms == view().tools["ticket"].terms
    again = unsure("1.1", "ticket")
    repeat = plan.next_action(again.state, view(), again.now, plan.Ownership(), plan.InFlight())
    assert isinstance(repeat, plan.ForCall)
    assert repeat.terms is None
    elsewhere = plan.ToolView(terms=Terms(contract=Keyed(), scope="us"))
    moved = Story().decided("ticket").sent("1.1").ended("1.1", Ending.NOT_SENT)
    flow = plan.FlowView(tools={"ticket": elsewhere})
    other = plan.next_action(moved.state, flow, moved.now, plan.Ownership(), plan.InFlight())
    assert isinstance(other, plan.ForCall)
    assert other.terms == elsewhere.terms


def test_the_last_check_before_the_bytes_leave() -> None:
    story = Story(Limits(calls=1)).decided("pay", "mail")
    first, second = story.state.calls
    assert plan.may_dispatch(story.state, view(), first, story.now) is Rule.NEVER_SENT
    spent = story.sent("1.1").state
    assert plan.may_dispatch(spent, view(), second, story.now) is None
    assert plan.may_dispatch(spent, view(limits=Limits()), second, story.now) is Rule.NEVER_SENT
    assert plan.may_dispatch(story.unknown("1.1").state, view(limits=Limits()), second, story.now) is None
    cancelled = Story().decided("pay").cancel()
    assert plan.may_dispatch(cancelled.state, view(), cancelled.state.calls[0], cancelled.now) is None
    lost = unsure()
    assert plan.may_dispatch(lost.state, view(), lost.state.calls[0], lost.now) is None
    beside = Story().decided("pay", "mail").unknown("1.2", Rule.UNVERIFIABLE)
    assert plan.may_dispatch(beside.state, view(), beside.state.calls[0], beside.now) is Rule.NEVER_SENT


def test_a_tool_may_be_let_run_beside_others() -> None:
    assert view().tools["pay"].beside_others().parallel


def test_a_wait_names_the_earliest_moment() -> None:
    story = Story().decided("find", "find").sent("1.1").sent("1.2").ended("1.2", UNSURE).ended("1.1", UNSURE)
    story.looked("1.1", Answer.ABSENT).looked("1.2", Answer.ABSENT)
    first = next(each.at for each in story.events if isinstance(each.event, AttemptEnded)) + timedelta(seconds=5)
    for in_flight in (plan.InFlight(), plan.InFlight(asking=True)):
        action = plan.next_action(story.state, view(), story.now, plan.Ownership(), in_flight)
        assert isinstance(action, plan.Await)
        assert action.until == first


def test_what_only_the_right_flow_could_do_is_held() -> None:
    story = Story().decided("pay")
    move = plan.move_of(story.state, view(differences=True), story.state.calls[0], story.now, Rule.FLOW_CHANGED)
    assert move == Hold(Rule.FLOW_CHANGED)
