"""The wrappers that cross windows: round a store, a flow's model, its tools and lookups, and the bytes of `call.http`.

It must not change what is wrapped: everything is passed on as it came. It runs in a forked child only, so that it may
put its wrappers where the originals were.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from counterfoil.core.codec import decode
from counterfoil.core.events import TurnOpened
from counterfoil.core.mail import Evidence, decode_item
from counterfoil.runtime.calls import Call
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.model import Decision, Model, ModelRequest
from counterfoil.runtime.tools import Tool
from counterfoil.stores.protocol import (
    Appended,
    Claimed,
    Entry,
    Head,
    HeadChange,
    Owned,
    Refused,
    Store,
    Tombstone,
)
from counterfoil.testing.crash.windows import Windows, about_append, about_call, words
from counterfoil.testing.crash.witness import Acknowledged, Asked, AskRaised, Handed, Left, Opened, Witness

T = TypeVar("T")


class WatchedStore:
    """A store that crosses a window before and after each durable write. All else is the store's own.

    Args:
        store: the store.
        windows: crossed.
        witness: told what the store said to be durable.
    """

    def __init__(self, store: Store, windows: Windows, witness: Witness) -> None:
        self._store = store
        self._windows = windows
        self._witness = witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def start(self, head: Head, first: Entry) -> Head | Tombstone:
        """Write a run's head and first event."""
        return await self._around("start", lambda: self._store.start(head, first))

    async def claim(self, run_id: str) -> Claimed | Owned | None:
        """Take the run."""
        return await self._around("claim", lambda: self._store.claim(run_id))

    async def append(
        self, run_id: str, *, fence: int, at: int, mail: int, entries: Sequence[Entry], head: HeadChange
    ) -> Appended | Refused:
        """Write events."""
        name, events = about_append(entries), [decode(entry.body) for entry in entries]
        self._windows.cross(f"{name} before")
        for event in events:
            if isinstance(event, TurnOpened):
                self._witness.write(Opened(turn=event.turn))
        answer = await self._store.append(run_id, fence=fence, at=at, mail=mail, entries=entries, head=head)
        if isinstance(answer, Appended):
            self._witness.write(Acknowledged(events=tuple(words(event) for event in events)))
        self._windows.cross(f"{name} after")
        return answer

    async def post(self, run_id: str, item_id: str, body: bytes) -> int:
        """Put an item into a run's mailbox."""
        item = decode_item(body)
        what = f"evidence {item.fact.call}" if isinstance(item, Evidence) else type(item).__name__.lower()
        return await self._around(f"post[{what}]", lambda: self._store.post(run_id, item_id, body))

    async def release(self, run_id: str, *, fence: int) -> None:
        """Give the run up."""
        await self._around("release", lambda: self._store.release(run_id, fence=fence))

    async def close(self, *, attempts_ended: bool = True) -> None:
        """Release what is held and close."""
        await self._around("close", lambda: self._store.close(attempts_ended=attempts_ended))

    async def _around(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        self._windows.cross(f"{name} before")
        answer = await work()
        self._windows.cross(f"{name} after")
        return answer


class WatchedModel:
    """A model whose asks are counted outside; it crosses a window before the ask, and one before its reply is saved."""

    def __init__(self, model: Model, windows: Windows, witness: Witness) -> None:
        self._model = model
        self._windows = windows
        self._witness = witness

    def describe(self) -> Mapping[str, str]:
        """Say what the model says of itself."""
        return self._model.describe()

    async def decide(self, request: ModelRequest) -> Decision:
        """Ask once."""
        self._windows.cross(f"model[turn {request.turn}] before")
        self._witness.write(Asked(turn=request.turn, told=_errors(request)), sync=True)
        try:
            decision = await self._model.decide(request)
        except Exception:
            self._witness.write(AskRaised(turn=request.turn))
            raise
        self._windows.cross(f"model[turn {request.turn}] after")
        return decision


def _errors(request: ModelRequest) -> dict[str, str]:
    """Return what the model hears of the last turn's calls, where that is an error."""
    if not request.history:
        return {}
    results = enumerate(request.history[-1].results, start=1)
    return {f"{request.turn - 1}.{place}": result.content for place, result in results if result.error}


def watch_flow(flow: Agent, windows: Windows, witness: Witness) -> None:
    """Wrap a flow's model and tools where they are."""
    _ = flow.manifest, flow.specs  # They are read from the bare functions, so before those are wrapped.
    flow.model = WatchedModel(flow.model, windows, witness)
    names: dict[str, str] = {}
    for tool in flow.tools.values():
        tool.function = _watched_tool(tool, windows, witness, names)
        tool.takes_call = True
        if tool.find is not None:
            tool.find = _watched_lookup(tool, tool.find, windows)
    if "httpx2" in sys.modules:
        _watch_http(names, windows)


def _watched_tool(tool: Tool, windows: Windows, witness: Witness, names: dict[str, str]) -> Callable[..., Any]:
    function, takes_call = tool.function, tool.takes_call

    def enter(call: Call) -> str:
        names[call.id] = tool.name
        window = about_call("tool", tool.name, call.id, call.attempt)
        given = msgspec.json.encode(call.arguments, enc_hook=str).decode()
        handed = Handed(call=call.id, tool=tool.name, key=call.key, attempt=call.attempt, arguments=given)
        witness.write(handed)
        windows.cross(f"{window} before")
        return window

    def leave(window: str, call: Call, error: BaseException | None) -> None:
        witness.write(Left(call=call.id, error="" if error is None else type(error).__name__))
        windows.cross(f"{window} after")

    def given(call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
        return {**arguments, "call": call} if takes_call else arguments

    @functools.wraps(function)
    async def later(*, call: Call, **arguments: Any) -> Any:
        window = enter(call)
        try:
            value = await function(**given(call, arguments))
        except BaseException as error:
            leave(window, call, error)
            raise
        leave(window, call, None)
        return value

    @functools.wraps(function)
    def at_once(*, call: Call, **arguments: Any) -> Any:
        window = enter(call)
        try:
            value = function(**given(call, arguments))
        except BaseException as error:
            leave(window, call, error)
            raise
        leave(window, call, None)
        return value

    return later if tool.is_async else at_once


def _watched_lookup(tool: Tool, find: Callable[[Call], Any], windows: Windows) -> Callable[[Call], Any]:
    @functools.wraps(find)
    async def later(call: Call) -> Any:
        window = about_call("lookup", tool.name, call.id)
        windows.cross(f"{window} before")
        answer = await find(call)
        windows.cross(f"{window} after")
        return answer

    @functools.wraps(find)
    def at_once(call: Call) -> Any:
        window = about_call("lookup", tool.name, call.id)
        windows.cross(f"{window} before")
        answer = find(call)
        windows.cross(f"{window} after")
        return answer

    return later if asyncio.iscoroutinefunction(find) else at_once


def _watch_http(names: Mapping[str, str], windows: Windows) -> None:
    """Cross a window directly before the bytes of `call.http` leave, after the mark, and one when they are answered."""
    import httpx2  # noqa: PLC0415 - only where the flow has loaded it

    from counterfoil.runtime import http  # noqa: PLC0415 - the same

    plain, plain_async = httpx2.HTTPTransport.handle_request, httpx2.AsyncHTTPTransport.handle_async_request

    def window_of(transport: Any, request: httpx2.Request) -> str:
        call = getattr(transport, "_call", None)
        if not isinstance(call, Call) or call.id not in names or request.method in http.SAFE:
            return ""
        return about_call("send", names[call.id], call.id, call.attempt)

    def handle_request(self: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
        window = window_of(self, request)
        if not window:
            return plain(self, request)
        windows.cross(f"{window} before")
        response = plain(self, request)
        windows.cross(f"{window} after")
        return response

    async def handle_async_request(self: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        window = window_of(self, request)
        if not window:
            return await plain_async(self, request)
        windows.cross(f"{window} before")
        response = await plain_async(self, request)
        windows.cross(f"{window} after")
        return response

    httpx2.HTTPTransport.handle_request = handle_request  # type: ignore[method-assign]  # in a forked child only
    httpx2.AsyncHTTPTransport.handle_async_request = handle_async_request  # type: ignore[method-assign]  # the same
