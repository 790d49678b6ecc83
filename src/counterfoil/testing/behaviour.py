"""How an endpoint of the reference provider behaves: well by default, and badly in every way that has a name here.

It must not do anything: the provider reads it and acts.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeGuard, get_args

FaultKind = Literal[
    "apply_late",
    "drop_response",
    "reset_before",
    "reset_after",
    "error_before",
    "error_after",
    "slow",
    "slow_before",
]
LONGEST_S = 3.2e9  # A hundred years: no clock of the standard library overflows before.


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What an endpoint does. The defaults are a provider that keeps its promises.

    A fault fires on requests for an effect (POST and PUT), whatever else is known of them: the answer of a replay is
    dropped, too. What fires for a while is measured by the provider's clock, so `ProviderProcess.advance` ends it.

    Args:
        honour_keys: one effect per key. Off: keys are ignored, as undocumented ones are. A PUT has no use for keys.
        key_window_s: how long a key is remembered, in seconds, counted from its effect; None: for ever.
        on_changed_arguments: a known key with other arguments: ``refuse`` (409), ``first`` (answer of the first) or
            ``run`` (a second effect).
        in_flight: a known key whose first request is still worked on: ``refuse`` (409) or ``wait``.
        cache_failures: a failed first answer is replayed to the same key.
        lookup_lag_s: how long after it is applied an effect becomes visible to lookups, in seconds.
        lookup: ``on``, ``off`` (404), ``error`` (500) or ``lie_absent`` (finds nothing); by reference and by id.
        client_ids: the body field ``id`` names the object; creating it twice conflicts (409).
        fault: what goes wrong; None: nothing.
            ``apply_late``: accepted, and applied `seconds` later, whoever is gone by then, the provider included.
            ``drop_response``: applied, then the connection is closed without an answer.
            ``reset_before``, ``reset_after``: the connection is reset and the effect is not applied, is applied.
            ``error_before``, ``error_after``: 500 is answered and the effect is not applied, is applied.
            ``slow``: applied at once, answered `seconds` later.
            ``slow_before``: applied and answered `seconds` later; unlike ``apply_late`` it dies with the provider.
        seconds: how long, for ``apply_late``, ``slow`` and ``slow_before``.
        times: on how many requests the fault fires, counted in the ledger; None: on all.
        late_answer: of ``apply_late``: ``drop`` closes the connection at once, ``hold`` answers when it is applied.

    Raises:
        ValueError: naming the field and what it may be.
    """

    honour_keys: bool = True
    key_window_s: float | None = 86400.0
    on_changed_arguments: Literal["refuse", "first", "run"] = "refuse"
    in_flight: Literal["refuse", "wait"] = "refuse"
    cache_failures: bool = False
    lookup_lag_s: float = 0.0
    lookup: Literal["on", "off", "error", "lie_absent"] = "on"
    client_ids: bool = False
    fault: FaultKind | None = None
    seconds: float = 1.0
    times: int | None = None
    late_answer: Literal["drop", "hold"] = "drop"

    def __post_init__(self) -> None:
        for name, (allowed, words) in _FIELDS.items():
            value = getattr(self, name)
            if not allowed(value):
                raise ValueError(f"{name}={reprlib.repr(value)} is not allowed; it is {words}")

    @classmethod
    def from_json(cls, body: Any) -> Behaviour:
        """Return the behaviour that a JSON object names; a field that is left out has its default.

        Raises:
            ValueError: naming the field and what it may be.
        """
        if not isinstance(body, dict):
            raise ValueError("a behaviour is a JSON object")  # noqa: TRY004 - one error type for all bad input
        known = [field.name for field in fields(cls)]
        for name in body:
            if name not in known:
                raise ValueError(f"unknown field {reprlib.repr(name)}; there are: {', '.join(sorted(known))}")
        return cls(**body)


_Rule = tuple[Callable[[object], bool], str]


def _choice(*choices: object) -> _Rule:
    return (lambda value: value in choices), "one of " + ", ".join(map(str, choices))


def _flag() -> _Rule:
    return (lambda value: isinstance(value, bool)), "true or false"


def is_span(value: object) -> TypeGuard[float]:
    """Return whether a value is a length of time in seconds: a number, finite, not negative, not absurd."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and 0 <= value <= LONGEST_S


def _span(*, none: bool = False) -> _Rule:
    words = f"a number from 0 to {LONGEST_S:g}" + (" or null" if none else "")
    return (lambda value: is_span(value) or (none and value is None)), words


def _times() -> _Rule:
    def check(value: object) -> bool:
        return value is None or (isinstance(value, int) and is_span(value))

    return check, "a whole number of at least 0, or null"


_FIELDS: dict[str, _Rule] = {
    "honour_keys": _flag(),
    "key_window_s": _span(none=True),
    "on_changed_arguments": _choice("refuse", "first", "run"),
    "in_flight": _choice("refuse", "wait"),
    "cache_failures": _flag(),
    "lookup_lag_s": _span(),
    "lookup": _choice("on", "off", "error", "lie_absent"),
    "client_ids": _flag(),
    "fault": _choice(None, *get_args(FaultKind)),
    "seconds": _span(),
    "times": _times(),
    "late_answer": _choice("drop", "hold"),
}
