"""The fold: what each event adds, and what it never takes away."""

from __future__ import annotations

import pytest
from msgspec import Raw

from counterfoil.core.events import (
    Answer,
    Cancelled,
    CancelRequested,
    Completed,
    Decided,
    Dispatched,
    Ending,
    Failed,
    Failure,
    Paused,
    Receipt,
    Recorded,
    Rejected,
    SenderProof,
    SenderReleased,
    Status,
    UnknownDeclared,
    Verdict,
    VerdictGiven,
)
from counterfoil.core.rules import Rule
from counterfoil.core.state import RunState, apply, fold
from tests.core.story import START, TERMS, Story

FAILURE = Failure(kind="x", message="")


def sent() -> Story:
    return Story().decided("find").sent("1.1")


def test_a_run_begins_with_its_first_event() -> None:
    with pytest.raises(ValueError, match="at least"):
        fold([])
    with pytest.raises(ValueError, match="run_started"):
        apply(None, Recorded(1, START, 0, Decided(turn=1)))


def test_statuses() -> None:
    def status(story: Story) -> Status:
        return story.state.status

    assert fold(Story().events[:1]).status is Status.PENDING
    assert status(Story()) is Status.RUNNING
    paused = Paused(status=Status.BLOCKED, because=Rule.LIMIT)
    assert status(Story().add(paused)) is Status.BLOCKED
    assert status(Story().add(paused).life()) is Status.RUNNING
    assert status(sent().unknown("1.1").add(paused)) is Status.UNKNOWN
    assert status(sent().unknown("1.1").life()) is Status.UNKNOWN
    assert status(sent().unknown("1.1").receipt("1.1")) is Status.RUNNING
    assert status(Story().decided().add(Completed(output=Raw(b"1")))) is Status.COMPLETED
    assert status(Story().add(Failed(failure=FAILURE))) is Status.FAILED
    assert status(Story().add(Cancelled())) is Status.CANCELLED


def test_the_end_is_not_written_over() -> None:
    ended = Story().decided("pay").sent("1.1").add(Completed(output=Raw(b"1")))
    before = ended.state
    after = (
        ended.add(Failed(failure=FAILURE), CancelRequested(by="x"), Completed(output=Raw(b"2"))).receipt("1.1").state
    )
    assert (after.status, after.output, after.calls) == (before.status, before.output, before.calls)
    assert after.position == before.position + 4


def test_the_first_outcome_stands() -> None:
    state = sent().receipt("1.1", b"1").add(Rejected(call="1.1", because=Rule.OPERATOR, failure=FAILURE)).state
    outcome = state.calls[0].outcome
    assert outcome is not None
    assert (outcome.kind, outcome.result) == ("applied", Raw(b"1"))


def attempt(story: Story, number: int = 1) -> tuple[bool, SenderProof | None]:
    made = story.state.calls[0].attempts[number - 1]
    return made.open, made.proof


@pytest.mark.parametrize(
    "ending,open_after",
    [(Ending.UNSURE, True), (Ending.EXISTS, True), (Ending.NOT_APPLIED, False), (Ending.NOT_SENT, False)],
)
def test_only_what_certainly_did_nothing_closes_its_attempt(ending: Ending, open_after: bool) -> None:
    story = sent().ended("1.1", ending)
    assert attempt(story) == (open_after, SenderProof.RELEASED)
    call = story.state.calls[0]
    assert (call.refused is not None) == (ending is Ending.NOT_APPLIED)
    assert call.exists == (ending is Ending.EXISTS)


def test_it_closes_no_other_attempt() -> None:
    story = sent().sent("1.1").ended("1.1", Ending.NOT_APPLIED, attempt=2)
    assert (attempt(story, 1)[0], attempt(story, 2)[0]) == (True, False)


