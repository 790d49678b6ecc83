"""A second process with a store of its own: does what it is told, line by line, and answers in JSON.

python -m tests.stores.child PATH [LEASE_S]
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

from counterfoil.errors import CounterfoilError
from counterfoil.stores.protocol import Claimed, Owned
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.journals import Pen, fresh


class Child:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.pens: dict[str, Pen] = {}

    async def fresh(self, run_id: str) -> Any:
        """Start and claim a run."""
        self.pens[run_id] = await fresh(self.store, run_id)
        return {"fence": self.pens[run_id].fence, "incarnation": self.store.lease.incarnation}

    async def claim(self, run_id: str) -> Any:
        answer = await self.store.claim(run_id)
        if isinstance(answer, Claimed):
            self.pens[run_id] = Pen(self.store, answer.head)
            return {"fence": answer.head.fence, "previous": answer.previous, "proof": answer.proof}
        assert isinstance(answer, Owned)
        return {"owned": answer.owner, "proof": answer.proof}

    async def release(self, run_id: str) -> Any:
        await self.store.release(run_id, fence=self.pens[run_id].fence)
        return None

    async def write(self, run_id: str, count: int) -> Any:
        for _ in range(count):
            await self.pens[run_id].note(self.pens[run_id].position)
        return self.pens[run_id].position

    async def write_for_ever(self, run_id: str) -> Any:
        """Write until killed; say how far it has come, each time it is durable."""
        while True:
            await self.write(run_id, 1)
            say(self.pens[run_id].position)

    def fork(self) -> Any:
        """Fork a child that touches nothing of ours and lives until it is killed."""
        pid = os.fork()
        if pid == 0:
            while True:
                signal.pause()
        return pid

    def fork_and_act(self, run_id: str) -> Any:
        """Fork a child that acts as if it were us, then comes to an ordinary end."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, json.dumps(in_fork(self, run_id)).encode())
            os.close(write)
            sys.stdin.close()
            sys.exit(0)  # Not os._exit: what Python takes down at its end must do no harm either.
        os.close(write)
        answer = b""
        while more := os.read(read, 4096):
            answer += more
        return {**json.loads(answer), "status": os.waitpid(pid, 0)[1]}

    def popen(self, *, inherit: bool) -> Any:
        """Start an ordinary program that outlives us: it does not hold our lock, unless it is handed on."""
        fd = self.store.lease.owner_fd
        assert fd is not None
        program = [sys.executable, "-S", "-c", "import signal; print('up', flush=True); signal.pause()"]
        process = subprocess.Popen(
            program, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, pass_fds=(fd,) if inherit else ()
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process.pid

    async def close(self, *, attempts_ended: bool = True) -> Any:
        await self.store.close(attempts_ended=attempts_ended)
        return None


def in_fork(child: Child, run_id: str) -> dict[str, Any]:
    fd = child.store.lease.owner_fd
    assert fd is not None
    alive = child.store.lease.alive()
    errors = []
    for attempt in (child.write(run_id, 1), child.store.claim(run_id), child.store.head(run_id)):
        try:
            run_alone(attempt)
        except CounterfoilError as error:
            errors.append(f"{error.code}: {error.message} {error.remedy}")
    try:
        os.fstat(fd)
    except OSError:
        closed = True
    else:
        closed = False
    run_alone(child.store.close())
    return {"alive": alive, "errors": errors, "closed": closed}


def run_alone(work: Any) -> Any:
    """Run a coroutine that needs no event loop: one that is refused before it waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    # Each command has an event loop of its own, and a fork has none: a child that closed its copy of a running loop
    # would take that loop's wake-ups from its parent.
    path, lease_s = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    child = Child(SqliteStore(path, lease=timedelta(seconds=lease_s)))
    say("ready")
    for line in sys.stdin:
        name, args = json.loads(line)
        named = args.pop() if args and isinstance(args[-1], dict) else {}
        answer = getattr(child, name)(*args, **named)
        say(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)


if __name__ == "__main__":
    main()
