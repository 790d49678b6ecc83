"""The kit's side of a fork server: start it, have a process forked, wait until it ends or stops.

It must not judge: it hands on what a process did as it stands in the witness's file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Self, TypeVar

import msgspec
from msgspec import Struct

from counterfoil.errors import DefinitionError
from counterfoil.testing.crash.child import Task
from counterfoil.testing.crash.server import Command, Ready, Setup, State

T = TypeVar("T", bound=Struct)


class ForkServer:
    """A fork server with one flow loaded.

    Args:
        setup: which flow.
        variables: of the environment, beside ours.

    Raises:
        DefinitionError: the flow cannot be loaded.
    """

    def __init__(self, setup: Setup, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "counterfoil.testing.crash.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
            start_new_session=True,  # Ctrl-C is ours to handle: the server ends when we close its stdin.
        )
        self._say(setup)
        self.ready = self._hear(Ready)
        if self.ready.problem:
            self.close()
            why = f"{setup.entry} cannot be loaded: {self.ready.problem}"
            raise DefinitionError(why, remedy="Mend it; nothing was run.")

    def fork(self, task: Task) -> State:
        """Have a task done; return when its process ends or stops."""
        return self._do(Command(task=task))

    def go_on(self, pid: int) -> State:
        """Wake a stopped process; return when it ends or stops again."""
        return self._do(Command(go_on=pid))

    def end(self, pid: int) -> State:
        """Kill a stopped process."""
        return self._do(Command(end=pid))

    def close(self) -> None:
        """End the server and every process of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _do(self, command: Command) -> State:
        self._say(command)
        return self._hear(State)

    def _say(self, what: Struct) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        self._process.stdin.flush()

    def _hear(self, kind: type[T]) -> T:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the fork server ended by itself; what it said stands on stderr")
        return msgspec.json.decode(line, type=kind)
