"""The bench of the incident tests: lives in child processes, and the two judges outside of them."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterfoil.testing.provider import ProviderProcess

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Ended:
    """How a life ended: its exit code and what it printed."""

    code: int
    said: dict[str, Any]

    @property
    def status(self) -> str:
        return str(self.said.get("status"))


class Bench:
    """A store, a provider, and a file in which the model counts how often it was asked."""

    def __init__(self, folder: Path, provider: ProviderProcess) -> None:
        self.folder = folder
        self.provider = provider
        self.store = folder / "counterfoil.db"
        self._asks = folder / "asks"
        self.notes = folder / "notes"

    def begin(self, flow: str, run_id: str = "r1", given: str = "go", **env: str) -> "subprocess.Popen[str]":
        """Begin a life and let it go on by itself."""
        environment = {
            **os.environ,
            "COUNTERFOIL_PROVIDER_URL": self.provider.url,
            "ASKS": str(self._asks),
            "NOTES": str(self.notes),
            "PYTHONPATH": str(ROOT),
            **env,
        }
        command = [sys.executable, "-m", "tests.incidents.child", flow, run_id, given, str(self.store)]
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def live(self, flow: str, run_id: str = "r1", given: str = "go", **env: str) -> Ended:
        """Live until the run ends, stands still, or the process is killed. A kill that was asked for must fire."""
        process = self.begin(flow, run_id, given, **env)
        return self.end(process, killed="KILL" in env)

    def end(self, process: "subprocess.Popen[str]", *, killed: bool = False) -> Ended:
        out, err = process.communicate(timeout=90)
        assert (process.returncode == KILLED) is killed, f"exit {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err, err
        return Ended(process.returncode, json.loads(out) if out.strip() else {})

    def asked(self) -> dict[int, int]:
        """How often the model was asked, by turn."""
        return dict(Counter(int(line) for line in self._asks.read_text().split())) if self._asks.exists() else {}

    def effects(self, endpoint: str | None = None) -> int:
        """How often something really happened."""
        return len(self.provider.ledger.effects(endpoint=endpoint))

    def requests(self, endpoint: str) -> int:
        """How often something was asked for."""
        return sum(request.method != "GET" for request in self.provider.ledger.requests(endpoint=endpoint))