def test_a_thread_that_outlived_its_deadline_is_alive_until_it_says_so() -> None:
    story = sent().ended("1.1", Ending.UNSURE, running=True)
    assert attempt(story)[1] is SenderProof.ALIVE
    assert attempt(story.add(SenderReleased(call="1.1", attempt=1)))[1] is SenderProof.RELEASED


def test_an_end_once_seen_is_never_taken_back_and_counts_from_then() -> None:
    story = sent().life().seen(SenderProof.ALIVE).seen(SenderProof.EXPIRED)
    first = story.state.calls[0].attempts[0]
    assert first.since is not None
    assert first.seen_at is not None
    assert first.since < first.seen_at
    dead = story.seen(SenderProof.DEAD).state.calls[0].attempts[0]
    assert dead.since is not None
    assert dead.since > first.seen_at
    assert story.seen(SenderProof.ALIVE).life().state.calls[0].attempts[0] == dead
    assert attempt(sent().life().seen(SenderProof.DEAD, fence=9)) == (True, None)


def test_a_new_life_asks_anew_and_forgets_no_conflict_and_no_unknown() -> None:
    story = sent().ended("1.1", Ending.EXISTS, running=True).looked("1.1", Answer.ABSENT).unknown("1.1")
    call = story.life().state.calls[0]
    assert (call.asks, call.answer, call.attempts[0].proof) == (0, None, None)
    assert (call.exists, call.unknown) == (True, Rule.NO_EVIDENCE)
    settled = Story().decided("pay").sent("1.1").receipt("1.1")
    assert settled.life().state.calls == settled.state.calls


def again(story: Story, because: Rule) -> RunState:
    deadline = story.now
    return story.add(Dispatched(call="1.1", attempt=2, deadline=deadline, because=because)).state


def test_a_proven_absence_closes_the_attempts_before_it_and_nothing_else_does() -> None:
    assert [made.open for made in again(sent(), Rule.ABSENT_PROVEN).calls[0].attempts] == [False, True]
    assert [made.open for made in again(sent(), Rule.REPEAT_KEYED).calls[0].attempts] == [True, True]
    assert again(sent(), Rule.REPEAT_KEYED).calls[0].terms == TERMS["find"]


def test_a_call_is_counted_once() -> None:
    assert again(sent(), Rule.REPEAT_KEYED).spent.calls == 1


def test_verdicts() -> None:
    def given(verdict: Verdict) -> RunState:
        return sent().unknown("1.1").add(VerdictGiven(call="1.1", verdict=verdict, by="d", reason="r", item=4)).state

    cleared = given(Verdict.NOT_APPLIED)
    assert (cleared.mail, cleared.calls[0].open_attempts, cleared.calls[0].unknown) == (4, (), None)
    assert (cleared.calls[0].forgiven, cleared.calls[0].cleared) == (1, True)
    abandoned = given(Verdict.ABANDON)
    assert abandoned.abandoned == ("1.1",)
    assert abandoned.calls[0].outcome is not None
    assert given(Verdict.APPLIED).calls[0].outcome is None  # the receipt that comes with it settles


def test_incidents() -> None:
    assert sent().looked("1.1", Answer.SEVERAL).state.incident
    assert not sent().looked("1.1", Answer.FOUND).state.incident
    assert sent().add(UnknownDeclared(call="1.1", because=Rule.MISMATCH)).state.incident
    assert not sent().unknown("1.1").state.incident


def test_a_restored_store_is_remembered_from_its_last_life() -> None:
    story = Story().life(lost=True)
    first = story.state.verify_since
    assert first is not None
    assert story.life().state.verify_since == first
    later = story.life(lost=True).state.verify_since
    assert later is not None
    assert later > first


def test_what_is_said_of_an_earlier_turn_changes_nothing() -> None:
    story = Story().decided("pay").sent("1.1").receipt("1.1").decided("pay")
    before = story.state
    after = story.receipt("1.1", b"2").state
    assert after.calls == before.calls
    assert isinstance(story.events[-1].event, Receipt)
    assert after.call("9.9") is None
