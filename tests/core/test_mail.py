"""What the mailbox turns into events: late evidence, verdicts and cancels; and what a perfect trace is worth."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from counterfoil.core.events import (
    AttemptEnded,
    Cancelled,
    CancelRequested,
    Ending,
    EvidenceTaken,
    IncidentRaised,
    MailRefused,
    Proof,
    Receipt,
    Rejected,
    SenderProof,
    SenderReleased,
    Verdict,
    VerdictGiven,
)
from counterfoil.core.mail import Cancel, Evidence, GiveVerdict, Item, absorb, decode_item, encode_item, refusal
from counterfoil.core.state import Outcome
from tests.core.story import Story

LATE = Receipt(call="1.1", proof=Proof.RESPONSE, attempt=1, result=Raw(b'{"id": 1}'))


def taken(story: Story, item: Item, past: Outcome | None = None) -> list[str]:
    item = decode_item(encode_item(item))
    return [type(event).__name__ for event in absorb(story.state, item, 1, "x", lambda _: past)]


def verdict(**more: Any) -> GiveVerdict:
    return GiveVerdict(**{"call": "1.1", "verdict": Verdict.APPLIED, "by": "d", "reason": "r", "seen": 99} | more)


def sent() -> Story:
    return Story().decided("pay").sent("1.1")


def test_a_late_reply_settles_an_open_call() -> None:
    assert taken(sent(), Evidence(sender=1, fact=LATE)) == ["EvidenceTaken", "Receipt"]


@pytest.mark.parametrize(
    "fact",
    [AttemptEnded(call="1.1", attempt=1, ending=Ending.NOT_SENT), SenderReleased(call="1.1", attempt=1)],
)
def test_other_late_facts_are_folded_in(fact: AttemptEnded | SenderReleased) -> None:
    assert taken(sent(), Evidence(sender=1, fact=fact)) == ["EvidenceTaken", type(fact).__name__]
    assert taken(sent(), Evidence(sender=7, fact=fact)) == ["EvidenceTaken"]


def test_a_reply_to_an_attempt_that_the_journal_does_not_hold_settles_nothing() -> None:
    assert taken(sent(), Evidence(sender=7, fact=LATE)) == ["EvidenceTaken", "IncidentRaised"]
    assert taken(Story().decided("pay"), Evidence(sender=1, fact=LATE)) == ["EvidenceTaken", "IncidentRaised"]
    assert taken(Story().decided("look"), Evidence(sender=1, fact=LATE)) == ["EvidenceTaken"]


def test_a_finding_of_a_lost_worker_names_no_attempt() -> None:
    found = Receipt(call="1.1", proof=Proof.LOOKUP, result=Raw(b"1"))
    assert taken(sent(), Evidence(sender=7, fact=found)) == ["EvidenceTaken", "Receipt"]


def test_two_effects_are_an_incident_and_one_reply_told_twice_is_not() -> None:
    same = Raw(b'{"id":1}')
    settled = sent().receipt("1.1", bytes(same))
    assert taken(settled, Evidence(sender=1, fact=LATE)) == ["EvidenceTaken"]
    other = sent().receipt("1.1", b'{"id":2}')
    assert taken(other, Evidence(sender=1, fact=LATE)) == ["EvidenceTaken", "IncidentRaised"]
    assert taken(Story(), Evidence(sender=1, fact=LATE), Outcome(kind="rejected"))[1:] == ["IncidentRaised"]
    assert taken(Story(), Evidence(sender=1, fact=LATE)) == ["EvidenceTaken"]
    ended = sent().receipt("1.1").add(Cancelled())
    assert taken(ended, Evidence(sender=1, fact=SenderReleased(call="1.1", attempt=1))) == ["EvidenceTaken"]


def test_after_the_end_an_incident_shows_and_nothing_else_changes() -> None:
    story = sent().receipt("1.1").add(Cancelled())
    events = absorb(story.state, Evidence(sender=1, fact=LATE), 1, "x", lambda _: None)
    after = story.add(*events).state
    assert after.incident
    assert after.status.value == "cancelled"


def test_cancel() -> None:
    assert taken(sent(), Cancel(by="d")) == ["CancelRequested"]
    assert taken(sent().add(Cancelled()), Cancel(by="d")) == ["MailRefused"]


def test_verdicts_become_events() -> None:
    assert taken(sent(), verdict()) == ["VerdictGiven", "Receipt"]
    stopped = {"verdict": Verdict.NOT_APPLIED, "sender_stopped": True}
    assert taken(sent(), verdict(**stopped)) == ["VerdictGiven", "Rejected"]
    assert taken(sent(), verdict(then="dispatch", **stopped)) == ["VerdictGiven"]
    assert taken(sent(), verdict(verdict=Verdict.ABANDON)) == ["VerdictGiven"]


REFUSED = [
    ("the run is over", sent().add(Cancelled()), verdict(), "already"),
    ("no such call", sent(), verdict(call="9.9"), "not one of the current turn"),
    ("settled", sent().receipt("1.1"), verdict(), "settled already"),
    ("never dispatched", Story().decided("pay"), verdict(), "never dispatched"),
    ("changed since", sent(), verdict(seen=1), "changed since"),
    ("the sender may still send", sent(), verdict(verdict=Verdict.NOT_APPLIED), "may still send"),
]


@pytest.mark.parametrize("story,item,why", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_verdict_that_does_not_fit_is_refused(story: Story, item: GiveVerdict, why: str) -> None:
    assert why in (refusal(story.state, item) or "")
    assert taken(story, item) == ["MailRefused"]


def test_not_applied_needs_no_word_where_the_sender_was_seen_to_end() -> None:
    dead = sent().life().seen(SenderProof.DEAD)
    assert refusal(dead.state, verdict(verdict=Verdict.NOT_APPLIED)) is None


def test_no_trace_is_a_receipt() -> None:
    """Promise 13: a perfect log of the effect, told in every free text there is, settles nothing."""
    perfect = 'POST /payments 201 {"id": "pay_1", "idempotency_key": "k1"}: applied'
    story = sent().ended("1.1", Ending.UNSURE)
    story.add(
        EvidenceTaken(call="1.1", note=perfect, sender=1),
        IncidentRaised(call="1.1", what=perfect),
        CancelRequested(by="tracer", reason=perfect),
        MailRefused(item=1, item_id="trace", why=perfect),
    )
    call = story.state.calls[0]
    assert call.outcome is None
    assert call.open_attempts
    settling = {Receipt, Rejected, VerdictGiven}
    assert all(not isinstance(recorded.event, tuple(settling)) for recorded in story.events)
