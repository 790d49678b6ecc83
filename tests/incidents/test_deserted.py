"""A crash that nobody resumes is seen: the inbox lists the run, and says that its worker is dead."""

import asyncio

import counterfoil as cf
from counterfoil.runtime.inbox import Waiting, inbox
from tests.incidents.life import Bench


def test_a_run_that_nobody_advances_is_in_the_inbox_until_it_is_resumed(bench: Bench) -> None:
    async def listed() -> list[Waiting]:
        store = cf.open_store(bench.store)
        try:
            return await inbox(store)
        finally:
            await store.close()

    bench.live("one_mail", KILL="effect:mail")
    [deserted] = asyncio.run(listed())
    assert (deserted.run_id, deserted.status) == ("r1", "running")
    assert "is dead" in deserted.deserted
    bench.live("one_mail")
    [unknown] = asyncio.run(listed())
    assert (unknown.status, unknown.deserted) == ("unknown", "")
    assert [call.call for call in unknown.unknown] == ["1.1"]
