"""Promise 13, told as a story: everything that people take for proof is there, and none of it is a receipt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

AGENT = '''
import json, logging, os, signal
import counterfoil as cf

logging.basicConfig(filename="agent.log", level=logging.INFO)

@cf.tool
def pay(cents: int) -> str:
    """Pay."""
    with open("bank.txt", "a") as bank:
        bank.write(f"{cents}\\n")
    logging.info("pay(%s) returned 'payment-1'; receipt written; call 1.1 settled", cents)
    with open("trace.json", "w") as trace:
        json.dump({"name": "pay", "run_id": "r", "call": "1.1", "status": "OK", "result": "payment-1"}, trace)
    with open("transcript.json", "w") as transcript:
        json.dump([{"role": "tool", "tool_call_id": "call_1_1", "content": "payment-1"}], transcript)
    os.kill(os.getpid(), signal.SIGKILL)

flow = cf.Agent("payer", version="1", tools=[pay], model=cf.ScriptedModel([
    {"calls": [{"name": "pay", "arguments": {"cents": 500}}]}, {"text": "Paid."},
]))
'''


def test_a_perfect_trace_settles_nothing(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL")}

    def counterfoil(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "counterfoil.cli", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert counterfoil("run", "agent.py:flow", "--run-id", "r", "--input", "Pay").returncode == -9
    assert "settled" in (tmp_path / "agent.log").read_text()
    assert json.loads((tmp_path / "trace.json").read_text())["status"] == "OK"
    assert (tmp_path / "transcript.json").exists()
    for _ in range(2):
        assert counterfoil("resume", "r").returncode == 3
    shown = json.loads(counterfoil("show", "r", "--json").stdout)
    assert shown["status"] == "unknown"
    assert "receipt" not in [event["kind"] for event in shown["events"]]
    assert (tmp_path / "bank.txt").read_text() == "500\n"
