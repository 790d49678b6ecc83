"""Where the CPU of one record goes: the loop, SQLite, and a hop between two threads. In memory, so no sync counts.

    python benchmarks/where_the_cpu_goes.py [--turns 3000]

Run it on one core too (`taskset -c 0 python ...`): the difference is the price of waking a thread on another core.
"""

from __future__ import annotations

import argparse
import asyncio
import queue
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from counterfoil.runtime.agent import arun
from counterfoil.stores.protocol import Appended, Entry, HeadChange, Refused
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing import speed
from counterfoil.testing.workload import turns_flow


class Forgetful(SqliteStore):
    """A store that says yes at once and keeps nothing: what is left is the loop."""

    asked = 0

    async def append(
        self, run_id: str, *, fence: int, at: int, mail: int, entries: Sequence[Entry], head: HeadChange
    ) -> Appended | Refused:
        self.asked += 1
        return Appended(position=entries[-1].position)


async def loop_alone(folder: Path, turns: int) -> float:
    """Return the CPU of a record without its commit, in microseconds."""
    store = Forgetful(folder / "forgetful.db")
    flow = turns_flow(lambda turn: turn <= turns)
    await arun(turns_flow(lambda turn: turn <= speed.WARM_UP), "warm", run_id="warm", store=store)
    store.asked = 0
    begun = time.process_time()
    await arun(flow, "go", run_id="r", store=store)
    used = time.process_time() - begun
    await store.close()
    return used / store.asked * 1e6


async def hop(times: int) -> float:
    """Return the CPU of handing nothing to a thread and waiting for its answer, in microseconds."""
    loop = asyncio.get_running_loop()
    handed: queue.SimpleQueue[asyncio.Future[None] | None] = queue.SimpleQueue()

    def answer() -> None:
        while (future := handed.get()) is not None:
            loop.call_soon_threadsafe(future.set_result, None)

    thread = threading.Thread(target=answer)
    thread.start()
    begun = time.process_time()
    for _ in range(times):
        future = loop.create_future()
        handed.put(future)
        await future
    used = time.process_time() - begun
    handed.put(None)
    thread.join()
    return used / times * 1e6


def main() -> None:
    """Measure each part three times and print the least."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3000)
    turns = parser.parse_args().turns
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    parts: dict[str, list[float]] = {}
    for _ in range(3):
        with speed.folder(memory) as folder:
            size = speed.record_bytes(folder)
            parts.setdefault("a record, whole", []).append(speed.one_run(folder, turns / 3000).cpu_ms * 1000)
            parts.setdefault("the loop alone", []).append(asyncio.run(loop_alone(folder, turns)))
            raw = speed.raw_commits(folder, 0.5, size)
            parts.setdefault("a raw commit of as many bytes", []).append(raw.cpu_ms * 1000)
            parts.setdefault("a hop to a thread and back", []).append(asyncio.run(hop(turns)))
    for name, found in parts.items():
        print(f"{name:32} {min(found):7.1f} microseconds of CPU")


if __name__ == "__main__":
    main()
