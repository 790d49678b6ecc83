"""The workload of `counterfoil bench` on other durable engines, each between two measurements of the disk's own rate.

    python benchmarks/peers.py unhinged [--dir D] [--steps 1000] [--runs 100]

It runs where the peer is installed; counterfoil need not be. A step is one journaled call: 200 B of JSON in, 500 B out,
every payload different. What is reported was read back from the peer's own file. A new peer is one class in `PEERS`.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Protocol

ARGUMENT_BYTES, RESULT_BYTES = 200, 500
AT_ONCE = 50
STEPS_OF_MANY = 3
_FILLER = "0123456789abcdef" * 40


def payload(number: int, size: int) -> str:
    """Return a JSON text's worth of bytes that no other number has."""
    return f"{number:012d}{_FILLER[number % 16 :]}"[: size - 11]


def step(number: int, arguments: dict[str, str]) -> dict[str, str]:
    """Do what the tool does: answer."""
    assert arguments["text"] == payload(number, ARGUMENT_BYTES)
    return {"back": payload(number, RESULT_BYTES)}


class Peer(Protocol):
    """What a peer must be able to do."""

    rows: str

    def __init__(self, path: str) -> None: ...
    def one(self, steps: int) -> None: ...
    def many(self, runs: int, steps: int) -> None: ...


class Unhinged:
    """unhinged 0.2: Absurd's engine on SQLite; one commit a step, no group commit."""

    rows = "SELECT count(*) FROM c_bench"

    def __init__(self, path: str) -> None:
        from unhinged import Unhinged as Engine

        self._engine = Engine(path, queue_name="bench")

        @self._engine.register_task("flow")
        def flow(params: dict[str, int], context: Any) -> int:
            for number in range(params["steps"]):
                arguments = {"text": payload(number, ARGUMENT_BYTES)}
                context.step(f"step-{number}", lambda number=number, arguments=arguments: step(number, arguments))
            return params["steps"]

    def one(self, steps: int) -> None:
        self._engine.spawn("flow", {"steps": steps})
        self._engine.work_batch(claim_timeout=120)

    def many(self, runs: int, steps: int) -> None:
        for _ in range(runs):
            self._engine.spawn("flow", {"steps": steps})
        self._engine.start_worker(concurrency=AT_ONCE, poll_interval=0.01, stop_when_idle=True)


class Dura:
    """dura 1.3 (Python 3.13): checkpoints in SQLite; one commit a step, no group commit."""

    rows = "SELECT count(*) FROM checkpoints"

    def __init__(self, path: str) -> None:
        from dura import DurableEngine

        self._engine = DurableEngine(path)

    @staticmethod
    def _flow(engine: Any, task: Any) -> int:
        for number in range(task.params["steps"]):
            arguments = {"text": payload(number, ARGUMENT_BYTES)}
            engine.checkpoint(
                task_id=task.task_id,
                step_name=f"step-{number}",
                fn=lambda number=number, arguments=arguments: step(number, arguments),
            )
        return int(task.params["steps"])

    def one(self, steps: int) -> None:
        from dura.workers import process_task

        self._engine.spawn_task(name="flow", params={"steps": steps})
        task = self._engine.claim_task(worker_id="one", timeout_secs=120)
        process_task(self._engine, handlers={"flow": self._flow}, task=task, worker_id="one")

    def many(self, runs: int, steps: int) -> None:
        from dura.workers import run_worker

        for _ in range(runs):
            self._engine.spawn_task(name="flow", params={"steps": steps})
        before = self._engine.task_counts_by_state().get("completed", 0)
        stop = threading.Event()
        options = {"handlers": {"flow": self._flow}, "stop_event": stop, "poll_interval": 0.01}
        names = [f"worker-{number}" for number in range(AT_ONCE)]
        workers = [
            threading.Thread(target=run_worker, args=(self._engine,), kwargs={**options, "worker_id": name})
            for name in names
        ]
        for worker in workers:
            worker.start()
        while self._engine.task_counts_by_state().get("completed", 0) < before + runs:
            time.sleep(0.01)
        stop.set()
        for worker in workers:
            worker.join()


PEERS: dict[str, type[Peer]] = {"unhinged": Unhinged, "dura": Dura}


def raw(folder: Path, seconds: float = 0.5) -> float:
    """Return single-row durable commits a second, of the bytes of one step."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    body, count, begun = bytes(ARGUMENT_BYTES + RESULT_BYTES), 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        connection.execute("INSERT INTO rows (body) VALUES (?)", (body,))
        count += 1
    connection.close()
    return count / (time.perf_counter() - begun)


def measure(peer: type[Peer], folder: Path, steps: int, runs: int) -> None:
    """Print both workloads, each between two raw rates."""
    path = folder / "peer.db"
    engine = peer(str(path))
    engine.one(20)
    for name, work, count in (
        (f"one run of {steps} steps", lambda: engine.one(steps), steps),
        (f"{runs} runs, {AT_ONCE} at once", lambda: engine.many(runs, STEPS_OF_MANY), runs * STEPS_OF_MANY),
    ):
        known, before = rows(path, peer.rows), raw(folder)
        cpu, begun = time.process_time(), time.perf_counter()
        work()
        elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
        stored, after = rows(path, peer.rows) - known, raw(folder)
        assert stored == count, f"{stored} steps were stored, not {count}"
        ratio = 2 * count / elapsed / (before + after)
        cpu_ms = used / count * 1000
        print(f"{name:28} {count / elapsed:8,.0f} steps/s   {ratio:5.2f} of raw   {cpu_ms:.3f} ms CPU a step")


def rows(path: Path, query: str) -> int:
    """Return how many steps the peer's file holds."""
    connection = sqlite3.connect(path)
    count = connection.execute(query).fetchone()[0]
    connection.close()
    return int(count)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--dir", default=".")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        measure(PEERS[options.peer], Path(folder), options.steps, options.runs)


if __name__ == "__main__":
    main()
