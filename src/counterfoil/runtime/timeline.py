"""What happened to a run, life by life, in the words that people read: for `show`, for progress, for a console.

It must not decide or write, and it has no colours and no widths: who shows it chooses those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Raw, Struct
from msgspec.structs import replace

from counterfoil.core.contracts import Read, Terms, key_style, lines
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
    Event,
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
    VerdictGiven,
    call_id,
)
from counterfoil.core.rules import Rule
from counterfoil.stores.protocol import Observation

Tone = Literal["plain", "quiet", "good", "doubt", "bad"]
"""How a word is meant: ``doubt`` where an effect may or may not be there, ``bad`` where a person must look."""

LifeEnd = Literal["going", "left", "died", "silent"]


class Row(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened.

    Args:
        word: what happened, in the vocabulary.
        tone: how it is meant.
        position: of its event; 0 for what is not durable yet.
        at: store time, if it is known.
        where: ``"2.1"`` for a call, ``"turn 2"`` for a turn, empty for the run.
        tool: of the call.
        call: arguments, where this is about a call that is made.
        key: the call's key, where it was used.
        terms: what the call is sent under, where that is written down.
        proof: where a receipt came from.
        value: a result.
        text: anything else, in words.
        because: the rule.
    """

    word: str
    tone: Tone = "plain"
    position: int = 0
    at: datetime | None = None
    where: str = ""
    tool: str = ""
    call: Raw = NO_JSON
    key: str = ""
    terms: Terms | None = None
    proof: Proof | None = None
    value: Raw = NO_JSON
    text: str = ""
    because: Rule | None = None


class LifeLine(Struct, frozen=True, kw_only=True):
    """One process's turn at a run.

    Args:
        number: from 1.
        fence: under which it wrote.
        incarnation: the worker.
        pid: of the process.
        host: where it ran.
        began_at: store time.
        last_at: of its last event.
        ending: ``left``: it gave the run up. ``died``: the kernel proves it. ``silent``: no more is known. ``going``.
        seen: what was seen of it, in words.
        rows: what it did.
    """

    number: int
    fence: int
    incarnation: str
    pid: int
    host: str
    began_at: datetime
    last_at: datetime
    ending: LifeEnd
    seen: str
    rows: tuple[Row, ...]


class Timeline(Struct, frozen=True, kw_only=True):
    """A run from its first event to its last.

    Args:
        started: the first row.
        lives: in order.
        asks: how often the model was asked, and answers that were saved: the difference was lost or failed.
        decisions: answers that were saved.
        rejected: calls that were settled as certainly not done.
    """

    started: Row
    lives: tuple[LifeLine, ...]
    asks: int
    decisions: int
    rejected: int


class Known(Struct):
    """What must be remembered of earlier events to say later ones in words: calls by name, and their terms."""

    calls: dict[str, PlannedCall] = {}
    terms: dict[str, Terms] = {}
    lives: dict[int, LifeBegan] = {}

    def learn(self, event: Event, fence: int = 0) -> None:
        """Remember what an event says of a call or a life."""
        match event:
            case Decided(turn=turn, calls=calls):
                self.calls |= {call_id(turn, call.position): call for call in calls}
            case Dispatched(call=call, terms=terms) if terms is not None:
                self.terms[call] = terms
            case LifeBegan():
                self.lives[fence] = event
            case _:
                pass

    def tool(self, call: str) -> str:
        """Return the tool of a call."""
        known = self.calls.get(call)
        return "" if known is None else known.tool

    def key(self, call: str) -> str:
        """Return the key of a call, or nothing where its contract carries none."""
        known, terms = self.calls.get(call), self.terms.get(call)
        if known is None or (terms is not None and not carries_key(terms)):
            return ""
        return known.key

    def reads(self, call: str) -> bool:
        """Whether a call has no effect. One that was dispatched without a record is a read."""
        terms = self.terms.get(call)
        return terms is None or isinstance(lines(terms.contract)[0], Read)


def carries_key(terms: Terms) -> bool:
    """Whether a call under these terms is known to its provider by our key."""
    return key_style(terms.contract) is not None


def timeline(events: Sequence[Recorded], owner: str = "", seen: Mapping[str, Observation] | None = None) -> Timeline:
    """Arrange a run's events by the lives that wrote them.

    Args:
        events: all of them.
        owner: incarnation that holds the run now, if any.
        seen: what was just seen of incarnations, by name.
    """
    known = Known()
    by_life: dict[int, list[Recorded]] = {}
    proofs: dict[int, SenderObserved] = {}
    asks = decisions = rejected = 0
    for recorded in events:
        known.learn(recorded.event, recorded.fence)
        match recorded.event:
            case LifeBegan():
                by_life[recorded.fence] = []
            case SenderObserved() as observed:
                proofs[observed.sender] = observed
            case TurnOpened():
                asks += 1
            case Decided():
                decisions += 1
            case Rejected():
                rejected += 1
            case _:
                pass
        if recorded.fence in by_life:
            by_life[recorded.fence].append(recorded)
    look = seen or {}
    lives = tuple(_life(known, fence, mine, proofs.get(fence), owner, look) for fence, mine in by_life.items())
    started = row(events[0], known)
    return Timeline(started=started, lives=lives, asks=asks, decisions=decisions, rejected=rejected)


