"""The reference provider: a real HTTP service in a process of its own, which can be told how to misbehave.

It must not know counterfoil: it is the outside world, and its `Ledger` is the judge of every crash test.

    POST /{endpoint}             create; the key comes in the header Idempotency-Key or the body field idempotency_key
    PUT  /{endpoint}/{id}        set; counts an effect each time. If-None-Match: * creates, or conflicts (412)
    GET  /{endpoint}?reference=K objects that carry a reference (header X-Reference, else the key); [] is "absent"
    GET  /{endpoint}/{id}        one object
    PUT  /_behaviour/{endpoint}  see `Behaviour`      GET /_ledger, /_health      POST /_clock {"advance_s": N}

An error is {"error": CODE, "message": TEXT}; the codes: mismatch, in_flight, exists, not_found, invalid, server_error.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from counterfoil.testing.behaviour import Behaviour, FaultKind, is_span
from counterfoil.testing.book import Book, BookClosed, Write
from counterfoil.testing.faults import FAILURE, Faulted, land_by_itself, perform
from counterfoil.testing.ledger import Effect, Ledger, Request
from counterfoil.testing.process import ProviderProcess

__all__ = ["Behaviour", "Effect", "FaultKind", "Ledger", "ProviderProcess", "Request", "serve"]

MAX_BODY = 1 << 20
PORT_TAKEN = 74
_MAX_DRAINED = 16 << 20
_DRAIN_S = 0.25
_IDLE_S = 60.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_ENDPOINT = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_TEXT = re.compile(r"[ -~]{1,255}")  # Printable ASCII: what a header can carry, a file can store and a person can read.

_Reply = tuple[int, Any, bool]  # status, body, whether it is a replay


class _Bad(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _IDLE_S
    server: _Server
    data = b""
    unread = False

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the standard library
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the standard library refuses (an unknown method, a torn request line) in our own shape."""
        self.close_connection = self.unread = True
        self._reply((int(code), {"error": "invalid", "message": message or explain or "bad request"}, False))

    def _serve(self, work: Callable[[], _Reply]) -> None:
        try:
            self.data = self._read()
            reply = work()
        except _Bad as bad:
            reply = bad.status, {"error": bad.code, "message": str(bad)}, False
        except Faulted as fault:
            if fault.word not in ("error_before", "error_after"):
                self._hang_up(reset=fault.word.startswith("reset"))
                return
            reply = FAILURE.status, FAILURE.body, False
        except (BookClosed, ConnectionError, TimeoutError):  # We stop, or the client is gone in the middle of its body.
            self._hang_up(reset=False)
            return
        except Exception as error:  # noqa: BLE001 - a provider answers 500, it does not die
            reply = 500, {"error": "server_error", "message": f"{type(error).__name__}: {error}"}, False
        self._reply(reply)

    def _reply(self, reply: _Reply) -> None:
        status, body, replayed = reply
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if replayed:
                self.send_header("Idempotency-Replayed", "true")
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            if self.unread:
                self._drain()
        except OSError:  # The client is gone.
            self.close_connection = True

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            if reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()

    def _parts(self) -> list[str]:
        try:
            return [unquote(part) for part in urlsplit(self.path).path.split("/") if part]
        except ValueError as error:
            raise _Bad(400, "invalid", f"the path cannot be read: {error}") from error

    def _read(self) -> bytes:
        """Read the body before anything is decided: what is left unread would be taken for the next request."""
        chunked = "Transfer-Encoding" in self.headers
        if chunked or (self.command != "GET" and "Content-Length" not in self.headers):  # Or its sender died over it.
            raise self._unreadable(411, "send a Content-Length; chunks are not read here")
        given = self.headers.get("Content-Length", "0")
        if not (given.isascii() and given.isdecimal()):
            raise self._unreadable(400, "Content-Length is no number")
        if len(given) > len(str(MAX_BODY)) or int(given) > MAX_BODY:
            raise self._unreadable(413, f"a body has at most {MAX_BODY} bytes")
        data = self.rfile.read(int(given))
        if len(data) < int(given):
            raise ConnectionAbortedError("the client is gone in the middle of its body")
        return data

    def _unreadable(self, status: int, message: str) -> _Bad:
        self.close_connection = self.unread = True
        return _Bad(status, "invalid", message)

    def _drain(self) -> None:
        """Take in what was not read, within reason: closing while the client sends would reset our answer away."""
        left = _MAX_DRAINED
        with contextlib.suppress(OSError):
            self.connection.settimeout(_DRAIN_S)
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (chunk := self.rfile.read1(1 << 16)):
                left -= len(chunk)

    def _json(self) -> dict[str, Any]:
        try:
            body = json.loads(self.data or b"{}", parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise _Bad(400, "invalid", f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise _Bad(400, "invalid", "the body is a JSON object")
        return body

    def _get(self) -> _Reply:
        book = self.server.book
        match self._parts():
            case ["_health"]:
                return 200, {"ok": True}, False
            case ["_ledger"]:
                return 200, book.totals(), False
            case ["_behaviour", endpoint]:
                return 200, asdict(book.behaviour(_endpoint(endpoint))), False
            case [endpoint] if _ENDPOINT.fullmatch(endpoint):
                wanted = parse_qs(urlsplit(self.path).query).get("reference")
                if not wanted:
                    raise _Bad(400, "invalid", "say which: ?reference=K")
                return self._find(endpoint, wanted[0])
            case [endpoint, object_id] if _ENDPOINT.fullmatch(endpoint):
                return self._fetch(endpoint, object_id)
            case _:
                raise self._nowhere()

    def _find(self, endpoint: str, reference: str) -> _Reply:
        reference = _text("reference", reference)
        number, behaviour = self.server.book.receive_lookup(endpoint, reference, {})
        _may_look(self.server.book, number, behaviour)
        if behaviour.lookup == "lie_absent":
            return 200, [], False
        found = self.server.book.find(endpoint, reference)
        self.server.book.answered(number, "found" if found else "absent")
        return 200, found, False

    def _fetch(self, endpoint: str, object_id: str) -> _Reply:
        object_id = _text("the id", object_id)
        number, behaviour = self.server.book.receive_lookup(endpoint, "", {"id": object_id})
        _may_look(self.server.book, number, behaviour)
        found = None
        if behaviour.lookup != "lie_absent":
            found = self.server.book.get(endpoint, object_id)
            self.server.book.answered(number, "found" if found else "absent")
        if found is None:
            raise _Bad(404, "not_found", f"there is no {endpoint} {object_id}")
        return 200, found, False

    def _put(self) -> _Reply:
        match self._parts():
            case ["_behaviour", endpoint]:
                try:
                    behaviour = Behaviour.from_json(self._json())
                except ValueError as error:
                    raise _Bad(400, "invalid", str(error)) from error
                self.server.book.behave(_endpoint(endpoint), behaviour)
                return 200, asdict(behaviour), False
            case [endpoint, object_id] if _ENDPOINT.fullmatch(endpoint):
                return self._write("PUT", endpoint, object_id)
            case _:
                raise self._nowhere()

    def _post(self) -> _Reply:
        match self._parts():
            case ["_clock"]:
                seconds = self._json().get("advance_s")
                if not is_span(seconds):
                    raise _Bad(400, "invalid", 'say how far: {"advance_s": SECONDS}, a number of at least 0')
                self.server.book.advance(float(seconds))
                return 200, {"now": self.server.book.now()}, False
            case [endpoint] if _ENDPOINT.fullmatch(endpoint):
                return self._write("POST", endpoint, None)
            case _:
                raise self._nowhere()

    def _nowhere(self) -> _Bad:
        return _Bad(404, "not_found", f"nothing here answers {self.command} {self.path[:200]}")

    def _write(self, method: Literal["POST", "PUT"], endpoint: str, object_id: str | None) -> _Reply:
        book = self.server.book
        try:
            write = self._read_write(method, endpoint, object_id)
        except _Bad as bad:
            book.refused(method, endpoint, bad.code)
            raise
        number, behaviour, fault = book.receive(write)
        try:
            outcome = perform(book, write, behaviour, fault)
        except Faulted as ended:
            book.answered(number, ended.word)
            raise
        book.answered(number, outcome.word)
        return outcome.status, outcome.body, outcome.replayed

    def _read_write(self, method: Literal["POST", "PUT"], endpoint: str, object_id: str | None) -> Write:
        body = self._json()
        in_body = body.pop("idempotency_key", None)
        key = self.headers.get("Idempotency-Key") or in_body
        reference = self.headers.get("X-Reference") or key
        if method == "POST" and "id" in body and self.server.book.behaviour(endpoint).client_ids:
            _text("the body field id", body["id"])
        return Write(
            method=method,
            endpoint=endpoint,
            object_id=None if object_id is None else _text("the id", object_id),
            key="" if key is None else _text("the idempotency key", key),
            reference="" if reference is None else _text("the reference", reference),
            arguments=json.dumps(body, sort_keys=True),
            only_new=method == "PUT" and self.headers.get("If-None-Match") == "*",
        )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _endpoint(name: str) -> str:
    if not _ENDPOINT.fullmatch(name):
        raise _Bad(400, "invalid", "an endpoint is named by letters, digits, '.', '_' and '-', a letter or digit first")
    return name


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not _TEXT.fullmatch(value):
        raise _Bad(400, "invalid", f"{what} is 1 to 255 characters of printable ASCII")
    return value


def _may_look(book: Book, number: int, behaviour: Behaviour) -> None:
    """Refuse a lookup that does not work, and note every knob that decides its answer."""
    if behaviour.lookup != "on":
        book.answered(number, f"lookup {behaviour.lookup}")
    if behaviour.lookup == "off":
        raise _Bad(404, "not_found", "this endpoint has no lookup")
    if behaviour.lookup == "error":
        raise _Bad(500, "server_error", "the lookup is out of order")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, book: Book) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.book = book

    def server_bind(self) -> None:
        """Bind without asking a name server who we are, as the standard library does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a client that is gone: here clients are killed on purpose."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def serve(port: int, ledger: str | Path, ready: Callable[[int], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, on the loopback address. Call it from the main thread.

    Args:
        port: 0 takes a free one.
        ledger: the book's file; made if it is not there.
        ready: told the port once requests are taken.

    Raises:
        OSError: the port is taken, or the file cannot be used.
    """
    book = Book(ledger)
    try:
        with _bound(port, book) as server, _stopped_by_signal(server):
            for late in book.take_up():
                land_by_itself(book, late)
            if ready is not None:
                ready(server.server_port)
            server.serve_forever(poll_interval=0.05)
    finally:
        book.close()


def _bound(port: int, book: Book) -> _Server:
    try:
        return _Server(port, book)
    except OverflowError as error:
        raise OSError(str(error)) from error


@contextlib.contextmanager
def _stopped_by_signal(server: _Server) -> Any:
    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with its parent; elsewhere than on Linux nothing happens.

    Args:
        parent: its pid, so that a parent that died before we asked is noticed; 0: whoever it is.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    if parent and os.getppid() != parent:
        raise SystemExit(1)


def _say_port(port: int) -> None:
    print(json.dumps({"port": port}), flush=True)  # noqa: T201 - whoever started us reads this line


def main() -> int:
    """Run the provider from the command line."""
    parser = argparse.ArgumentParser(description="counterfoil's reference provider")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--ledger", required=True, help="the file that outlives everything")
    parser.add_argument(
        "--die-with-parent", type=int, nargs="?", const=0, metavar="PID", help="end when the parent (this pid) does"
    )
    options = parser.parse_args()
    if options.die_with_parent is not None:
        _die_with(options.die_with_parent)
    try:
        serve(options.port, options.ledger, _say_port)
    except OSError as error:
        print(f"the provider cannot serve on port {options.port}: {error}", file=sys.stderr)  # noqa: T201 - a command
        return PORT_TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
