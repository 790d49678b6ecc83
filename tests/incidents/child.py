"""One life of a run in a process of its own: python child.py FLOW RUN_ID INPUT STORE. Prints how it ended as JSON.

FLOW is a function in `flows`, or MODULE:FUNCTION. TROUBLE names a file that gets a line for each write that fails.

KILL names the point at which it kills itself: `WHEN:WHAT` or `WHEN:WHAT:N`, the N-th time that point is crossed.
    entered:TOOL  effect:TOOL     in a tool, before and after its request
    lost:TOOL                     in a tool whose request brought no answer
    asked:TURN    replied:TURN    in the model, before and after its answer
    before:KINDS  after:KINDS     round a durable write that holds these events, joined by +
"""

import asyncio
import importlib
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

import counterfoil as cf
from counterfoil.stores.protocol import Appended, Entry, HeadChange, Refused, Store
from counterfoil.stores.sqlite import SqliteStore
from tests.incidents import points


def watch_writes(store: Store) -> None:
    """Cross a point before and after every append."""
    append = store.append

    async def watched(
        run_id: str, *, fence: int, at: int, mail: int, entries: Sequence[Entry], head: HeadChange
    ) -> Appended | Refused:
        kinds = "+".join(entry.kind for entry in entries if entry.kind not in ("life_began", "sender_observed"))
        points.cross("before", kinds)
        try:
            answer = await append(run_id, fence=fence, at=at, mail=mail, entries=entries, head=head)
        except cf.CounterfoilError as error:
            note_trouble(f"{error.code} {kinds}")
            raise
        points.cross("after", kinds)
        return answer

    store.append = watched  # type: ignore[method-assign]  # from outside: production code has no hooks


def note_trouble(line: str) -> None:
    if trouble := os.environ.get("TROUBLE"):
        with Path(trouble).open("a") as log:
            log.write(line + "\n")


async def live(flow: str, run_id: str, given: Any, path: str) -> cf.RunResult:
    lease = timedelta(seconds=float(os.environ.get("LEASE_S", "30")))
    busy = timedelta(seconds=float(os.environ.get("BUSY_S", "5")))
    store = SqliteStore(path, lease=lease, busy_timeout=busy)
    watch_writes(store)
    module, _, name = flow.rpartition(":")
    agent = getattr(importlib.import_module(module or "tests.incidents.flows"), name)()
    try:
        return await cf.arun(agent, given, run_id=run_id, store=store, patience=timedelta(seconds=20))
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
