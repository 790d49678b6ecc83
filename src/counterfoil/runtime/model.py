"""What a model is to the loop: something that is asked for one decision, with the whole history at hand.

It must not retry, and it must not run tools. Adapters live in `counterfoil.models`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from counterfoil.core.limits import Usage


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model is told of it: ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class ToolCall(Struct, frozen=True, kw_only=True, gc=False):
    """A call that the model asks for.

    Args:
        name: the tool.
        arguments: JSON text exactly as the model gave it; it may be malformed.
        id: the provider's own id for it. An alias: it may be empty or repeat.
    """

    name: str
    arguments: str
    id: str = ""


class Decision(Struct, frozen=True, kw_only=True):
    """A model's answer, whole.

    Args:
        text: what it said.
        calls: what it asks for; none ends the run.
        usage: what it cost.
        raw: the provider's message as JSON, whole (reasoning blocks and signatures too), or None.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    raw: Any = None


class ToolResult(Struct, frozen=True, kw_only=True, gc=False):
    """What the model is told of a settled call: ``content`` is JSON text, or an error's text."""

    call: ToolCall
    content: str
    error: bool = False


class Exchange(Struct, frozen=True, kw_only=True, gc=False):
    """A past decision and what became of its calls, in their order. Every call has its result."""

    decision: Decision
    results: tuple[ToolResult, ...]


class ModelRequest(Struct, frozen=True, kw_only=True):
    """All that a model is asked with.

    Args:
        turn: from 1.
        instructions: of the flow.
        input: of the run; a JSON value.
        history: past exchanges, oldest first. It grows in place: do not keep it.
        tools: what may be called.
    """

    turn: int
    instructions: str
    input: Any
    history: Sequence[Exchange]
    tools: Sequence[ToolSpec]


class Model(Protocol):
    """A model. ``describe`` names it and its settings for the flow's fingerprint, without secrets."""

    def describe(self) -> Mapping[str, str]:
        """Return name and settings, as text."""
        ...

    async def decide(self, request: ModelRequest) -> Decision:
        """Ask once. Raises `counterfoil.errors.ModelError` where the provider gave no decision."""
        ...
