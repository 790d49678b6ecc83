"""The five questions to ask of a call before anything is done about it, each with its answer and where that comes from.

It must not decide: it reads the fold, the journal and what was just seen of earlier workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

from counterfoil.core.contracts import Keyed, Terms, lines, needs_lookup
from counterfoil.core.events import Dispatched, LifeBegan, LookedUp, Recorded, SenderProof
from counterfoil.core.flow import Difference
from counterfoil.core.limits import reached_before_ask, reached_before_dispatch
from counterfoil.core.plan import FlowView, terms_of
from counterfoil.core.state import ENDED, CallState, RunState
from counterfoil.runtime.wording import contract_promise, span, spell
from counterfoil.stores.protocol import Observation, Store

ARGUMENTS = 200
"""Characters of a call's arguments that an answer shows."""


class Question(Struct, frozen=True, kw_only=True):
    """One question of the five.

    Args:
        question: as asked.
        says: what the answer comes to.
        answer: in words.
        source: where it was read.
    """

    question: str
    says: Literal["yes", "no", "unclear", "fact"]
    answer: str
    source: str


class Sender(Struct, frozen=True, kw_only=True):
    """Who made an open attempt, and what is known of it.

    Args:
        attempt: its number.
        sent_at: store time of its record.
        life: its number; 0 if the journal does not name it.
        pid: of its process.
        host: where that ran.
        proof: the strongest that is known.
        source: where that was read.
    """

    attempt: int
    sent_at: datetime
    life: int
    pid: int
    host: str
    proof: SenderProof
    source: str


class Past(Struct, frozen=True, kw_only=True):
    """What a journal holds of one call.

    Args:
        decided_at: position of the decision.
        dispatched_at: position of the first dispatch; 0 if there is none.
        lookups: every lookup and when its answer was written, oldest first.
        senders: of the open attempts.
    """

    decided_at: int
    dispatched_at: int
    lookups: tuple[tuple[datetime, LookedUp], ...]
    senders: tuple[Sender, ...]


async def past_of(store: Store, events: list[Recorded], call: CallState) -> Past:
    """Read what the journal holds of a call, and look at the workers that sent it."""
    lives = {recorded.fence: recorded.event for recorded in events if isinstance(recorded.event, LifeBegan)}
    turn = int(call.id.partition(".")[0])
    decided = dispatched = 0
    lookups: list[tuple[datetime, LookedUp]] = []
    for recorded in events:
        match recorded.event:
            case LookedUp(call=name) as looked if name == call.id:
                lookups.append((recorded.at, looked))
            case Dispatched(call=name) if name == call.id:
                dispatched = dispatched or recorded.position
            case _ if getattr(recorded.event, "turn", 0) == turn:
                decided = recorded.position
            case _:
                pass
    senders = [await _sender(store, lives, call, number) for number in range(len(call.open_attempts))]
    return Past(decided_at=decided, dispatched_at=dispatched, lookups=tuple(lookups), senders=tuple(senders))


async def _sender(store: Store, lives: Mapping[int, LifeBegan], call: CallState, number: int) -> Sender:
    attempt = call.open_attempts[number]
    life = lives.get(attempt.fence)
    seen = Observation(proof=attempt.proof or SenderProof.EXPIRED)
    source = "journal"
    if attempt.proof not in ENDED and life is not None:
        seen = await store.observe(life.incarnation)
        source = "its owner lock and lease, looked at now"
    return Sender(
        attempt=attempt.number,
        sent_at=attempt.at,
        life=life.life if life else 0,
        pid=life.pid if life else 0,
        host=life.host if life else "",
        proof=seen.proof,
        source=source,
    )


def questions(
    run_id: str, state: RunState, call: CallState, past: Past, now: datetime, flow: FlowView | None = None
) -> tuple[Question, ...]:
    """Answer the five questions for one call.

    Args:
        run_id: the run.
        state: its fold.
        call: the call, of the current turn.
        past: what the journal holds of it.
        now: store time.
        flow: the flow at hand; None where none is loaded.
    """
    terms = call.terms or (terms_of(flow, call) if flow is not None else None)
    return (
        _which(run_id, call, past),
        _offered(call, terms, past, now),
        _observable(call, terms, past, flow),
        _old_worker(past, terms),
        _still_apply(state, flow),
    )


def _which(run_id: str, call: CallState, past: Past) -> Question:
    turn, _, position = call.id.partition(".")
    spelled = spell(call.planned.tool, call.planned.arguments, ARGUMENTS)
    return Question(
        question="Which logical operation is this?",
        says="fact",
        answer=f"Call {position} of turn {turn} of run {run_id}: {spelled}",
        source=f"journal, event {past.decided_at}",
    )


