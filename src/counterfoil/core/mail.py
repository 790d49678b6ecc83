"""What a run's mailbox holds, and the events that an item becomes.

Everyone who holds no lease writes here: late evidence, verdicts, cancels. The owner, or a command that claims an
unowned run, turns items into events. It must not settle anything that is settled: it raises an incident instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, assert_never

import msgspec
from msgspec import Raw, Struct

from counterfoil.core.codec import canonical
from counterfoil.core.contracts import wants_record
from counterfoil.core.events import (
    NO_JSON,
    AttemptEnded,
    CancelRequested,
    Event,
    EvidenceTaken,
    Failure,
    IncidentRaised,
    MailRefused,
    Proof,
    Receipt,
    Rejected,
    SenderReleased,
    Verdict,
    VerdictGiven,
)
from counterfoil.core.rules import Rule
from counterfoil.core.state import ENDED, CallState, Outcome, RunState


class Evidence(Struct, frozen=True, kw_only=True, tag="evidence"):
    """A fact that reached a worker after it had lost the run. ``sender`` is the fence that it had."""

    sender: int
    fact: Receipt | AttemptEnded | SenderReleased


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    """A request to cancel."""

    by: str
    reason: str = ""


class GiveVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="verdict"):
    """A person's verdict on an unknown call.

    Args:
        call: the call.
        verdict: applied, not applied, or abandon.
        by: who says so.
        reason: why.
        then: after not applied: tell the model (``reject``), or ``dispatch`` again with the same key.
        receipt: the result, as JSON, for applied.
        sender_stopped: the person asserts that the earlier sender can send no more.
        seen: position of the journal that the person looked at; the verdict is refused if the call changed since.
    """

    call: str
    verdict: Verdict
    by: str
    reason: str
    then: Literal["", "reject", "dispatch"] = ""
    receipt: Raw = NO_JSON
    sender_stopped: bool = False
    seen: int = 0


Item = Evidence | Cancel | GiveVerdict

_decoder: msgspec.json.Decoder[Item] = msgspec.json.Decoder(Item)


def encode_item(item: Item) -> bytes:
    """Return an item as JSON."""
    return msgspec.json.encode(item)


def decode_item(body: bytes) -> Item:
    """Return the item; raises `msgspec.DecodeError` for anything else."""
    return _decoder.decode(body)


def absorb(
    state: RunState, item: Item, number: int, item_id: str, settled: Callable[[str], Outcome | None]
) -> tuple[Event, ...]:
    """Return the events that an item becomes, given the run as it stands.

    Args:
        state: the fold so far.
        item: the item.
        number: its mailbox mark.
        item_id: its id.
        settled: how a call of an earlier turn was settled.
    """
    match item:
        case Evidence():
            return _evidence(state, item, number, settled)
        case Cancel() if state.status.terminal:
            return (MailRefused(item=number, item_id=item_id, why=f"the run is {state.status} already"),)
        case Cancel():
            return (CancelRequested(by=item.by, reason=item.reason, item=number),)
        case GiveVerdict():
            why = refusal(state, item)
            if why is not None:
                return (MailRefused(item=number, item_id=item_id, why=why),)
            return _verdict(item, number)
        case _:
            assert_never(item)


def refusal(state: RunState, item: GiveVerdict) -> str | None:
    """Return why a verdict does not fit the run as it stands, or None."""
    call = state.call(item.call)
    if state.status.terminal:
        return f"the run is {state.status} already"
    if call is None:
        return f"call {item.call} is not one of the current turn"
    if call.outcome is not None:
        return f"call {item.call} is settled already ({call.outcome.kind})"
    if not call.open_attempts and call.unknown is None:
        return f"call {item.call} was never dispatched; there is nothing to settle"
    if call.changed_at > item.seen:
        return f"call {item.call} changed since you looked (event {call.changed_at}, you saw {item.seen})"
    if item.verdict is Verdict.NOT_APPLIED and not item.sender_stopped and not _sender_ended(call):
        return (
            f"the worker that sent call {item.call} may still send; "
            "make sure that it is stopped, then say so with --sender-stopped"
        )
    return None


def _sender_ended(call: CallState) -> bool:
    safe = call.terms is None or not call.terms.children
    return safe and all(attempt.proof in ENDED for attempt in call.open_attempts)


def _verdict(item: GiveVerdict, number: int) -> tuple[Event, ...]:
    then = (item.then or "reject") if item.verdict is Verdict.NOT_APPLIED else ""
    given = VerdictGiven(
        call=item.call,
        verdict=item.verdict,
        by=item.by,
        reason=item.reason,
        then=then,
        receipt=item.receipt,
        sender_stopped=item.sender_stopped,
        item=number,
    )
    if item.verdict is Verdict.APPLIED:
        return given, Receipt(call=item.call, proof=Proof.OPERATOR, result=item.receipt, because=Rule.OPERATOR)
    if then == "reject":
        failure = Failure(kind="NotApplied", message=f"It was not done: {item.reason}")
        return given, Rejected(call=item.call, because=Rule.OPERATOR, failure=failure)
    return (given,)


def _evidence(
    state: RunState, item: Evidence, number: int, settled: Callable[[str], Outcome | None]
) -> tuple[Event, ...]:
    fact = item.fact
    taken = EvidenceTaken(call=fact.call, note=_note(fact), sender=item.sender, item=number)
    call = state.call(fact.call)
    if call is not None and call.outcome is None and not state.status.terminal:
        if _is_of(call, item):
            return taken, fact
        stray = isinstance(fact, Receipt) and _has_effect(state, call)
        return (taken, IncidentRaised(call=fact.call, what=f"{taken.note}, but {_STRAY}")) if stray else (taken,)
    outcome = call.outcome if call is not None else settled(fact.call)
    contradiction = _contradiction(fact, outcome)
    if contradiction is None:
        return (taken,)
    return taken, IncidentRaised(call=fact.call, what=contradiction)


_STRAY = "this journal does not hold that attempt: it may be of a decision that the store has lost"


def _is_of(call: CallState, item: Evidence) -> bool:
    """Tell whether the fact is about a dispatch in this journal; a lookup's finding names no attempt."""
    if isinstance(item.fact, Receipt) and not item.fact.attempt:
        return bool(call.attempts)
    return any(made.number == item.fact.attempt and made.fence == item.sender for made in call.attempts)


def _has_effect(state: RunState, call: CallState) -> bool:
    tool = state.flow.tools.get(call.planned.tool)
    return tool is None or wants_record(tool.contract)


def _note(fact: Receipt | AttemptEnded | SenderReleased) -> str:
    match fact:
        case Receipt():
            return f"attempt {fact.attempt} had a reply"
        case AttemptEnded():
            return f"attempt {fact.attempt} ended: {fact.ending}"
        case SenderReleased():
            return f"the thread of attempt {fact.attempt} ended"
        case _:
            assert_never(fact)


def _contradiction(fact: Receipt | AttemptEnded | SenderReleased, outcome: Outcome | None) -> str | None:
    """Two effects for one intent, or a late effect after another verdict; None where the two agree."""
    if not isinstance(fact, Receipt) or outcome is None:
        return None
    if outcome.kind != "applied":
        return f"attempt {fact.attempt} had an effect, but the call was settled as {outcome.kind}"
    if not outcome.result or not fact.result or _same(outcome.result, fact.result):
        return None
    return f"attempt {fact.attempt} brought another result than the one that settled the call: two effects are likely"


def _same(one: Raw, other: Raw) -> bool:
    return canonical(msgspec.json.decode(one)) == canonical(msgspec.json.decode(other))
