"""Hypothesis strategies for whatever core takes: contracts, and legal journals that no planner would have written.

It must not be imported where Hypothesis is not installed: only tests import it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from msgspec import Raw

from counterfoil.core.contracts import (
    Bounds,
    ClientId,
    Contract,
    Keyed,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Terms,
    Transactional,
)
from counterfoil.core.events import (
    Answer,
    AskFailed,
    AttemptEnded,
    Cancelled,
    CancelRequested,
    Completed,
    Decided,
    Dispatched,
    Ending,
    Event,
    EvidenceTaken,
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
    Verdict,
    VerdictGiven,
)
from counterfoil.core.flow import Difference, FlowManifest, ToolManifest
from counterfoil.core.limits import Limits
from counterfoil.core.plan import FlowView, InFlight, ToolView
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState, RunState, apply

START = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = ("a", "b", "c")

spans = st.sampled_from([timedelta(0), timedelta(seconds=1), timedelta(seconds=30), timedelta(hours=1)])
lookups = st.builds(Lookup, settles_in=spans)
first_lines = st.one_of(
    st.builds(Repeatable),
    st.builds(Keyed, remembered_for=st.none() | spans, margin=spans, lookup_first=st.booleans()),
    st.builds(ClientId, lookup_first=st.booleans()),
)


def contracts() -> st.SearchStrategy[Contract]:
    """Return every form of contract."""
    alone = st.one_of(st.builds(Read), st.builds(OneShot), st.builds(Transactional, settles_in=spans), lookups)
    return st.one_of(alone, first_lines, st.builds(lambda first, then: first | then, first_lines, lookups))


def terms() -> st.SearchStrategy[Terms]:
    """Return terms under which a call is sent."""
    bounds = st.builds(Bounds, timeout=spans, repeats=st.integers(0, 3), lookups=st.integers(1, 3), proof_within=spans)
    scopes = st.sampled_from(["", "eu", "us"])
    return st.builds(
        Terms,
        contract=contracts(),
        bounds=bounds,
        scope=scopes,
        verify_first=st.booleans(),
        children=st.booleans(),
    )


@st.composite
def flow_views(draw: st.DrawFn) -> FlowView:
    """Return a flow at hand, which need not be the one that a journal was written under."""
    names = draw(st.lists(st.sampled_from(TOOLS), unique=True))
    views = st.builds(ToolView, terms=terms(), can_look=st.booleans(), parallel=st.booleans())
    changed = (Difference(where="version", journal="1", now="2"),) if draw(st.booleans()) else ()
    limits = draw(st.none() | st.builds(Limits, calls=st.none() | st.integers(0, 3)))
    return FlowView(tools={name: draw(views) for name in names}, differences=changed, limits=limits)


@st.composite
def in_flights(draw: st.DrawFn, state: RunState) -> InFlight:
    """Return what may be under way here."""
    calls = [call.id for call in state.calls] or ["1.1"]
    attempts = draw(st.frozensets(st.tuples(st.sampled_from(calls), st.integers(1, 2)), max_size=2))
    looking = draw(st.frozensets(st.sampled_from(calls), max_size=1))
    return InFlight(attempts=attempts, lookups=looking, asking=state.asking and draw(st.booleans()))


@st.composite
def journals(draw: st.DrawFn, max_events: int = 25) -> list[Recorded]:
    """Return a legal journal: everything in it could have been appended, whether or not a plan would have."""
    declared = {name: draw(terms()) for name in TOOLS}
    tools = {name: ToolManifest(contract=each.contract) for name, each in declared.items()}
    manifest = FlowManifest(name="flow", version="1", tools=tools)
    limits = draw(st.builds(Limits, turns=st.none() | st.integers(0, 3), calls=st.none() | st.integers(0, 3)))
    begun = RunStarted(flow=manifest, input=Raw(b"1"), input_digest="d", limits=limits)
    journal = [Recorded(1, START, 0, begun)]
    state, now, fence = apply(None, journal[0]), START, 0
    for position in range(2, draw(st.integers(1, max_events)) + 2):
        now += draw(spans) if draw(st.integers(0, 9)) else -timedelta(seconds=3)
        options = _next_events(state, now, fence, declared)
        event = draw(options[draw(st.integers(0, len(options) - 1))])
        fence += isinstance(event, LifeBegan)
        journal.append(Recorded(position, now, fence, event))
        state = apply(state, journal[-1])
    return journal


FAILURE = Failure(kind="Error", message="")


def _next_events(
    state: RunState, now: datetime, fence: int, declared: dict[str, Terms]
) -> list[st.SearchStrategy[Event]]:
    """Return what may come next; what should come more often stands in there more often."""
    after = st.sampled_from([timedelta(0), timedelta(seconds=1), timedelta(hours=2)])
    life = st.builds(
        LifeBegan,
        life=st.just(fence + 1),
        incarnation=st.just("i"),
        pid=st.just(1),
        host=st.just("h"),
        version=st.just("0"),
        verify_first=st.sampled_from([False, False, False, True]),
    )
    known = [call.id for call in state.calls] or ["1.1"]
    late: list[st.SearchStrategy[Event]] = [
        st.builds(EvidenceTaken, call=st.sampled_from(known), note=st.just(""), sender=st.just(fence)),
        st.builds(MailRefused, item=st.integers(0, 5), item_id=st.just("x"), why=st.just("")),
        st.builds(IncidentRaised, call=st.sampled_from(known), what=st.just("")),
    ]
    if state.ended is not None:
        return late
    if not fence:
        return [life]
    options: list[st.SearchStrategy[Event]] = [
        life,
        *late,
        st.builds(CancelRequested, by=st.just("x")),
        st.builds(Paused, status=st.just(Status.WAITING), because=st.just(Rule.INTERRUPTED)),
        st.builds(SenderObserved, sender=st.integers(1, fence), proof=st.sampled_from(list(SenderProof))),
    ]
    unsettled = [call for call in state.calls if call.outcome is None]
    if state.asking:
        failed = st.builds(
            AskFailed,
            turn=st.just(state.turn),
            ask=st.just(state.asks),
            failure=st.just(FAILURE),
            retryable=st.booleans(),
            retry_at=st.none() | after.map(lambda span: now + span),
        )
        options += [_decisions(state.turn)] * 9 + [failed, st.just(TurnOpened(turn=state.turn, ask=state.asks + 1))]
    elif not unsettled:
        options += [st.just(TurnOpened(turn=state.turn + 1))] * 9
        if state.turn:
            options += [st.just(Completed(output=Raw(b"1"))), st.just(Cancelled())]
    for call in unsettled:
        options += [_on_call(call, now, declared)] * 6
    return options


def _decisions(turn: int) -> st.SearchStrategy[Event]:
    plans = st.lists(st.tuples(st.sampled_from((*TOOLS, "gone")), st.integers(0, 7)), min_size=1, max_size=3)

    def decide(planned: list[tuple[str, int]]) -> Decided:
        calls = tuple(
            PlannedCall(
                position=i,
                tool=tool,
                arguments=Raw(b"{}"),
                key="k",
                invalid=None if luck or tool == "gone" else FAILURE,
            )
            for i, (tool, luck) in enumerate(planned, start=1)
        )
        return Decided(turn=turn, calls=calls)

    return plans.map(decide)


def _on_call(call: CallState, now: datetime, declared: dict[str, Terms]) -> st.SearchStrategy[Event]:
    which = {"call": st.just(call.id)}
    later = st.none() | st.sampled_from([now, now + timedelta(seconds=1), now + timedelta(hours=1)])
    number = len(call.attempts) + 1
    options: list[st.SearchStrategy[Event]] = [
        st.builds(
            Dispatched,
            attempt=st.just(number),
            deadline=st.just(now + timedelta(minutes=1)),
            because=st.sampled_from([Rule.NEVER_SENT, Rule.REPEAT_KEYED, Rule.ABSENT_PROVEN]),
            terms=st.just(None if call.open_attempts else declared.get(call.planned.tool, Terms(contract=OneShot()))),
            **which,
        ),
        st.builds(Receipt, proof=st.sampled_from(list(Proof)), result=st.just(Raw(b"1")), **which),
        st.builds(UnknownDeclared, because=st.sampled_from([Rule.NO_EVIDENCE, Rule.MISMATCH]), **which),
        st.builds(
            VerdictGiven,
            verdict=st.sampled_from([Verdict.NOT_APPLIED, Verdict.ABANDON]),
            by=st.just("x"),
            reason=st.just(""),
            then=st.just("dispatch"),
            **which,
        ),
    ]
    if not call.open_attempts:
        options.append(st.builds(Rejected, because=st.just(Rule.DEFINITE_NO), failure=st.just(FAILURE), **which))
    if call.attempts:
        made = {"attempt": st.integers(1, len(call.attempts)), **which}
        ended = st.builds(
            AttemptEnded,
            ending=st.sampled_from(list(Ending)),
            failure=st.just(FAILURE),
            running=st.booleans(),
            retry_at=later,
            **made,
        )
        looked = st.builds(
            LookedUp,
            answer=st.sampled_from(list(Answer)),
            asked_at=st.just(now),
            because=st.just(Rule.LOOK_AGAIN),
            matches=st.booleans(),
            retry_at=later,
            **which,
        )
        options += [ended, ended, looked, looked, st.builds(SenderReleased, **made)]
    return st.one_of(options)