def _offered(call: CallState, terms: Terms | None, past: Past, now: datetime) -> Question:
    ask = "Does the provider offer a key or a reliable lookup?"
    if terms is None:
        why = "Its contract is not known: it was never sent, and no flow with this tool is at hand."
        return Question(question=ask, says="unclear", answer=why, source="journal")
    first, then = lines(terms.contract)
    said = [contract_promise(line) for line in dict.fromkeys((first, then)) if line is not None]
    offers = not said[0].startswith("Neither.")
    if isinstance(first, Keyed) and first.remembered_for is not None and call.attempts:
        ends = call.attempts[0].at + first.remembered_for
        over = now + terms.bounds.timeout + first.margin >= ends
        left = "over by now" if over else f"open for another {span(ends - now)}"
        said.insert(1, f"Counted from the first dispatch that window is {left}.")
        offers = not over or then is not None
    source = f"contract journaled with the first dispatch, event {past.dispatched_at}"
    if not past.dispatched_at:
        source = "contract of the flow at hand; it was never sent"
    return Question(question=ask, says="yes" if offers else "no", answer=" ".join(said), source=source)


def _observable(call: CallState, terms: Terms | None, past: Past, flow: FlowView | None) -> Question:
    ask = "Can the effect be observed without another change?"
    asked = ""
    if past.lookups:
        at, last = past.lookups[-1]
        said = str(last.answer).replace("_", " ") + (f" ({last.note})" if last.note else "")
        times = f"{len(past.lookups)} time" + ("s" if len(past.lookups) > 1 else "")
        asked = f" It was asked {times}, last at {at:%H:%M:%S} UTC: {said}."
    declared = terms is not None and needs_lookup(terms.contract)
    tool = flow.tools.get(call.planned.tool) if flow is not None else None
    if not declared:
        why = "No lookup is declared; only a person can look at the provider." + asked
        return Question(question=ask, says="no", answer=why, source="contract")
    if flow is None:
        why = "By its lookup, if the flow at hand still has it." + asked
        return Question(question=ask, says="yes", answer=why, source="contract and journal")
    if tool is None or not tool.can_look:
        why = "A lookup is declared, but the flow at hand does not have it." + asked
        return Question(question=ask, says="no", answer=why, source="flow at hand")
    return Question(question=ask, says="yes", answer="By its lookup." + asked, source="contract and flow at hand")


def _old_worker(past: Past, terms: Terms | None) -> Question:
    ask = "Has the old worker lost its lease and its ability to write?"
    if not past.senders:
        return Question(question=ask, says="yes", answer="Nothing of this call is under way.", source="journal")
    said = "; ".join(f"attempt {one.attempt} by {worker(one)}: {_SEEN[one.proof]}" for one in past.senders)
    ended = all(one.proof in ENDED for one in past.senders)
    if ended and terms is not None and terms.children:
        ended = False
        said += "; but its children do not hold its lock"
    alive = any(one.proof is SenderProof.ALIVE for one in past.senders)
    sources = ", ".join(dict.fromkeys(one.source for one in past.senders))
    return Question(
        question=ask, says="yes" if ended else "no" if alive else "unclear", answer=said + ".", source=sources
    )


_SEEN = {
    SenderProof.RELEASED: "released, it said so itself",
    SenderProof.DEAD: "dead, the kernel says so",
    SenderProof.ALIVE: "its process is there and may still send",
    SenderProof.EXPIRED: "its lease is over, and no more is known",
}


def worker(sender: Sender) -> str:
    """Return who a sender is: ``life 1 (pid 4711 on vm)``."""
    if not sender.life:
        return "a worker that the journal does not name"
    return f"life {sender.life} (pid {sender.pid} on {sender.host})"


def _still_apply(state: RunState, flow: FlowView | None) -> Question:
    ask = "Do approval, budget and flow version still apply?"
    limits = (flow.limits if flow is not None else None) or state.limits
    reached = reached_before_dispatch(limits, state.spent) or reached_before_ask(limits, state.spent)
    stops = [f"limit reached: {reached}"] if reached else []
    if state.cancel is not None:
        stops.append(f"a cancel was requested by {state.cancel.by}")
    if state.abandoned:
        stops.append(f"call {', '.join(state.abandoned)} was given up")
    differences = _differences(state, flow)
    if differences:
        stops.append("the flow differs: " + "; ".join(str(difference) for difference in differences))
    source = "journal" if flow is None else "journal and flow at hand"
    if stops:
        return Question(question=ask, says="no", answer="; ".join(stops) + ".", source=source)
    version = "the flow at hand is the same" if flow is not None else "the flow is not looked at here"
    answer = f"No approval is asked for; budget: {_budget(state)}; {version}."
    return Question(question=ask, says="yes" if flow is not None else "unclear", answer=answer, source=source)


def _differences(state: RunState, flow: FlowView | None) -> tuple[Difference, ...]:
    if flow is not None:
        return flow.differences
    return state.paused.differences if state.paused is not None else ()


def _budget(state: RunState) -> str:
    limits, spent = state.limits, state.spent
    pairs = [("turns", spent.turns, limits.turns), ("calls", spent.calls, limits.calls)]
    pairs += [("tokens", spent.tokens, limits.tokens)]
    named = [f"{used} of {most} {name}" for name, used, most in pairs if most is not None]
    if limits.usd is not None:
        named.append(f"{spent.usd:.2f} of {limits.usd:.2f} usd")
    return ", ".join(named) or "no limit"
