"""The core that every host shares: a run opened by someone else's loop, in two halves, `claim` and `settle`.

Hooks, plugins and middlewares have no call to wrap, so the halves may stand apart. It must not decide:
it asks the same plan as the loop does, and everything it returns is a value that the host turns into its own pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import replace

from counterfoil.core.events import (
    AttemptEnded,
    Completed,
    Ending,
    Event,
    MailRefused,
    Paused,
    Status,
    TurnOpened,
    UnknownDeclared,
    call_id,
)
from counterfoil.core.limits import reached_before_ask, reached_before_dispatch
from counterfoil.core.mail import GiveVerdict, encode_item, refusal
from counterfoil.core.plan import Finish, InFlight, Ownership, Pause, may_dispatch, move_of, next_action, stop_of
from counterfoil.core.recovery import Ask, Dispatch, Observe, Reject, Settle, Unknown, Wait
from counterfoil.core.recovery import Hold as Held
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState
from counterfoil.errors import DefinitionError, LeaseLost, NoSuchRun, VerdictRefused
from counterfoil.runtime import perform
from counterfoil.runtime.agent import PATIENCE, StoreLike, release, use_store
from counterfoil.runtime.attempts import Attempts
from counterfoil.runtime.calls import Call
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.journal import Journal
from counterfoil.runtime.lives import begin_life, start_run
from counterfoil.runtime.loop import MAIL_LOOK_S
from counterfoil.runtime.model import Decision, ToolResult
from counterfoil.runtime.transcript import decision_of, result_of
from counterfoil.runtime.values import failure_of
from counterfoil.stores.protocol import Tombstone


class Go(Struct, frozen=True):
    """Make the effect now, under ``call.key``, and tell `Run.settle` how it ended."""

    call: Call


class Replay(Struct, frozen=True):
    """The call is settled: this is what the model is to be told. Do not run it."""

    result: ToolResult


class Hold(Struct, frozen=True):
    """The call may not be dispatched now: turn this into the host's own pause, never into a failed call."""

    because: Rule
    note: str = ""
    until: datetime | None = None


class Done(Struct, frozen=True):
    """The attempt returned this value."""

    value: Any


class NotDone(Struct, frozen=True):
    """The attempt certainly changed nothing."""

    error: Exception


class Unsure(Struct, frozen=True):
    """The attempt brought no answer: it may have had its effect."""

    error: BaseException


