"""`counterfoil demo` tells the story that this project grew from, and notices when it does not go as told."""

from __future__ import annotations

import re
from pathlib import Path

from counterfoil.cli import demo_flow
from tests.cli.harness import Cli


def test_the_whole_story(cli: Cli) -> None:
    ran = cli("demo")
    assert ran.code == 0, ran
    first, second = ran.out.split("\n2  ")
    lives = re.split(r"life \d", first)
    assert "exit code -9" in lives[1]
    assert "effect applied" not in lives[1]
    assert re.search(r"receipt found +1\.1 +create_ticket", lives[2])
    assert re.search(r"effect applied +2\.1 +send_email", lives[2])
    assert re.search(r"already saved +1\.1 +create_ticket", lives[3])
    assert re.search(r"already saved +2\.1 +send_email", lives[3])
    assert "run completed" in lives[3]
    assert "exit code 0" in lives[3]
    assert "model calls over all lives: 3" in first
    assert re.search(r"tickets +cf_\w+ +1 +2", first), "one effect, two requests: the lookup is one"
    assert re.search(r"emails +cf_\w+ +1 +1", first)
    assert "exit code 3" in second
    assert "$ counterfoil resolve ticket-78 1.1 --applied" in second
    assert "run completed" in second
    assert "What this does not prove" in second
    assert ran.out.rstrip().endswith("Every story ended as told.")


def test_a_kill_that_does_not_fire_is_noticed(cli: Cli) -> None:
    ran = cli("demo", **{demo_flow.SPARED: "1"})
    assert ran.code == 1
    assert "Not every story ended as told" in ran.out
    assert "was to end with -9 and ended with 0" in ran.out


def test_what_is_kept_can_be_looked_at(cli: Cli, tmp_path: Path) -> None:
    ran = cli("demo", "--keep", TMPDIR=str(tmp_path))
    assert ran.code == 0, ran
    (folder,) = tmp_path.glob("counterfoil-demo-*")
    assert cli("show", "ticket-77", "--store", str(folder / "store.db")).code == 0
