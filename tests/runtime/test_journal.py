"""What a worker has learned outlives a failure in the middle of a refusal or of its mail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from counterfoil.core.contracts import OneShot, Terms
from counterfoil.core.events import (
    Decided,
    Dispatched,
    PlannedCall,
    Proof,
    Receipt,
    SenderReleased,
    TurnOpened,
    UnknownDeclared,
    Verdict,
)
from counterfoil.core.mail import Evidence, GiveVerdict, encode_item
from counterfoil.core.rules import Rule
from counterfoil.runtime.journal import Journal
from counterfoil.runtime.lives import read_journal
from counterfoil.runtime.transcript import result_of
from counterfoil.stores.protocol import Claimed, Head
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.journals import Pen, start

PLANNED = PlannedCall(position=1, tool="send", arguments=Raw(b"{}"), key="k")


async def sent(store: SqliteStore) -> tuple[Journal, Pen]:
    """A run whose second call is unknown, and somebody who writes to it under our own fence."""
    await start(store, "r")
    claimed = await store.claim("r")
    assert isinstance(claimed, Claimed)
    pen = Pen(store, claimed.head)
    for turn in (1, 2):
        name = f"{turn}.1"
        terms, now = Terms(contract=OneShot()), store.now()
        await pen.must(
            TurnOpened(turn=turn),
            Decided(turn=turn, calls=(PLANNED,)),
            Dispatched(call=name, attempt=1, deadline=now, because=Rule.NEVER_SENT, terms=terms),
        )
        if turn == 1:
            await pen.must(Receipt(call=name, attempt=1, proof=Proof.RESPONSE, result=Raw(b"1")))
    await pen.must(UnknownDeclared(call="2.1", because=Rule.NO_EVIDENCE))
    head = await store.head("r")
    assert isinstance(head, Head)
    return await read_journal(store, head), pen


async def test_a_verdict_outlives_a_drain_that_was_broken_off(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = await sent(store)
    verdict = GiveVerdict(
        call="2.1",
        verdict=Verdict.NOT_APPLIED,
        by="me",
        reason="looked",
        sender_stopped=True,
        seen=journal.state.position,
    )
    await store.post("r", "verdict", encode_item(verdict))
    stray = SenderReleased(call="2.1", attempt=7)
    await store.post("r", "stray", encode_item(Evidence(sender=journal.fence, fact=stray)))
    late = Receipt(call="1.1", attempt=1, proof=Proof.RESPONSE, result=Raw(b"1"))
    await store.post("r", "evidence", encode_item(Evidence(sender=journal.fence, fact=late)))
    whole = store.events

    async def broken(*_: Any, **__: Any) -> Any:
        raise asyncio.CancelledError

    monkeypatch.setattr(store, "events", broken)
    with pytest.raises(asyncio.CancelledError):
        await journal.drain_mail()
    monkeypatch.setattr(store, "events", whole)
    await journal.commit()
    await journal.drain_mail()
    await journal.commit()
    settled = journal.state.call("2.1")
    assert settled is not None
    assert settled.outcome is not None, "the evidence was taken, and the verdict before it was never read"
    assert await store.verify("r") == []


async def test_a_receipt_outlives_a_catch_up_that_was_broken_off(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, pen = await sent(store)
    journal.note(Receipt(call="2.1", attempt=1, proof=Proof.RESPONSE, result=Raw(b"2")), fact=True)
    await pen.must(UnknownDeclared(call="2.1", because=Rule.NO_EVIDENCE))  # So that our position is not the journal's.
    whole = store.events

    async def broken(*_: Any, **__: Any) -> Any:
        raise asyncio.CancelledError

    monkeypatch.setattr(store, "events", broken)
    with pytest.raises(asyncio.CancelledError):
        await journal.commit()
    monkeypatch.setattr(store, "events", whole)
    await journal.commit()
    settled = journal.state.call("2.1")
    assert settled is not None
    assert settled.outcome is not None, "the receipt was dropped with the refusal"
    assert await store.verify("r") == []


async def test_of_a_call_that_was_given_up_no_host_hears_that_it_was_done(store: SqliteStore) -> None:
    journal, _ = await sent(store)
    seen = journal.state.position
    verdict = GiveVerdict(call="2.1", verdict=Verdict.ABANDON, by="me", reason="nobody can look", seen=seen)
    await store.post("r", "verdict", encode_item(verdict))
    await journal.drain_mail()
    call = journal.state.call("2.1")
    assert call is not None
    told = result_of(call)
    assert (told.error, told.content) == (True, "Nobody knows whether it was done: a person gave it up.")
