"""One life of a run in a process of its own: python child.py FLOW RUN_ID INPUT STORE. Prints how it ended as JSON.

KILL names the point at which it kills itself: `WHEN:WHAT` or `WHEN:WHAT:N`, the N-th time that point is crossed.
    entered:TOOL  effect:TOOL     in a tool, before and after its request
    lost:TOOL                     in a tool whose request brought no answer
    asked:TURN    replied:TURN    in the model, before and after its answer
    before:KINDS  after:KINDS     round a durable write that holds these events, joined by +
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

import counterfoil as cf
from counterfoil.stores.protocol import Appended, Entry, HeadChange, Refused, Store
from tests.incidents import flows, points


def watch_writes(store: Store) -> None:
    """Cross a point before and after every append."""
    append = store.append

    async def watched(
        run_id: str, *, fence: int, at: int, mail: int, entries: Sequence[Entry], head: HeadChange
    ) -> Appended | Refused:
        kinds = "+".join(entry.kind for entry in entries if entry.kind not in ("life_began", "sender_observed"))
        points.cross("before", kinds)
        answer = await append(run_id, fence=fence, at=at, mail=mail, entries=entries, head=head)
        points.cross("after", kinds)
        return answer

    store.append = watched  # type: ignore[method-assign]  # from outside: production code has no hooks


async def live(flow: str, run_id: str, given: Any, path: str) -> cf.RunResult:
    lease = timedelta(seconds=float(os.environ.get("LEASE_S", "30")))
    store = cf.open_store(path, lease=lease)
    watch_writes(store)
    try:
        return await cf.arun(getattr(flows, flow)(), given, run_id=run_id, store=store, patience=timedelta(seconds=20))
    finally:
        await store.close()


def main() -> int:
    flow, run_id, given, path = sys.argv[1:]
    try:
        result = asyncio.run(live(flow, run_id, given, path))
    except cf.CounterfoilError as error:
        print(msgspec.json.encode({"error": error.code, "message": str(error)}).decode())
        return error.exit_code
    print(msgspec.json.encode(result).decode())
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