class Run:
    """A run that this process owns, for hosts that bring their own loop. Made by `open_run`.

    Calls of one turn may be claimed and settled side by side. A lost lease is a `Hold`; only a store that cannot be
    written raises.
    """

    def __init__(self, journal: Journal, agent: Agent, patience: timedelta) -> None:
        self.journal = journal
        self._attempts = Attempts(journal, agent)
        self._agent = agent
        self._patience = patience
        self._claimed: dict[str, Call] = {}
        self._turns = asyncio.Lock()  # One at a time writes to the journal, and one at a time asks.

    async def decide(self, slot: int, request_digest: str, ask: Callable[[], Awaitable[Decision]]) -> Decision | Hold:
        """Return the journaled decision of a slot, or ask once and journal it.

        Args:
            slot: its ordinal in the host's durable state, from 1.
            request_digest: of what the model is asked. A check, never the key: another digest for a decided slot holds.
            ask: asks the model.

        Raises:
            DefinitionError: the slot is no ordinal.
            ModelError: what was answered is no decision; nothing was journaled, and the slot is asked for again.
        """
        async with self._turns:
            if slot < 1:
                raise DefinitionError(f"slot {slot}: slots count from 1", remedy="Count the host's decisions from 1.")
            try:
                return await self._decide(slot, request_digest, ask)
            except LeaseLost as lost:
                return Hold(Rule.LEASE_LOST, note=lost.message)

    async def claim(self, call: str) -> Go | Replay | Hold:
        """Say whether a call is to be made now. Every rule is read again, every time.

        Args:
            call: its name inside the run, ``"turn.position"``.
        """
        while True:
            async with self._turns:
                try:
                    answer = await self._claim(call)
                except LeaseLost as lost:
                    return Hold(Rule.LEASE_LOST, note=lost.message)
            match answer:
                case Go() | Replay() | Hold():
                    return answer
                case datetime():
                    left = (answer - self.journal.store.now()).total_seconds()
                    await asyncio.sleep(min(max(left, 0.0), MAIL_LOOK_S))
                case None:
                    pass
                case _:
                    assert_never(answer)

    async def settle(self, call: str, outcome: Done | NotDone | Unsure) -> Replay | Hold | None:
        """Write down how a claimed attempt ended. Nothing that builds on it may happen before this returns.

        Returns:
            What the model is to be told, where the call is settled by this; None where `claim` is to be asked again;
            a hold where the lease was lost: the outcome was kept as evidence, and the next owner reads it.
        """
        async with self._turns:
            ctx = self._claimed.pop(call, None)
            if ctx is None:
                raise DefinitionError(f"run {self.journal.run_id}: call {call} is not claimed here")
            try:
                await self._attempts.learn(self._ending(ctx, outcome))
                await self.journal.commit()
            except LeaseLost as lost:
                return Hold(Rule.LEASE_LOST, note=lost.message)
            settled = self.journal.state.call(call)
            return Replay(result_of(settled)) if settled is not None and settled.outcome is not None else None

    async def resolve(self, verdict: GiveVerdict) -> None:
        """Settle an unknown call by a person's verdict. It goes through the mailbox, as one from outside does.

        Raises:
            VerdictRefused: it does not fit what the journal says now; nothing was recorded.
        """
        async with self._turns:
            verdict = replace(verdict, seen=verdict.seen or self.journal.state.position)
            why = refusal(self.journal.state, verdict)
            if why is not None:
                raise VerdictRefused(f"run {self.journal.run_id}: {why}")
            before = self.journal.state.position
            item_id = f"verdict:{verdict.call}:{verdict.seen}:{verdict.by}:{verdict.verdict}:{verdict.then}"
            await self.journal.store.post(self.journal.run_id, item_id, encode_item(verdict))
            await self.journal.drain_mail()
            await self.journal.commit()
            for recorded in await self.journal.store.events(self.journal.run_id, after=before):
                match recorded.event:
                    case MailRefused(item_id=refused, why=why) if refused == item_id:  # Something came in between.
                        raise VerdictRefused(f"run {self.journal.run_id}: {why}")
                    case _:
                        pass

    async def finish(self) -> Hold | None:
        """End the run, if it has not ended: its last decision has no calls, or all of them are settled."""
        async with self._turns:
            state = self.journal.state
            if state.status.terminal:
                return None
            stop = stop_of(state, self._attempts.view)
            if stop is not None:
                return await self._stand_still(Hold(stop))
            if state.asking or any(call.outcome is None for call in state.calls):
                raise DefinitionError(f"run {self.journal.run_id}: turn {state.turn} is not settled yet")
            try:
                self.journal.note(Completed(output=self.journal.output()), fact=True)
                await self.journal.commit()
            except LeaseLost as lost:
                return Hold(Rule.LEASE_LOST, note=lost.message)
            return None

    @property
    def all_ended(self) -> bool:
        """Whether every claimed attempt was settled: no other can still send."""
        return not self._claimed

    async def _decide(self, slot: int, request_digest: str, ask: Callable[[], Awaitable[Decision]]) -> Decision | Hold:
        while True:
            state = self.journal.state
            known = self.journal.digests.get(slot)
            decided = slot < state.turn or (slot == state.turn and not state.asking)
            if decided and known is not None and known != request_digest:
                note = f"slot {slot} was decided for request {known}, and is asked for {request_digest}"
                return await self._pause(Hold(Rule.REQUEST_CHANGED, note=note), Status.BLOCKED)
            if decided and slot > 0:
                history = self.journal.history
                return history[slot - 1].decision if slot <= len(history) else decision_of(self.journal.decided)
            hold = await self._may_not_ask(slot)
            if hold is not None:
                return hold
            number = state.asks + 1 if slot == state.turn else 1
            self.journal.note(TurnOpened(turn=slot, ask=number, digest=request_digest), fact=False)
            if await self.journal.commit():
                break
        decision = perform.checked(await ask())
        run_id, store = self.journal.run_id, self.journal.store
        self.journal.note(perform.plan_calls(self._agent, decision, slot, store, run_id), fact=True)
        await self.journal.commit()
        return decision_of(self.journal.decided)

    async def _may_not_ask(self, slot: int) -> Hold | None:
        state = self.journal.state
        if state.status.terminal:
            return Hold(Rule.FINISHED, note=f"the run is {state.status} already")
        stop = stop_of(state, self._attempts.view)
        if stop is not None:
            return await self._stand_still(Hold(stop))
        if slot not in (state.turn, state.turn + 1) or any(call.outcome is None for call in state.calls):
            return Hold(Rule.SEQUENCE, note=f"slot {slot} comes before the calls of slot {state.turn} are settled")
        reached = reached_before_ask(state.limits, state.spent)
        return None if reached is None else await self._pause(Hold(Rule.LIMIT, note=reached), Status.BLOCKED)

    async def _claim(self, call: str) -> Go | Replay | Hold | datetime | None:
        """Return the answer; a moment to wait for; or None: look again."""
        if await self.journal.has_mail():
            await self.journal.drain_mail()
            await self.journal.commit()
        state = self.journal.state
        known = state.call(call)
        if known is None:
            return Replay(self._past_result(call))
        if known.outcome is not None and known.outcome.kind == "abandoned":
            return Hold(Rule.ABANDONED, note=f"a person gave call {call} up; nobody knows whether it was done")
        if known.outcome is not None:
            return Replay(result_of(known))
        if state.status.terminal:
            return Hold(Rule.FINISHED, note=f"the run is {state.status} already")
        if call in self._claimed:
            return Hold(Rule.IN_FLIGHT, note=f"call {call} is under way in this process")
        return await self._move(known)

    def _past_result(self, call: str) -> ToolResult:
        for turn, exchange in enumerate(self.journal.history, start=1):
            for position, result in enumerate(exchange.results, start=1):
                if call == call_id(turn, position):
                    return result
        raise DefinitionError(f"run {self.journal.run_id}: no decision has a call {call}")

    async def _move(self, known: CallState) -> Go | Hold | datetime | None:
        """Make the plan's move for one call."""
        now, view = self.journal.store.now(), self._attempts.view
        stop = stop_of(self.journal.state, view)
        move = move_of(self.journal.state, view, known, now, stop)
        match move:
            case Dispatch(because=because):
                return await self._go(known, because)
            case Settle(because=because):
                for event in perform.settle(known, because):
                    self.journal.note(event, fact=True)
            case Reject(because=because):
                self.journal.note(perform.reject(known, because), fact=True)
            case Ask(because=because):
                for event in await self._attempts.look_up(known, because):
                    self.journal.note(event, fact=True)
            case Observe():
                await self._attempts.observe(known)
            case Unknown(because=because):
                if known.unknown is not because:
                    self.journal.note(UnknownDeclared(call=known.id, because=because), fact=True)
                return await self._pause(Hold(Rule.UNKNOWN, note=f"call {known.id}: {because}"), Status.UNKNOWN)
            case Wait(until=until, because=because) if until - now > self._patience:
                return await self._pause(Hold(because, until=until), Status.WAITING)
            case Wait(until=until):
                return until
            case Held(because=because):
                return await self._stand_still(Hold(stop or because))
            case _:
                assert_never(move)
        await self.journal.commit()
        return None

    async def _go(self, known: CallState, because: Rule) -> Go | Hold | None:
        state = self.journal.state
        if not known.attempts and (reached := reached_before_dispatch(state.limits, state.spent)) is not None:
            return await self._pause(Hold(Rule.LIMIT, note=reached), Status.BLOCKED)
        others = [other.id for other in state.calls if other.unknown is not None and other.outcome is None]
        if others:
            return await self._pause(Hold(Rule.UNKNOWN, note=f"call {others[0]} is unknown"), Status.UNKNOWN)
        if may_dispatch(state, self._attempts.view, known, self.journal.store.now()) is None:
            return None  # its moment has passed since the plan was asked
        attempt = len(known.attempts) + 1
        self.journal.note(self._attempts.dispatched(known, attempt, because), fact=False)
        if not await self.journal.commit():
            return None
        refused = self._attempts.last_check(known, attempt, because)
        if refused is not None:
            self.journal.note(perform.not_sent(known.id, attempt, refused.why, self.journal.store.now()), fact=True)
            await self.journal.commit()
            return None
        ctx = self._attempts.context(self._agent.tools[known.planned.tool], known, attempt)
        self._claimed[known.id] = ctx
        return Go(ctx)

    def _ending(self, ctx: Call, outcome: Done | NotDone | Unsure) -> Event:
        """Return the event that an outcome is."""
        tool = self._agent.tools[self._planned(ctx.id).planned.tool]
        match outcome:
            case Done(value=value):
                return perform.receipt_of(tool, ctx, value)
            case NotDone(error=error):
                failure = failure_of(error)
                return AttemptEnded(call=ctx.id, attempt=ctx.attempt, ending=Ending.NOT_APPLIED, failure=failure)
            case Unsure(error=error):
                terms = self._attempts.terms(self._planned(ctx.id))
                return perform.ending_of(tool, ctx, terms, self.journal.store, error)
            case _:
                assert_never(outcome)

    def _planned(self, call: str) -> CallState:
        known = self.journal.state.call(call)
        assert known is not None, "a turn is not left while a call of it is claimed"
        return known

    async def _stand_still(self, hold: Hold) -> Hold:
        """Write down what the plan makes of a run that may dispatch nothing: blocked, or over."""
        under_way = frozenset((call, ctx.attempt) for call, ctx in self._claimed.items())
        now, flight = self.journal.store.now(), InFlight(attempts=under_way)
        action = next_action(self.journal.state, self._attempts.view, now, Ownership(), flight)
        if isinstance(action, (Pause, Finish)):
            self._attempts.close(action)
            await self.journal.commit()
        return hold

    async def _pause(self, hold: Hold, status: Status) -> Hold:
        paused = Paused(status=status, because=hold.because, until=hold.until, note=hold.note)
        if self.journal.state.paused != paused:
            self.journal.note(paused, fact=True)
        await self.journal.commit()
        return hold


@asynccontextmanager
async def open_run(
    agent: Agent,
    input: Any,  # noqa: A002 - as in arun
    *,
    run_id: str,
    store: StoreLike = None,
    patience: timedelta = PATIENCE,
) -> AsyncIterator[Run]:
    """Start or continue a run and own it for a while, for hosts that bring their own loop.

    Args, errors: as for `arun`. Of a run that has ended everything is replayed and nothing is made. A claimed call that
    is not settled when this is left stays dispatched, and its contract decides at the next life.

    Raises:
        NoSuchRun: the run has ended and was pruned: its answer is left, its decisions are not.
    """
    async with use_store(store) as opened:
        known = await start_run(opened, agent, input, run_id)
        if isinstance(known, Tombstone):
            raise NoSuchRun(
                f"run {run_id} ended as {known.status} and was pruned", remedy="Nothing of it is done again."
            )
        journal = await begin_life(opened, known.run_id)
        run: Run | None = None
        try:
            await journal.commit()
            run = Run(journal, agent, patience)
            yield run
        finally:
            if run is not None and not run.all_ended:
                journal.lease.outlived = True
            await asyncio.shield(release(opened, run_id, journal.fence))
