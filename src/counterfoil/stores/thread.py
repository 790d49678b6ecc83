"""A thread that belongs to an open store, and that its owner can wait for without blocking an event loop.

It must not outlive its owner: whoever starts it stops and joins it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


class OwnedThread:
    """Runs a function in a daemon thread; `join` may be awaited from any event loop, and several times."""

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        finally:
            with self._lock:
                self.ended = True
            for loop, future in self._waiting:
                with contextlib.suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(_wake, future)

    async def join(self) -> None:
        """Return when the function has returned."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self.ended:
                future.set_result(None)
            else:
                self._waiting.append((loop, future))
        await future
        self._thread.join()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
