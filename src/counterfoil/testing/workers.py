"""Workers on one place, under one clock that only the case moves: what a case of the conformance suite is given.

It must not know what a store is made of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from counterfoil.core.events import Recorded, Status, TurnOpened
from counterfoil.stores.protocol import Head, Refused, Store
from counterfoil.testing.clock import ManualClock
from counterfoil.testing.journals import Pen

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)

Make = Callable[[ManualClock, timedelta], Store]


class Workers:
    """Opens stores on one place, each a worker of its own, under one clock.

    Args:
        make: returns an open store, given the clock and the length of its lease.
    """

    def __init__(self, make: Make) -> None:
        self._make = make
        self._open: list[Store] = []
        self.clock = ManualClock()

    def open(self) -> Store:
        """Return another worker."""
        self._open.append(self._make(self.clock, LEASE))
        return self._open[-1]

    async def close(self) -> None:
        """Close them all."""
        for store in self._open:
            await store.close()


Case = Callable[[Workers], Awaitable[None]]


async def snapshot(store: Store, run_id: str) -> tuple[Head, list[Recorded]]:
    """Return all of a run that an append could change."""
    head = await store.head(run_id)
    assert isinstance(head, Head)
    return head, await store.events(run_id)


async def refused(pen: Pen, why: str) -> None:
    """Check that a pen's next write is refused for this reason, and leaves no trace."""
    before = await snapshot(pen.store, pen.run_id)
    answer = await pen.write(TurnOpened(turn=99), TurnOpened(turn=100), status=Status.FAILED)
    assert isinstance(answer, Refused), f"a write that must be refused ({why}) was taken"
    assert answer.why == why, f"refused for {answer.why}, not for {why}"
    assert await snapshot(pen.store, pen.run_id) == before, "a refused write left something behind"
    assert answer.head == before[0]
