"""What happens to one call after a crash, a lost reply or an error: THE decision of counterfoil, as a table.

`recover` is pure and total. Read each function from top to bottom: the first line that applies is the answer.
It must not look at anything but its arguments, and it never repeats what something does not license.

    nothing can have left           dispatch with the saved key
    every attempt was refused       reject: the model is told
    a lookup found it               settle
    Read                            run again
    Repeatable                      run again, once no earlier sender is left
    Keyed, key still remembered     repeat with the same key
    Keyed, key forgotten            the lookup behind it, else unknown
    Lookup                          wait until nothing can land, ask; found: settle, absent: dispatch
    ClientId                        repeat; on conflict fetch, and check that it is ours
    Transactional                   read the receipt row; absent: dispatch
    OneShot                         unknown
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import assert_never

from msgspec import Struct

from counterfoil.core.contracts import (
    ClientId,
    Keyed,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Terms,
    Transactional,
    lines,
)
from counterfoil.core.events import Answer
from counterfoil.core.evidence import Facts
from counterfoil.core.rules import Rule

SHORTEST_LOOK = timedelta(milliseconds=200)
"""How soon a living sender is looked at again; the pause doubles from there."""


class Dispatch(Struct, frozen=True):
    """Make an attempt, with the key that was saved with the decision."""

    because: Rule


class Settle(Struct, frozen=True):
    """The last lookup's finding is the receipt."""

    because: Rule


class Reject(Struct, frozen=True):
    """The call certainly changed nothing: settle it so, and tell the model."""

    because: Rule


class Ask(Struct, frozen=True):
    """Run the tool's lookup."""

    because: Rule


class Observe(Struct, frozen=True):
    """Look whether the senders of earlier attempts still live."""

    because: Rule


class Wait(Struct, frozen=True):
    """Nothing may be done before this moment."""

    until: datetime
    because: Rule


class Hold(Struct, frozen=True):
    """Nothing has left, and nothing may: the run is stopped."""

    because: Rule


class Unknown(Struct, frozen=True):
    """Nothing can tell, and a repeat could harm: a person settles it."""

    because: Rule


Move = Dispatch | Settle | Reject | Ask | Observe | Wait | Hold | Unknown


def recover(terms: Terms, facts: Facts, now: datetime) -> Move:
    """Decide what happens to one unsettled call that is not in flight here.

    Args:
        terms: what it was first sent under, or would be sent under now.
        facts: what is known.
        now: store time.

    Returns:
        The one move that is licensed, with its rule.
    """
    if facts.answer is Answer.SEVERAL:
        return Settle(Rule.SEVERAL)
    if facts.answer is Answer.FOUND:
        return Settle(Rule.FOUND)
    if not facts.open:
        return _not_sent(facts, now)
    return _sent(terms, facts, now)


def _not_sent(facts: Facts, now: datetime) -> Move:
    """No attempt can have had its effect."""
    if facts.refused:
        return Reject(Rule.DEFINITE_NO)
    if facts.stopped:
        return Hold(Rule.STOPPED_OPEN)
    if not facts.verify_first:
        return _when_due(facts, now, Dispatch(Rule.NEVER_SENT))
    if not (facts.can_look and facts.same_scope):
        return Unknown(Rule.UNVERIFIABLE)
    if facts.answer is Answer.ABSENT:
        return Dispatch(Rule.VERIFIED_ABSENT)
    if facts.asks_left:
        return _when_due(facts, now, Ask(Rule.VERIFY_FIRST))
    return Unknown(Rule.CANNOT_TELL)


def _sent(terms: Terms, facts: Facts, now: datetime) -> Move:
    """An attempt may have had its effect: by contract."""
    first, lookup = lines(terms.contract)
    match first:
        case Read():
            return Hold(Rule.STOPPED_OPEN) if facts.stopped else Dispatch(Rule.READ_AGAIN)
        case OneShot():
            return Unknown(Rule.NO_EVIDENCE)
        case _ if not facts.same_scope:
            return Unknown(Rule.SCOPE_CHANGED)
        case Transactional():
            return _transactional(terms, facts, now)
        case Repeatable():
            return _repeatable(terms, facts, now, lookup)
        case Keyed():
            return _keyed(first, terms, facts, now, lookup)
        case ClientId():
            return _client_id(first, terms, facts, now, lookup)
        case Lookup():
            return _look(first, terms, facts, now)
        case _:
            assert_never(first)


def _keyed(line: Keyed, terms: Terms, facts: Facts, now: datetime, lookup: Lookup | None) -> Move:
    if facts.stopped:
        return _second_line(lookup, terms, facts, now, Rule.STOPPED_OPEN)
    if not remembers(line, terms, facts, now):
        return _second_line(lookup, terms, facts, now, Rule.WINDOW_OVER)
    if (line.lookup_first or facts.exists) and _may_still_ask(facts):
        return _when_due(facts, now, Ask(Rule.CHECK_OURS if facts.exists else Rule.LOOKUP_FIRST))
    if facts.repeats_left:
        return _when_due(facts, now, Dispatch(Rule.REPEAT_KEYED))
    return _second_line(lookup, terms, facts, now, Rule.REPEATS_USED_UP)


