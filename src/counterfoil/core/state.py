"""The fold: what a run's events add up to. Only the current turn is kept; settled turns live on in the transcript.

It must not decide anything, and it accepts every journal that `append` could have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Literal, assert_never

from msgspec import Raw, Struct
from msgspec.structs import replace

from counterfoil.core.contracts import Terms
from counterfoil.core.events import (
    NO_JSON,
    Answer,
    AskFailed,
    AttemptEnded,
    Cancelled,
    CancelRequested,
    Completed,
    Decided,
    Dispatched,
    Ending,
    EvidenceTaken,
    Failed,
    Failure,
    IncidentRaised,
    LifeBegan,
    LookedUp,
    MailRefused,
    Paused,
    PlannedCall,
    Proof,
    Receipt,
    Recorded,
    Rejected,
    RunStarted,
    SenderObserved,
    SenderProof,
    SenderReleased,
    Status,
    TurnOpened,
    UnknownDeclared,
    Unstored,
    Verdict,
    VerdictGiven,
    call_id,
)
from counterfoil.core.flow import FlowManifest
from counterfoil.core.limits import Limits, Spent, after_decision, after_dispatch
from counterfoil.core.rules import Rule

ENDED = (SenderProof.RELEASED, SenderProof.DEAD)
"""Proofs that a sender can send no more."""

AFTER_END = (EvidenceTaken, MailRefused, IncidentRaised)
"""All that may follow the end of a run: it raises the incident flag, and changes neither status nor result."""


class Attempt(Struct, frozen=True, kw_only=True, gc=False):
    """One dispatch of a call.

    Args:
        number: from 1.
        fence: who made it.
        at: store time of its record.
        deadline: when its owner stops waiting for it.
        open: whether it may have had its effect.
        proof: what is known of its sender; None while nobody has looked.
        since: since when that has been known.
        seen_at: when it was last looked at.
    """

    number: int
    fence: int
    at: datetime
    deadline: datetime
    open: bool = True
    proof: SenderProof | None = None
    since: datetime | None = None
    seen_at: datetime | None = None


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """How a call was settled."""

    kind: Literal["applied", "rejected", "abandoned"]
    because: Rule | None = None
    proof: Proof | None = None
    result: Raw = NO_JSON
    unstored: Unstored | None = None
    failure: Failure | None = None


class CallState(Struct, frozen=True, kw_only=True, gc=False):
    """What is known of one call of the current turn.

    Args:
        id: its name inside the run.
        planned: as decided.
        terms: what it was first sent under; None before that. With nothing open it is sent under those at hand.
        attempts: all dispatches, oldest first.
        refused: a definite no, if an attempt got one.
        exists: the provider said that an object with our id exists.
        asks: lookups since this life or the last dispatch began.
        answer: the last lookup's answer.
        asked_at: when that question left.
        matches: what it found was shown to be made by this very request.
        found: what it found.
        found_unstored: what it found and could not store.
        retry_at: earliest moment of another try.
        request: digest of the first request's bytes, where the tool sent it through ``call.http``.
        unknown: under which rule it was declared unknown, if it stands so.
        outcome: how it was settled.
        cleared: a person said that nothing happened, and that it is to be dispatched.
        forgiven: attempts that a person closed; bounds on repeats count from there.
        changed_at: position of the last event about it.
    """

    id: str
    planned: PlannedCall
    terms: Terms | None = None
    attempts: tuple[Attempt, ...] = ()
    refused: Failure | None = None
    exists: bool = False
    asks: int = 0
    answer: Answer | None = None
    asked_at: datetime | None = None
    matches: bool = False
    found: Raw = NO_JSON
    found_unstored: Unstored | None = None
    retry_at: datetime | None = None
    request: str = ""
    unknown: Rule | None = None
    outcome: Outcome | None = None
    cleared: bool = False
    forgiven: int = 0
    changed_at: int = 0

    @property
    def open_attempts(self) -> tuple[Attempt, ...]:
        """Attempts that may have had their effect."""
        return tuple(attempt for attempt in self.attempts if attempt.open)


class RunState(Struct, frozen=True, kw_only=True, gc=False):
    """What a run's events add up to.

    ``latest``: the latest store time that any event bears: a clock that shows less has been set back.
    ``verify_since``: when this life heard that the store had lost events: no call is believed never to have been sent.
    """

    flow: FlowManifest
    input: Raw
    input_digest: str
    limits: Limits
    labels: dict[str, str]
    verify_since: datetime | None = None
    position: int = 0
    latest: datetime | None = None
    life: int = 0
    incarnation: str = ""
    fence: int = 0
    turn: int = 0
    asks: int = 0
    asking: bool = False
    ask_failure: AskFailed | None = None
    text: str = ""
    calls: tuple[CallState, ...] = ()
    spent: Spent = Spent()
    cancel: CancelRequested | None = None
    paused: Paused | None = None
    abandoned: tuple[str, ...] = ()
    incident: bool = False
    mail: int = 0
    ended: Status | None = None
    output: Raw = NO_JSON
    failure: Failure | None = None

    @property
    def status(self) -> Status:
        """The status that shows."""
        if self.ended is not None:
            return self.ended
        if any(call.unknown is not None and call.outcome is None for call in self.calls):
            return Status.UNKNOWN
        if self.paused is not None:
            return self.paused.status
        return Status.RUNNING if self.life else Status.PENDING

    def call(self, name: str) -> CallState | None:
        """Return a call of the current turn."""
        return next((call for call in self.calls if call.id == name), None)


def start_state(recorded: Recorded, event: RunStarted) -> RunState:
    """Return the state after a run's first event."""
    return RunState(
        flow=event.flow,
        input=event.input,
        input_digest=event.input_digest,
        limits=event.limits,
        labels=event.labels,
        verify_since=recorded.at if event.verify_first else None,
        position=recorded.position,
    )


