"""The journal knows what time it was: a clock set back between two lives does not reopen a provider's window."""

from datetime import timedelta
from pathlib import Path

import counterfoil as cf
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.clock import ManualClock
from tests.runtime.outside import agent


async def test_a_key_that_was_forgotten_in_one_life_is_not_known_again_in_the_next(tmp_path: Path) -> None:
    entered: list[int] = []
    clock = ManualClock()

    @cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=1)))
    async def send() -> None:
        """Send."""
        entered.append(1)
        if len(entered) == 1:
            clock.advance(timedelta(hours=3))
        raise ConnectionResetError

    store = SqliteStore(tmp_path / "store.db", clock=clock, lease=timedelta(days=1))
    first = await cf.arun(agent(send), 1, run_id="r1", store=store)
    clock.set_wall_back(timedelta(hours=3))
    second = await cf.arun(agent(send), 1, run_id="r1", store=store)
    await store.close()
    assert (first.status, second.status, len(entered)) == (cf.Status.UNKNOWN, cf.Status.UNKNOWN, 1)
