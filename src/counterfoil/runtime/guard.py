"""`guard`: the same core for one function, without an agent: a script, a web handler, a queue's job.

It must not be a second engine: it is a flow whose decision is known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Raw, Struct

from counterfoil.core.events import Failure, Receipt, Recorded, Rejected, Status, Unstored
from counterfoil.core.rules import Rule
from counterfoil.errors import DefinitionError
from counterfoil.runtime.agent import PATIENCE, RunResult, StoreLike, arun, blocking, use_store
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.model import Decision, ModelRequest, ToolCall
from counterfoil.runtime.tools import Tool


class Guarded(Struct, frozen=True, kw_only=True):
    """What became of a guarded call.

    Args:
        run_id: the run.
        status: ``completed``: it is settled. ``unknown``: a person must settle it. ``waiting``: call again later.
        value: what the tool returned, in its declared type, in this life or an earlier one.
        error: why it was certainly not done.
        because: why it stands still.
        note: the same for people.
    """

    run_id: str
    status: Status
    value: Any = None
    error: Failure | None = None
    because: Rule | None = None
    note: str = ""

    @property
    def done(self) -> bool:
        """Whether the effect is there."""
        return self.status is Status.COMPLETED and self.error is None


class _OneCall:
    """The decision that is known beforehand."""

    def __init__(self, tool: str) -> None:
        self._tool = tool

    def describe(self) -> Mapping[str, str]:
        return {"model": "guard"}

    async def decide(self, request: ModelRequest) -> Decision:
        if request.turn > 1:
            return Decision()
        arguments = msgspec.json.encode(request.input).decode()
        return Decision(calls=(ToolCall(name=self._tool, arguments=arguments),))


def guard_flow(tool: Tool) -> Agent:
    """Return the flow that makes one call of a tool; its input is the arguments."""
    return Agent(f"guard:{tool.name}", version="1", model=_OneCall(tool.name), tools=[tool])


async def aguard(
    run_id: str,
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    store: StoreLike = None,
    patience: timedelta = PATIENCE,
) -> Guarded:
    """Make one call that is safe to try again: the same run id never makes a second effect that the contract forbids.

    Args:
        run_id: what makes the call the same one: an order number, a message id.
        tool: made with `tool`.
        arguments: by name, JSON values. The same id with other arguments is refused.
        store: an open store, or a path or URL.
        patience: how far away a due time may be to wait for it here.

    Returns:
        What became of it. Nothing is raised for unknown or waiting.

    Raises:
        DefinitionError: the arguments do not fit the tool, or a result stored long ago does not fit its type any more.
        InputMismatch: the id is known, with other arguments.
        RunOwned: another live worker makes this call now.
    """
    try:
        refusal = tool.refusal(msgspec.json.encode(dict(arguments)).decode())
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"the arguments of {tool.name} are no JSON values: {error}") from error
    if refusal is not None:
        raise DefinitionError(refusal.message, remedy="Pass the arguments that the tool's type hints name.")
    async with use_store(store) as opened:
        result = await arun(guard_flow(tool), dict(arguments), run_id=run_id, store=opened, patience=patience)
        if result.status is not Status.COMPLETED or result.note == "pruned":
            return _guarded(result)
        match settled_by(await opened.events(run_id)):
            case Receipt(unstored=Unstored(why=why)):
                return _guarded(result, note=f"done; its result could not be stored: {why}")
            case Receipt(result=stored):
                return _guarded(result, value=_loaded(tool, stored))
            case Rejected(failure=failure):
                return _guarded(result, error=failure)
            case None:
                return _guarded(result)


def settled_by(events: Iterable[Recorded]) -> Receipt | Rejected | None:
    """Return what settled the one call of a tool's run, or None."""
    kinds = (Receipt, Rejected)
    return next((one.event for one in events if isinstance(one.event, kinds) and one.event.call == "1.1"), None)


def _loaded(tool: Tool, stored: Raw) -> Any:
    try:
        return tool.result.load(stored)
    except ValueError as error:
        raise DefinitionError(
            f"the stored result of {tool.name} does not fit its declared type any more: {error}",
            remedy="The call is done and is not made again; read its result with `counterfoil show`.",
        ) from error


def guard(
    run_id: str,
    tool: Tool,
    arguments: Mapping[str, Any],
    *,
    store: StoreLike = None,
    patience: timedelta = PATIENCE,
) -> Guarded:
    """Do what `aguard` does, from code without an event loop. Arguments, result and errors are the same."""
    return blocking(aguard, run_id, tool, arguments, store=store, patience=patience)


def _guarded(result: RunResult, *, value: Any = None, error: Failure | None = None, note: str = "") -> Guarded:
    return Guarded(
        run_id=result.run_id,
        status=result.status,
        value=value,
        error=error,
        because=result.because,
        note=note or result.note,
    )