def fold(events: Iterable[Recorded], state: RunState | None = None) -> RunState:
    """Return the state after some events; the first of a run must be `RunStarted`."""
    for recorded in events:
        state = apply(state, recorded)
    if state is None:
        raise ValueError("a run has at least its first event")
    return state


def apply(state: RunState | None, recorded: Recorded) -> RunState:
    """Return the state after one more event. Total over all events that `append` accepts."""
    event = recorded.event
    if isinstance(event, RunStarted):
        return start_state(recorded, event)
    if state is None:
        raise ValueError(f"a run begins with run_started, not {type(event).__name__}")
    latest = recorded.at if state.latest is None else max(state.latest, recorded.at)
    state = replace(state, position=recorded.position, latest=latest)
    if state.ended is not None and not isinstance(event, AFTER_END):
        return state
    match event:
        case Decided():
            return _decided(state, event, recorded.position)
        case Dispatched():
            return _dispatched(state, event, recorded)
        case Receipt():
            outcome = Outcome(
                kind="applied",
                because=event.because,
                proof=event.proof,
                result=event.result,
                unstored=event.unstored,
            )
            return _settle(state, event.call, recorded.position, outcome)
        case TurnOpened():
            return replace(state, turn=event.turn, asks=event.ask, asking=True, calls=(), text="", paused=None)
        case LifeBegan():
            return _life(state, event, recorded)
        case AskFailed():
            return replace(state, ask_failure=event)
        case AttemptEnded():
            return _on_call(state, event.call, recorded.position, lambda call: _attempt_ended(call, event, recorded.at))
        case SenderReleased():
            return _on_call(state, event.call, recorded.position, lambda call: _released(call, event, recorded.at))
        case SenderObserved():
            calls = tuple(_observed(call, event, recorded.at) for call in state.calls)
            return replace(state, calls=calls)
        case LookedUp():
            state = replace(state, incident=state.incident or event.answer is Answer.SEVERAL)
            return _on_call(state, event.call, recorded.position, lambda call: _looked_up(call, event))
        case Rejected():
            outcome = Outcome(kind="rejected", because=event.because, failure=event.failure)
            return _settle(state, event.call, recorded.position, outcome)
        case UnknownDeclared():
            state = replace(state, incident=state.incident or event.because is Rule.MISMATCH)
            return _on_call(state, event.call, recorded.position, lambda call: replace(call, unknown=event.because))
        case VerdictGiven():
            return _verdict(state, event, recorded.position)
        case EvidenceTaken() | MailRefused():
            return replace(state, mail=max(state.mail, event.item))
        case CancelRequested():
            return replace(state, cancel=state.cancel or event, mail=max(state.mail, event.item))
        case Paused():
            return replace(state, paused=event)
        case IncidentRaised():
            return replace(state, incident=True)
        case Completed():
            return replace(state, ended=Status.COMPLETED, output=event.output, paused=None)
        case Failed():
            return replace(state, ended=Status.FAILED, failure=event.failure, paused=None)
        case Cancelled():
            return replace(state, ended=Status.CANCELLED, paused=None)
        case _:
            assert_never(event)


def _decided(state: RunState, event: Decided, position: int) -> RunState:
    calls = tuple(
        CallState(id=call_id(event.turn, planned.position), planned=planned, changed_at=position)
        for planned in event.calls
    )
    return replace(
        state,
        turn=event.turn,
        asking=False,
        ask_failure=None,
        text=event.text,
        calls=calls,
        spent=after_decision(state.spent, event.usage),
        paused=None,
    )


