"""What happens to one call after a crash, a lost reply or an error: THE decision of counterfoil, as a table.

`recover` is pure and total. Read each function from top to bottom: the first line that applies is the answer.
It must not look at anything but its arguments, and it never repeats what something does not license.

    a lookup found it               settle
    nothing can have left           dispatch with the saved key
    every attempt was refused       reject: the model is told
    Read                            run again
    Repeatable                      run again, once no earlier sender is left
    Keyed, key still remembered     repeat with the same key
    Keyed, key forgotten            the lookup behind it, else unknown
    Lookup                          wait until nothing can land, ask; absent: dispatch
    ClientId                        repeat; on conflict fetch, and check that it is ours
    Transactional                   read the receipt row; absent: dispatch
    OneShot                         unknown
    the run is stopped              no repeat: what can be asked is asked, else unknown
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
    settle_time,
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
        terms: what it was sent under, or would be sent under now.
        facts: what is known.
        now: store time.

    Returns:
        The one move that is licensed, with its rule.
    """
    if facts.found and (facts.open or facts.matches or not facts.verify_first):
        return Settle(Rule.SEVERAL if facts.answer is Answer.SEVERAL else Rule.FOUND)
    if not facts.open:
        return _not_sent(terms, facts, now)
    return _sent(terms, facts, now)


def _not_sent(terms: Terms, facts: Facts, now: datetime) -> Move:
    """No attempt that this journal knows can have had its effect."""
    if facts.found:
        return Unknown(Rule.MISMATCH)
    if facts.refused:
        return Reject(Rule.DEFINITE_NO)
    if facts.first_sent_at is not None and not facts.repeats_left:
        return Reject(Rule.REPEATS_USED_UP)
    if facts.stopped:
        return Hold(Rule.STOPPED)
    if facts.verify_first:
        return _verify(terms, facts, now)
    return _when_due(facts, now, Dispatch(Rule.NEVER_SENT))


def _verify(terms: Terms, facts: Facts, now: datetime) -> Move:
    """The store may have lost a dispatch of this call: what that one sent must have had its time to show."""
    if not (facts.can_look and facts.same_scope):
        return Unknown(Rule.UNVERIFIABLE)
    if facts.verify_since is not None:
        settles_in = settle_time(terms.contract)
        if settles_in is None:
            return _last_look(facts, now, Unknown(Rule.UNVERIFIABLE), enough=facts.answer is Answer.ABSENT)
        if now < facts.verify_since + settles_in:
            return Wait(facts.verify_since + settles_in, Rule.SETTLING)
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
            return Hold(Rule.STOPPED) if facts.stopped else _when_due(facts, now, Dispatch(Rule.READ_AGAIN))
        case OneShot():
            return Unknown(Rule.NO_EVIDENCE)
        case _ if not facts.same_scope:
            return Unknown(Rule.SCOPE_CHANGED)
        case Transactional():
            return _transactional(first, terms, facts, now)
        case Lookup():
            return _look(first, terms, facts, now)
        case ClientId() if facts.exists:
            return _check_ours(facts, now)
        case _ if facts.stopped:
            return _second_line(lookup, terms, facts, now, Rule.STOPPED_OPEN)
        case Repeatable():
            return _repeatable(terms, facts, now, lookup)
        case Keyed():
            return _keyed(first, terms, facts, now, lookup)
        case ClientId():
            return _client_id(first, terms, facts, now, lookup)
        case _:
            assert_never(first)


def _keyed(line: Keyed, terms: Terms, facts: Facts, now: datetime, lookup: Lookup | None) -> Move:
    if not remembers(line, terms, facts, now):
        return _second_line(lookup, terms, facts, now, Rule.WINDOW_OVER)
    if (line.lookup_first or facts.exists) and _may_still_ask(facts):
        return _when_due(facts, now, Ask(Rule.CHECK_OURS if facts.exists else Rule.LOOKUP_FIRST))
    if facts.repeats_left:
        return _when_due(facts, now, Dispatch(Rule.REPEAT_KEYED))
    return _second_line(lookup, terms, facts, now, Rule.REPEATS_USED_UP)


def _client_id(line: ClientId, terms: Terms, facts: Facts, now: datetime, lookup: Lookup | None) -> Move:
    if line.lookup_first and _may_still_ask(facts):
        return _when_due(facts, now, Ask(Rule.LOOKUP_FIRST))
    if facts.repeats_left:
        return _when_due(facts, now, Dispatch(Rule.REPEAT_SAME_ID))
    return _second_line(lookup, terms, facts, now, Rule.REPEATS_USED_UP)


def _check_ours(facts: Facts, now: datetime) -> Move:
    """Something holds our id. It may be our own first try, so only a look that finds it to be ours settles."""
    if not facts.can_look:
        return Unknown(Rule.LOOKUP_MISSING)
    return _when_due(facts, now, Ask(Rule.CHECK_OURS)) if facts.asks_left else Unknown(Rule.NOT_OURS)