def _client_id(line: ClientId, terms: Terms, facts: Facts, now: datetime, lookup: Lookup | None) -> Move:
    if facts.stopped:
        return _second_line(lookup, terms, facts, now, Rule.STOPPED_OPEN)
    if facts.exists and not facts.can_look:
        return Unknown(Rule.LOOKUP_MISSING)
    if facts.exists:
        return _when_due(facts, now, Ask(Rule.CHECK_OURS)) if facts.asks_left else Unknown(Rule.NOT_OURS)
    if line.lookup_first and _may_still_ask(facts):
        return _when_due(facts, now, Ask(Rule.LOOKUP_FIRST))
    if facts.repeats_left:
        return _when_due(facts, now, Dispatch(Rule.REPEAT_SAME_ID))
    return _second_line(lookup, terms, facts, now, Rule.REPEATS_USED_UP)


def _repeatable(terms: Terms, facts: Facts, now: datetime, lookup: Lookup | None) -> Move:
    if facts.stopped:
        return _second_line(lookup, terms, facts, now, Rule.STOPPED_OPEN)
    if facts.sender is None:
        return Observe(Rule.LOOK_AT_SENDER)
    if facts.ended and facts.repeats_left:
        return _when_due(facts, now, Dispatch(Rule.REPEAT_SAME_STATE))
    if facts.ended:
        return _second_line(lookup, terms, facts, now, Rule.REPEATS_USED_UP)
    if now < _proof_due(terms, facts):
        return _await_proof(terms, facts, now)
    return _second_line(lookup, terms, facts, now, Rule.SENDER_MAY_WAKE)


def _transactional(terms: Terms, facts: Facts, now: datetime) -> Move:
    if not facts.can_look:
        return Unknown(Rule.LOOKUP_MISSING)
    if facts.answer is Answer.ABSENT and not facts.stopped:
        return Dispatch(Rule.ROW_ABSENT) if facts.repeats_left else Unknown(Rule.REPEATS_USED_UP)
    if facts.answer is Answer.ABSENT:
        return _look(Lookup(settles_in=timedelta(0)), terms, facts, now)
    if facts.asks_left:
        return _when_due(facts, now, Ask(Rule.READ_ROW))
    return Unknown(Rule.CANNOT_TELL)


def _look(line: Lookup, terms: Terms, facts: Facts, now: datetime) -> Move:
    """The lookup line: absence is proof only once nothing can land any more."""
    if not facts.can_look:
        return Unknown(Rule.LOOKUP_MISSING)
    if facts.sender is None:
        return Observe(Rule.LOOK_AT_SENDER)
    settled = _moment(facts.sender_since) + line.settles_in if facts.ended else None
    may_land = settled is None or now < settled
    if may_land and facts.answer is None and facts.asks_left > 1:
        return Ask(Rule.LOOK_EARLY)
    if settled is None:
        return _look_while_unproven(terms, facts, now)
    if may_land:
        return Wait(settled, Rule.SETTLING)
    if facts.answer is Answer.ABSENT and facts.asked_at is not None and facts.asked_at >= settled:
        if facts.stopped:
            return Reject(Rule.ABSENT_PROVEN)
        return Dispatch(Rule.ABSENT_PROVEN) if facts.repeats_left else Unknown(Rule.REPEATS_USED_UP)
    if facts.asks_left:
        return _when_due(facts, now, Ask(Rule.LOOK_AGAIN))
    return Unknown(Rule.CANNOT_TELL)


def _look_while_unproven(terms: Terms, facts: Facts, now: datetime) -> Move:
    """A sender may still wake: only a finding would settle, so the last look comes when the waiting is over."""
    due = _proof_due(terms, facts)
    if now < due:
        return _await_proof(terms, facts, now)
    if facts.asks_left and (facts.asked_at is None or facts.asked_at < due):
        return Ask(Rule.LOOK_EARLY)
    return Unknown(Rule.SENDER_MAY_WAKE)


def _second_line(lookup: Lookup | None, terms: Terms, facts: Facts, now: datetime, otherwise: Rule) -> Move:
    """The first line is no longer usable; the lookup behind it serves, or nobody can tell."""
    return Unknown(otherwise) if lookup is None else _look(lookup, terms, facts, now)


def _may_still_ask(facts: Facts) -> bool:
    """A courtesy look before a harmless repeat: once, and only an answer of found changes anything."""
    return facts.can_look and facts.answer is None and facts.asks_left > 0


def _await_proof(terms: Terms, facts: Facts, now: datetime) -> Move:
    """Look at a living sender again, after as long as has been waited already."""
    since, seen = _moment(facts.sender_since), _moment(facts.sender_seen_at)
    again = min(seen + max(seen - since, SHORTEST_LOOK), _proof_due(terms, facts))
    return Wait(again, Rule.AWAIT_PROOF) if now < again else Observe(Rule.AWAIT_PROOF)


def _proof_due(terms: Terms, facts: Facts) -> datetime:
    return _moment(facts.sender_since) + terms.bounds.proof_within


def _when_due(facts: Facts, now: datetime, move: Dispatch | Ask) -> Move:
    if facts.not_before is not None and now < facts.not_before:
        return Wait(facts.not_before, Rule.BACKOFF)
    return move


def remembers(line: Keyed, terms: Terms, facts: Facts, now: datetime) -> bool:
    """Tell whether the provider certainly still knows the key when a repeat made now arrives.

    Counted from the journaled first dispatch, less one attempt's timeout and the margin. A clock that stands before
    the first dispatch has jumped, and an unknown window counts as over.
    """
    if line.remembered_for is None or facts.first_sent_at is None or now < facts.first_sent_at:
        return False
    return now + terms.bounds.timeout + line.margin < facts.first_sent_at + line.remembered_for


def _moment(known: datetime | None) -> datetime:
    """A sender that was looked at has its times; narrowing for the type checker only."""
    if known is None:
        raise AssertionError("a sender that was looked at has its times")
    return known
