"""The guarded HTTP client behind `call.http`: our key on the request, no hidden retry, and the mark before the bytes.

It must not classify answers: whether a status means "not applied" is the tool author's to say.
"""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from counterfoil.core.keys import KeyStyle
from counterfoil.errors import NotApplied
from counterfoil.runtime.calls import Call, request_digest

SAFE = {"GET", "HEAD", "OPTIONS"}


def client_for(call: Call) -> httpx2.AsyncClient | httpx2.Client:
    """Return the client of one attempt: async for async tools, sync for tools that run in a thread."""
    if call.is_sync:
        return httpx2.Client(transport=_Guarded(call), timeout=call.timeout_s, follow_redirects=False)
    return httpx2.AsyncClient(transport=_AsyncGuarded(call), timeout=call.timeout_s, follow_redirects=False)


class _Guarded(httpx2.HTTPTransport):
    def __init__(self, call: Call) -> None:
        super().__init__(retries=0)
        self._call = call

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method not in SAFE:
            request.read()
            request = _with_key(request, self._call)
            self._call.sending(request_digest(request))
        try:
            return super().handle_request(request)
        except httpx2.ConnectError as error:
            raise NotApplied(f"nothing was sent: {error}") from error


class _AsyncGuarded(httpx2.AsyncHTTPTransport):
    def __init__(self, call: Call) -> None:
        super().__init__(retries=0)
        self._call = call

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method not in SAFE:
            await request.aread()
            request = _with_key(request, self._call)
            await self._call.sending(request_digest(request))
        try:
            return await super().handle_async_request(request)
        except httpx2.ConnectError as error:
            raise NotApplied(f"nothing was sent: {error}") from error


def _with_key(request: httpx2.Request, call: Call) -> httpx2.Request:
    """Return the request with the call's key where its contract says."""
    style = call.style
    if style is None or style.channel == "none":
        return request
    if style.channel == "header":
        request.headers.setdefault(style.name, call.key)
        return request
    return _rebuilt(request, style, call.key)


def _rebuilt(request: httpx2.Request, style: KeyStyle, key: str) -> httpx2.Request:
    url, content = request.url, request.content
    if style.channel == "query":
        url = url.copy_merge_params({style.name: key})
    else:
        body: Any = msgspec.json.decode(content or b"{}")
        content = msgspec.json.encode({**body, style.name: key})
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "content-length"]
    return httpx2.Request(request.method, url, headers=headers, content=content, extensions=request.extensions)