def _repeatable(terms: Terms, facts: Facts, now: datetime, lookup: Lookup | None) -> Move:
    if facts.sender is None:
        return Observe(Rule.LOOK_AT_SENDER)
    if facts.ended and facts.repeats_left:
        return _when_due(facts, now, Dispatch(Rule.REPEAT_SAME_STATE))
    if facts.ended:
        return _second_line(lookup, terms, facts, now, Rule.REPEATS_USED_UP)
    if now < _proof_due(terms, facts):
        return _await_proof(terms, facts, now)
    return _second_line(lookup, terms, facts, now, Rule.SENDER_MAY_WAKE)


def _transactional(line: Transactional, terms: Terms, facts: Facts, now: datetime) -> Move:
    if not facts.can_look:
        return Unknown(Rule.LOOKUP_MISSING)
    if facts.answer is Answer.ABSENT and facts.repeats_left and not facts.stopped:
        return Dispatch(Rule.ROW_ABSENT)
    if facts.answer is Answer.ABSENT:
        return _look(Lookup(settles_in=line.settles_in), terms, facts, now)
    if facts.asks_left:
        return _when_due(facts, now, Ask(Rule.READ_ROW))
    return Unknown(Rule.CANNOT_TELL)


def _look(line: Lookup, terms: Terms, facts: Facts, now: datetime) -> Move:
    """The lookup line: absence is proof only once nothing can land any more."""
    if not facts.can_look:
        return Unknown(Rule.LOOKUP_MISSING)
    if facts.sender is None:
        return Observe(Rule.LOOK_AT_SENDER)
    if not facts.ended:
        return _look_while_unproven(terms, facts, now)
    settled = _settled(facts, line.settles_in)
    if now < settled:
        return Ask(Rule.LOOK_EARLY) if _may_look_early(facts) else Wait(settled, Rule.SETTLING)
    if facts.answer is Answer.ABSENT and _moment(facts.asked_at) >= settled:
        return _proven_absent(facts)
    if facts.asks_left:
        return _when_due(facts, now, Ask(Rule.LOOK_AGAIN))
    return Unknown(Rule.CANNOT_TELL)


def _settled(facts: Facts, settles_in: timedelta) -> datetime:
    """From when on nothing can land any more: neither what the journal knows of nor what a restored store has lost."""
    ended = _moment(facts.sender_since)
    return max(ended, facts.verify_since or ended) + settles_in


def _proven_absent(facts: Facts) -> Move:
    """Every attempt is certainly not applied, so there is nothing unknown about the call."""
    if facts.refused:
        return Reject(Rule.DEFINITE_NO)
    if facts.stopped or not facts.repeats_left:
        return Reject(Rule.ABSENT_PROVEN)
    return Dispatch(Rule.ABSENT_PROVEN)


def _look_while_unproven(terms: Terms, facts: Facts, now: datetime) -> Move:
    """A sender may still wake: only a finding would settle, so the last look comes when the waiting is over."""
    due = _proof_due(terms, facts)
    if now < due:
        return Ask(Rule.LOOK_EARLY) if _may_look_early(facts) else _await_proof(terms, facts, now)
    looked = facts.answer is Answer.ABSENT and _moment(facts.asked_at) >= due
    return _last_look(facts, now, Unknown(Rule.SENDER_MAY_WAKE), enough=looked)


def _second_line(lookup: Lookup | None, terms: Terms, facts: Facts, now: datetime, otherwise: Rule) -> Move:
    """The first line is no longer usable; the lookup behind it serves, or nobody can tell.

    A lookup whose settle time nobody declared proves no absence, but what it finds settles.
    """
    if lookup is not None:
        return _look(lookup, terms, facts, now)
    return _last_look(facts, now, Unknown(otherwise), enough=not facts.can_look or facts.answer is Answer.ABSENT)


def _last_look(facts: Facts, now: datetime, otherwise: Unknown, *, enough: bool) -> Move:
    if enough or not facts.asks_left:
        return otherwise
    return _when_due(facts, now, Ask(Rule.LAST_LOOK))


def _may_still_ask(facts: Facts) -> bool:
    """A courtesy look before a harmless repeat: once, and only an answer of found changes anything."""
    return facts.can_look and facts.answer is None and facts.asks_left > 0


def _may_look_early(facts: Facts) -> bool:
    """One look that may only find; the last that is permitted is kept for when absence counts."""
    return facts.answer is None and facts.asks_left > 1


def _await_proof(terms: Terms, facts: Facts, now: datetime) -> Move:
    """Look at a living sender again, after as long as has been waited already."""
    since, seen, due = _moment(facts.sender_since), facts.sender_seen_at, _proof_due(terms, facts)
    again = due if seen is None else min(seen + max(seen - since, SHORTEST_LOOK), due)
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
    the first dispatch has jumped, and an unknown window counts as over. One that was set back since some event was
    written lengthens no window: it is as late as that event at least.
    """
    if line.remembered_for is None or facts.first_sent_at is None or now < facts.first_sent_at:
        return False
    now = max(now, facts.latest or now)
    return now + terms.bounds.timeout + line.margin < facts.first_sent_at + line.remembered_for


def _moment(known: datetime | None) -> datetime:
    """A sender that was looked at has its times; narrowing for the type checker only."""
    assert known is not None, "a sender that was looked at has its times"
    return known
