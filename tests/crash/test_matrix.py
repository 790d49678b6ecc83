"""The crash matrix: real processes, killed and frozen at every window, judged by the provider's ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.testing.crash.kit import Plan, run_plan
from counterfoil.testing.crash.report import Report

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
REFUND = {"order": 9, "cents": 500}

pytestmark = pytest.mark.timeout(1800)


def show(report: Report) -> None:
    print(
        f"{report.flow}: {report.kills} kills, {report.freezes} freezes, {report.cases} cases, {report.seconds:.1f} s"
    )


@pytest.mark.parametrize(
    "example,value", [("support_desk", "Login fails"), ("refund", REFUND), ("release_notes", "1.4")]
)
def test_every_example_survives_a_kill_and_a_freeze_at_every_window(example: str, value: object) -> None:
    report = run_plan(Plan(entry=f"{EXAMPLES / example}.py:flow", value=value, workers=1))
    show(report)
    assert report.ok, report.sentences()
    assert report.red_failed
    assert report.blind == ()
    assert min(report.kills, report.freezes) > 40
    if example != "release_notes":  # There calls run side by side, so a number is not always the same window.
        assert [(row.kills, row.freezes) for row in report.rows] == [(1, 1)] * len(report.rows)


def test_two_calls_survive_a_kill_at_every_window_of_every_first_resume() -> None:
    report = run_plan(Plan(entry=f"{HERE / 'flows.py'}:two_calls", depth=2, freeze=False, workers=2))
    show(report)
    assert report.ok, report.sentences()
    assert report.kills > 500


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("flow,depth", [("two_turns", 2), ("two_calls", 3), ("rings", 3)])
def test_deeper(flow: str, depth: int) -> None:
    report = run_plan(Plan(entry=f"{HERE / 'flows.py'}:{flow}", depth=depth))
    show(report)
    assert report.ok, report.sentences()
