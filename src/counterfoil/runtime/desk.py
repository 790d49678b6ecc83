"""What a person's command does to a run: put a verdict or a cancel into its mailbox, and see it taken.

It needs no flow and never dispatches. It must not settle what the journal contradicts: `core.mail` refuses that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from msgspec import Struct

from counterfoil.core.events import (
    Cancelled,
    CancelRequested,
    Event,
    Failed,
    Failure,
    MailRefused,
    Status,
    UnknownDeclared,
    VerdictGiven,
)
from counterfoil.core.mail import Cancel, GiveVerdict, encode_item, refusal
from counterfoil.core.plan import Finish, FlowView, ForCall, InFlight, Ownership, next_action
from counterfoil.core.recovery import Reject, Unknown
from counterfoil.core.state import RunState, fold
from counterfoil.errors import RunOwned
from counterfoil.runtime import perform
from counterfoil.runtime.agent import release
from counterfoil.runtime.journal import Journal
from counterfoil.runtime.lives import begin_life, look_at_senders
from counterfoil.stores.protocol import Head, Store, Tombstone

LOOK_AGAIN_S = 0.2
"""How often, in seconds, the journal of a run that another worker holds is looked at for the answer."""


class Delivered(Struct, frozen=True, kw_only=True):
    """What became of a person's word.

    Args:
        outcome: ``accepted``: it stands in the journal. ``refused``: it did not fit. ``pending``: the worker that holds
            the run has not read it yet, and will.
        why: of a refusal; who holds the run, of a pending one.
        status: of the run by now.
    """

    outcome: Literal["accepted", "refused", "pending"]
    why: str = ""
    status: Status


async def deliver(
    store: Store, known: Head | Tombstone, item: GiveVerdict | Cancel, item_id: str, *, wait: timedelta
) -> Delivered:
    """Give a run a person's word, and see it taken: by this command if nobody holds the run, else by who does.

    Args:
        store: where the run is.
        known: its head, or what pruning left of it.
        item: the word.
        item_id: chosen by the caller; the same one twice counts once.
        wait: how long to wait for a worker that holds the run.

    Raises:
        JournalDamaged: the journal cannot be read; nothing was recorded.
    """
    if isinstance(known, Tombstone) or known.status.terminal:
        return Delivered(outcome="refused", why=f"the run is {known.status} already", status=known.status)
    ends = time.monotonic() + wait.total_seconds()
    posted = 0
    while True:
        try:
            journal = await begin_life(store, known.run_id)
        except RunOwned as owned:
            held = owned.message
        else:
            return await _take(journal, item, item_id, posted)
        posted = posted or await store.post(known.run_id, item_id, encode_item(item))
        events = await store.events(known.run_id)
        answer = _answer(fold(events), [one.event for one in events[known.position :]], posted)
        if answer is not None:
            return answer
        if time.monotonic() >= ends:
            return Delivered(outcome="pending", why=held, status=fold(events).status)
        await asyncio.sleep(LOOK_AGAIN_S)


async def _take(journal: Journal, item: GiveVerdict | Cancel, item_id: str, posted: int) -> Delivered:
    """Nobody held the run, so it is ours for a moment: look at its senders, read its mail, and give it up again."""
    store, run_id = journal.store, journal.run_id
    try:
        # A verdict of not applied needs a sender that has ended, and it may have ended since anyone looked.
        for seen in await look_at_senders(journal, [call for call in journal.state.calls if call.outcome is None]):
            journal.note(seen, fact=True)
        why = None if posted else _refusal(journal.state, item)
        if why is not None:
            return Delivered(outcome="refused", why=why, status=journal.state.status)
        before = journal.state.position
        await journal.commit()
        number = posted or await store.post(run_id, item_id, encode_item(item))
        await journal.drain_mail()
        _conclude(journal)
        await journal.commit()
        events = [one.event for one in await store.events(run_id, after=0 if posted else before)]
        answer = _answer(journal.state, events, number)
        assert answer is not None
        return answer
    finally:
        await asyncio.shield(release(store, run_id, journal.fence))


def _refusal(state: RunState, item: GiveVerdict | Cancel) -> str | None:
    """Say what is wrong with a word before it is written anywhere."""
    if isinstance(item, GiveVerdict):
        return refusal(state, item)
    return f"the run is {state.status} already" if state.status.terminal else None


def _conclude(journal: Journal) -> None:
    """End a run that was cancelled or given up, if nothing of it is open; what only its flow could do is left to it."""
    nothing = FlowView(tools={})
    while journal.state.cancel is not None or journal.state.abandoned:
        match next_action(journal.state, nothing, journal.store.now(), Ownership(), InFlight()):
            case ForCall(call=call, move=Reject(because=because)):
                journal.note(perform.reject(call, because), fact=True)
            case ForCall(call=call, move=Unknown(because=because)):
                journal.note(UnknownDeclared(call=call.id, because=because), fact=True)
            case Finish(status=Status.CANCELLED):
                journal.note(Cancelled(), fact=True)
            case Finish(status=Status.FAILED, failure=failure):
                journal.note(Failed(failure=failure or Failure(kind="Failed", message="")), fact=True)
            case _:
                return


def _answer(state: RunState, events: Sequence[Event], number: int) -> Delivered | None:
    """Find what became of a mailbox item among some events."""
    for event in events:
        match event:
            case MailRefused(item=item, why=why) if item == number:
                return Delivered(outcome="refused", why=why, status=state.status)
            case VerdictGiven(item=item) | CancelRequested(item=item) if item == number:
                return Delivered(outcome="accepted", status=state.status)
            case _:
                pass
    return None