def _life(
    known: Known,
    fence: int,
    mine: list[Recorded],
    observed: SenderObserved | None,
    owner: str,
    look: Mapping[str, Observation],
) -> LifeLine:
    began = known.lives[fence]
    ending, seen = _ending(began, mine, observed, owner, look)
    return LifeLine(
        number=began.life,
        fence=fence,
        incarnation=began.incarnation,
        pid=began.pid,
        host=began.host,
        began_at=mine[0].at,
        last_at=mine[-1].at,
        ending=ending,
        seen=seen,
        rows=tuple(_rows(mine[1:], known)),
    )


def _ending(
    began: LifeBegan,
    mine: list[Recorded],
    observed: SenderObserved | None,
    owner: str,
    look: Mapping[str, Observation],
) -> tuple[LifeEnd, str]:
    """Say how a life ended: by its own word, by the kernel's, or by nobody's."""
    if owner == began.incarnation:
        now = look.get(owner)
        return ("going", "") if now is None else (_BY_PROOF[now.proof], now.detail)
    if isinstance(mine[-1].event, (Paused, Completed, Failed, Cancelled)) or observed is None:
        return "left", ""
    ending = _BY_PROOF[observed.proof]
    return ("silent" if ending == "going" else ending), observed.detail


_BY_PROOF: dict[SenderProof, LifeEnd] = {
    SenderProof.DEAD: "died",
    SenderProof.RELEASED: "left",
    SenderProof.EXPIRED: "silent",
    SenderProof.ALIVE: "going",
}


def _rows(mine: Iterable[Recorded], known: Known) -> Iterable[Row]:
    """Yield the rows of a life; a question to the model is shown only where its answer is not the next event."""
    waiting: Recorded | None = None
    for recorded in mine:
        if waiting is not None and not isinstance(recorded.event, Decided):
            yield row(waiting, known)
        waiting = recorded if isinstance(recorded.event, TurnOpened) else None
        if waiting is None:
            yield row(recorded, known)
    if waiting is not None:
        yield row(waiting, known)


def row(recorded: Recorded, known: Known) -> Row:
    """Return an event in words."""
    return replace(say(recorded.event, known), position=recorded.position, at=recorded.at)


def say(event: Event, known: Known) -> Row:
    """Return an event in words, whether it is durable yet or not."""
    match event:
        case RunStarted(input=value):
            return Row(word="started", value=value)
        case LifeBegan(life=number):
            return Row(word="life began", tone="quiet", text=f"life {number}")
        case TurnOpened() | AskFailed() | Decided():
            return _say_turn(event)
        case Completed() | Failed() | Cancelled() | Paused() | CancelRequested() | MailRefused():
            return _say_run(event)
        case SenderObserved(sender=sender, proof=proof, detail=detail):
            life = known.lives.get(sender)
            who = f"life {life.life}" if life is not None else f"fence {sender}"
            return Row(word="sender seen", tone="quiet", text=f"{who}: {proof}" + (f" ({detail})" if detail else ""))
        case Dispatched() | AttemptEnded() | SenderReleased() | LookedUp():
            return _say_attempt(event, known)
        case _:
            return _say_outcome(event, known)


def _say_turn(event: TurnOpened | AskFailed | Decided) -> Row:
    where = f"turn {event.turn}"
    match event:
        case TurnOpened(ask=1):
            return Row(word="asked", tone="quiet", where=where, text="the model")
        case TurnOpened(ask=ask):
            return Row(word="asked again", where=where, text=f"the model, ask {ask}: no answer had been saved")
        case AskFailed(failure=failure):
            return Row(word="no decision", tone="bad", where=where, text=_failure(failure))
        case Decided(calls=calls, text=text):
            named = ", ".join(call.tool for call in calls)
            return Row(word="decided", where=where, text=named or text or "nothing more to do")


