"""The reference provider: a real HTTP service in a process of its own, which can be told how to misbehave.

It must not know counterfoil: it is the outside world, and its `Ledger` is the judge of every crash test.

    POST /{endpoint}             create; the key comes in the header Idempotency-Key or the body field idempotency_key
    PUT  /{endpoint}/{id}        set; counts an effect each time
    GET  /{endpoint}?reference=K objects that carry a reference (header X-Reference, else the key); [] is "absent"
    GET  /{endpoint}/{id}        one object
    PUT  /_behaviour/{endpoint}  see `Behaviour`      GET /_ledger, /_health      POST /_clock {"advance_s": N}
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from counterfoil.testing.ledger import Behaviour, Book, Effect, FaultKind, Ledger, Outcome, Request

__all__ = ["Behaviour", "Effect", "FaultKind", "Ledger", "ProviderProcess", "Request", "serve"]

MAX_BODY = 1 << 20
PORT_TAKEN = 74
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class _Bad(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Hangup(Exception):
    """The connection is to be dropped; ``reset`` says how rudely."""

    def __init__(self, *, reset: bool) -> None:
        super().__init__()
        self.reset = reset


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of the standard library
        pass

    def _serve(self, work: Callable[[], tuple[int, Any, bool]]) -> None:
        try:
            status, body, replayed = work()
        except _Bad as bad:
            status, body, replayed = bad.status, {"error": bad.code, "message": str(bad)}, False
        except _Hangup as hangup:
            self._hang_up(reset=hangup.reset)
            return
        except Exception as error:  # noqa: BLE001 - a provider answers 500, it does not die
            status, body, replayed = (
                500,
                {"error": "server_error", "message": f"{type(error).__name__}: {error}"},
                False,
            )
        data = json.dumps(body).encode()
        with contextlib.suppress(OSError):  # the client may be gone
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if replayed:
                self.send_header("Idempotency-Replayed", "true")
            self.end_headers()
            self.wfile.write(data)

    def _hang_up(self, *, reset: bool) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            if reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()

    def _parts(self) -> list[str]:
        return [unquote(part) for part in urlsplit(self.path).path.split("/") if part]

    def _body(self) -> Any:
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if length < 0:
            self.close_connection = True
            raise _Bad(400, "invalid", "Content-Length is no number")
        if length > MAX_BODY:
            self.close_connection = True
            raise _Bad(413, "invalid", f"a body has at most {MAX_BODY} bytes")
        try:
            return json.loads(self.rfile.read(length) or b"{}")
        except ValueError as error:
            raise _Bad(400, "invalid", f"the body is no JSON: {error}") from error

    def _get(self) -> tuple[int, Any, bool]:
        book = self.server.book
        match self._parts():
            case ["_health"]:
                return 200, {"ok": True}, False
            case ["_ledger"]:
                return 200, book.totals(), False
            case ["_behaviour", endpoint]:
                return 200, asdict(book.behaviour(endpoint)), False
            case [endpoint] if not endpoint.startswith("_"):
                return self._find(endpoint)
            case [endpoint, object_id]:
                found = book.get(endpoint, object_id)
                if found is None:
                    raise _Bad(404, "not_found", f"there is no {endpoint} {object_id}")
                return 200, found, False
            case _:
                raise _Bad(404, "not_found", self.path)

    def _find(self, endpoint: str) -> tuple[int, Any, bool]:
        book = self.server.book
        behaviour = book.behaviour(endpoint)
        wanted = parse_qs(urlsplit(self.path).query).get("reference")
        if not wanted:
            raise _Bad(400, "invalid", "say which: ?reference=K")
        number = book.request(endpoint, "GET", "", wanted[0], "{}")
        book.answered(number, f"lookup {behaviour.lookup}")
        match behaviour.lookup:
            case "off":
                raise _Bad(404, "not_found", "this endpoint has no lookup")
            case "error":
                raise _Bad(500, "server_error", "the lookup is out of order")
            case "lie_absent":
                return 200, [], False
            case "on":
                return 200, book.find(endpoint, wanted[0]), False

    def _put(self) -> tuple[int, Any, bool]:
        match self._parts():
            case ["_behaviour", endpoint]:
                try:
                    behaviour = Behaviour.from_json(self._body())
                except ValueError as error:
                    raise _Bad(400, "invalid", str(error)) from error
                self.server.book.behave(endpoint, behaviour)
                return 200, asdict(behaviour), False
            case [endpoint, object_id] if not endpoint.startswith("_"):
                return self._write("PUT", endpoint, object_id)
            case _:
                raise _Bad(404, "not_found", self.path)

    def _post(self) -> tuple[int, Any, bool]:
        match self._parts():
            case ["_clock"]:
                body = self._body()
                seconds = body.get("advance_s") if isinstance(body, dict) else None
                if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
                    raise _Bad(400, "invalid", 'say how far: {"advance_s": SECONDS}')
                self.server.book.advance(float(seconds))
                return 200, {"now": self.server.book.now()}, False
            case [endpoint] if not endpoint.startswith("_"):
                return self._write("POST", endpoint, None)
            case _:
                raise _Bad(404, "not_found", self.path)

    def _write(self, method: str, endpoint: str, object_id: str | None) -> tuple[int, Any, bool]:
        body = self._body()
        if not isinstance(body, dict):
            raise _Bad(400, "invalid", "the body is a JSON object")
        key = self.headers.get("Idempotency-Key") or str(body.pop("idempotency_key", ""))
        reference = self.headers.get("X-Reference") or key
        arguments = json.dumps(body, sort_keys=True)
        job = _Job(self.server.book, endpoint, key, reference, arguments, object_id)
        number = self.server.book.request(endpoint, method, key, reference, arguments)
        try:
            outcome, word = job.run()
        except _Fault as fault:
            self.server.book.answered(number, fault.word)
            if fault.status:
                raise _Bad(fault.status, "server_error", f"told to fail: {fault.word}") from fault
            raise _Hangup(reset=fault.word.startswith("reset")) from fault
        self.server.book.answered(number, word)
        return outcome.status, outcome.body, outcome.replayed


class _Fault(Exception):
    def __init__(self, word: str, status: int = 0) -> None:
        super().__init__(word)
        self.word, self.status = word, status


class _Job:
    """One write, with whatever goes wrong about it."""

    def __init__(
        self, book: Book, endpoint: str, key: str, reference: str, arguments: str, object_id: str | None
    ) -> None:
        self.book, self.endpoint, self.key, self.reference = book, endpoint, key, reference
        self.arguments, self.object_id = arguments, object_id
        self.behaviour = book.behaviour(endpoint)

    def run(self) -> tuple[Outcome, str]:
        """Return the answer; raises `_Fault` where there is none, or a bad one."""
        fault = self.book.take_fault(self.endpoint, self.behaviour)
        if fault == "reset_before":
            raise _Fault("reset_before")
        known = self.book.begin(self.endpoint, self.key, self.arguments, self.behaviour)
        if known is not None:
            return known, known.word
        late = False
        try:
            late = self._before(fault)
            if late:
                raise _Fault("apply_late")
            outcome = self._apply()
            self._after(fault)
            return outcome, outcome.word
        finally:
            if not late:
                self.book.end(self.endpoint, self.key)

    def _before(self, fault: FaultKind | None) -> bool:
        """Do what comes before the effect; return whether the effect comes later by itself."""
        if fault == "error_before":
            if self.behaviour.cache_failures and self.key:
                body = {"error": "server_error", "message": "told to fail"}
                self.book.remember(self.endpoint, self.key, self.arguments, Outcome(500, body, "error_before"))
            raise _Fault("error_before", 500)
        if fault == "slow_before":
            time.sleep(self.behaviour.seconds)
        if fault == "apply_late":
            threading.Thread(target=self._later, daemon=True).start()
            return True
        return False

    def _later(self) -> None:
        time.sleep(self.behaviour.seconds)
        try:
            self._apply()
        finally:
            self.book.end(self.endpoint, self.key)

    def _apply(self) -> Outcome:
        return self.book.apply(self.endpoint, self.key, self.reference, self.arguments, self.behaviour, self.object_id)

    def _after(self, fault: FaultKind | None) -> None:
        match fault:
            case "slow":
                time.sleep(self.behaviour.seconds)
            case "drop_response" | "reset_after":
                raise _Fault(fault)
            case "error_after":
                if self.behaviour.cache_failures and self.key:
                    body = {"error": "server_error", "message": "told to fail"}
                    self.book.remember(self.endpoint, self.key, self.arguments, Outcome(500, body, fault))
                raise _Fault(fault, 500)
            case _:
                pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, book: Book) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.book = book


def serve(port: int, ledger: str | Path, ready: Callable[[int], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, on the loopback address.

    Args:
        port: 0 takes a free one.
        ledger: the book's file; made if it is not there.
        ready: told the port once requests are taken.

    Raises:
        OSError: the port is taken, or the file cannot be written.
    """
    book = Book(ledger)
    try:
        with _Server(port, book) as server:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
            if ready is not None:
                ready(server.server_address[1])
            server.serve_forever(poll_interval=0.05)
    finally:
        book.close()


