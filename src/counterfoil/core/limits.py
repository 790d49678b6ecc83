"""What a run may spend, and what it has spent: a fold, so it adds up over all lives of the run.

It must not price anything: a model's adapter reports what a decision cost.
"""

from __future__ import annotations

import math

from msgspec import Struct

from counterfoil.errors import DefinitionError


def _check_amounts(owner: Struct) -> None:
    """A negative amount would give budget back, and what is no number is below every limit (and no JSON)."""
    for name in owner.__struct_fields__:
        value = getattr(owner, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise DefinitionError(f"{type(owner).__name__}({name}={value}) is not an amount of 0 or more")


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one decision cost.

    Args:
        input_tokens: as reported by the model's provider.
        output_tokens: as reported by the model's provider.
        usd: cost in US dollars, where the adapter knows it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    def __post_init__(self) -> None:
        _check_amounts(self)


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run may spend over all its lives; None is no limit.

    Args:
        turns: model decisions.
        calls: dispatched tool calls.
        tokens: input and output tokens together.
        usd: US dollars, as reported by the model's adapter.
    """

    turns: int | None = 100
    calls: int | None = None
    tokens: int | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        _check_amounts(self)


class Spent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run has spent so far."""

    turns: int = 0
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


def after_decision(spent: Spent, usage: Usage) -> Spent:
    """Return what is spent once a decision with this usage is saved."""
    return Spent(
        turns=spent.turns + 1,
        calls=spent.calls,
        tokens=spent.tokens + usage.input_tokens + usage.output_tokens,
        usd=round(spent.usd + usage.usd, 9),  # Binary fractions must not make three times 0.30 less than 0.90.
    )


def after_dispatch(spent: Spent) -> Spent:
    """Return what is spent once a call is first dispatched."""
    return Spent(turns=spent.turns, calls=spent.calls + 1, tokens=spent.tokens, usd=spent.usd)


def reached_before_ask(limits: Limits, spent: Spent) -> str | None:
    """Name the limit that forbids another model call, or None."""
    if limits.turns is not None and spent.turns >= limits.turns:
        return f"turns: {spent.turns} of {limits.turns} used"
    if limits.tokens is not None and spent.tokens >= limits.tokens:
        return f"tokens: {spent.tokens} of {limits.tokens} used"
    if limits.usd is not None and spent.usd >= limits.usd:
        return f"usd: {spent.usd:.4f} of {limits.usd:.4f} used"
    return None


def reached_before_dispatch(limits: Limits, spent: Spent) -> str | None:
    """Name the limit that forbids the first dispatch of another call, or None."""
    if limits.calls is not None and spent.calls >= limits.calls:
        return f"calls: {spent.calls} of {limits.calls} used"
    return None
