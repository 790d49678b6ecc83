"""What a resume would do now: the next life played through on paper, up to the first thing that leaves this process.

It must not claim, write or send: the only thing it does is to look at earlier workers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from counterfoil.core.events import (
    Answer,
    Event,
    LookedUp,
    Recorded,
    SenderObserved,
    SenderProof,
    UnknownDeclared,
)
from counterfoil.core.flow import Difference
from counterfoil.core.plan import (
    Action,
    AskModel,
    Await,
    Finish,
    FlowView,
    ForCall,
    InFlight,
    Ownership,
    Pause,
    Stop,
    move_of,
    next_action,
    stop_of,
    terms_of,
)
from counterfoil.core.recovery import Ask, Dispatch, Hold, Move, Observe, Reject, Settle, Unknown, Wait
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState, RunState, apply
from counterfoil.runtime import perform
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.journal import Journal
from counterfoil.runtime.lives import life_began, look_at_senders
from counterfoil.runtime.questions import Question, past_of, questions
from counterfoil.runtime.timeline import carries_key
from counterfoil.stores.protocol import Head, Observation, Store

Does = Literal[
    "send", "send again", "look up", "settle", "reject", "declare unknown", "wait", "hold", "nothing",
    "ask the model", "pause", "end", "refuse",
]  # fmt: skip


class Branch(Struct, frozen=True, kw_only=True):
    """What follows from one answer of a lookup that a resume would ask."""

    answer: Answer
    does: Does
    because: Rule
    says: str


class Step(Struct, frozen=True, kw_only=True):
    """One thing that a resume would do.

    Args:
        does: what.
        because: under which rule.
        says: the rule's sentence.
        call: of which call, if of one.
        tool: its tool.
        key: under which key, where something is sent or looked up by it.
        until: where it waits.
        note: more, in words.
        branches: where it goes on from an answer.
    """

    does: Does
    because: Rule
    says: str
    call: str = ""
    tool: str = ""
    key: str = ""
    until: datetime | None = None
    note: str = ""
    branches: tuple[Branch, ...] = ()


class Repeat(Struct, frozen=True, kw_only=True):
    """An effect that a resume would, or might, send a second time.

    Args:
        call: the call.
        tool: its tool.
        key: the key, the same as the first time; empty where the contract carries none.
        attempt: the number that the repeat gets.
        certain: whether it is the next thing, or only follows from one answer of a lookup.
        because: under which rule.
    """

    call: str
    tool: str
    key: str
    attempt: int
    certain: bool
    because: Rule


class CallReport(Struct, frozen=True, kw_only=True):
    """One unsettled call of the current turn: what it is, its move, and the five questions."""

    call: CallState
    key: str
    move: Step
    questions: tuple[Question, ...]


class Explanation(Struct, frozen=True, kw_only=True):
    """What a resume would do now.

    Args:
        run_id: the run.
        state: its fold as it stands.
        owner: who holds it, and what was seen of that one.
        steps: in order.
        repeats: effects that would or might be sent a second time.
        calls: the unsettled calls of the current turn.
        differences: how the flow at hand differs from the journal's.
    """

    run_id: str
    state: RunState
    owner: Observation | None
    steps: tuple[Step, ...]
    repeats: tuple[Repeat, ...]
    calls: tuple[CallReport, ...]
    differences: tuple[Difference, ...]


LONGEST = 1000
"""Steps after which a plan that does not end is broken off; no legal one comes near."""


async def explain(store: Store, head: Head, agent: Agent) -> Explanation:
    """Play the next life of a run through on paper.

    Args:
        store: read only.
        head: the run's.
        agent: the flow at hand.
    """
    events = await store.events(head.run_id)
    owner = await store.observe(head.owner) if head.owner else None
    journal = await _next_life(store, head, events, owner)
    view = agent.view(journal.state.flow)
    before = journal.state
    steps = await _play(journal, view)
    if owner is not None and owner.proof is SenderProof.ALIVE:
        note = f"held by another worker ({owner.detail}); a resume now exits 75"
        steps = (Step(does="refuse", because=Rule.LEASE_LOST, says=note), *steps)
    calls = [call for call in journal.state.calls if call.outcome is None]
    reports = [await _report(journal, view, events, call) for call in calls]
    return Explanation(
        run_id=head.run_id,
        state=Journal(store, head, events).state,
        owner=owner,
        steps=steps,
        repeats=tuple(_repeats(before, view, steps)),
        calls=tuple(reports),
        differences=view.differences,
    )


async def _next_life(store: Store, head: Head, events: list[Recorded], owner: Observation | None) -> Journal:
    """Return the journal as a new life would find it, with its mail read. Nothing of this is ever committed."""
    claimed = replace(head, fence=head.fence + 1, lives=head.lives + 1)
    journal = Journal(store, claimed, events)
    if journal.state.status.terminal:
        return journal
    before = journal.state.fence
    journal.note(life_began(claimed, "explain"), fact=True)
    if owner is not None:
        journal.note(SenderObserved(sender=before, proof=owner.proof), fact=True)
    await journal.drain_mail()
    return journal


async def _play(journal: Journal, view: FlowView) -> tuple[Step, ...]:
    steps: list[Step] = []
    now = journal.store.now()
    attempts: set[tuple[str, int]] = set()
    lookups: set[str] = set()
    asking = False
    for _ in range(LONGEST):
        flight = InFlight(attempts=frozenset(attempts), lookups=frozenset(lookups), asking=asking)
        action = next_action(journal.state, view, now, Ownership(), flight)
        if isinstance(action, ForCall) and isinstance(action.move, Observe):
            for seen in await look_at_senders(journal, [action.call]):
                journal.note(seen, fact=True)
            continue
        if flight.anything and isinstance(action, (Await, Pause)):
            return tuple(steps)
        steps.append(_step(journal.state, view, now, action))
        match action:
            case ForCall(call=call, move=Ask()):
                lookups.add(call.id)
            case ForCall(call=call, move=Dispatch()):
                attempts.add((call.id, action.attempt))
            case ForCall():
                _settle(journal, action)
            case AskModel():
                asking = True
            case Await(until=until, because=because) if until is not None and because is not Rule.AWAIT_PROOF:
                now = until
            case _:
                return tuple(steps)
    return tuple(steps)


def _settle(journal: Journal, action: ForCall) -> None:
    events: tuple[Event, ...]
    match action.move:
        case Settle(because=because):
            events = perform.settle(action.call, because)
        case Reject(because=because):
            events = (perform.reject(action.call, because),)
        case Unknown(because=because):
            events = (UnknownDeclared(call=action.call.id, because=because),)
        case _:
            events = ()
    for event in events:
        journal.note(event, fact=True)


def _step(state: RunState, view: FlowView, now: datetime, action: Action) -> Step:
    match action:
        case ForCall(call=call, move=move):
            return _move_step(state, view, now, call, move)
        case AskModel(turn=turn, ask=ask, because=because):
            note = f"turn {turn}" + (f", ask {ask}" if ask > 1 else "")
            return Step(does="ask the model", because=because, says=because.says, note=note)
        case Await(until=until, because=because):
            return Step(does="wait", because=because, says=because.says, until=until)
        case Pause(status=status, because=because, until=until, note=note):
            said = "; ".join(part for part in (f"the run is {status}", note) if part)
            return Step(does="pause", because=because, says=because.says, until=until, note=said)
        case Finish(status=status, because=because):
            return Step(does="end", because=because, says=because.says, note=f"the run is {status}")
        case Stop(because=because):
            return Step(does="nothing", because=because, says="The run has ended.")


def _move_step(state: RunState, view: FlowView, now: datetime, call: CallState, move: Move) -> Step:
    does, until = _does(call, move)
    branches = _branches(state, view, now, call, move.because) if isinstance(move, Ask) else ()
    shown = isinstance(move, (Ask, Dispatch, Settle))
    return Step(
        does=does,
        because=move.because,
        says=move.because.says,
        call=call.id,
        tool=call.planned.tool,
        key=_key(view, call) if shown else "",
        until=until,
        branches=branches,
    )


def _does(call: CallState, move: Move) -> tuple[Does, datetime | None]:
    match move:
        case Dispatch():
            return ("send again" if call.attempts else "send"), None
        case Settle():
            return "settle", None
        case Reject():
            return "reject", None
        case Ask() | Observe():
            return "look up", None
        case Wait(until=until):
            return "wait", until
        case Hold():
            return "hold", None
        case Unknown():
            return "declare unknown", None


def _branches(state: RunState, view: FlowView, now: datetime, call: CallState, because: Rule) -> tuple[Branch, ...]:
    """Return what each answer to a lookup would lead to, decided by the same table."""
    found = []
    for answer in (Answer.FOUND, Answer.ABSENT, Answer.CANNOT_TELL):
        event = LookedUp(call=call.id, answer=answer, asked_at=now, because=because)
        after = apply(state, Recorded(state.position + 1, now, state.fence, event))
        changed = after.call(call.id)
        assert changed is not None
        move = move_of(after, view, changed, now, stop_of(after, view))
        does, _ = _does(changed, move)
        found.append(Branch(answer=answer, does=does, because=move.because, says=move.because.says))
    return tuple(found)


def _key(view: FlowView, call: CallState) -> str:
    terms = terms_of(view, call)
    return call.planned.key if terms is not None and carries_key(terms) else ""


def _repeats(state: RunState, view: FlowView, steps: tuple[Step, ...]) -> list[Repeat]:
    """Collect every effect that would be sent a second time, for certain or after one answer of a lookup."""
    found = []
    for step in steps:
        call = state.call(step.call)
        if call is None or not call.attempts:
            continue
        again = [branch.because for branch in step.branches if branch.does == "send again"]
        certain = step.does == "send again"
        if certain or again:
            found.append(
                Repeat(
                    call=call.id,
                    tool=call.planned.tool,
                    key=_key(view, call),
                    attempt=len(call.attempts) + 1,
                    certain=certain,
                    because=step.because if certain else again[0],
                )
            )
    return found


async def _report(journal: Journal, view: FlowView, events: list[Recorded], call: CallState) -> CallReport:
    now = journal.store.now()
    past = await past_of(journal.store, events, call)
    move = move_of(journal.state, view, call, now, stop_of(journal.state, view))
    return CallReport(
        call=call,
        key=_key(view, call),
        move=_move_step(journal.state, view, now, call, move),
        questions=questions(journal.run_id, journal.state, call, past, now, view),
    )
