"""The scripted model: one decision for each turn, whatever the history is, and every ask countable from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from counterfoil.core.limits import Usage
from counterfoil.errors import DefinitionError, ModelError
from counterfoil.models.scripted import ScriptedModel
from counterfoil.runtime.model import Decision, Exchange, ModelRequest, ToolCall, ToolResult

PLAN: list[dict[str, Any]] = [
    {"text": "First a ticket.", "calls": [{"name": "create_ticket", "arguments": {"title": "Login fails"}}]},
    {"text": "Done."},
]

YAML = """
- text: First a ticket.
  calls: [{name: create_ticket, arguments: {title: Login fails}}]
- text: Done.
"""


def asking(turn: int, *history: Exchange) -> ModelRequest:
    return ModelRequest(turn=turn, instructions="", input="go", history=history, tools=())


def answered(*calls: ToolCall, results: int | None = None) -> Exchange:
    told = calls if results is None else calls[:results]
    return Exchange(decision=Decision(calls=calls), results=tuple(ToolResult(call=call, content="1") for call in told))


async def test_each_turn_has_its_decision() -> None:
    model = ScriptedModel(PLAN)
    first = await model.decide(asking(1))
    assert first.text == "First a ticket."
    assert first.calls == (ToolCall(name="create_ticket", arguments='{"title": "Login fails"}', id="call_1_1"),)
    assert (await model.decide(asking(2))).text == "Done."
    assert await model.decide(asking(1)) == first


async def test_the_length_of_the_history_chooses_nothing() -> None:
    model = ScriptedModel(PLAN)
    assert (await model.decide(asking(2))).text == "Done."
    assert (await model.decide(asking(1, *[answered()] * 9))).calls


@pytest.mark.parametrize("turn", [0, 3])
async def test_past_the_end_says_how_long_the_script_is(turn: int) -> None:
    with pytest.raises(ModelError, match=f"the script has 2 turns; asked for turn {turn}") as raised:
        await ScriptedModel(PLAN).decide(asking(turn))
    assert not raised.value.retryable


async def test_decisions_and_plain_data_mix() -> None:
    whole = Decision(text="a", usage=Usage(input_tokens=3), raw={"signature": "s"})
    model = ScriptedModel([whole, MappingProxyType({"text": "b", "usage": {"output_tokens": 2}})])
    assert await model.decide(asking(1)) is whole
    assert (await model.decide(asking(2))).usage == Usage(output_tokens=2)


async def test_ids_may_be_empty_or_repeat_and_arguments_may_be_malformed() -> None:
    calls = [
        {"name": "a", "arguments": '{"cut', "id": ""},
        {"name": "a", "id": "x"},
        {"name": "a", "id": "x"},
    ]
    decision = await ScriptedModel([{"calls": calls}]).decide(asking(1))
    assert [call.id for call in decision.calls] == ["", "x", "x"]
    assert [call.arguments for call in decision.calls] == ['{"cut', "{}", "{}"]


async def test_a_function_is_asked_with_the_request() -> None:
    def next_turn(request: ModelRequest) -> dict[str, Any]:
        return {"text": f"{request.input} {request.turn}"}

    async def later(request: ModelRequest) -> Decision:
        return Decision(text=f"later {request.turn}")

    assert (await ScriptedModel(next_turn).decide(asking(7))).text == "go 7"
    assert (await ScriptedModel(later).decide(asking(8))).text == "later 8"


@pytest.mark.parametrize(
    "script,complaint",
    [
        ("text", "a list of turns or a function, not str"),
        (3, "a list of turns or a function, not int"),
        ({"text": "one turn"}, "a list of turns or a function, not dict"),
        ([{"txt": "a"}], "turn 1 .*txt"),
        ([{}, {"calls": [{"arguments": {}}]}], r"turn 2 .*name.*calls\[0\]"),
        ([{"calls": [{"name": "a", "arguments": [1]}]}], "turn 1 .*arguments"),
        ([{"calls": [{"name": "a", "arguments": {"at": object()}}]}], "turn 1 .*JSON serializable"),
        ([None], "turn 1"),
    ],
)
def test_a_script_is_read_when_it_is_made(script: Any, complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        ScriptedModel(script)


@pytest.mark.parametrize(
    "name,text",
    [
        ("plan.json", json.dumps(PLAN)),
        ("plan.yaml", YAML),
        ("plan.YML", YAML),
    ],
)
async def test_a_file_holds_the_same_script(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    model = ScriptedModel.from_file(tmp_path / name)
    assert await model.decide(asking(1)) == await ScriptedModel(PLAN).decide(asking(1))
    assert model.describe() == ScriptedModel(PLAN).describe()


@pytest.mark.parametrize(
    "name,content,complaint",
    [
        ("a.json", b"[", "not JSON"),
        ("a.json", b"\xff", "cannot be read"),
        ("a.json", b'{"text": "a"}', "a list of turns"),
        ("a.json", b'[{"text": 1}]', "turn 1 of the script"),
        ("a.yaml", b"[", "not YAML"),
        ("a.yaml", b"- calls: [{name: a, arguments: {day: 2026-01-01}}]", "turn 1 .*JSON serializable"),
        ("a.json", None, "cannot be read"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes | None, complaint: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DefinitionError, match=re.escape(str(path)) + f": .*{complaint}"):
        ScriptedModel.from_file(path)


def test_yaml_without_pyyaml_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("[]")
    (tmp_path / "a.json").write_text("[]")
    ScriptedModel.from_file(tmp_path / "a.json")
    with pytest.raises(ImportError, match=re.escape("pip install 'counterfoil[yaml]'")):
        ScriptedModel.from_file(tmp_path / "a.yaml")


def a_plan(request: ModelRequest) -> Decision:
    return Decision()


def test_it_is_described_by_what_it_says() -> None:
    described = ScriptedModel(PLAN).describe()
    assert described["model"] == "scripted"
    assert described == ScriptedModel([dict(turn) for turn in PLAN]).describe()
    assert described != ScriptedModel([*PLAN, {"text": "more"}]).describe()
    assert ScriptedModel(a_plan).describe() == {"model": "scripted", "script": "a_plan"}
    assert ScriptedModel(partial(a_plan)).describe()["script"] == "a_plan"


async def test_every_ask_is_counted_even_one_that_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "asks"
    model = ScriptedModel(PLAN, asks_log=log)
    await model.decide(asking(2))
    with pytest.raises(ModelError):
        await model.decide(asking(3))
    asks = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(ask["turn"], ask["pid"]) for ask in asks] == [(2, os.getpid()), (3, os.getpid())]
    assert asks[0]["at"] <= asks[1]["at"]


def test_a_killed_process_leaves_its_asks_behind(tmp_path: Path) -> None:
    child = """
