"""A judge that passes a broken library proves nothing: every planted fault must be caught, for what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.testing.crash.kit import Plan, run_plan
from counterfoil.testing.crash.report import Report

HERE = Path(__file__).parent


def crash(flow: str, fault: str = "", **given: object) -> Report:
    prepare = f"{HERE / 'faults.py'}:{fault}" if fault else ""
    plan = {"entry": f"{HERE / 'flows.py'}:{flow}", "prepare": prepare, "freeze": False, "red": False, "workers": 1}
    return run_plan(Plan(**{**plan, **given}))  # type: ignore[arg-type]  # the tests' own words


def broken(report: Report) -> set[str]:
    return {one.promise for tried in report.failures for one in tried.broken}


@pytest.mark.parametrize(
    "flow,fault,promises",
    [
        ("one_call", "forget_decisions", {"one decision"}),
        ("rings", "forget_dispatches", {"one effect", "mark first"}),
        ("rings", "repeat_one_shots", {"one effect"}),
        ("one_call", "mint_a_new_key_for_a_repeat", {"one key", "one effect"}),
        ("late_liar", "", {"mark first"}),
        ("one_call", "survive_kills", {"the kill fires"}),
    ],
)
def test_a_planted_fault_is_caught_for_what_it_is(flow: str, fault: str, promises: set[str]) -> None:
    report = crash(flow, fault)
    assert not report.ok
    assert promises <= broken(report), report.sentences()


def test_the_guard_off_is_caught_by_the_same_judge() -> None:
    report = crash("rings", red=True)
    assert report.ok, report.sentences()
    assert report.red_failed
    assert {"one effect", "one decision"} <= {one.promise for tried in report.red for one in tried.broken}