def _say_run(event: Completed | Failed | Cancelled | Paused | CancelRequested | MailRefused) -> Row:
    match event:
        case Completed(output=output):
            return Row(word="completed", tone="good", value=output)
        case Failed(failure=failure):
            return Row(word="failed", tone="bad", text=_failure(failure))
        case Cancelled():
            return Row(word="cancelled", tone="doubt")
        case CancelRequested(by=by, reason=reason):
            return Row(word="cancel asked", tone="doubt", text=f"by {by}" + (f": {reason}" if reason else ""))
        case MailRefused(why=why):
            return Row(word="refused", tone="doubt", text=why)
        case Paused(status=status, because=because, note=note):
            tone: Tone = "bad" if status in (Status.UNKNOWN, Status.BLOCKED) else "plain"
            word = "interrupted" if because is Rule.INTERRUPTED else str(status)
            differences = "; ".join(str(difference) for difference in event.differences)
            said = "; ".join(part for part in (note, differences) if part)
            return Row(word=word, tone=tone, text=said or because.says, because=because)


def _say_attempt(event: Dispatched | AttemptEnded | SenderReleased | LookedUp, known: Known) -> Row:
    where, tool = event.call, known.tool(event.call)
    match event:
        case Dispatched(attempt=attempt):
            planned = known.calls.get(event.call)
            return Row(
                word="sent" if attempt == 1 else "sent again",
                tone="plain" if attempt == 1 else "doubt",
                where=where,
                tool=tool,
                call=planned.arguments if planned is not None else NO_JSON,
                key=known.key(event.call),
                terms=event.terms,
                because=event.because,
            )
        case AttemptEnded():
            return _say_ending(event, tool)
        case SenderReleased(attempt=attempt):
            return Row(word="thread ended", tone="quiet", where=where, tool=tool, text=f"of attempt {attempt}")
        case LookedUp():
            return _say_lookup(event, tool, known.key(event.call))


def _say_outcome(
    event: Receipt | Rejected | UnknownDeclared | VerdictGiven | EvidenceTaken | IncidentRaised, known: Known
) -> Row:
    where, tool = event.call, known.tool(event.call)
    match event:
        case Receipt():
            return _say_receipt(event, tool, known)
        case Rejected(failure=failure, because=because):
            return Row(word="rejected", where=where, tool=tool, text=_failure(failure), because=because)
        case UnknownDeclared(because=because):
            return Row(word="UNKNOWN", tone="bad", where=where, tool=tool, text=because.says, because=because)
        case VerdictGiven(verdict=verdict, by=by, reason=reason, then=then):
            stopped = "; says that the sender is stopped" if event.sender_stopped else ""
            said = str(verdict).replace("_", " ") + (f", then {then}" if then else "")
            return Row(word="verdict", where=where, tool=tool, text=f"{said}, by {by}: {reason}{stopped}")
        case EvidenceTaken(note=note):
            return Row(word="late evidence", tone="doubt", where=where, tool=tool, text=note)
        case IncidentRaised(what=what):
            return Row(word="INCIDENT", tone="bad", where=where, tool=tool, text=what)


def _say_ending(event: AttemptEnded, tool: str) -> Row:
    why = "" if event.failure is None else _failure(event.failure)
    running = "; its thread still runs" if event.running else ""
    word, tone = _ENDING_WORDS[event.ending]
    said = f"attempt {event.attempt}" + (f": {why}" if why else "") + running
    return Row(word=word, tone=tone, where=event.call, tool=tool, text=said)


_ENDING_WORDS: dict[Ending, tuple[str, Tone]] = {
    Ending.UNSURE: ("no answer", "doubt"),
    Ending.EXISTS: ("exists already", "doubt"),
    Ending.NOT_APPLIED: ("not applied", "plain"),
    Ending.NOT_SENT: ("not sent", "plain"),
}


def _say_lookup(event: LookedUp, tool: str, key: str) -> Row:
    tone: Tone = "plain"
    if event.answer in (Answer.SEVERAL, Answer.FAILED):
        tone = "bad"
    elif event.answer is Answer.CANNOT_TELL:
        tone = "doubt"
    said = str(event.answer).replace("_", " ") + (f": {event.note}" if event.note else "")
    return Row(word="looked up", tone=tone, where=event.call, tool=tool, key=key, text=said, because=event.because)


def _say_receipt(event: Receipt, tool: str, known: Known) -> Row:
    return Row(
        word="answer read" if known.reads(event.call) and event.attempt else _RECEIPT_WORDS[event.proof],
        tone="good",
        where=event.call,
        tool=tool,
        key=known.key(event.call),
        proof=event.proof,
        value=event.result,
        text=_unstored(event.unstored),
        because=event.because,
    )


_RECEIPT_WORDS = {
    Proof.RESPONSE: "effect applied",
    Proof.REPEAT: "repeat answered",
    Proof.LOOKUP: "receipt found",
    Proof.TRANSACTION: "receipt found",
    Proof.OPERATOR: "settled",
}


def _unstored(lost: Unstored | None) -> str:
    return "" if lost is None else f"the result could not be stored: {lost.why} ({lost.size} bytes)"


def _failure(failure: Failure) -> str:
    return f"{failure.kind}: {failure.message}" if failure.message else failure.kind
