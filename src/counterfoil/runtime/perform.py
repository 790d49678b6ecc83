"""Every side effect of the library, one function each: ask the model, run an attempt, ask a lookup, look at a sender.

Each returns events: facts, in the order in which they became known. It must not append, and it must not decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from counterfoil.core.contracts import Read, Terms, Transactional, lines
from counterfoil.core.events import (
    NO_JSON,
    Answer,
    AskFailed,
    AttemptEnded,
    Decided,
    Ending,
    Event,
    Failure,
    IncidentRaised,
    LookedUp,
    PlannedCall,
    Proof,
    Receipt,
    Rejected,
    SenderObserved,
    SenderReleased,
    Unstored,
)
from counterfoil.core.keys import KeyStyle, mint, render
from counterfoil.core.limits import Usage
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState
from counterfoil.errors import AlreadyExists, DispatchRefused, ModelError
from counterfoil.runtime.calls import Absent, Call, CannotTell, Found, Several
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.model import Decision, ModelRequest, ToolCall
from counterfoil.runtime.patience import next_try
from counterfoil.runtime.tools import Tool
from counterfoil.runtime.values import failure_of, storable
from counterfoil.stores.protocol import Store

MODEL_ASKS = 4
"""How often the model is asked for one decision in one life before the run waits."""


async def ask_model(
    agent: Agent, request: ModelRequest, *, ask: int, tries: int, store: Store, run_id: str
) -> Decided | AskFailed:
    """Ask for a turn's decision and plan its calls: keys are minted with the decision.

    ``ask`` is the number of this question over all lives, ``tries`` in this one.
    """
    try:
        decision = checked(await agent.model.decide(request))
        return plan_calls(agent, decision, request.turn, store, run_id)
    except BaseException as error:  # Whatever it was, no decision was given.
        if ends_the_process(error) or isinstance(error, SystemExit) or cancelled_from_outside(error):
            raise
        retryable = error.retryable if isinstance(error, ModelError) else isinstance(error, OSError)
        again = retryable and tries < MODEL_ASKS
        retry_at = next_try(store.now(), tries) if again else None
        return AskFailed(turn=request.turn, ask=ask, failure=failure_of(error), retryable=retryable, retry_at=retry_at)


def cancelled_from_outside(error: BaseException) -> bool:
    """Tell whether an error is our own cancellation, and not one that leaked out of the code that we called."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def ends_the_process(error: BaseException) -> bool:
    """Tell whether an error is meant for the process: Ctrl-C, or the end of an event loop that was given up."""
    return isinstance(error, (KeyboardInterrupt, GeneratorExit))


def checked(answer: object) -> Decision:
    """Return what a model gave, if it is a decision that a journal can hold and can be read from again.

    Raises:
        ModelError: it is not, and asking again does not help.
    """
    if not isinstance(answer, Decision):
        raise _nonsense(f"{type(answer).__name__}, not a Decision")
    _check_types("Decision", answer, text=(str,), calls=(tuple, list), usage=(Usage,))
    _check_types("Usage", answer.usage, input_tokens=(int,), output_tokens=(int,), usd=(int, float))
    for call in answer.calls:
        if not isinstance(call, ToolCall):
            raise _nonsense(f"a call of type {type(call).__name__}, not a ToolCall")
        _check_types("ToolCall", call, name=(str,), arguments=(str,), id=(str,))
    return answer


def _check_types(owner: str, value: object, **types: tuple[type, ...]) -> None:
    for name, allowed in types.items():
        field = getattr(value, name)
        if not isinstance(field, allowed) or isinstance(field, bool):
            raise _nonsense(f"{owner}.{name} of type {type(field).__name__}, not {allowed[0].__name__}")


def _nonsense(what: str) -> ModelError:
    return ModelError(f"the model returned {what}", retryable=False)


def plan_calls(agent: Agent, decision: Decision, turn: int, store: Store, run_id: str) -> Decided:
    """Return a decision as it is journaled: every call in its place, with its key, and what can never be dispatched."""
    calls = tuple(
        _plan(agent, call, turn, position, store, run_id) for position, call in enumerate(decision.calls, start=1)
    )
    raw = NO_JSON if decision.raw is None else Raw(msgspec.json.encode(decision.raw))
    return Decided(turn=turn, text=storable(decision.text), calls=calls, usage=decision.usage, raw=raw)


