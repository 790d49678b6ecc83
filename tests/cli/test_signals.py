"""Ctrl-C and SIGTERM: drained, given up, resumable; and a second process on the same run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.harness import FLOWS, Cli


def started(cli: Cli, tmp_path: Path, where: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a run, and return once its tool has been entered."""
    go_on = tmp_path / "go-on"
    os.mkfifo(go_on)
    entry = f"{FLOWS}:support"
    child = cli.start("run", entry, "--run-id", "r1", "--input", "hello", HOLD=where, GO_ON=str(go_on))
    assert child.stdout is not None
    assert child.stdout.readline() == f"holding at {where}\n"
    return child, go_on


def let_go(go_on: Path) -> None:
    go_on.write_text("go on", encoding="utf-8")


def until_said(child: subprocess.Popen[str], word: str) -> None:
    assert child.stderr is not None
    said = ""
    while word not in said:
        line = child.stderr.readline()
        assert line, f"it never said {word!r}: {said}"
        said += line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_drains(cli: Cli, tmp_path: Path, number: signal.Signals) -> None:
    child, go_on = started(cli, tmp_path, "ticket")
    with child:
        child.send_signal(number)
        until_said(child, "counterfoil resume r1")
        let_go(go_on)
        assert child.wait(30) == 130
    kinds = [row["kind"] for row in cli("show", "r1", "--json").json["events"]]
    assert "receipt" in kinds
    assert kinds[-1] == "paused"
    after = cli("resume", "r1", "--progress")
    assert after.code == 0, after
    assert "already saved" in after.err, "what was under way was awaited and settled"


def test_two_signals_give_up_at_once_and_the_run_is_resumable(cli: Cli, tmp_path: Path) -> None:
    child, _ = started(cli, tmp_path, "ticket")
    with child:
        child.send_signal(signal.SIGINT)
        until_said(child, "counterfoil resume r1")
        child.send_signal(signal.SIGINT)
        until_said(child, "giving up at once")
        assert child.wait(30) == 130
    after = cli("resume", "r1", "--progress")
    assert after.code == 0, after
    assert "receipt found" in after.err, "what was under way is recovered by its contract"


def test_a_second_process_is_turned_away_and_its_verdict_waits(cli: Cli, tmp_path: Path) -> None:
    child, go_on = started(cli, tmp_path, "email")
    with child:
        second = cli("resume", "r1")
        assert second.code == 75, second
        assert "held by another worker" in second.err
        assert "pid" in second.err
        assert cli("runs").out.count(f"pid {child.pid}") == 1
        said = cli("explain", "r1")
        assert said.code == 0, said
        assert "exits 75" in " ".join(said.out.split())
        cancelled = cli("cancel", "r1", "--by", "dana")
        assert cancelled.code == 0, cancelled
        assert "accepted" in cancelled.err, "the worker that holds the run has read it"
        let_go(go_on)
        assert child.wait(30) == 6, "what was under way is settled, then the run is cancelled"
