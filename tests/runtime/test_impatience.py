"""A worker that waits for nothing must get on all the same: what one life waited for, the next must not owe again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import counterfoil as cf


async def test_an_absent_effect_is_sent_at_once_however_short_the_patience(tmp_path: Path) -> None:
    sent = []

    @cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=1), lookup_first=True))
    async def create(title: str, *, call: cf.Call) -> str:
        """Create something."""
        sent.append(call.key)
        return title

    @create.lookup
    async def find(call: cf.Call) -> cf.Absent:
        return cf.Absent()

    script = [{"calls": [{"name": "create", "arguments": {"title": "a"}}]}, {"text": "Done."}]
    agent = cf.Agent("desk", version="1", model=cf.ScriptedModel(script), tools=[create])
    store = cf.open_store(tmp_path / "store.db")
    try:
        async with cf.open_run(agent, None, run_id="r", store=store) as run:

            async def ask() -> cf.Decision:
                call = cf.ToolCall(name="create", arguments='{"title": "a"}')
                return cf.Decision(calls=(call,))

            await run.decide(1, "", ask)
            assert isinstance(await run.claim("1.1"), cf.Go), "dispatched, and left without a word"
        result = await cf.arun(agent, None, run_id="r", store=store, patience=timedelta(0))
        assert (result.status, len(sent)) == (cf.Status.COMPLETED, 1)
    finally:
        await store.close()