def _plan(agent: Agent, call: ToolCall, turn: int, position: int, store: Store, run_id: str) -> PlannedCall:
    tool = agent.tools.get(call.name)
    style = (tool.style if tool else None) or KeyStyle()
    key = render(mint(store.namespace, run_id, "", turn, position), style)
    arguments, invalid = _arguments(call.arguments)
    if tool is None:
        known = ", ".join(sorted(agent.tools)) or "none"
        invalid = Failure(kind="UnknownTool", message=f"there is no tool {call.name!r}; there are: {known}")
    elif invalid is None:
        invalid = tool.refusal(call.arguments)
    return PlannedCall(
        position=position,
        tool=storable(call.name),
        arguments=arguments,
        key=key,
        alias=storable(call.id),
        invalid=invalid,
    )


def _arguments(text: str) -> tuple[Raw, Failure | None]:
    """Return the arguments exactly as given; text that is no JSON is kept as a JSON string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        kept = msgspec.json.encode(storable(text))
        return Raw(kept), Failure(kind="MalformedArguments", message=f"the arguments are no JSON: {error}")
    return Raw(text.encode()), None


async def run_attempt(tool: Tool, call: Call, terms: Terms, store: Store, late: Callable[[Event], None]) -> Event:
    """Enter the tool once and say how it ended.

    Args:
        tool: the tool.
        call: what it is handed.
        terms: what the call is sent under.
        store: for its clock.
        late: told what comes of a thread or child process that outlives the attempt.

    Returns:
        A receipt, or how the attempt ended. Only a tool that says so (`NotApplied`, its declared exceptions), or one
        that never reached its own dispatch mark, is taken at its word that nothing happened.
    """
    thread: Thread | None = None
    try:
        async with asyncio.timeout(call.timeout_s):
            if tool.is_async:
                value = await tool.function(**_with_call(tool, call))
            else:
                thread = Thread(lambda: _enter(tool, call), f"counterfoil-{call.run_id}-{call.id}")
                value = await thread.result()
    except TimeoutError as error:
        message = str(error) or f"no answer within {terms.bounds.timeout}"
        ended = _over(tool, call, terms, store, Failure(kind="TimeoutError", message=message))
    except BaseException as error:  # It proves nothing, whatever it derives from: a Rust panic is no `Exception`.
        if ends_the_process(error):
            raise
        outside = cancelled_from_outside(error)
        ended = _cancelled(tool, call, terms) if outside else ending_of(tool, call, terms, store, error)
    else:
        ended = receipt_of(tool, call, value)
    call.close()
    if tool.is_async:
        with contextlib.suppress(Exception, asyncio.CancelledError):  # The outcome is known, whatever comes of this.
            await call.aclose_clients()
    if _reads(terms):
        return ended
    if thread is not None and thread.watch(lambda future: _thread_ended(tool, call, terms, store, future, late)):
        return _running(ended)
    return _running(ended) if _watch_children(call, late) else ended


def _enter(tool: Tool, call: Call) -> Any:
    """Run a sync tool, in its thread."""
    try:
        value = tool.function(**_with_call(tool, call))
    finally:
        call.close_clients()
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(f"tool {tool.name} is no async function, but returned something to await: nothing ran it")
    return value


def _running(ended: Event) -> Event:
    return replace(ended, running=True) if isinstance(ended, AttemptEnded) else ended


def _thread_ended(
    tool: Tool, call: Call, terms: Terms, store: Store, future: asyncio.Future[Any], late: Callable[[Event], None]
) -> None:
    """Report what a thread that outlived its deadline came to."""
    error = future.exception()
    ended = receipt_of(tool, call, future.result()) if error is None else ending_of(tool, call, terms, store, error)
    late(_running(ended) if _watch_children(call, late) else ended)


def _watch_children(call: Call, late: Callable[[Event], None]) -> bool:
    """Report the end of child processes that outlived their attempt; return whether there are any."""
    children = call.children
    if not children:
        return False
    waiting = Thread(lambda: [child.wait() for child in children], f"counterfoil-children-{call.run_id}-{call.id}")
    return waiting.watch(lambda _: late(SenderReleased(call=call.id, attempt=call.attempt)))


def not_sent(call: str, attempt: int, why: str, now: datetime) -> AttemptEnded:
    """Return how an attempt ended that was refused before anything left; it is tried again a little later."""
    failure = Failure(kind="DispatchRefused", message=why)
    retry_at = next_try(now, attempt)
    return AttemptEnded(call=call, attempt=attempt, ending=Ending.NOT_SENT, failure=failure, retry_at=retry_at)


def receipt_of(tool: Tool, call: Call, value: Any) -> Event:
    """Return the receipt of an attempt that returned; a result that cannot be stored is a fact all the same."""
    if call.refused:
        return AttemptEnded(call=call.id, attempt=call.attempt, ending=Ending.NOT_SENT)
    stored = tool.result.dump(value)
    result, unstored = (NO_JSON, stored) if isinstance(stored, Unstored) else (stored, None)
    proof = Proof.REPEAT if call.repeat else Proof.RESPONSE
    return Receipt(call=call.id, proof=proof, attempt=call.attempt, result=result, unstored=unstored)


def ending_of(tool: Tool, call: Call, terms: Terms, store: Store, error: BaseException) -> Event:
    """Return how an attempt ended that raised."""
    failure = failure_of(error)
    if call.refused:
        return AttemptEnded(call=call.id, attempt=call.attempt, ending=Ending.NOT_SENT, failure=failure)
    if tool.proves_not_applied(error):
        return AttemptEnded(call=call.id, attempt=call.attempt, ending=Ending.NOT_APPLIED, failure=failure)
    if isinstance(error, AlreadyExists):
        retry_at = next_try(store.now(), call.attempt)
        return AttemptEnded(
            call=call.id, attempt=call.attempt, ending=Ending.EXISTS, failure=failure, retry_at=retry_at
        )
    return _over(tool, call, terms, store, failure)


def _cancelled(tool: Tool, call: Call, terms: Terms) -> Event:
    """Return how an attempt ended that we cancelled ourselves: it may be made again, where its contract permits."""
    failure = Failure(kind="Cancelled", message="cancelled in mid-call")
    unsent = tool.late and not call.marked
    ending = Ending.NOT_SENT if unsent and not _reads(terms) else Ending.UNSURE
    return AttemptEnded(call=call.id, attempt=call.attempt, ending=ending, failure=failure)


def _reads(terms: Terms) -> bool:
    return isinstance(lines(terms.contract)[0], Read)


def _over(tool: Tool, call: Call, terms: Terms, store: Store, failure: Failure) -> Event:
    """Return how an attempt ended that brought no answer."""
    if _reads(terms):
        return Rejected(call=call.id, because=Rule.READ_FAILED, failure=failure)
    if tool.late and not call.marked:
        return AttemptEnded(call=call.id, attempt=call.attempt, ending=Ending.NOT_APPLIED, failure=failure)
    retry_at = next_try(store.now(), call.attempt)
    return AttemptEnded(call=call.id, attempt=call.attempt, ending=Ending.UNSURE, failure=failure, retry_at=retry_at)


def _with_call(tool: Tool, call: Call) -> dict[str, Any]:
    return {**call.arguments, "call": call} if tool.takes_call else call.arguments


class Thread:
    """A sync function in a thread of its own. It cannot be stopped, so a deadline leaves it running, and it is watched.

    It is a daemon: where the process must end, it ends as in a crash, and its call is recovered by its contract.
    """

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._body,), name=name, daemon=True).start()

    async def result(self) -> Any:
        """Wait for it; being cancelled does not stop it."""
        return await asyncio.shield(self._ended)

    def watch(self, late: Callable[[asyncio.Future[Any]], None]) -> bool:
        """Report its end, if that is still to come; return whether it is."""
        if self._ended.done():
            return False
        self._ended.add_done_callback(late)
        return True

    def _body(self) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._function()
        except BaseException as caught:  # noqa: BLE001 - SystemExit in a thread ends the tool, not the worker
            # A future refuses a StopIteration, the commonest of all from `next(...)`.
            hands_over = isinstance(caught, (Exception, DispatchRefused)) and not isinstance(caught, StopIteration)
            error = caught if hands_over else RuntimeError(f"the tool raised {type(caught).__name__}")
        with contextlib.suppress(RuntimeError):  # the loop is gone: as in a crash, the contract decides
            self._loop.call_soon_threadsafe(self._end, value, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        if self._ended.cancelled():
            return
        if error is None:
            self._ended.set_result(value)
        else:
            self._ended.set_exception(error)


async def look_up(tool: Tool, call: Call, state: CallState, terms: Terms, because: Rule, store: Store) -> LookedUp:
    """Ask the tool's lookup once. A lookup that failed is not a lookup that found nothing."""
    asked_at = store.now()
    try:
        async with asyncio.timeout(terms.bounds.timeout.total_seconds()):
            said = await _ask(tool, call)
    except BaseException as error:  # It did not answer.
        if ends_the_process(error) or cancelled_from_outside(error):
            raise
        failure = failure_of(error)
        return _looked(state, Answer.FAILED, asked_at, because, store, note=f"{failure.kind}: {failure.message}")
    match said:
        case Found(value=value, matches=matches):
            return _found(tool, state, Answer.FOUND, value, asked_at, because, matches=matches is True)
        case Several(values=[_, *_] as values):
            note = f"{len(values)} found"
            return _found(tool, state, Answer.SEVERAL, values[0], asked_at, because, note=note)
        case Absent():
            return _looked(state, Answer.ABSENT, asked_at, because, store)
        case CannotTell(why=why):
            return _looked(state, Answer.CANNOT_TELL, asked_at, because, store, note=storable(str(why)))
        case _:
            note = f"the lookup returned {type(said).__name__}, not Found, Several, Absent or CannotTell"
            return _looked(state, Answer.FAILED, asked_at, because, store, note=note)


