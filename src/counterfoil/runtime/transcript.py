"""What the model is told: the saved decision as it was, and each call's settled outcome in words that claim no more.

It must not tell a story: only settled calls appear, and "failed" is never said of an effect that may have happened.
"""

from __future__ import annotations

import msgspec

from counterfoil.core.events import Decided, PlannedCall, Proof
from counterfoil.core.state import CallState, Outcome
from counterfoil.runtime.model import Decision, Exchange, ToolCall, ToolResult


def exchange(decided: Decided, calls: tuple[CallState, ...]) -> Exchange:
    """Return a turn whose calls are all settled, as a model is told of it."""
    return Exchange(decision=decision_of(decided), results=tuple(result_of(call) for call in calls))


def decision_of(decided: Decided) -> Decision:
    """Return a saved decision, whole."""
    return Decision(
        text=decided.text,
        calls=tuple(_call(planned) for planned in decided.calls),
        usage=decided.usage,
        raw=msgspec.json.decode(decided.raw) if decided.raw else None,
    )


def result_of(call: CallState) -> ToolResult:
    """Return what the model is told of one settled call."""
    outcome = call.outcome
    if outcome is None:
        raise AssertionError(f"call {call.id} is not settled")
    told = _call(call.planned)
    if outcome.kind == "abandoned":
        return ToolResult(call=told, content="Nobody knows whether it was done: a person gave it up.", error=True)
    if outcome.failure is not None:
        return ToolResult(call=told, content=f"{outcome.failure.kind}: {outcome.failure.message}", error=True)
    return ToolResult(call=told, content=_content(outcome))


def _content(outcome: Outcome) -> str:
    if outcome.unstored is not None:
        lost = outcome.unstored
        return f"Done. Its result could not be stored ({lost.why}; {lost.size} bytes, sha256 {lost.sha256})."
    if outcome.result:
        return bytes(outcome.result).decode()
    if outcome.proof is Proof.OPERATOR:
        return "Done; a person confirmed it. There is no result."
    return "null"


def _call(planned: PlannedCall) -> ToolCall:
    arguments = bytes(planned.arguments).decode()
    if planned.invalid is not None and planned.invalid.kind == "MalformedArguments":
        arguments = msgspec.json.decode(planned.arguments)  # kept as a JSON text, since it was no JSON
    return ToolCall(name=planned.tool, arguments=arguments, id=planned.alias)
