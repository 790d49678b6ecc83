"""The one place where tests wait by looking again: for what another process does, and nothing would tell."""

import asyncio
import inspect
import time
from collections.abc import Callable

LONGEST_S = 60.0
LOOK_S = 0.01


def until(condition: Callable[[], object], what: str) -> None:
    """Return once something holds. A deadline that is reached is a failure and no measurement."""
    ends = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < ends, f"waited {LONGEST_S:.0f} s in vain: {what}"
        time.sleep(LOOK_S)


async def until_async(condition: Callable[[], object], what: str) -> None:
    """The same, on an event loop that goes on meanwhile; the condition may be async, too."""
    ends = time.monotonic() + LONGEST_S
    while not (await found if inspect.isawaitable(found := condition()) else found):
        assert time.monotonic() < ends, f"waited {LONGEST_S:.0f} s in vain: {what}"
        await asyncio.sleep(LOOK_S)
