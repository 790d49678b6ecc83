"""The one loop of every life of a run: decide, write the intent down, act, write down what came of it.

It must not decide: `core.plan.next_action` does. There is no recovery path in here; the tenth life is as the first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import assert_never

from msgspec import Struct

from counterfoil.core.events import (
    AttemptEnded,
    Ending,
    Event,
    Failure,
    Receipt,
    SenderReleased,
    Status,
    TurnOpened,
    UnknownDeclared,
)
from counterfoil.core.plan import (
    Action,
    AskModel,
    Await,
    Finish,
    ForCall,
    InFlight,
    Ownership,
    Pause,
    Stop,
    may_dispatch,
    next_action,
)
from counterfoil.core.recovery import Ask, Dispatch, Observe, Reject, Settle, Unknown
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState
from counterfoil.errors import CounterfoilError, DispatchRefused, LeaseLost
from counterfoil.runtime import perform
from counterfoil.runtime.attempts import Attempts, Refusal
from counterfoil.runtime.calls import Call
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.journal import Journal, post_evidence
from counterfoil.runtime.model import ModelRequest
from counterfoil.runtime.tools import Tool

MAIL_LOOK_S = 0.5
"""How often, in seconds, a run that waits looks whether somebody wrote to it."""


NOTHING_IN_FLIGHT = InFlight()

Key = tuple[str, int] | str | None
"""What is under way: an attempt by (call, number), a lookup by its call, or the model."""


class Mark(Struct, frozen=True):
    """A late tool is about to send: its dispatch must be durable first."""

    call: str
    attempt: int
    request: str
    answer: asyncio.Future[None]


class Ended(Struct, frozen=True):
    """Something that was under way came to an end."""

    what: Key
    events: tuple[Event, ...]
    broken: Exception | None = None


class Late(Struct, frozen=True):
    """A thread or child process that had outlived its attempt came to an end."""

    event: Event


Message = Mark | Ended | Late
Work = Callable[[], Coroutine[None, None, tuple[Event, ...]]]


class Driver:
    """Drives one run that we own until it ends or must stand still.

    Args:
        journal: the run's.
        agent: the flow at hand.
        patience: how far away a due time may be for the run to be held on to; beyond it, it is given up as waiting.
        progress: told of every event that became durable or is about to.
    """

    def __init__(
        self, journal: Journal, agent: Agent, *, patience: timedelta, progress: Callable[[Event], None] | None = None
    ) -> None:
        self.journal = journal
        self.agent = agent
        self._attempts = Attempts(journal, agent, progress)
        self.patience = patience
        self.draining = False
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._strays: set[tuple[str, int]] = set()
        self._entered: set[tuple[str, int]] = set()
        self._asked = (0, 0)  # The open turn, and how often it was asked for in this life.
        self._posting: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._left = False
        self._linger_until: datetime | None = None
        self._input = journal.input_value

    async def drive(self) -> None:
        """Advance the run until it is terminal or paused. Cancelling this cancels what is under way, and records it.

        Raises:
            LeaseLost: another worker may own the run; what was learned was kept as evidence.
            StoreUnavailable: nothing more could be written; the run can be resumed.
        """
        try:
            while True:
                action, starts = await self._plan()
                if not await self.journal.commit():
                    continue
                for start in starts:
                    self._start(start)
                if await self._rest(action):  # The plan counted what is started now as under way: then it waits.
                    return
        except LeaseLost:
            await asyncio.shield(asyncio.ensure_future(self._hand_over()))
            raise
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._give_up()))
            raise
        finally:
            self._left = True
            await self._abandon_tasks()
            while not self._inbox.empty():  # It came while the last event was being written.
                await self._keep(self._inbox.get_nowait(), patience_s=1.0)

    def drain(self) -> None:
        """Dispatch nothing more; what is under way is awaited, then the run is given up, resumable."""
        self.draining = True
        self._inbox.put_nowait(Ended(what="drain", events=()))

    async def _plan(self) -> tuple[Action, list[ForCall | AskModel]]:
        """Note every event that needs no waiting, and collect what is to be started once all that is durable."""
        starts: list[ForCall | AskModel] = []
        while True:
            flight = self._in_flight(starts)
            own = Ownership(draining=self.draining)
            action = next_action(self.journal.state, self._attempts.view, self.journal.store.now(), own, flight)
            match action:
                case ForCall(move=Observe()):
                    await self._attempts.observe(action.call)
                case ForCall(move=Settle(because=because)):
                    self._attempts.note(*perform.settle(action.call, because))
                case ForCall(move=Reject(because=because)):
                    self._attempts.note(perform.reject(action.call, because))
                case ForCall(move=Unknown(because=because)):
                    self._attempts.note(UnknownDeclared(call=action.call.id, because=because))
                case ForCall():
                    self._intend(action)
                    starts.append(action)
                case AskModel(turn=turn, ask=ask):
                    self._attempts.note(TurnOpened(turn=turn, ask=ask), fact=False)
                    starts.append(action)
                case Await() | Stop():
                    return action, starts
                case Pause() | Finish():
                    if not self._lingers(action):
                        self._attempts.close(action)
                    return action, starts
                case _:
                    assert_never(action)

    def _intend(self, action: ForCall) -> None:
        """A dispatch is written down before the tool is entered, unless it has no effect or writes its own mark."""
        tool = self.agent.tools[action.call.planned.tool]
        if isinstance(action.move, Dispatch) and action.record and not tool.late:
            self._attempts.note(self._attempts.dispatched(action.call, action.attempt, action.move.because), fact=False)

    async def _rest(self, action: Action) -> bool:
        """All is started: wait for what is under way, or for its time, or leave. Return whether to leave."""
        if not self._inbox.empty():  # It came while the last commit was under way.
            await self._next_message(None)
            return False
        match action:
            case Await(until=until) if self._tasks or until is not None:
                return await self._wait(until, action.because)
            case Pause() if self._lingers(action):
                await self._next_message(self._linger_until)
                return False
            case Stop() if self._tasks:  # A person ended the run meanwhile: what is under way is heard, as evidence.
                await self._next_message(None)
                return False
            case _:
                return True

    def _lingers(self, action: Action) -> bool:
        """An unknown call whose thread still runs here is waited for a while: its late answer settles it."""
        if not (isinstance(action, Pause) and action.status is Status.UNKNOWN and self._strays) or self._leaving:
            return False
        now = self.journal.store.now()
        self._linger_until = self._linger_until or now + self.patience
        return now < self._linger_until

    @property
    def all_ended(self) -> bool:
        """Whether every attempt made here has ended: no thread of it can still send."""
        return not self._strays

    async def _wait(self, until: datetime | None, because: Rule) -> bool:
        if not self._tasks and until is not None and until - self.journal.store.now() > self.patience:
            self._attempts.close(Pause(Status.WAITING, because, until=until))
            return await self.journal.commit()  # False: mail came meanwhile, and the plan is asked again.
        await self._next_message(until)
        return False

    async def _next_message(self, until: datetime | None) -> None:
        """Take all messages that are there; wait for the first until then, looking at the mailbox meanwhile."""
        while self._inbox.empty():
            left = MAIL_LOOK_S
            if until is not None:
                left = min(left, (until - self.journal.store.now()).total_seconds())
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    message = await self._inbox.get()
            except TimeoutError:
                if await self.journal.has_mail():
                    await self.journal.drain_mail()
                    return
                if until is not None and self.journal.store.now() >= until:
                    return
            else:
                await self._take(message)
                break
        while not self._inbox.empty():
            await self._take(self._inbox.get_nowait())

    async def _take(self, message: Message) -> None:
        match message:
            case Ended(what=what, events=events, broken=broken):
                self._tasks.pop(what, None)
                if broken is not None:
                    raise broken
                for event in events:
                    await self._attempts.learn(event)
            case Late(event=event):
                await self._attempts.learn(event)
            case Mark():
                await self._mark(message)
            case _:
                assert_never(message)

    async def _mark(self, mark: Mark) -> None:
        """Write a late tool's dispatch, then look once more whether it may be sent."""
        if mark.answer.done():  # The attempt was cancelled while it waited.
            return
        call = self.journal.state.call(mark.call)
        licence = self._license(call, mark)
        refusal = licence if isinstance(licence, Refusal) else None
        if call is not None and isinstance(licence, Rule):
            self._attempts.note(self._attempts.dispatched(call, mark.attempt, licence, mark.request), fact=False)
            try:
                changed = not await self.journal.commit()
            except BaseException:
                if not mark.answer.done():  # The tool must not wait for a mark that will never come.
                    mark.answer.set_exception(DispatchRefused("the mark could not be written"))
                raise
            refusal = (
                Refusal("the run changed meanwhile")
                if changed
                else self._attempts.last_check(call, mark.attempt, licence)
            )
        if mark.answer.done():
            return
        if refusal is None:
            mark.answer.set_result(None)
        else:
            mark.answer.set_exception(DispatchRefused(refusal.why))

    def _license(self, call: CallState | None, mark: Mark) -> Rule | Refusal:
        """Return the rule under which a late tool may send now, or why it may not."""
        if call is None or call.outcome is not None or (mark.call, mark.attempt) not in self._tasks:
            return Refusal("this attempt is over")
        because = may_dispatch(self.journal.state, self._attempts.view, call, self.journal.store.now())
        if self.draining or because is None:
            return Refusal("the run may dispatch nothing now")
        if call.request and mark.request != call.request:
            return Refusal(f"this repeat would send another request ({mark.request}) than the first ({call.request})")
        return because

    def _start(self, action: ForCall | AskModel) -> None:
        """Begin what is durable by now."""
        match action:
            case AskModel(turn=turn, ask=ask):
                self._spawn(None, partial(self._ask_model, turn, ask))
            case ForCall(move=Ask(because=because)):
                self._spawn(action.call.id, partial(self._attempts.look_up, action.call, because))
            case ForCall():
                self._spawn((action.call.id, action.attempt), partial(self._attempt, action))

    def _spawn(self, what: Key, work: Work) -> None:
        self._tasks[what] = asyncio.create_task(self._report(what, work))

    async def _report(self, what: Key, work: Work) -> None:
        try:
            ended = Ended(what, await work())
        except Exception as error:  # noqa: BLE001 - a fault of our own: `drive` raises it, and does not wait for ever
            ended = Ended(what, (), error)
        except GeneratorExit as error:
            self._inbox.put_nowait(Ended(what, (), RuntimeError(f"{what} ended in {error!r}")))
            raise
        self._inbox.put_nowait(ended)

    async def _ask_model(self, turn: int, ask: int) -> tuple[Event, ...]:
        request = ModelRequest(
            turn=turn,
            instructions=self.agent.instructions,
            input=self._input,
            history=self.journal.history,
            tools=self.agent.specs,
        )
        asked_for, tries = self._asked
        self._asked = (turn, tries + 1 if asked_for == turn else 1)
        store, run_id = self.journal.store, self.journal.run_id
        tries = self._asked[1]
        return (await perform.ask_model(self.agent, request, ask=ask, tries=tries, store=store, run_id=run_id),)

    async def _attempt(self, action: ForCall) -> tuple[Event, ...]:
        call, tool = action.call, self.agent.tools[action.call.planned.tool]
        self._entered.add((call.id, action.attempt))
        terms = self._attempts.terms(call)
        marked = action.record and not tool.late
        refusal = self._attempts.last_check(call, action.attempt, action.move.because) if marked else None
        if refusal is not None:
            return (perform.not_sent(call.id, action.attempt, refusal.why, self.journal.store.now()),)
        sending = partial(self._sending, call.id, action.attempt) if tool.late else None
        ctx = self._attempts.context(tool, call, action.attempt, sending=sending)
        event = await perform.run_attempt(tool, ctx, terms, self.journal.store, self._late)
        if isinstance(event, AttemptEnded) and event.running:
            self._strays.add((call.id, action.attempt))
        return self._unmarked(action, tool, ctx, event)

    def _unmarked(self, action: ForCall, tool: Tool, ctx: Call, event: Event) -> tuple[Event, ...]:
        """A late attempt that was refused its mark is written down all the same, so that refusals are bounded too."""
        refused = isinstance(event, AttemptEnded) and event.ending is Ending.NOT_SENT
        if not (tool.late and refused and not ctx.marked):
            return (event,)
        because = action.move.because
        return self._attempts.dispatched(action.call, action.attempt, because), event

    async def _sending(self, call: str, attempt: int, request: str) -> None:
        """Ask the loop for the mark of a late tool."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait(Mark(call, attempt, request, answer))
        await answer

    def _late(self, event: Event) -> None:
        """Hear what came of a thread or child that outlived its attempt; once nobody drives, it is kept as evidence."""
        if isinstance(event, (Receipt, AttemptEnded, SenderReleased)) and not getattr(event, "running", False):
            self._strays.discard((event.call, event.attempt))
        if not self._left:
            self._inbox.put_nowait(Late(event))
            return
        posting = asyncio.ensure_future(self._post_late(event, patience_s=0.0))  # The store may be closed by now.
        self._posting.add(posting)
        posting.add_done_callback(self._posting.discard)

    async def _post_late(self, event: Event, *, patience_s: float | None = None) -> None:
        store, run_id, fence = self.journal.store, self.journal.run_id, self.journal.fence
        if isinstance(event, (Receipt, AttemptEnded, SenderReleased)):
            with contextlib.suppress(CounterfoilError):  # The store is closed, or the run is pruned: as after a crash.
                await post_evidence(store, run_id, fence, event, patience_s=patience_s)

    def _in_flight(self, starts: list[ForCall | AskModel]) -> InFlight:
        if not self._tasks and not starts:
            return NOTHING_IN_FLIGHT
        attempts = {what for what in self._tasks if isinstance(what, tuple)}
        lookups = {what for what in self._tasks if isinstance(what, str)}
        asking = None in self._tasks
        for start in starts:
            match start:
                case AskModel():
                    asking = True
                case ForCall(move=Ask()):
                    lookups.add(start.call.id)
                case ForCall():
                    attempts.add((start.call.id, start.attempt))
        return InFlight(attempts=frozenset(attempts), lookups=frozenset(lookups), asking=asking)

    async def _hand_over(self) -> None:
        """Another worker may own the run: nothing more is sent, but what is under way is heard and kept as evidence."""
        if (asking := self._tasks.pop(None, None)) is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        while self._tasks or not self._inbox.empty():
            await self._keep(await self._inbox.get(), patience_s=None)

    async def _give_up(self) -> None:
        """We were cancelled: end what is under way, write down what is known, and stand still."""
        self.draining = self._leaving = True
        await self._abandon_tasks()
        while not self._inbox.empty():
            await self._take(self._inbox.get_nowait())
        self._attempts.note(*self._never_entered())
        with contextlib.suppress(LeaseLost):
            for _ in range(3):
                _, starts = await self._plan()
                if await self.journal.commit() or starts:
                    return

    async def _keep(self, message: Message, *, patience_s: float | None) -> None:
        """We write no more: what a message brings is kept as evidence, and a late tool gets no mark."""
        match message:
            case Mark(answer=answer) if not answer.done():
                answer.set_exception(DispatchRefused("this worker may send nothing more"))
            case Ended(what=what, events=events):
                self._tasks.pop(what, None)
                for event in events:
                    await self._post_late(event, patience_s=patience_s)
            case Late(event=event):
                await self._post_late(event, patience_s=patience_s)
            case _:
                pass

    def _never_entered(self) -> list[Event]:
        """Attempts whose record became durable in the moment of the cancellation: nothing of them was sent."""
        failure = Failure(kind="Cancelled", message="cancelled before the tool was entered")
        return [
            AttemptEnded(call=call.id, attempt=attempt.number, ending=Ending.NOT_SENT, failure=failure)
            for call in self.journal.state.calls
            for attempt in call.open_attempts
            if attempt.fence == self.journal.fence and (call.id, attempt.number) not in self._entered
        ]

    async def _abandon_tasks(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks = {}
