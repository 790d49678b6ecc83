"""How long and how often: backoff by `tenacity`, in one place.

It must not decide whether a call may be repeated: it only spaces what was decided.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TypeVar

from counterfoil.errors import StoreUnavailable

T = TypeVar("T")

STORE_PATIENCE_S = 30.0
"""How long, in seconds, a write is tried again while the store is locked, full or gone."""


async def insist(action: Callable[[], Awaitable[T]], *, patience_s: float | None = None) -> T:
    """Do something with the store; while it is unavailable, try again for a while, then raise what it raised last.

    A repeated append sends identical bytes, and the store knows them again, so this cannot write twice.
    """
    try:
        return await action()
    except StoreUnavailable:
        from tenacity import (  # noqa: PLC0415 - 30 ms, paid when something is wrong
            AsyncRetrying,
            retry_if_exception_type,
            stop_after_delay,
            wait_exponential,
            wait_random,
        )

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=stop_after_delay(STORE_PATIENCE_S if patience_s is None else patience_s),
            wait=wait_exponential(multiplier=0.05, max=2.0) + wait_random(0, 0.05),
            reraise=True,
        )

        async def again() -> T:  # tenacity awaits only what it can see to be a coroutine function, and no lambda
            return await action()

        return await retrying(again)


def next_try(now: datetime, tries: int) -> datetime:
    """Return when a provider may be asked again after so many tries: 0.2 s doubling to 30 s, with jitter."""
    from tenacity import RetryCallState, wait_exponential, wait_random  # noqa: PLC0415 - paid when something failed

    wait = wait_exponential(multiplier=0.2, max=30.0) + wait_random(0, 0.2)
    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]  # a wait only reads the attempt number
    state.attempt_number = max(1, tries)
    return now + timedelta(seconds=wait(state))