async def _ask(tool: Tool, call: Call) -> Any:
    find = tool.find
    assert find is not None
    if not inspect.iscoroutinefunction(find):
        return await Thread(lambda: _find(find, call), f"counterfoil-lookup-{call.run_id}-{call.id}").result()
    try:
        return await find(call)
    finally:
        await call.aclose_clients()


def _find(find: Callable[[Call], Any], call: Call) -> Any:
    try:
        return find(call)
    finally:
        call.close_clients()


def _found(
    tool: Tool,
    state: CallState,
    answer: Answer,
    value: Any,
    asked_at: datetime,
    because: Rule,
    *,
    matches: bool = False,
    note: str = "",
) -> LookedUp:
    stored = tool.result.dump(value)
    result, unstored = (NO_JSON, stored) if isinstance(stored, Unstored) else (stored, None)
    return LookedUp(
        call=state.id,
        answer=answer,
        asked_at=asked_at,
        because=because,
        matches=matches,
        result=result,
        unstored=unstored,
        note=note,
    )


def _looked(
    state: CallState, answer: Answer, asked_at: datetime, because: Rule, store: Store, note: str = ""
) -> LookedUp:
    # An answer is no failure, so what it licenses need not wait: a life with less patience than one backoff would ask,
    # wait, and ask anew for ever. Only a conflict that cannot be found is asked about again, at a distance.
    answered = answer is Answer.ABSENT and not state.exists
    retry_at = None if answered else next_try(store.now(), state.asks + 1)
    return LookedUp(
        call=state.id, answer=answer, asked_at=asked_at, because=because, note=note[:1000], retry_at=retry_at
    )


def settle(state: CallState, because: Rule) -> tuple[Event, ...]:
    """Return the receipt that a finding is; of several the oldest settles, and the rest is an incident."""
    terms = state.terms
    row = terms is not None and isinstance(lines(terms.contract)[0], Transactional)
    proof = Proof.TRANSACTION if row else Proof.LOOKUP
    receipt = Receipt(call=state.id, proof=proof, result=state.found, unstored=state.found_unstored, because=because)
    if because is not Rule.SEVERAL:
        return (receipt,)
    return receipt, IncidentRaised(call=state.id, what="the lookup found more than one effect under one key")


def reject(state: CallState, because: Rule) -> Rejected:
    """Return how a call is settled that certainly changed nothing."""
    failure = state.planned.invalid or state.refused
    if because in (Rule.ABSENT_PROVEN, Rule.REPEATS_USED_UP) or failure is None:
        failure = Failure(kind="NotApplied", message=f"it did not happen ({because.says})")
    return Rejected(call=state.id, because=because, failure=failure)


async def observe(store: Store, fence: int, incarnation: str) -> SenderObserved:
    """Look whether the process that held a fence still lives."""
    seen = await store.observe(incarnation)
    return SenderObserved(sender=fence, proof=seen.proof, detail=seen.detail)
