"""What an attempt needs and leaves behind: its record, its last check, what the tool is handed, what is learned of it.

The loop and the host's two halves are both built on this. It must not decide, and it starts nothing but a lookup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from counterfoil.core.contracts import Keyed, Terms, lines
from counterfoil.core.events import (
    AttemptEnded,
    Cancelled,
    Completed,
    Dispatched,
    Event,
    Failed,
    Failure,
    Paused,
    Receipt,
    SenderReleased,
    Status,
)
from counterfoil.core.evidence import Facts
from counterfoil.core.plan import Finish, Pause, terms_of
from counterfoil.core.recovery import remembers
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState
from counterfoil.runtime import perform
from counterfoil.runtime.calls import Call, Sending
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.journal import Journal, post_evidence
from counterfoil.runtime.lives import look_at_senders
from counterfoil.runtime.tools import Tool


class Refusal(Struct, frozen=True):
    """Why an attempt may not be sent."""

    why: str


class Attempts:
    """The attempts that are made here, for one run that we own.

    Args:
        journal: the run's.
        agent: the flow at hand.
        progress: told of every event that became durable or is about to.

    Attributes:
        view: of the flow at hand, for the plan.
    """

    def __init__(self, journal: Journal, agent: Agent, progress: Callable[[Event], None] | None = None) -> None:
        self.journal = journal
        self.agent = agent
        self.view = agent.view(journal.state.flow)
        self._progress = progress
        self._deadlines: dict[tuple[str, int], datetime] = {}

    def note(self, *events: Event, fact: bool = True) -> None:
        """Add events to the next commit. A fact survives a refused append; an intent is decided again."""
        for event in events:
            self.journal.note(event, fact=fact)
            if self._progress is not None:
                self._progress(event)

    async def learn(self, event: Event) -> None:
        """Note a fact; where its call is settled by now, the mailbox weighs it: two answers can be an incident."""
        if isinstance(event, (Receipt, AttemptEnded, SenderReleased)):
            call = self.journal.state.call(event.call)
            if call is None or call.outcome is not None:
                await post_evidence(self.journal.store, self.journal.run_id, self.journal.fence, event)
                await self.journal.drain_mail()
                return
        self.note(event)

    def dispatched(self, call: CallState, attempt: int, because: Rule, request: str = "") -> Dispatched:
        """Return the record of an attempt that is about to be made."""
        terms = self.terms(call)
        deadline = self._deadlines[call.id, attempt] = self.journal.store.now() + terms.bounds.timeout
        return Dispatched(
            call=call.id,
            attempt=attempt,
            deadline=deadline,
            because=because,
            terms=None if call.terms == terms else terms,
            request=request,
        )

    def terms(self, call: CallState) -> Terms:
        """Return what a call is, or would be, sent under."""
        terms = terms_of(self.view, call)
        assert terms is not None
        return terms

    def last_check(self, before: CallState, attempt: int, because: Rule) -> Refusal | None:
        """Say why an attempt whose record is durable may not be sent all the same: writing it took its time.

        Args:
            before: the call as it was before this attempt.
            attempt: its number.
            because: the rule that licensed it.
        """
        now, terms = self.journal.store.now(), self.terms(before)
        if not self.journal.lease.alive():
            return Refusal("the lease is about to end")
        if now >= self._deadlines[before.id, attempt]:
            return Refusal("its deadline is over")
        line, _ = lines(terms.contract)
        if because is Rule.REPEAT_KEYED and isinstance(line, Keyed):
            facts = Facts(open=True, first_sent_at=before.attempts[0].at)
            return None if remembers(line, terms, facts, now) else Refusal("the provider may have forgotten the key")
        return None

    async def look_up(self, call: CallState, because: Rule) -> tuple[Event, ...]:
        """Run a call's lookup once."""
        tool, terms = self.agent.tools[call.planned.tool], self.terms(call)
        ctx = self.context(tool, call, len(call.attempts), asks_only=True)
        return (await perform.look_up(tool, ctx, call, terms, because, self.journal.store),)

    def context(
        self,
        tool: Tool,
        call: CallState,
        attempt: int,
        *,
        sending: Sending | None = None,
        asks_only: bool = False,
    ) -> Call:
        """Return what a tool, or a lookup, is handed. ``sending`` writes the mark of a late tool."""
        now, timeout = self.journal.store.now(), self.terms(call).bounds.timeout
        deadline = self._deadlines.get((call.id, attempt), now + timeout)
        arguments = tool.as_decided(call.planned.arguments) if asks_only else tool.parse(call.planned.arguments)
        return Call(
            run_id=self.journal.run_id,
            id=call.id,
            key=call.planned.key,
            attempt=attempt,
            fence=self.journal.fence,
            arguments=arguments,
            deadline=deadline,
            first_sent_at=call.attempts[0].at if call.attempts else None,
            repeat=bool(call.open_attempts),
            style=tool.style,
            timeout_s=min(timeout, deadline - now).total_seconds(),
            sending=sending,
            asks_only=asks_only,
            loop=None if tool.is_async else asyncio.get_running_loop(),
            owner_fd=self.journal.lease.owner_fd,
        )

    async def observe(self, call: CallState) -> None:
        """Look at every sender of the call's open attempts that has not been seen to end."""
        self.note(*await look_at_senders(self.journal, [call]))

    def close(self, action: Pause | Finish) -> None:
        """Write down why the run stands still, or how it ended; a pause that stands already is not written again."""
        match action:
            case Finish(status=Status.COMPLETED):
                self.note(Completed(output=self.journal.output()))
            case Finish(status=Status.CANCELLED):
                self.note(Cancelled())
            case Finish(failure=failure):
                self.note(Failed(failure=failure or Failure(kind="Failed", message="")))
            case Pause():
                differences = self.view.differences if action.because is Rule.FLOW_CHANGED else ()
                paused = Paused(
                    status=action.status,
                    because=action.because,
                    until=action.until,
                    note=action.note,
                    differences=differences,
                )
                if self.journal.state.paused != paused:
                    self.note(paused)