def _dispatched(state: RunState, event: Dispatched, recorded: Recorded) -> RunState:
    def dispatch(call: CallState) -> CallState:
        attempt = Attempt(number=event.attempt, fence=recorded.fence, at=recorded.at, deadline=event.deadline)
        earlier = _closed(call.attempts) if event.because is Rule.ABSENT_PROVEN else call.attempts
        return replace(
            call,
            terms=event.terms or call.terms,
            attempts=(*earlier, attempt),
            request=call.request or event.request,
            **_NEW_QUESTION,
        )

    first = not (call := state.call(event.call)) or not call.attempts
    state = replace(state, paused=None, spent=after_dispatch(state.spent) if first else state.spent)
    return _on_call(state, event.call, recorded.position, dispatch)


_NEW_QUESTION: dict[str, object] = {
    "exists": False,
    "asks": 0,
    "answer": None,
    "asked_at": None,
    "matches": False,
    "found": NO_JSON,
    "found_unstored": None,
    "retry_at": None,
    "unknown": None,
}


def _closed(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """None of them had its effect, nor will have."""
    return tuple(replace(attempt, open=False) for attempt in attempts)


def _life(state: RunState, event: LifeBegan, recorded: Recorded) -> RunState:
    """A new life asks everything anew: bounds on lookups start again, and so does the look at living senders."""

    def renew(call: CallState) -> CallState:
        if call.outcome is not None:
            return call
        attempts = tuple(
            attempt if attempt.proof in ENDED else replace(attempt, proof=None, since=None, seen_at=None)
            for attempt in call.attempts
        )
        kept = {"unknown": call.unknown, "exists": call.exists, "cleared": call.cleared and not event.verify_first}
        return replace(call, attempts=attempts, **{**_NEW_QUESTION, **kept})

    return replace(
        state,
        life=event.life,
        incarnation=event.incarnation,
        fence=recorded.fence,
        verify_since=recorded.at if event.verify_first else state.verify_since,
        calls=tuple(renew(call) for call in state.calls),
        ask_failure=None,
        paused=None,
    )


def _attempt_ended(call: CallState, event: AttemptEnded, at: datetime) -> CallState:
    def end(attempt: Attempt) -> Attempt:
        if attempt.number != event.attempt:
            return attempt
        closed = event.ending in (Ending.NOT_APPLIED, Ending.NOT_SENT)
        proof = SenderProof.ALIVE if event.running else SenderProof.RELEASED
        return replace(attempt, open=attempt.open and not closed, proof=proof, since=at, seen_at=at)

    return replace(
        call,
        attempts=tuple(end(attempt) for attempt in call.attempts),
        refused=(event.failure if event.ending is Ending.NOT_APPLIED else None) or call.refused,
        exists=call.exists or event.ending is Ending.EXISTS,
        retry_at=event.retry_at,
    )


def _released(call: CallState, event: SenderReleased, at: datetime) -> CallState:
    attempts = tuple(
        replace(attempt, proof=SenderProof.RELEASED, since=at, seen_at=at)
        if attempt.number == event.attempt
        else attempt
        for attempt in call.attempts
    )
    return replace(call, attempts=attempts)


def _observed(call: CallState, event: SenderObserved, at: datetime) -> CallState:
    def observe(attempt: Attempt) -> Attempt:
        if attempt.fence != event.sender or attempt.proof in ENDED:
            return attempt
        first = attempt.since is None or event.proof in ENDED
        return replace(attempt, proof=event.proof, since=at if first else attempt.since, seen_at=at)

    if call.outcome is not None or not call.attempts:
        return call
    return replace(call, attempts=tuple(observe(attempt) for attempt in call.attempts))


def _looked_up(call: CallState, event: LookedUp) -> CallState:
    return replace(
        call,
        asks=call.asks + 1,
        answer=event.answer,
        asked_at=event.asked_at,
        matches=event.matches,
        found=event.result,
        found_unstored=event.unstored,
        retry_at=event.retry_at,
    )


def _verdict(state: RunState, event: VerdictGiven, position: int) -> RunState:
    state = replace(state, mail=max(state.mail, event.item))
    match event.verdict:
        case Verdict.ABANDON:
            state = replace(state, abandoned=(*state.abandoned, event.call))
            return _settle(state, event.call, position, Outcome(kind="abandoned", because=Rule.ABANDONED))
        case Verdict.NOT_APPLIED:
            return _on_call(state, event.call, position, _never_happened)
        case Verdict.APPLIED:
            return state
        case _:
            assert_never(event.verdict)


def _never_happened(call: CallState) -> CallState:
    attempts = _closed(call.attempts)
    return replace(call, attempts=attempts, refused=None, cleared=True, forgiven=len(attempts), **_NEW_QUESTION)


def _settle(state: RunState, name: str, position: int, outcome: Outcome) -> RunState:
    state = replace(state, paused=None)
    return _on_call(state, name, position, lambda call: replace(call, outcome=call.outcome or outcome, unknown=None))


def _on_call(state: RunState, name: str, position: int, change: Callable[[CallState], CallState]) -> RunState:
    calls = tuple(replace(change(call), changed_at=position) if call.id == name else call for call in state.calls)
    return replace(state, calls=calls)
