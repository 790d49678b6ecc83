"""What is known of one call: the weakest sender governs, and two facts that compete hand on the weaker."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from counterfoil.core.contracts import Lookup, OneShot, Read, Terms
from counterfoil.core.events import SenderProof
from counterfoil.core.evidence import Facts, facts_of
from counterfoil.core.state import Attempt, CallState
from tests.core.story import START, Story

LOOKUP = Terms(contract=Lookup(settles_in=timedelta(seconds=5)))


def moment(second: int) -> datetime:
    return START + timedelta(seconds=second)


def call(*proofs: tuple[SenderProof | None, int, int]) -> CallState:
    attempts = tuple(
        Attempt(
            number=i,
            fence=i,
            at=moment(i),
            deadline=moment(60),
            proof=proof,
            since=moment(since) if proof else None,
            seen_at=moment(seen) if proof else None,
        )
        for i, (proof, since, seen) in enumerate(proofs, start=1)
    )
    return replace(Story().decided("find").state.calls[0], attempts=attempts)


def facts(known: CallState, terms: Terms = LOOKUP, verify_since: datetime | None = None) -> Facts:
    return facts_of(known, terms, scope="", can_look=True, stopped=False, verify_since=verify_since)


def sender(known: CallState, terms: Terms = LOOKUP) -> tuple[object, object, object]:
    seen = facts(known, terms)
    return seen.sender, seen.sender_since, seen.sender_seen_at


DEAD, RELEASED, ALIVE, EXPIRED = SenderProof.DEAD, SenderProof.RELEASED, SenderProof.ALIVE, SenderProof.EXPIRED


def test_the_weakest_sender_governs() -> None:
    assert sender(call((DEAD, 10, 20), (RELEASED, 30, 40))) == (DEAD, moment(30), None)
    assert sender(call((RELEASED, 30, 40), (DEAD, 10, 20))) == (DEAD, moment(30), None)
    assert sender(call((ALIVE, 10, 20), (DEAD, 30, 40))) == (ALIVE, moment(10), moment(20))
    assert sender(call((ALIVE, 10, 40), (EXPIRED, 15, 20))) == (EXPIRED, moment(15), moment(20))
    assert sender(call((DEAD, 10, 20), (None, 0, 0))) == (None, None, None)
    assert sender(call()) == (None, None, None)


def test_a_closed_attempt_says_nothing() -> None:
    known = call((ALIVE, 10, 20), (DEAD, 30, 40))
    closed = replace(known, attempts=(replace(known.attempts[0], open=False), known.attempts[1]))
    assert sender(closed)[0] is DEAD
    assert facts(closed).first_sent_at == moment(1)


def test_children_never_are_dead_and_nobody_can_look_at_them() -> None:
    terms = replace(LOOKUP, children=True)
    assert sender(call((DEAD, 10, 20)), terms) == (EXPIRED, moment(10), None)
    assert sender(call((RELEASED, 10, 20)), terms) == (EXPIRED, moment(10), None)
    assert sender(call((DEAD, 10, 20), (ALIVE, 30, 40)), terms) == (ALIVE, moment(30), moment(40))


def test_who_wants_a_look_before_the_first_dispatch() -> None:
    assert not facts(call()).verify_first
    assert facts(call(), replace(LOOKUP, verify_first=True)).verify_first
    assert facts(call(), verify_since=START).verify_first
    assert not facts(call(), Terms(contract=Read(), verify_first=True), START).verify_first
    assert not facts(replace(call(), cleared=True), verify_since=START).verify_first


def test_bounds_count_down_and_begin_again_with_a_persons_word() -> None:
    known = call((DEAD, 1, 1), (DEAD, 1, 1), (DEAD, 1, 1))
    one = Terms(contract=OneShot())
    assert facts(known, one).repeats_left == one.bounds.repeats + 1 - 3
    assert facts(replace(known, forgiven=3), one).repeats_left == one.bounds.repeats + 1
    assert facts(call(*[(DEAD, 1, 1)] * 9), one).repeats_left == 0
    assert facts(replace(known, asks=3), one).asks_left == one.bounds.lookups - 3
    assert facts(replace(known, asks=99), one).asks_left == 0
