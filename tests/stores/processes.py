"""Real second processes for the tests of the stores, and a clock that is ahead of theirs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from counterfoil.stores.clock import SystemClock

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """A process that runs `tests.stores.child`."""

    def __init__(self, path: Path, lease_s: float = 30) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.child", str(path), str(lease_s)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self.hear() == "ready"

    def ask(self, name: str, *args: Any, **named: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, [*args, named] if named else list(args)]) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the worker ended with {self._process.wait()}"
        return json.loads(line)

    def do(self, name: str, *args: Any, **named: Any) -> Any:
        self.ask(name, *args, **named)
        return self.hear()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        if self._process.poll() is None:
            self.go_on()
            self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def worker(path: Path, lease_s: float = 30) -> Iterator[Worker]:
    running = Worker(path, lease_s)
    try:
        yield running
    finally:
        running.end()


class AheadClock(SystemClock):
    """The machine's clocks, and more: what others see when time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_us = 0

    def advance(self, span: timedelta) -> None:
        self._ahead_us += span // timedelta(microseconds=1)

    def now_us(self) -> int:
        return super().now_us() + self._ahead_us

    def boottime_us(self) -> int:
        return super().boottime_us() + self._ahead_us
