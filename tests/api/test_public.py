"""The public names and signatures, the sync twins, and what an import may load."""

import asyncio
import inspect
import json
import pickle
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import counterfoil as cf
from counterfoil import public

SNAPSHOT = Path(__file__).parent / "names.txt"
NOT_LOADED = {"httpx", "httpx2", "typer", "rich", "openai", "tenacity", "psycopg", "starlette"} | {
    "hypothesis",
    "pytest",
    "pydantic",
}


def described(name: str) -> str:
    value = getattr(cf, name)
    if inspect.isclass(value) and issubclass(value, Enum):
        return f"{name}: {', '.join(member.value for member in value)}"
    if inspect.isclass(value) and (issubclass(value, Exception) or getattr(value, "_is_protocol", False)):
        return name  # Their signatures are Python's, and differ between its versions.
    return f"{name}{plain(inspect.signature(value))}" if callable(value) else f"{name}: {type(value).__name__}"


def plain(signature: inspect.Signature) -> str:
    """Without defaults whose text is of one process."""
    return re.sub(r" object at 0x[0-9a-f]+", "", " ".join(str(signature).replace("counterfoil.", "").split()))


def test_every_public_name_and_signature_is_as_it_was_reviewed() -> None:
    """A change is meant: write the new text to names.txt in the same commit, with a line in the changelog."""
    now = "\n".join(described(name) for name in sorted(cf.__all__, key=str.lower)) + "\n"
    assert SNAPSHOT.exists(), f"write this to {SNAPSHOT.name}:\n{now}"
    assert now == SNAPSHOT.read_text()


def test_all_is_sorted_and_complete() -> None:
    assert public.__all__ == cf.__all__
    found = {name for name, value in vars(public).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert set(cf.__all__) == found | {"__version__"}
    assert len(cf.__all__) == len(set(cf.__all__))


@pytest.mark.parametrize("name", ["run", "resume", "guard"])
def test_a_sync_front_has_the_signature_of_its_async_twin(name: str) -> None:
    """But for `stop`, an event that belongs to an event loop, and the result, which is awaited."""
    front, twin = inspect.signature(getattr(cf, name)), inspect.signature(getattr(cf, f"a{name}"))
    assert inspect.iscoroutinefunction(getattr(cf, f"a{name}"))
    expected = {key: each for key, each in twin.parameters.items() if key != "stop"}
    assert dict(front.parameters) == expected
    assert front.return_annotation == twin.return_annotation


@pytest.mark.parametrize("name", ["run", "resume", "guard"])
async def test_a_sync_front_in_a_running_loop_names_the_async_one(name: str, tmp_path: Path) -> None:
    @cf.tool
    def work() -> None:
        """Work."""

    flow = cf.Agent("t", version="1", model=cf.ScriptedModel([{"text": "x"}]))
    calls: dict[str, Any] = {
        "run": lambda: cf.run(flow, 1, run_id="r", store=tmp_path / "s.db"),
        "resume": lambda: cf.resume(flow, "r", store=tmp_path / "s.db"),
        "guard": lambda: cf.guard("r", work, {}, store=tmp_path / "s.db"),
    }
    with pytest.raises(cf.CounterfoilError, match="inside a running event loop") as caught:
        calls[name]()
    assert f"await a{name}(" in caught.value.remedy
    assert not (tmp_path / "s.db").exists()


def test_the_sync_fronts_do_what_their_twins_do(tmp_path: Path) -> None:
    flow = cf.Agent("t", version="1", model=cf.ScriptedModel([{"text": "x"}]))
    first = cf.run(flow, 1, run_id="r", store=tmp_path / "s.db")
    assert first == cf.resume(flow, "r", store=tmp_path / "s.db")
    assert first == asyncio.run(cf.arun(flow, 1, run_id="r", store=tmp_path / "s.db"))


def test_an_import_loads_no_web_cli_http_model_or_test_library() -> None:
    code = "import sys, json, counterfoil; print(json.dumps([n for n in sys.modules if '.' not in n]))"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(json.loads(ran.stdout)) & NOT_LOADED == set()


def test_a_run_without_http_loads_no_http_either(tmp_path: Path) -> None:
    code = (
        "import sys, json, counterfoil as cf\n"
        "flow = cf.Agent('t', version='1', model=cf.ScriptedModel([{'text': 'x'}]))\n"
        "cf.run(flow, 1, run_id='r', store=sys.argv[1])\n"
        "print(json.dumps([n for n in sys.modules if '.' not in n]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path / "s.db"], check=True, capture_output=True, text=True)
    assert set(json.loads(ran.stdout)) & NOT_LOADED == set()


@pytest.mark.parametrize(
    "error", [cf.CounterfoilError("m", remedy="r"), cf.ModelError("m", retryable=True), cf.NotApplied("m")]
)
def test_errors_survive_a_pickle(error: Exception) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
