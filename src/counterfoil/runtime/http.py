"""The guarded HTTP client behind `call.http`: our key on the request, no hidden retry, and the mark before the bytes.

It must not classify answers: whether a status means "not applied" is the tool author's to say.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import httpx2
import msgspec

from counterfoil.core.keys import KeyStyle
from counterfoil.errors import NotApplied
from counterfoil.runtime.calls import Call, request_digest

SAFE = {"GET", "HEAD", "OPTIONS"}

NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
FORM = "application/x-www-form-urlencoded"


def client_for(call: Call) -> httpx2.AsyncClient | httpx2.Client:
    """Return the client of one attempt: async for async tools, sync for tools that run in a thread."""
    if call.is_sync:
        return httpx2.Client(transport=_Guarded(call), timeout=call.timeout_s, follow_redirects=False)
    return httpx2.AsyncClient(transport=_AsyncGuarded(call), timeout=call.timeout_s, follow_redirects=False)


class _Guarded(httpx2.HTTPTransport):
    def __init__(self, call: Call) -> None:
        super().__init__(verify=_trusted(), retries=0)
        self._call = call

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        call = self._call
        if call.asks_only:
            return super().handle_request(request)
        unsafe = request.method not in SAFE
        if unsafe:
            request.read()
            request = _with_key(request, call)
            call.sending(request_digest(request))
            call.sent += 1
        try:
            return super().handle_request(request)
        except NOT_CONNECTED as error:
            call.sent -= unsafe
            if call.sent:
                raise
            raise NotApplied(f"nothing was sent: {error}") from error


class _AsyncGuarded(httpx2.AsyncHTTPTransport):
    def __init__(self, call: Call) -> None:
        super().__init__(verify=_trusted(), retries=0)
        self._call = call

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = self._call
        if call.asks_only:
            return await super().handle_async_request(request)
        unsafe = request.method not in SAFE
        if unsafe:
            await request.aread()
            request = _with_key(request, call)
            await call.sending(request_digest(request))
            call.sent += 1
        try:
            return await super().handle_async_request(request)
        except NOT_CONNECTED as error:
            call.sent -= unsafe
            if call.sent:
                raise
            raise NotApplied(f"nothing was sent: {error}") from error


@cache
def _trusted() -> ssl.SSLContext:
    """Return the machine's certificates: 20 ms, paid once and not by every attempt."""
    return httpx2.create_ssl_context()


def _with_key(request: httpx2.Request, call: Call) -> httpx2.Request:
    """Return the request with the call's key where its contract says, whatever the tool had put there."""
    style = call.style
    if style is None or style.channel == "none":
        return request
    if style.channel == "header":
        request.headers[style.name] = call.key
        return request
    if style.channel == "query":
        return _rebuilt(request, request.url.copy_merge_params({style.name: call.key}), request.content)
    return _rebuilt(request, request.url, _body_with_key(request, style, call))


def _body_with_key(request: httpx2.Request, style: KeyStyle, call: Call) -> bytes:
    if request.headers.get("content-type", "").startswith(FORM):
        params = httpx2.QueryParams(request.content.decode()).set(style.name, call.key)
        return str(params).encode()
    try:
        body: Any = msgspec.json.decode(request.content or b"{}")
    except msgspec.DecodeError:
        body = None
    if not isinstance(body, dict):
        # Without its key the request would not be what the contract promises, so it is not sent.
        refused = f"nothing was sent: the key goes into the body, and this {request.method} has no JSON object or form"
        raise NotApplied(refused) if not call.sent else ValueError(refused)
    return msgspec.json.encode({**body, style.name: call.key})


def _rebuilt(request: httpx2.Request, url: httpx2.URL, content: bytes) -> httpx2.Request:
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "content-length"]
    if content and "content-type" not in request.headers:
        headers.append(("content-type", "application/json"))
    return httpx2.Request(request.method, url, headers=headers, content=content, extensions=request.extensions)
