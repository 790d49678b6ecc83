"""One run's journal in the hands of its owner: the fold, what is not yet durable, and the only way to the store.

It must not decide what to do: `core.plan` does. It knows how to write, and what survives a refusal.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from counterfoil.core.codec import encode
from counterfoil.core.events import (
    AttemptEnded,
    Decided,
    Event,
    LifeBegan,
    MailRefused,
    Receipt,
    Recorded,
    SenderReleased,
    TurnOpened,
)
from counterfoil.core.mail import Evidence, Item, absorb, decode_item, encode_item
from counterfoil.core.state import Outcome, RunState, apply
from counterfoil.errors import LeaseLost
from counterfoil.runtime.model import Exchange
from counterfoil.runtime.patience import insist
from counterfoil.runtime.transcript import exchange
from counterfoil.stores.protocol import Appended, Entry, Head, HeadChange, Mail, Refused, Store, entry_kind, entry_of


class Note(Struct, frozen=True):
    """An event that is not durable yet. A fact survives a refused append; an intent is decided again."""

    recorded: Recorded
    fact: bool


class Journal:
    """A run's journal, under our fence.

    Attributes:
        lease: under which the run was claimed; the store's next one says nothing about it.
        run_id: the run.
        fence: under which we write.
        state: the fold of all that is durable, and of all that waits for the next commit.
        history: exchanges of past turns, oldest first.
        decided: the current turn's decision.
        lives: incarnation by fence.
        digests: what the model was asked with, by turn, where a host said.
    """

    def __init__(self, store: Store, head: Head, events: list[Recorded]) -> None:
        self.store = store
        self.lease = store.lease
        self.run_id = head.run_id
        self.fence = head.fence
        self.history: list[Exchange] = []
        self.decided = Decided(turn=0)
        self.lives: dict[int, str] = {}
        self.digests: dict[int, str] = {}
        self._link = head.link
        self._notes: list[Note] = []
        self._lost = ""
        state: RunState | None = None
        for recorded in events:
            state = self._advance(state, recorded)
        assert state is not None
        self.state = state
        self._durable = (self.state, len(self.history), self.decided)

    def note(self, event: Event, *, fact: bool) -> None:
        """Add an event to the next commit, and let the fold see it at once."""
        recorded = Recorded(self.state.position + 1, self.store.now(), self.fence, event)
        self.state = self._advance(self.state, recorded)
        self._notes.append(Note(recorded, fact))

    async def commit(self) -> bool:
        """Make all that was noted durable in one append.

        Returns:
            True: all of it. False: something arrived meanwhile; the facts are durable, the intents are to be decided
            again on the fold as it is now.

        Raises:
            LeaseLost: this worker may write no more; its facts were kept as evidence.
            StoreUnavailable: nothing was written, after trying for a while. A receipt that is lost so leaves its call
                dispatched, and its contract decides.
        """
        whole = True
        while self._notes:
            if self._lost:
                await self._keep_as_evidence()
                raise LeaseLost(self._lost)
            entries = self._entries()
            answer = await insist(partial(self._append, entries))
            if isinstance(answer, Appended):
                self._link, self._notes = entries[-1].link, []
                self._durable = (self.state, len(self.history), self.decided)
            elif answer.why in ("fence", "lease"):
                self._lost = f"run {self.run_id}: another worker may own it now ({answer.why})"
            else:
                whole = False
                await self._catch_up(answer.head)
        return whole

    async def drain_mail(self) -> None:
        """Turn unread mailbox items into facts: evidence before verdicts.

        All is read before any of it is noted: the mark counts items, so one that is left out here is never read again.
        """
        items = [(each, _item(each.body)) for each in await self._unread()]
        items.sort(key=lambda pair: not isinstance(pair[1], Evidence))
        told = {item.fact.call for _, item in items if isinstance(item, Evidence)}
        past = {call: await self._past_outcome(call) for call in sorted(told)}
        for each, item in items:
            if item is None:
                why = "it cannot be read; a newer counterfoil may have written it"
                self.note(MailRefused(item=each.number, item_id=each.item_id, why=why), fact=True)
                continue
            for event in absorb(self.state, item, each.number, each.item_id, past.get):
                self.note(event, fact=True)

    @property
    def input_value(self) -> Any:
        """The run's input, as a JSON value."""
        return msgspec.json.decode(self.state.input)

    def output(self) -> Raw:
        """Return what a run that ends now has come to: the text of its last decision, as JSON."""
        return Raw(msgspec.json.encode(self.state.text))

    async def has_mail(self) -> bool:
        """Whether somebody wrote to the run since we last read."""
        return bool(await self._unread())

    async def _unread(self) -> list[Mail]:
        return await insist(lambda: self.store.mail(self.run_id, self.state.mail))

    def _advance(self, state: RunState | None, recorded: Recorded) -> RunState:
        """Fold one event, and keep what outlives a turn: the exchange that a new one closes, and who held a fence."""
        match recorded.event:
            case TurnOpened(turn=turn, digest=asked) if asked:
                self.digests[turn] = asked
            case _:
                pass
        match recorded.event:
            case TurnOpened(ask=1) if state is not None and state.turn:
                self.history.append(exchange(self.decided, state.calls))
            case Decided() as decided:
                self.decided = decided
            case LifeBegan(incarnation=incarnation):
                self.lives[recorded.fence] = incarnation
            case _:
                pass
        return apply(state, recorded)

    async def _append(self, entries: list[Entry]) -> Appended | Refused:
        state = self.state
        until = state.paused.until if state.paused else None
        change = HeadChange(status=state.status, due=until, incident=state.incident)
        at = self._durable[0].position
        return await self.store.append(
            self.run_id, fence=self.fence, at=at, mail=state.mail, entries=entries, head=change
        )

    def _entries(self) -> list[Entry]:
        entries, last = [], self._link
        for note in self._notes:
            entries.append(entry_of(note.recorded, last))
            last = entries[-1].link
        return entries

    async def _catch_up(self, head: Head) -> None:
        """Refold: what is durable, then our facts at the new position, then the mail. Intents are dropped.

        The facts stay noted while the journal is read: a failure or a cancellation there must not lose a receipt.
        """
        durable, turns, _ = self._durable
        since: list[Recorded] = []
        if head.position != durable.position:
            since = await insist(lambda: self.store.events(self.run_id, after=durable.position))
        facts = [note.recorded.event for note in self._notes if note.fact]
        self.state, _, self.decided = self._durable
        del self.history[turns:]
        self._notes = []
        if since:
            for recorded in since:
                self.state = self._advance(self.state, recorded)
                written = entry_of(recorded, self._link)
                self._link = written.link
                facts = [fact for fact in facts if encode(fact) != written.body]  # A cancelled commit of ours arrived.
            self._durable = (self.state, len(self.history), self.decided)
        for fact in facts:
            self.note(fact, fact=True)
        await self.drain_mail()

    async def _past_outcome(self, call: str) -> Outcome | None:
        """How a call of an earlier turn was settled: the journal knows, the fold has let it go."""
        if self.state.call(call) is not None:
            return None
        state: RunState | None = None
        for recorded in await insist(lambda: self.store.events(self.run_id)):
            state = apply(state, recorded)
            known = state.call(call)
            if known is not None and known.outcome is not None:
                return known.outcome
        return None

    async def _keep_as_evidence(self) -> None:
        """We may write no more, but what we learned is not thrown away."""
        while self._notes:
            note = self._notes[0]
            event = note.recorded.event
            if note.fact and isinstance(event, (Receipt, AttemptEnded, SenderReleased)):
                await post_evidence(self.store, self.run_id, self.fence, event)
            del self._notes[0]  # Only now: posting it twice keeps it once, and a cancellation must not lose the rest.


async def post_evidence(
    store: Store,
    run_id: str,
    fence: int,
    fact: Receipt | AttemptEnded | SenderReleased,
    *,
    patience_s: float | None = None,
) -> None:
    """Put a late fact into the run's mailbox. Posting it twice keeps it once."""
    item_id = f"evidence:{fence}:{fact.call}:{fact.attempt}:{entry_kind(fact)}"
    body = encode_item(Evidence(sender=fence, fact=fact))
    await insist(lambda: store.post(run_id, item_id, body), patience_s=patience_s)


def _item(body: bytes) -> Item | None:
    try:
        return decode_item(body)
    except msgspec.DecodeError:
        return None
