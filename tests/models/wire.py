"""What no mock server does: answers given byte for byte on a real socket. Used beside llmock, never instead of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[dict[str, Any]], bytes]


class Wire:
    """A server on the loopback that keeps what it was asked."""

    def __init__(self, url: str) -> None:
        self.base_url = url
        self.asked: list[dict[str, Any]] = []


def http(status: int, body: bytes | object, content_type: str = "application/json") -> bytes:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


def completion(message: dict[str, Any], finish_reason: str | None = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return http(200, {"id": "x", "object": "chat.completion", "choices": [choice], **more})


def call(name: str, arguments: Any, call_id: str | None = "c1", **more: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def refuses_unpaired(messages: list[dict[str, Any]]) -> str | None:
    """Say what a strict provider has against a history, or None: ids paired, unique and not empty, arguments JSON."""
    seen: set[str] = set()
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return f"tool_call_id {message['tool_call_id']!r} answers no call"
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            return f"tool_call_ids did not have response messages: {open_ids}"
        for asked in message.get("tool_calls", []):
            if not asked["id"] or asked["id"] in seen:
                return f"tool_use ids must be unique: {asked['id']!r}"
            seen.add(asked["id"])
            open_ids.append(asked["id"])
            if not isinstance(json.loads(asked["function"]["arguments"]), dict):
                return "arguments are no object"
    return f"tool_call_ids did not have response messages: {open_ids}" if open_ids else None


@contextmanager
def serving(reply: bytes | Reply) -> Iterator[Wire]:
    """Answer every request with these bytes, then hang up."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            wire.asked.append(body)
            self.wfile.write(reply if isinstance(reply, bytes) else reply(body))
            self.close_connection = True

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        wire = Wire(f"http://127.0.0.1:{server.server_port}/v1")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield wire
        finally:
            server.shutdown()
            thread.join()
