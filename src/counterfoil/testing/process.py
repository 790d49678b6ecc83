"""The reference provider in a child process, so that it outlives whoever is killed in the test.

It must not know counterfoil, and it reads no result: for that there is the `Ledger`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from counterfoil.testing.behaviour import Behaviour
from counterfoil.testing.ledger import Ledger

_MODULE = "counterfoil.testing.provider"
_STOP_S = 10.0


class ProviderProcess:
    """The provider in a child process that dies with this one.

    Start it from a thread that lives as long as it is needed: Linux counts the end of the starting thread, too, as the
    end of the parent. Elsewhere than on Linux nothing ends it but `stop` and `kill`.

    Args:
        ledger: the book's file; made if it is not there. A file that was used before is continued.
        port: 0 takes a free one; to restart a provider under its old URL, pass its old port.

    Attributes:
        url: where it serves.
        port: the port of that.
        ledger: reads its book.

    Raises:
        OSError: it did not start; the reason is on stderr.

    Example:
        with ProviderProcess(tmp_path / "ledger.db") as provider:
            provider.behave("tickets", fault="drop_response", times=1)
            ...  # run an agent against provider.url, kill it, resume it
            assert provider.ledger.count() == 1
    """

    def __init__(self, ledger: str | Path, *, port: int = 0) -> None:
        self.ledger = Ledger(ledger)
        own = ["--port", str(port), "--ledger", str(ledger), "--die-with-parent", str(os.getpid())]
        command = [sys.executable, "-P", "-m", _MODULE, *own]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            line = stdout.readline()
        if not line:
            self.stop()
            raise OSError(f"the provider did not start (exit code {self._process.returncode})")
        self.port: int = json.loads(line)["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def behave(self, endpoint: str, **behaviour: Any) -> None:
        """Set an endpoint's behaviour; the keywords are the fields of `Behaviour`, and what is left out is good again.

        Args:
            endpoint: the operation, the first part of the path.
            behaviour: fields of `Behaviour`.

        Raises:
            ValueError: naming the field and what it may be.
            OSError: the provider does not run.
        """
        self._send("PUT", f"/_behaviour/{endpoint}", asdict(Behaviour.from_json(behaviour)))

    def advance(self, seconds: float) -> None:
        """Move its clock on, for good: keys expire, lagging objects show, late effects happen, slow answers come.

        Args:
            seconds: how far.

        Raises:
            OSError: the provider does not run, or that is no time to go forward.
        """
        self._send("POST", "/_clock", {"advance_s": seconds})

    def stop(self) -> None:
        """End it; the ledger stays. Nothing happens if it has ended."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Kill it as a crash would; the ledger stays."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _send(self, method: str, path: str, body: dict[str, Any]) -> None:
        # Not urllib: it would ask the proxy that the environment names.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != http.client.OK:
            raise OSError(f"the provider refused {method} {path}: {text}")
