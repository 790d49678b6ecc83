"""`resolve` and `cancel`: a person's word, taken where nobody holds the run, and refused where it does not fit."""

from __future__ import annotations

import pytest

from tests.cli.harness import Cli

WORD = ("--by", "dana", "--reason", "looked at the provider")


@pytest.fixture
def unknown(cli: Cli) -> Cli:
    assert cli.run("support", DIE="email").code == -9
    assert cli("resume", "r1").code == 3
    return cli


def test_applied_settles_and_the_run_goes_on(unknown: Cli) -> None:
    ran = unknown("resolve", "r1", "2.1", "--applied", "--receipt", '{"to": "dana"}', *WORD)
    assert ran.code == 0, ran
    assert "accepted" in ran.err
    assert "counterfoil resume r1" in ran.err
    assert unknown("resume", "r1").code == 0
    page = unknown("show", "r1").out
    assert "by dana: looked at the provider" in page
    assert "proof: operator" in page


def test_not_applied_tells_the_model_or_sends_again(unknown: Cli) -> None:
    ran = unknown("resolve", "r1", "2.1", "--not-applied", "--then", "dispatch", "--json", *WORD)
    assert ran.code == 0, ran
    assert ran.json["outcome"] == "accepted"
    assert set(ran.json) == {"run_id", "outcome", "why", "status", "next"}
    after = unknown("resume", "r1", "--progress")
    assert after.code == 0
    assert "sent again" in after.err


def test_rejecting_is_the_default_after_not_applied(unknown: Cli) -> None:
    assert unknown("resolve", "r1", "2.1", "--not-applied", *WORD).code == 0
    assert unknown("resume", "r1").code == 0
    kinds = [event["kind"] for event in unknown("show", "r1", "--json").json["events"]]
    assert "rejected" in kinds
    assert kinds.count("dispatched") == 2


def test_a_call_that_is_given_up_fails_the_run_and_stays_listed(unknown: Cli) -> None:
    ran = unknown("resolve", "r1", "2.1", "--abandon", *WORD)
    assert ran.code == 0, ran
    assert unknown("runs", "--json").json["runs"][0]["status"] == "failed", (
        "no other call is open, and no flow is needed"
    )
    assert "2.1 send_email" in unknown("inbox").out
    assert unknown("doctor", "--json").json["open"]["abandoned"] == ["r1 2.1 send_email"]
    assert unknown("prune", "--older-than", "0s", "--json").json["pruned"] == 0


USAGE = [
    ((), "say one of"),
    (("--applied", "--abandon", "--receipt", "none"), "say one of"),
    (("--applied",), "--receipt JSON or --receipt none"),
    (("--applied", "--receipt", "{"), "is no JSON"),
    (("--applied", "--receipt", "none", "--then", "reject"), "--then goes with"),
    (("--applied", "--receipt", "none", "--sender-stopped"), "--sender-stopped goes with"),
    (("--not-applied", "--receipt", "1"), "--receipt goes with"),
    (("--not-applied", "--then", "retry"), "neither reject nor dispatch"),
]


def test_what_has_no_meaning_is_refused_before_anything_is_read(unknown: Cli) -> None:
    before = unknown.journal()
    for words, error in USAGE:
        ran = unknown("resolve", "r1", "2.1", *words, *WORD)
        assert ran.code == 2, (words, ran)
        assert error in ran.err, (words, ran)
        assert "next:" in ran.err
    assert unknown("resolve", "r1", "2.1", "--abandon", "--by", " ", "--reason", "x").code == 2
    assert unknown("resolve", "r1", "2.1", "--abandon", "--by", "dana").code == 2, "a reason is asked for"
    assert unknown.journal() == before


def test_what_does_not_fit_the_journal_is_refused_and_not_recorded(unknown: Cli) -> None:
    before = unknown.sql("select count(*) from events"), unknown.sql("select count(*) from mailbox")
    for call, words, error in (
        ("9.9", (), "not one of the current turn"),
        ("2.1", ("--seen", "1"), "changed since you looked"),
    ):
        ran = unknown("resolve", "r1", call, "--applied", "--receipt", "none", *words, *WORD)
        assert ran.code == 2, ran
        assert "refused" in ran.err
        assert error in ran.err
        assert "next:  counterfoil inbox" in ran.err, "it prints the position to settle at"
    assert (unknown.sql("select count(*) from events"), unknown.sql("select count(*) from mailbox")) == before
    assert unknown("resolve", "r2", "1.1", "--abandon", *WORD).code == 2, "no such run"


def test_a_run_that_has_ended_takes_no_word(cli: Cli) -> None:
    assert cli.run("quick").code == 0
    before = cli.journal()
    for ran in (cli("cancel", "r1", "--by", "dana"), cli("resolve", "r1", "1.1", "--abandon", *WORD)):
        assert ran.code == 2, ran
        assert "completed already" in ran.err
    assert cli.journal() == before


def test_cancel_ends_a_run_with_nothing_open_and_asks_for_what_is_open(cli: Cli) -> None:
    assert cli.run("limited", "r2").code == 5
    ran = cli("cancel", "r2", "--by", "dana", "--reason", "not needed")
    assert ran.code == 0, ran
    assert "cancelled" in ran.err
    assert cli("resume", "r2").code == 6
    assert cli.run("support", DIE="email").code == -9
    asked = cli("cancel", "r1", "--by", "dana", "--json")
    assert asked.code == 0, asked
    assert asked.json["status"] == "unknown", "a cancel never settles a call"
    assert cli("resolve", "r1", "2.1", "--applied", "--receipt", "none", *WORD).code == 0
    assert cli("resume", "r1").code == 6


def test_a_dead_sender_is_known_without_being_asserted(cli: Cli) -> None:
    assert cli.run("support", DIE="email").code == -9
    ran = cli("resolve", "r1", "2.1", "--not-applied", *WORD)
    assert ran.code == 0, "the kernel says that its sender is dead"
