"""Clients of the provider: a plain one, and the naive ones that its knobs must be able to break."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

OK = (200, 201)


@dataclass(frozen=True)
class Reply:
    """`status` 0 is no answer; then `body` is the error of the socket."""

    status: int
    body: Any
    replayed: bool = False

    @property
    def ok(self) -> bool:
        return self.status in OK


@dataclass(frozen=True, kw_only=True)
class Caller:
    port: int
    endpoint: str

    def create(
        self,
        arguments: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        reference: str | None = None,
        timeout: float = 5.0,
    ) -> Reply:
        headers = {"Idempotency-Key": key, "X-Reference": reference}
        return self.send("POST", f"/{self.endpoint}", arguments or {}, headers, timeout)

    def put(self, object_id: str, arguments: dict[str, Any], **headers: str) -> Reply:
        return self.send("PUT", f"/{self.endpoint}/{object_id}", arguments, dict(headers))

    def find(self, reference: str) -> Reply:
        return self.send("GET", f"/{self.endpoint}?reference={reference}")

    def fetch(self, object_id: str) -> Reply:
        return self.send("GET", f"/{self.endpoint}/{object_id}")

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str | None] | None = None,
        timeout: float = 5.0,
    ) -> Reply:
        data = None if body is None else body if isinstance(body, (str, bytes)) else json.dumps(body)
        given = {name: value for name, value in (headers or {}).items() if value is not None}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            try:
                connection.request(method, path, data, given)
                answer = connection.getresponse()
                replayed = answer.headers.get("Idempotency-Replayed") == "true"
                return Reply(answer.status, json.loads(answer.read() or b"null"), replayed)
            except (OSError, http.client.HTTPException) as error:
                return Reply(0, error)


def raw(port: int, sent: bytes) -> bytes:
    """Send bytes as they are; return all that comes back."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=5)) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def hang_up(port: int, sent: bytes, *, reset: bool) -> None:
    """Send bytes and be gone, as a killed client is: with an end, or with a reset."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=5)) as connection:
        connection.sendall(sent)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Naive = Callable[[Caller], Any]


def new_keys(call: Caller) -> Reply:
    """Try again, each time under a new key: what a client does that mints its key when it sends."""
    return _until_ok(lambda n: call.create({"to": "dana"}, key=f"{call.endpoint}-{n}", timeout=0.15))


def same_key(call: Caller) -> Reply:
    """Try again under the same key."""
    return _until_ok(lambda _: call.create({"to": "dana"}, key="k"))


def twice(call: Caller) -> list[Reply]:
    """Send it a second time although the first was answered, as a client does that lost its memory."""
    return [call.create({"to": "dana"}, key="k") for _ in range(2)]


def reworded(call: Caller) -> list[Reply]:
    """Ask the model again, which finds other words, and send them under the old key."""
    return [call.create({"text": text}, key="k") for text in ("hello", "good day")]


def believes(call: Caller) -> Reply:
    """Send it once and take any ending for success."""
    return call.create({"to": "dana"}, key="k")


def looks_first(call: Caller) -> Reply:
    """Send it; without an answer look it up, and send it again under a new key unless it is found."""
    if (reply := call.create(key="first", reference="r", timeout=0.15)).ok:
        return reply
    found = call.find("r")
    if found.ok and found.body:
        return Reply(200, found.body[0])
    return call.create(key="second", reference="r")


def fetches_first(call: Caller) -> Reply:
    """The same with an id of its own: an object that is not found is created under another id."""
    if (reply := call.create({"id": "mine"}, timeout=0.15)).ok or (reply := call.fetch("mine")).ok:
        return reply
    return call.create({"id": "mine-2"})


def renames(call: Caller) -> Reply:
    """Take a conflict for a refusal, and try another name."""
    return _until_ok(lambda n: call.create({"id": f"name-{max(n - 1, 0)}"}))


def _until_ok(attempt: Callable[[int], Reply]) -> Reply:
    reply = Reply(0, None)
    for n in itertools.islice(itertools.count(), 3):
        if (reply := attempt(n)).ok:
            break
    return reply
