"""`verify`, `prune`, `doctor` and `provider`; and what damage, a newer format and an unfit store come to."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.cli.harness import FLOWS, Cli


def test_verify_names_a_changed_event_and_resume_refuses(cli: Cli) -> None:
    assert cli.run("support", DIE="ticket").code == -9
    whole = cli("verify")
    assert whole.code == 0
    assert "whole" in whole.err
    cli.sql("update events set body = replace(body, 'Login', 'Logon') where kind = 'decided'")
    found = cli("verify")
    assert found.code == 65
    assert "decided" in found.out
    assert "r1" in found.out
    assert "doctor --restored" in found.err
    listed = cli("verify", "r1", "--json")
    assert listed.code == 65
    assert listed.json["damage"][0]["position"] > 0
    before = cli.journal()
    resumed = cli("resume", "r1")
    assert resumed.code == 65, resumed
    assert "counterfoil verify" in resumed.err
    assert "Traceback" not in resumed.err
    assert cli.journal()[1] == before[1]
    assert cli("show", "r1").code == 65
    assert cli("inbox").code == 0, "one damaged run hides no other"


def test_verify_of_no_such_run(cli: Cli) -> None:
    assert cli.run("quick").code == 0
    assert cli("verify", "r2").code == 2


@pytest.mark.parametrize("name", ["format", "schema"])
def test_a_newer_store_is_refused_with_both_numbers_and_not_touched(cli: Cli, name: str) -> None:
    assert cli.run("quick").code == 0
    cli.sql("update meta set value = 99 where name = ?", name)
    cli.sql("pragma wal_checkpoint(truncate)")
    before = cli.store.read_bytes()
    for words in (("resume", "r1"), ("runs",), ("verify",), ("doctor",)):
        ran = cli(*words)
        assert ran.code == 65, ran
        assert "99" in ran.err
        assert "1" in ran.err
    assert cli.run("quick", "r2").code == 65
    assert cli.store.read_bytes() == before


def test_a_place_that_is_no_store(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100, encoding="utf-8")
    for words, code in (
        (("runs", "--store", "notes.txt"), 65),
        (("runs", "--store", "none.db"), 2),
        (("runs", "--store", "mysql://host/x"), 74),
        (("run", f"{FLOWS}:quick", "--run-id", "r", "--input", "x", "--store", "no/such/folder/s.db"), 74),
    ):
        ran = cli(*words)
        assert ran.code == code, ran
        assert "error:" in ran.err
        assert "next:" in ran.err
        assert "Traceback" not in ran.err


def test_prune_leaves_a_tombstone_and_says_before_what_it_would_do(cli: Cli) -> None:
    assert cli.run("support", "old").code == 0
    assert cli.run("quick", "other").code == 0
    assert cli.run("support", "open", DIE="ticket").code == -9
    dry = cli("prune", "--older-than", "0s", "--dry-run", "--json").json
    assert dry == {"runs": ["old", "other"], "pruned": 0}
    assert cli("prune", "--older-than", "30d", "--dry-run").out == ""
    assert cli("prune", "--older-than", "0s", "--json").json["pruned"] == len(dry["runs"])
    assert [one["run_id"] for one in cli("runs", "--json").json["runs"]] == ["open"]
    grave = cli("show", "old", "--json").json
    assert grave["pruned"] is True
    assert len(grave["keys"]) == 2
    assert "pruned" in cli("show", "old").out
    again = cli.run("support", "old")
    assert (again.code, again.out) == (0, "All is done.\n"), "a reused id meets its answer"
    assert cli("prune", "--older-than", "soon").code == 2


def test_doctor_says_what_the_store_is_fit_for(cli: Cli) -> None:
    before = cli("doctor")
    assert before.code == 0
    assert "there is no store" in before.out
    assert not cli.store.exists()
    assert cli.run("support", DIE="email").code == -9
    page = cli("doctor", f"{FLOWS}:support")
    assert page.code == 1, "a run was left by a worker that is gone"
    for said in ("SQLite", "schema", "journal mode wal, synchronous full", "send_email", "not declared", "deserted"):
        assert said in page.out, said
    found = cli("doctor", f"{FLOWS}:support", "--json").json
    assert found["store"]["journal_mode"] == "wal"
    assert found["open"]["deserted"] == ["r1"]
    assert {tool["name"]: tool["declared"] for tool in found["tools"]} == {"create_ticket": True, "send_email": False}
    assert set(found) == {"store", "open", "machine", "tools", "warnings", "restored"}


def test_a_noticed_restore_looks_before_it_sends(cli: Cli) -> None:
    assert cli("doctor", "--restored").code == 2, "there is no store"
    assert cli.run("support", DIE="ticket").code == -9
    noted = cli("doctor", "--restored", "--json")
    assert noted.json["restored"] == 1
    found = cli("resume", "r1", "--progress")
    assert "receipt found" in found.err
    assert found.code == 3, "a planned one-shot cannot be looked up, and nobody knows what the store has lost"
    assert "unverifiable" in found.err


def test_the_provider_serves_until_it_is_stopped(cli: Cli, tmp_path: Path) -> None:
    with cli.start("provider", "--port", "0", "--ledger", "ledger.db") as child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/_health", timeout=10) as answer:
            assert json.load(answer) == {"ok": True}
        port = url.rsplit(":", 1)[1]
        taken = cli("provider", "--port", port, "--ledger", "other.db")
        assert taken.code == 74
        assert "next:" in taken.err
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
