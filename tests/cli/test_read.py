"""`runs`, `show`, `explain` and `inbox`: they say what is so, and change nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.harness import FLOWS, Cli


@pytest.fixture
def killed(cli: Cli) -> Cli:
    """A run that was killed after its first effect."""
    assert cli.run("support", DIE="ticket").code == -9
    return cli


@pytest.fixture
def unknown(killed: Cli) -> Cli:
    """A run that is unknown: killed twice, and its second call is a one-shot."""
    assert killed("resume", "r1", DIE="email").code == -9
    assert killed("resume", "r1").code == 3
    return killed


def test_show_tells_who_did_what_under_which_key_by_which_proof(unknown: Cli) -> None:
    page = unknown("show", "r1")
    assert page.code == 0
    key = unknown("show", "r1", "--json").json["events"]
    planned = next(event for event in key if event["kind"] == "decided")["calls"][0]["key"]
    for said in (
        "unknown",
        "life 1  pid ",
        "life 2  pid ",
        "life 3  pid ",
        'create_ticket(title="Login fails")',
        planned,
        "✗ died",
        "proof: lookup",
        "receipt found",
        "UNKNOWN",
        "next: counterfoil inbox",
    ):
        assert said in page.out, said
    assert "Keyed 24 h, then Lookup 0 s" in " ".join(page.out.split())
    assert "\x1b" not in page.out


@pytest.mark.parametrize("columns", ["40", "80", "120", "200"])
def test_show_fits_any_width(unknown: Cli, columns: str) -> None:
    lines = unknown("show", "r1", COLUMNS=columns).out.splitlines()
    assert max(len(line.rstrip()) for line in lines if not line.startswith("next:")) <= int(columns)


def test_show_leaves_nothing_out_when_asked_for_all(cli: Cli, tmp_path: Path) -> None:
    long = "x" * 1000
    assert cli("run", f"{FLOWS}:quick", "--run-id", "r", "--input", long).code == 0
    assert long not in cli("show", "r").out.replace("\n", "")
    assert long in re.sub(r"\s", "", cli("show", "r", "--full").out)


def test_no_value_can_reach_the_terminal_as_an_order(cli: Cli) -> None:
    assert cli.run("quick").code == 0
    for words in (("show", "r1"), ("show", "r1", "--full"), ("show", "r1", "--json")):
        assert "\x1b" not in cli(*words).out


def test_show_as_json_is_the_journal(unknown: Cli) -> None:
    page = unknown("show", "r1", "--json").json
    assert [event["position"] for event in page["events"]] == list(range(1, len(page["events"]) + 1))
    assert page["events"][0]["kind"] == "run_started"
    assert page["status"] == "unknown"
    assert page["pruned"] is False
    assert page["next"].startswith("counterfoil inbox")


def test_explain_says_what_a_resume_does_and_changes_nothing(killed: Cli) -> None:
    before = killed.journal()
    page = killed("explain", "r1")
    assert page.code == 0, page
    flat = " ".join(page.out.split())
    for said in ("lookup-first", "The author wants a look before a repeat.", "repeat-keyed", "under the same key cf_"):
        assert said in flat, said
    asked = [
        "Which logical operation is this?",
        "Does the provider offer a key or a reliable lookup?",
        "Can the effect be observed without another change?",
        "Has the old worker lost its lease and its ability to write?",
        "Do approval, budget and flow version still apply?",
    ]
    places = [flat.index(question) for question in asked]
    assert places == sorted(places)
    found = killed("explain", "r1", "--json").json
    assert [step["does"] for step in found["steps"]] == ["look up"]
    assert {branch["answer"]: branch["does"] for branch in found["steps"][0]["branches"]} == {
        "found": "settle",
        "absent": "send again",
        "cannot_tell": "send again",
    }
    assert [(one["call"], one["certain"], one["attempt"]) for one in found["repeats"]] == [("1.1", False, 2)]
    assert [one["question"] for one in found["calls"][0]["questions"]] == asked
    assert all(one["answer"] and one["source"] for one in found["calls"][0]["questions"])
    assert killed.journal() == before
    after = killed("resume", "r1", "--progress")
    assert "looked up" in after.err, "as was foretold"
    assert "receipt found" in after.err


def test_explain_of_an_unknown_a_changed_and_an_ended_run(unknown: Cli) -> None:
    before = unknown.journal()
    steps = unknown("explain", "r1", "--json").json["steps"]
    assert [step["because"] for step in steps][-1] == "unknown"
    changed = unknown("explain", "r1", f"{FLOWS}:newer")
    assert "flow version: was 1, is 2" in changed.out
    assert unknown.journal() == before
    assert unknown.run("quick", "r2").code == 0
    ended = unknown("explain", "r2", "--json").json
    assert [step["does"] for step in ended["steps"]] == ["nothing"]


def test_inbox_holds_all_that_is_needed_to_decide(unknown: Cli) -> None:
    before = unknown.journal()
    page = unknown("inbox")
    assert page.code == 0
    assert unknown.journal() == before
    for said in ('send_email(to="dana@example.com")', "no-evidence", "without a key", "pid ", "dead", "never"):
        assert said in page.out, said
    listed = unknown("inbox", "--json").json["waiting"]
    assert [one["run_id"] for one in listed] == ["r1"]
    call = listed[0]["unknown"][0]
    assert (call["call"], call["tool"], call["sender_ended"]) == ("2.1", "send_email", True)
    for line in call["commands"]:
        assert line in page.out, "a command to copy stands on one line"


def test_a_command_from_the_inbox_can_be_pasted(unknown: Cli) -> None:
    import shlex

    call = unknown("inbox", "--json").json["waiting"][0]["unknown"][0]
    words = shlex.split(call["commands"][0])
    assert words[0] == "counterfoil"
    assert unknown(*words[1:]).code == 0
    assert unknown("resume", "r1").code == 0
    assert unknown("inbox").out.strip() == "Nothing waits for a person."


def test_runs_lists_and_filters(unknown: Cli) -> None:
    assert unknown.run("quick", "r2").code == 0
    every = unknown("runs", "--json").json["runs"]
    assert [(one["run_id"], one["status"]) for one in every] == [("r2", "completed"), ("r1", "unknown")]
    assert [one["run_id"] for one in unknown("runs", "--status", "unknown", "--json").json["runs"]] == ["r1"]
    assert [one["run_id"] for one in unknown("runs", "--flow", "quick", "--json").json["runs"]] == ["r2"]
    short = unknown("runs", "--limit", "1", "--json").json
    assert (len(short["runs"]), short["truncated"]) == (1, True)
    wrong = unknown("runs", "--status", "done")
    assert wrong.code == 2
    assert "completed" in wrong.err, "the statuses there are"
    assert "r1" in unknown("runs").out
    assert "unknown" in unknown("runs").out


def test_inbox_names_what_blocks_a_run_and_what_would_free_it(cli: Cli) -> None:
    assert cli.run("limited").code == 5
    page = cli("inbox")
    assert "blocked" in page.out
    assert "calls: 1 of 1 used" in page.out
    assert "counterfoil cancel r1 --by WHO" in page.out
    listed = cli("inbox", "--json").json["waiting"]
    assert [(one["status"], one["because"], one["unknown"]) for one in listed] == [("blocked", "limit", [])]


def test_explain_of_a_call_that_was_never_sent(cli: Cli) -> None:
    assert cli.run("limited").code == 5
    found = cli("explain", "r1", "--json").json
    assert [step["does"] for step in found["steps"]] == ["pause"]
    assert found["repeats"] == []
    assert [(one["call"], one["attempts"], one["move"]["because"]) for one in found["calls"]] == [
        ("2.1", 0, "never-sent")
    ]
    budget = found["calls"][0]["questions"][4]
    assert budget["says"] == "no"
    assert "calls: 1 of 1 used" in budget["answer"]
