"""The fork server: it has imported everything once, and forks a process for each life, so that a life costs little.

It must open nothing that a child would share: stores, owner files and sockets are opened after the fork. One JSON
document a line comes in on stdin and goes out on what was stdout; prints of the flow go into the case's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from counterfoil.core.contracts import Keyed, Lookup, Read, Repeatable, lines
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.tools import Tool
from counterfoil.testing.crash import child, loading

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_NOBODY = "http://127.0.0.1:1/"


class Setup(Struct, frozen=True, kw_only=True):
    """What a server is told first.

    Args:
        entry: MODULE:FLOW or FILE.py:FLOW.
        prepare: the same for a function that each process calls before anything else; empty: none.
        path: where to look for modules.
        limit_s: how long a process may take before it is ended, with its stacks in the case's folder.
    """

    entry: str
    prepare: str = ""
    path: tuple[str, ...] = ()
    limit_s: float = 60.0


class Nature(Struct, frozen=True, kw_only=True):
    """What the judge must know of a tool.

    Args:
        contract: its name.
        effect: it is to leave one in the world.
        repeatable: it may do so again, with the same end state.
        late: it writes its dispatch mark itself.
        doubt_when_killed: its outcome may be unknown after a crash.
        doubt_when_frozen: its outcome may be unknown while its sender is frozen.
        remembered_s: how long the provider remembers its key.
    """

    contract: str
    effect: bool
    repeatable: bool = False
    late: bool = False
    doubt_when_killed: bool = False
    doubt_when_frozen: bool = False
    remembered_s: float | None = None


class Ready(Struct, frozen=True, kw_only=True):
    """The server's first answer."""

    name: str = ""
    tools: dict[str, Nature] = {}
    problem: str = ""
    trace: str = ""


class Command(Struct, frozen=True, kw_only=True):
    """Fork a process for a task, or let a stopped one go on, or end it; the answer comes when it ends or stops."""

    task: child.Task | None = None
    go_on: int = 0
    end: int = 0


class State(Struct, frozen=True, kw_only=True):
    """A process ended (``code``: an exit code, or minus the signal) or stopped (no code)."""

    pid: int
    code: int | None = None


def main() -> int:
    """Serve until stdin ends."""
    # On descriptors of our own, so that no flow and no child reads or writes between.
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    setup = msgspec.json.decode(incoming.readline(), type=Setup)
    try:
        flow, prepare = _load(setup)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a module raises, the kit is told
        _say(outgoing, Ready(problem=f"{type(error).__name__}: {error}", trace=traceback.format_exc()))
        return 2
    _say(outgoing, Ready(name=flow.name, tools={name: nature_of(tool) for name, tool in flow.tools.items()}))
    gc.collect()
    gc.freeze()
    return _serve(incoming, outgoing, Process(setup, flow, prepare))


def _load(setup: Setup) -> tuple[Agent, Callable[[], Any] | None]:
    sys.path[:] = [*setup.path, *(place for place in sys.path if place not in setup.path)]
    flow = loading.load_flow(setup.entry)
    _ = flow.manifest, flow.specs
    _warm()
    prepare: Callable[[], Any] | None = loading.load(setup.prepare) if setup.prepare else None
    return flow, prepare


def _warm() -> None:
    """Load what a first request and a first backoff load, so that no child pays for it: 300 ms each."""
    import httpx2  # noqa: PLC0415 - here and only here
    import tenacity  # noqa: F401, PLC0415 - the same

    from counterfoil.runtime import http  # noqa: PLC0415 - the same

    trusted = http._trusted()  # noqa: SLF001 - to fill its cache

    async def nobody_there() -> None:
        async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(verify=trusted)) as client:
            await client.get(_NOBODY)

    with contextlib.suppress(httpx2.HTTPError):
        asyncio.run(nobody_there())
    with contextlib.suppress(httpx2.HTTPError), httpx2.Client(transport=httpx2.HTTPTransport(verify=trusted)) as client:
        client.get(_NOBODY)


def _serve(incoming: BinaryIO, outgoing: BinaryIO, process: Process) -> int:
    alive: set[int] = set()
    try:
        while line := incoming.readline():
            command = msgspec.json.decode(line, type=Command)
            if command.task is not None:
                pid = process.fork(command.task)
            else:
                pid = command.go_on or command.end
                os.kill(pid, signal.SIGCONT if command.go_on else signal.SIGKILL)
            alive.add(pid)
            state = _await(pid)
            if state.code is not None:
                alive.discard(pid)
            _say(outgoing, state)
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return 0


def _await(pid: int) -> State:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return State(pid=pid)
    return State(pid=pid, code=os.waitstatus_to_exitcode(status))


def _say(outgoing: BinaryIO, answer: Struct) -> None:
    outgoing.write(msgspec.json.encode(answer) + b"\n")


class Process:
    """Forks the processes of one server."""

    def __init__(self, setup: Setup, flow: Agent, prepare: Callable[[], Any] | None) -> None:
        self._setup = setup
        self._flow = flow
        self._prepare = prepare
        self._prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None

    def fork(self, task: child.Task) -> int:
        """Return the pid of a process that does a task."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            code = self._run(task)
        finally:
            os._exit(code)  # Nothing of the server's is to be flushed, closed or run twice.

    def _run(self, task: child.Task) -> int:
        if self._prctl is not None:
            self._prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        output = os.open(Path(task.folder) / "output.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # A thread of C watches the time: a life that hangs ends with its stacks, and the matrix goes on.
        faulthandler.dump_traceback_later(self._setup.limit_s, exit=True)
        if self._prepare is not None:
            self._prepare()
        code = child.perform(task, self._flow)
        sys.stdout.flush()
        sys.stderr.flush()
        return code


def nature_of(tool: Tool) -> Nature:
    """Return what the judge must know of a tool."""
    first, lookup = lines(tool.contract)
    blind = lookup is None and tool.find is None and not isinstance(first, (Read, Repeatable))
    if isinstance(first, Keyed):
        blind = blind and first.remembered_for is None
    remembered = first.remembered_for if isinstance(first, Keyed) else None
    return Nature(
        contract=_contract_name(tool),
        effect=not isinstance(first, Read),
        repeatable=isinstance(first, Repeatable),
        late=tool.late,
        doubt_when_killed=blind,
        doubt_when_frozen=blind or isinstance(first, (Lookup, Repeatable)),
        remembered_s=remembered.total_seconds() if remembered is not None else None,
    )


def _contract_name(tool: Tool) -> str:
    first, lookup = lines(tool.contract)
    name = type(first).__name__
    return name if lookup is None or lookup is first else f"{name} | Lookup"


if __name__ == "__main__":
    sys.exit(main())
