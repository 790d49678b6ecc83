"""All that waits for a person: unknown calls, blocked and deserted runs, incidents, and calls that were given up.

It must not claim or write: it reads journals and looks at earlier workers.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Raw, Struct
from msgspec.structs import replace

from counterfoil.core.events import (
    Decided,
    Event,
    IncidentRaised,
    Recorded,
    SenderProof,
    Status,
    UnknownDeclared,
    call_id,
)
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState, RunState, fold
from counterfoil.errors import CounterfoilError
from counterfoil.runtime.questions import Past, Question, past_of, questions
from counterfoil.runtime.timeline import Known
from counterfoil.stores.protocol import Head, Store

MOST = 100_000
"""Runs that are looked through."""
WAITING = (Status.UNKNOWN, Status.BLOCKED)
OPEN = (Status.PENDING, Status.RUNNING)


class UnknownCall(Struct, frozen=True, kw_only=True):
    """A call that was dispatched, is not settled, and of which nobody can tell.

    Args:
        call: its name.
        tool: the tool.
        arguments: as sent.
        key: the key as the provider knows it; empty where it carried none.
        because: why it is unknown.
        past: what the journal holds of it.
        seen: position of the journal; a verdict is refused if the call changed since.
        sender_ended: nothing of it can be under way any more.
        questions: the five.
    """

    call: str
    tool: str
    arguments: Raw
    key: str
    because: Rule
    past: Past
    seen: int
    sender_ended: bool
    questions: tuple[Question, ...]


class Waiting(Struct, frozen=True, kw_only=True):
    """A run that waits for a person.

    Args:
        run_id: the run.
        flow: its flow's name.
        entry: MODULE:FLOW, if it is known.
        status: what shows.
        because: why it stands still, where that is written down.
        note: the same, in words.
        since: time of the last event.
        unknown: its unknown calls.
        incidents: what was raised.
        abandoned: calls that were given up: their effects may be there.
        damaged: why its journal cannot be read, if it cannot.
        deserted: why nobody advances it, where it shows as running: it may hold an unknown that nobody has looked at.
    """

    run_id: str
    flow: str
    entry: str
    status: Status
    because: Rule | None = None
    note: str = ""
    since: datetime | None = None
    unknown: tuple[UnknownCall, ...] = ()
    incidents: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    damaged: str = ""
    deserted: str = ""


async def inbox(store: Store) -> list[Waiting]:
    """Return what waits for a person, oldest first; last the runs that only have to be resumed."""
    heads = await store.find(status=(*WAITING, Status.FAILED), limit=MOST)
    known = {head.run_id for head in heads}
    heads += [head for head in await store.find(limit=MOST) if head.incident and head.run_id not in known]
    found = [await waiting(store, head) for head in heads]
    found += [
        replace(await waiting(store, head), deserted=why)
        for head in await store.find(status=OPEN, limit=MOST)
        if head.run_id not in known and (why := await _deserted(store, head))
    ]
    kept = [
        one for one in found if one.status in WAITING or one.incidents or one.abandoned or one.damaged or one.deserted
    ]
    return sorted(kept, key=lambda one: (one.deserted != "", one.since is None, one.since))


async def _deserted(store: Store, head: Head) -> str:
    """Return why nobody advances an open run, or nothing: its worker lives."""
    if not head.owner:
        return "nobody holds it"
    seen = await store.observe(head.owner)
    if seen.proof is SenderProof.ALIVE:
        return ""
    return f"its worker ({seen.detail}) is {'dead' if seen.proof is SenderProof.DEAD else 'gone'}"


async def waiting(store: Store, head: Head) -> Waiting:
    """Return what one run waits for."""
    try:
        events = await store.events(head.run_id)
    except CounterfoilError as error:
        return Waiting(run_id=head.run_id, flow=head.flow, entry=head.entry, status=head.status, damaged=error.message)
    state = fold(events)
    open_calls = [call for call in state.calls if call.unknown is not None and call.outcome is None]
    paused = state.paused
    note = paused.note if paused is not None else ""
    if paused is not None and paused.differences:
        note = "; ".join(str(difference) for difference in paused.differences)
    return Waiting(
        run_id=head.run_id,
        flow=head.flow,
        entry=head.entry,
        status=state.status,
        because=paused.because if paused is not None else None,
        note=note,
        since=events[-1].at,
        unknown=tuple([await _unknown(store, head.run_id, events, state, call) for call in open_calls]),
        incidents=_incidents(events),
        abandoned=tuple(_spelled(events, name) for name in state.abandoned),
    )


async def _unknown(store: Store, run_id: str, events: list[Recorded], state: RunState, call: CallState) -> UnknownCall:
    past = await past_of(store, events, call)
    asked = questions(run_id, state, call, past, store.now())
    known = Known()
    for recorded in events:
        known.learn(recorded.event, recorded.fence)
    return UnknownCall(
        call=call.id,
        tool=call.planned.tool,
        arguments=call.planned.arguments,
        key=known.key(call.id),
        because=call.unknown or Rule.UNKNOWN,
        past=past,
        seen=state.position,
        sender_ended=asked[3].says == "yes",
        questions=asked,
    )


def _incidents(events: list[Recorded]) -> tuple[str, ...]:
    """Return everything that raised the flag: two effects for one intent, seen or likely."""
    return tuple(said for recorded in events if (said := _incident(recorded.event)))


def _incident(event: Event) -> str:
    match event:
        case IncidentRaised(call=call, what=what):
            return f"call {call}: {what}"
        case UnknownDeclared(call=call, because=Rule.MISMATCH):
            return f"call {call}: {Rule.MISMATCH.says}"
        case _:
            return ""


def _spelled(events: list[Recorded], name: str) -> str:
    """Return a call with its tool; it may be of an earlier turn."""
    for recorded in reversed(events):
        event: Event = recorded.event
        if isinstance(event, Decided):
            for planned in event.calls:
                if call_id(event.turn, planned.position) == name:
                    return f"{name} {planned.tool}"
    return name
