"""The kit as people use it: one window, one case, a world of their own, the command, the fixture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from counterfoil.errors import DefinitionError
from counterfoil.testing.crash.kit import Plan, run_plan
from counterfoil.testing.plugin import PromiseBroken, crash_windows
from tests.crash import flows

HERE = Path(__file__).parent
FLOWS = HERE / "flows.py"

pytestmark = pytest.mark.timeout(600)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "counterfoil.cli", "crashtest", *words, "--workers", "1"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)


def test_one_window_may_be_tried_by_its_name() -> None:
    report = run_plan(Plan(entry=f"{FLOWS}:one_call", only="tool[create_ticket 1.1]", workers=1))
    assert report.ok, report.sentences()
    assert [row.window for row in report.rows] == ["tool[create_ticket 1.1] before", "tool[create_ticket 1.1] after"]
    assert (report.kills, report.freezes) == (2, 2)


def test_one_case_may_be_tried_again_by_its_numbers(tmp_path: Path) -> None:
    report = run_plan(Plan(entry=f"{FLOWS}:one_call", path=(14, 3), keep=str(tmp_path / "kept"), workers=1))
    assert (report.cases, report.kills) == (1, 2)
    assert list((tmp_path / "kept").glob("worker-1/kill-*/process-*.jsonl"))


def test_no_such_window_names_those_that_there_are() -> None:
    with pytest.raises(DefinitionError, match="no window's name holds") as refused:
        run_plan(Plan(entry=f"{FLOWS}:reads", only="nowhere", workers=1))
    assert "tool[look 1.1] before" in refused.value.remedy


@pytest.mark.parametrize("name,why", [("stuck", "does not complete undisturbed"), ("nothing", "has no nothing")])
def test_what_cannot_be_tested_says_why(name: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        run_plan(Plan(entry=f"{FLOWS}:{name}", workers=1))


def test_reads_alone_are_judged_by_the_asks() -> None:
    report = run_plan(Plan(entry=f"{FLOWS}:reads", freeze=False, workers=1))
    assert report.ok, report.sentences()


def test_a_world_of_ones_own_is_told_by_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = tmp_path / "world"
    world.touch()
    monkeypatch.setenv("CRASH_WORLD", str(world))
    report = crash_windows(flows.own_world, ledger=lambda: world.read_text().split(), only="[write_line", red=False)
    assert (report.judged, report.blind) == (1, ())
    assert report.kills >= 2


def test_a_judge_that_sees_nothing_is_no_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASH_WORLD", str(tmp_path / "world"))
    with pytest.raises(PromiseBroken, match="the ledger shows no effect of write_line"):
        crash_windows(flows.own_world, ledger=list, only="tool[", freeze=False)


def test_the_command_says_so_when_every_promise_held() -> None:
    done = command(f"{FLOWS}:one_call", "--no-freeze", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ok"]
    assert said["broken"] == []
    assert said["kills"] == len(said["rows"])
    assert 0 < said["red"]["failed"] <= said["red"]["cases"]


def test_the_command_names_the_window_and_how_to_see_it_again() -> None:
    done = command(f"{FLOWS}:late_liar", "--only", "append[dispatched 1.1] before", "--no-freeze")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "append[dispatched 1.1] before, " not in said
    assert 'hasty 1.1 is dispatch="late" and sent before its mark was durable' in said
    assert f"counterfoil crashtest {FLOWS}:late_liar --kill-at" in said


def test_what_is_tried_again_has_the_same_input_and_the_same_provider() -> None:
    behave = ("--behave", 'notes={"lookup_lag_s":0.1}')
    done = command(
        f"{FLOWS}:late_liar", "--input", "a b", *behave, "--only", "append[dispatched 1.1] before", "--no-freeze"
    )
    said = " ".join(done.stdout.split())
    assert f"{FLOWS}:late_liar --input 'a b' --behave '{behave[1]}' --kill-at" in said


@pytest.mark.parametrize("words", [(), ("nowhere:flow",), (f"{FLOWS}:one_call", "--then", "3")])
def test_the_command_refuses_what_has_no_meaning(words: tuple[str, ...]) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_users_project_needs_nothing_but_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import os\nfrom datetime import timedelta\nimport counterfoil as cf\n\n"
        "@cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=1)))\n"
        "async def charge(cents: int, *, call: cf.Call) -> str:\n"
        "    url = os.environ['COUNTERFOIL_PROVIDER_URL']\n"
        "    answer = await call.http.post(f'{url}/charges', json={'cents': cents})\n"
        "    answer.raise_for_status()\n"
        "    return answer.json()['id']\n\n"
        "script = [{'calls': [{'name': 'charge', 'arguments': {'cents': 5}}]}, {'text': 'Paid.'}]\n"
        "flow = cf.Agent('shop', version='1', model=cf.ScriptedModel(script), tools=[charge])\n"
    )
    (tmp_path / "test_shop.py").write_text(
        "import shop\n\n"
        "def test_held(crash_windows):\n"
        "    assert crash_windows(shop.flow, only='tool[', red=False).kills == 2\n\n"
        "def test_by_name(crash_windows):\n"
        "    crash_windows('shop:flow', only='send[', freeze=False, red=False)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_plugin_loads_nothing_heavy_at_pytests_start() -> None:
    code = "import counterfoil.testing.plugin, sys; print([name for name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"httpx2", "pydantic", "rich", "typer", "openai", "counterfoil.testing.crash.kit"}
    assert not heavy.intersection(eval(done.stdout))
