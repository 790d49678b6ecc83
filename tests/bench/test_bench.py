"""`counterfoil bench` measures what it says. How fast anything was is no matter here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from counterfoil.cli import bench
from counterfoil.cli.main import app
from counterfoil.testing import speed, workload


def test_payloads_have_their_size_and_differ() -> None:
    turns = (1, 2, 17, 99_999)
    arguments = {workload.arguments_of(turn) for turn in turns}
    results = {json.dumps(workload.result_of(turn), separators=(",", ":")) for turn in turns}
    assert {len(text) for text in arguments} == {workload.ARGUMENT_BYTES}
    assert {len(text) for text in results} == {workload.RESULT_BYTES}
    assert len(arguments) == len(results) == len(turns)


def test_a_rate_stands_between_two_raw_rates_of_the_same_bytes(tmp_path: Path) -> None:
    size = speed.record_bytes(tmp_path)
    assert workload.ARGUMENT_BYTES + workload.RESULT_BYTES < 2 * size < 1500
    for measure in (speed.one_run, speed.many_runs):
        found = speed.beside_raw(tmp_path, 0.02, size, measure)
        mean = (found.before.per_s + found.after.per_s) / 2
        assert found.ratio == pytest.approx(found.ours.per_s / mean)
        assert found.ours.cpu_ms > 0
    left = [path.name for path in tmp_path.iterdir() if not path.name.startswith("runs.db")]
    assert left == [], "a measurement removes its folder"


def test_a_long_run_is_resumed_at_its_next_call(tmp_path: Path) -> None:
    grown = speed.grow(tmp_path, [20, 40])
    assert grown.cpu_ms.keys() == grown.turn_bytes.keys() == {20, 40}
    assert speed.resume(tmp_path, 20).wall_ms > 0


def test_an_aim_that_is_missed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = bench.Figure(name="one run", value=1, unit="records/s", aim="0.8 of the raw commits or more", met=False)
    monkeypatch.setattr(bench, "_measure", lambda *_: [missed])
    page = CliRunner().invoke(app, ["bench", "--dir", str(tmp_path)])
    assert "missed: 0.8" in page.stdout
    assert "0 of 1 aims met" in page.stdout
    document = CliRunner().invoke(app, ["bench", "--dir", str(tmp_path), "--json"])
    assert json.loads(document.stdout)["figures"][0]["met"] is False
