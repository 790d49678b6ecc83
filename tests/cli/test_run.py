"""`run` and `resume`: what they print, what they refuse, and the exit code of each way to end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.harness import FLOWS, Cli


def test_a_run_completes_and_prints_its_output(cli: Cli) -> None:
    ran = cli.run("support")
    assert (ran.code, ran.out) == (0, "All is done.\n"), ran
    assert "run completed" in ran.err
    assert "send_email: no contract" in ran.err
    assert "@cf.tool(contract=" in ran.err


def test_a_completed_run_says_how_many_of_its_calls_were_certainly_not_done(cli: Cli) -> None:
    for again in (cli.run("refunds"), cli.run("refunds"), cli("resume", "r1")):
        assert (again.code, again.out) == (0, "All is refunded.\n")
        assert "run completed\n2 calls were certainly not done: counterfoil show r1\n" in again.err
    assert "3 calls with a record, 2 rejected" in cli("show", "r1").out
    assert cli.run("support", "r2").code == 0
    assert "not done" not in cli("resume", "r2").err
    assert "rejected" not in cli("show", "r2").out


def test_quiet_prints_the_output_alone(cli: Cli) -> None:
    ran = cli.run("support", "r1", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "All is done.\n", "")


def test_the_same_id_and_input_continue_and_another_input_is_refused(cli: Cli) -> None:
    assert cli.run("support").code == 0
    again = cli.run("support", "r1", "--progress")
    assert again.code == 0
    assert again.err.count("already saved") == 2
    other = cli("run", f"{FLOWS}:support", "--run-id", "r1", "--input", "something else")
    assert other.code == 2
    assert "started with another input" in other.err
    assert "next:" in other.err


def test_every_form_of_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("from a file", encoding="utf-8")
    start = ("run", f"{FLOWS}:quick", "--quiet")
    assert cli(*start, "--run-id", "a", "--input-file", "in.txt").code == 0
    assert cli(*start, "--run-id", "b", "--input-json", '{"a": [1, 2]}').code == 0
    assert cli(*start, "--run-id", "c", "--input", "").code == 0, "an empty text is an input"
    inputs = [cli("show", run_id, "--json").json["input"] for run_id in ("a", "b", "c")]
    assert inputs == ["from a file", {"a": [1, 2]}, ""]
    for wrong in ([], ["--input", "x", "--input-json", "1"], ["--input-json", "{"], ["--input-file", "none.txt"]):
        ran = cli(*start, "--run-id", "d", *wrong)
        assert ran.code == 2, (wrong, ran)
        assert "error:" in ran.err
        assert "next:" in ran.err


def test_a_dotted_module_a_factory_and_a_tool(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "flows.py").write_text(FLOWS.read_text(encoding="utf-8"), encoding="utf-8")
    assert cli("run", "app.flows:made", "--run-id", "a", "--input", "x").code == 0
    assert cli("show", "a", "--json").json["entry"] == "app.flows:made"
    ran = cli("run", "app.flows:refund", "--run-id", "b", "--input-json", '{"order": 9}')
    assert (ran.code, ran.out) == (0, "refunded 9\n"), ran
    refused = cli("run", "app.flows:refund", "--run-id", "c", "--input-json", '{"order": -1}')
    assert refused.code == 1
    assert "not applied" in refused.err
    assert "no such order" in refused.err
    unfit = cli("run", "app.flows:refund", "--run-id", "d", "--input", "nine")
    assert unfit.code == 2
    assert "--input-json" in unfit.err
    assert cli("show", "d").code == 2, "no run was made of it"


BAD_ENTRIES = [
    ("nowhere.py:flow", "there is no file nowhere.py", ""),
    ("no.such.module:flow", "there is no module no.such.module", ""),
    ("{flows}:nobody", "has no nobody", "support"),
    ("{flows}", "does not say which flow", "support"),
    ("{flows}:number", "is a int, not an Agent", "support"),
    ("{flows}:needs", "raised TypeError", "callable without arguments"),
    ("{flows}:wrong", "is a int, not an Agent", "support"),
    ("broken.py:flow", "ZeroDivisionError: division by zero", "Mend the module"),
    ("leaves.py:flow", "SystemExit: 3", "Mend the module"),
    ("imports.py:flow", "No module named 'not_installed_anywhere'", "Mend the module"),
]


@pytest.mark.parametrize("entry,error,remedy", BAD_ENTRIES)
def test_a_flow_that_cannot_be_had_is_one_clear_line(
    cli: Cli, tmp_path: Path, entry: str, error: str, remedy: str
) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = 1 / 0\n", encoding="utf-8")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    (tmp_path / "imports.py").write_text("import not_installed_anywhere\n", encoding="utf-8")
    ran = cli("run", entry.format(flows=FLOWS), "--run-id", "r", "--input", "x")
    assert ran.code == 2, ran
    assert error in ran.err
    assert remedy in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) == 2
    if entry.startswith("broken"):
        assert re.search(r"broken\.py:2 in <module>", ran.err), "the last frame is named"
    assert not cli.store.exists(), "nothing was begun"


def test_a_killed_run_is_resumed_from_its_head_and_ends_unknown_at_a_one_shot(cli: Cli) -> None:
    assert cli.run("support", DIE="ticket").code == -9
    second = cli("resume", "r1", "--progress", DIE="email")
    assert second.code == -9
    assert re.search(r"receipt found +1\.1 +create_ticket", second.err)
    third = cli("resume", "r1")
    assert third.code == 3, third
    assert "unknown" in third.err
    assert "no-evidence" in third.err
    assert "counterfoil inbox" in third.err
    assert cli("resume", "r1").code == 3, "asking again changes nothing"


def test_resume_needs_a_run_and_a_flow(cli: Cli, tmp_path: Path) -> None:
    missing = cli("resume", "r1")
    assert missing.code == 2
    assert "there is no store" in missing.err
    assert not cli.store.exists(), "a command that only reads makes no store"
    assert cli.run("quick").code == 0
    assert cli("resume", "r2").code == 2
    (tmp_path / "here.py").write_text(FLOWS.read_text(encoding="utf-8"), encoding="utf-8")
    assert cli("run", "here.py:support", "--run-id", "r3", "--input", "x", DIE="ticket").code == -9
    (tmp_path / "here.py").rename(tmp_path / "there.py")
    lost = cli("resume", "r3")
    assert lost.code == 2
    assert "here.py:support" in lost.err
    assert cli("resume", "r3", "there.py:support").code == 0


def test_a_changed_flow_is_blocked_and_each_difference_named(cli: Cli) -> None:
    assert cli.run("support", DIE="email").code == -9
    ran = cli("resume", "r1", f"{FLOWS}:newer")
    assert ran.code in (3, 5), ran
    assert cli.run("support", "r2", DIE="ticket").code == -9
    blocked = cli("resume", "r2", f"{FLOWS}:newer", ABSENT="1")
    assert blocked.code == 5, blocked
    assert "flow version: was 1, is 2" in blocked.err
    assert "instructions: was" in blocked.err
    assert "cancel r2" in blocked.err
    as_json = cli("resume", "r2", f"{FLOWS}:newer", "--json", ABSENT="1")
    assert [one["where"] for one in as_json.json["differences"]] == ["flow version", "instructions"]


def test_a_limit_blocks(cli: Cli) -> None:
    ran = cli.run("limited")
    assert ran.code == 5, ran
    assert "calls: 1 of 1 used" in ran.err


def test_json_is_one_document_whatever_the_flow_prints(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(FLOWS.read_text(encoding="utf-8") + "print('at import')\n", encoding="utf-8")
    ran = cli("run", "loud.py:support", "--run-id", "r", "--input", "x", "--json")
    assert ran.json["status"] == "completed"
    assert ran.json["output"] == "All is done."
    assert ran.json["exit_code"] == ran.code == 0
    assert "at import" in ran.err
    keys = {"run_id", "status", "exit_code", "incident", "output", "because", "note", "until", "unknown"}
    assert set(ran.json) == keys | {"differences", "error"}


def test_a_failed_run_says_one(cli: Cli) -> None:
    assert cli.run("support", DIE="email").code == -9
    assert cli("resume", "r1").code == 3
    word = ("--by", "dana", "--reason", "nobody knows")
    assert cli("resolve", "r1", "2.1", "--abandon", *word).code == 0
    assert cli("resume", "r1").code == 1