import asyncio, os, signal, sys
from counterfoil.models.scripted import ScriptedModel
from counterfoil.runtime.model import Decision, ModelRequest

def die(request):
    os.kill(os.getpid(), signal.SIGKILL)

request = ModelRequest(turn=5, instructions="", input=None, history=(), tools=())
asyncio.run(ScriptedModel(die, asks_log=sys.argv[1]).decide(request))
"""
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", child, str(tmp_path / "asks")], check=False)
        assert ended.returncode == -signal.SIGKILL
    asks = [json.loads(line) for line in (tmp_path / "asks").read_text().splitlines()]
    assert [ask["turn"] for ask in asks] == [5, 5]
    assert asks[0]["pid"] != asks[1]["pid"]


async def test_an_ask_is_on_the_disk_before_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def synced(handle: int) -> None:
        assert os.fstat(handle).st_size > 0
        order.append("synced")

    def asked(request: ModelRequest) -> Decision:
        order.append("asked")
        return Decision()

    monkeypatch.setattr(os, "fsync", synced)
    await ScriptedModel(asked, asks_log=tmp_path / "asks").decide(asking(1))
    assert order == ["synced", "asked"]


async def test_an_ask_that_cannot_be_counted_is_not_answered(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be counted") as raised:
        await ScriptedModel(PLAN, asks_log=tmp_path).decide(asking(1))
    assert not raised.value.retryable


@pytest.mark.incident("6a")
@pytest.mark.parametrize("results", [0, 1])
async def test_a_history_with_an_unpaired_call_is_refused_as_providers_do(results: int) -> None:
    one, two = ToolCall(name="a", arguments="{}", id="1"), ToolCall(name="b", arguments="{}", id="2")
    request = asking(2, answered(one), answered(one, two, results=results))
    with pytest.raises(ModelError, match="turn 2 of the history") as raised:
        await ScriptedModel(PLAN, check_history=True).decide(request)
    assert not raised.value.retryable
    assert (await ScriptedModel(PLAN).decide(request)).text == "Done."


async def test_a_paired_history_is_not_refused() -> None:
    call = ToolCall(name="a", arguments="{}", id="")
    request = asking(2, answered(call, call), answered())
    assert (await ScriptedModel(PLAN, check_history=True).decide(request)).text == "Done."
