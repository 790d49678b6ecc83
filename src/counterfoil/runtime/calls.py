"""What a tool is handed besides its arguments: the call, its key, and the ways to send under it.

It must not decide whether to send: `sending` asks the loop, which asks the plan.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from counterfoil.core.keys import KeyStyle
from counterfoil.errors import DispatchRefused

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")


class Found(Struct, Generic[T], frozen=True):
    """A lookup's answer: our effect is there, with this result. Only what carries our key or reference is ours.

    ``matches``: you have compared it with `Call.arguments`, and it is of this very request. Only after a restored
    backup, or with ``verify_first``, does anything depend on it.
    """

    value: T
    matches: bool = False


class Several(Struct, Generic[T], frozen=True):
    """A lookup's answer: more than one effect carries our key; oldest first. The oldest settles the call."""

    values: tuple[T, ...]


class Absent(Struct, frozen=True):
    """A lookup's answer: not there, as far as the provider shows. Whether that is proof is decided elsewhere."""


class CannotTell(Struct, frozen=True):
    """A lookup's answer: the provider's answer proves neither."""

    why: str = ""


Sending = Callable[[str], Awaitable[None]]


class Call:
    """One attempt of a call, as its tool or lookup sees it.

    Attributes:
        run_id: the run.
        id: the call's name inside the run, ``"turn.position"``.
        key: the idempotency key in the provider's form: the same for every attempt, in every life of the run.
        attempt: from 1. For a lookup, the number of attempts so far.
        fence: hand it to systems that refuse older writers.
        arguments: as decided by the model and checked against the tool's types.
        deadline: when this attempt is given up (store time).
        asks_only: this is handed to a lookup, which sends nothing that has an effect.
        marked: whether the dispatch mark is durable: from the start, unless the tool is ``late``.
        sent: unsafe requests that may have left through `http`.
        first_sent_at: store time of the first dispatch, or None.
        repeat: an earlier attempt may have had its effect.
    """

    def __init__(
        self,
        *,
        run_id: str,
        id: str,  # noqa: A002 - the word that users type
        key: str,
        attempt: int,
        fence: int,
        arguments: Mapping[str, Any],
        deadline: datetime,
        first_sent_at: datetime | None,
        repeat: bool,
        style: KeyStyle | None,
        timeout_s: float,
        sending: Sending | None,
        asks_only: bool,
        loop: asyncio.AbstractEventLoop | None,
        owner_fd: int | None,
    ) -> None:
        self.run_id = run_id
        self.id = id
        self.key = key
        self.attempt = attempt
        self.fence = fence
        self.arguments = dict(arguments)
        self.deadline = deadline
        self.first_sent_at = first_sent_at
        self.repeat = repeat
        self._style = style
        self._timeout_s = timeout_s
        self._sending = sending
        self._loop = loop
        self._owner_fd = owner_fd
        self._clients: list[Any] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._over = False
        self.asks_only = asks_only
        self.marked = sending is None
        self.sent = 0

    def sending(self, request_digest: str = "") -> Any:
        """Say that the bytes are about to leave. A tool with ``dispatch="late"`` calls this directly before it sends.

        The mark is durable when this returns, and the lease, deadline and key window have been checked last.
        Await it in an async tool; in a sync tool just call it.

        Args:
            request_digest: a digest of what is sent, so that a repeat of something else is refused.

        Raises:
            DispatchRefused: it may not be sent now. Do not catch it.
        """
        if self._loop is None:
            return self._mark(request_digest)
        asyncio.run_coroutine_threadsafe(self._mark(request_digest), self._loop).result()
        return None

    async def _mark(self, request_digest: str) -> None:
        if self._over:
            raise DispatchRefused("this attempt is over")
        if self._sending is None or self.marked:
            return
        try:
            await self._sending(request_digest)
        except DispatchRefused:
            self._over = True
            raise
        if self._over:  # The deadline passed while the mark was being written.
            raise DispatchRefused("this attempt is over")
        self.marked = True

    def close(self) -> None:
        """End the attempt: from here on nothing of it is sent through here."""
        self._over = True

    @property
    def refused(self) -> bool:
        """Whether the attempt is over, or was refused its mark, before anything could leave."""
        return self._over and not self.marked

    @cached_property
    def http(self) -> Any:
        """An `httpx2.AsyncClient` (in a sync tool an `httpx2.Client`) for this attempt.

        It puts the key where the contract says, keeps the attempt's timeout, makes no retries and follows no redirects,
        and writes the dispatch mark of a late tool directly before an unsafe request leaves. A connection that cannot
        be made raises `NotApplied`, unless something was sent through here before. A lookup's client adds nothing.
        """
        from counterfoil.runtime import http  # noqa: PLC0415 - httpx2 costs 80 ms, paid by those who use it

        client = http.client_for(self)
        self._clients.append(client)
        return client

    def spawn(self, args: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a child process that counts as part of this attempt: it inherits our owner lock.

        While it runs, our death is not proven, so nothing is dispatched a second time behind its back.

        Args:
            args: the command.
            options: for `subprocess.Popen`.

        Raises:
            DispatchRefused: this attempt is over. Do not catch it.
        """
        if self._over:
            raise DispatchRefused("this attempt is over")
        fds = () if self._owner_fd is None else (self._owner_fd,)
        fds = (*options.pop("pass_fds", ()), *fds)
        child = subprocess.Popen(args, pass_fds=fds, **options)  # noqa: S603 - what to start is the tool's to say
        self._children.append(child)
        return child

    @property
    def children(self) -> tuple[subprocess.Popen[bytes], ...]:
        """Processes of this attempt that still run."""
        return tuple(child for child in self._children if child.poll() is None)

    def close_clients(self) -> None:
        """Close what `http` opened in a thread, in that thread."""
        for client in self._clients:
            client.close()

    async def aclose_clients(self) -> None:
        """Close what `http` opened on the event loop."""
        for client in self._clients:
            await client.aclose()

    @property
    def is_sync(self) -> bool:
        """Whether the tool runs in a thread."""
        return self._loop is not None

    @property
    def style(self) -> KeyStyle | None:
        """How the provider wants the key."""
        return self._style

    @property
    def timeout_s(self) -> float:
        """The attempt's timeout, in seconds."""
        return self._timeout_s


def request_digest(request: httpx2.Request) -> str:
    """Return a digest of what makes two requests the same: method, address and body; never credentials."""
    parts = f"{request.method} {request.url.copy_with(userinfo=b'')}\n".encode() + request.content
    return hashlib.sha256(parts).hexdigest()[:32]
