"""What `counterfoil bench` runs in processes of its own: a run that is killed when it is long, and the life after it.

    python -m counterfoil.testing.speed_child grow FOLDER TURNS[,TURNS...]   prints CPU marks, ends by SIGKILL
    python -m counterfoil.testing.speed_child resume STORE TURN              prints when the first new call was entered
    python -m counterfoil.testing.speed_child hello STORE                    prints its CPU and peak memory

It must not import more than a user's own program would: its start is measured.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import counterfoil as cf
from counterfoil.testing import workload

WINDOW = 10
"""The CPU of a turn is the mean over the last tenth of the turns so far, so that one slow turn says nothing."""


def grow(folder: Path, lengths: list[int]) -> None:
    """Drive one run, keep a copy of the store at each length, and die at the last."""
    store = folder / "run.db"
    began: dict[int, float] = {}
    marks = {length - length // WINDOW: length for length in lengths}

    def wanted(turn: int) -> bool:
        done = turn - 1
        if done == 0:
            _copy(store, folder / "0.db")
        if done in marks:
            began[marks[done]] = time.process_time()
        if done in lengths:
            cpu_ms = (time.process_time() - began[done]) * 1000 / (done // WINDOW)
            _copy(store, folder / f"{done}.db")
            _say(done, cpu_ms)
        if done == lengths[-1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    cf.run(workload.turns_flow(wanted), "go", run_id="long", store=store)


def _copy(store: Path, to: Path) -> None:
    import sqlite3  # noqa: PLC0415 - the store brings it; this process must not load it earlier than a user's would

    whole, copy = sqlite3.connect(store), sqlite3.connect(to)
    whole.backup(copy)
    copy.execute("UPDATE runs SET owner = ''")  # Given up: the proof of a death belongs to one file, not to its copies.
    copy.commit()
    whole.close()
    copy.close()


def resume(store: Path, turn: int) -> None:
    """Continue a run whose process was killed, and end as suddenly at its first new call."""

    def entered(at: int) -> None:
        _say(time.monotonic(), time.process_time(), at == turn)
        os._exit(0)

    cf.resume(workload.turns_flow(lambda _: True, workload.step_tool(entered=entered)), "long", store=store)


def hello(store: Path) -> None:
    """Make a run of one turn, as small a program as there is."""
    result = cf.run(workload.turns_flow(lambda turn: turn <= 1), "hello", run_id="hello", store=store)
    _say(time.process_time() * 1000, peak_mb(), result.status)


def _say(*facts: object) -> None:
    sys.stdout.write(" ".join(str(fact) for fact in facts) + "\n")
    sys.stdout.flush()


def peak_mb() -> float:
    """Return the most memory that this process ever held; `ru_maxrss` would count its parent's, too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    lines = status.read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def main(words: list[str]) -> None:
    """Do what the words say."""
    match words:
        case ["grow", folder, lengths]:
            grow(Path(folder), sorted(int(length) for length in lengths.split(",")))
        case ["resume", store, turn]:
            resume(Path(store), int(turn))
        case ["hello", store]:
            hello(Path(store))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