class ProviderProcess:
    """The provider in a child process that dies with this one.

    Args:
        ledger: the book's file.
        port: 0 takes a free one.

    Attributes:
        url: where it serves.
        ledger: reads its book.
    """

    def __init__(self, ledger: str | Path, *, port: int = 0) -> None:
        self.ledger = Ledger(ledger)
        command = [sys.executable, "-m", __name__, "--port", str(port), "--ledger", str(ledger), "--die-with-parent"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise OSError(f"the provider did not start (exit code {self._process.returncode})")
        self.url = f"http://127.0.0.1:{json.loads(line)['port']}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def behave(self, endpoint: str, **behaviour: Any) -> None:
        """Set an endpoint's behaviour; the keywords are the fields of `Behaviour`."""
        self._send("PUT", f"/_behaviour/{endpoint}", behaviour)

    def advance(self, seconds: float) -> None:
        """Move its clock on."""
        self._send("POST", "/_clock", {"advance_s": seconds})

    def stop(self) -> None:
        """End it; the ledger stays."""
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """Kill it as a crash would; the ledger stays."""
        self._process.kill()
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _send(self, method: str, path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), method=method)  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - as above
            pass


def _die_with_parent() -> None:
    """Ask the kernel to end this process with its parent; elsewhere than on Linux nothing happens."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> int:
    """Run the provider from the command line."""
    parser = argparse.ArgumentParser(description="counterfoil's reference provider")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--die-with-parent", action="store_true")
    options = parser.parse_args()
    if options.die_with_parent:
        _die_with_parent()
    try:
        serve(options.port, options.ledger, lambda port: print(json.dumps({"port": port}), flush=True))  # noqa: T201
    except OSError as error:
        print(f"the provider cannot serve on port {options.port}: {error}", file=sys.stderr)  # noqa: T201
        return PORT_TAKEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
