"""What the mock server cannot say: the adapter against answers given byte for byte."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import counterfoil as cf
from counterfoil.core.limits import Usage
from counterfoil.errors import DefinitionError, ModelError
from counterfoil.models.openai import OpenAIChat
from counterfoil.runtime.model import Decision, Exchange, ModelRequest, ToolCall, ToolResult
from tests.models.wire import Wire, call, completion, http, refuses_unpaired, serving


def asking(*history: Exchange) -> ModelRequest:
    return ModelRequest(turn=len(history) + 1, instructions="", input="go", history=history, tools=())


def answered(decision: Decision) -> Exchange:
    results = tuple(ToolResult(call=call, content="1") for call in decision.calls)
    return Exchange(decision=decision, results=results)


def model_at(wire: Wire, **settings: Any) -> OpenAIChat:
    return OpenAIChat("m", base_url=wire.base_url, api_key="test", **settings)


async def decided(reply: bytes, **settings: Any) -> Decision:
    with serving(reply) as wire:
        return await model_at(wire, **settings).decide(asking())


async def refused(reply: bytes, **settings: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        await decided(reply, **settings)
    gc.collect()  # A connection left open would warn now.
    return raised.value


# Kept whole, sent back whole.

THINKING: dict[str, Any] = {
    "content": None,
    "refusal": None,
    "annotations": [],
    "reasoning_content": "The ticket first.",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAAA==", "id": None, "index": 0}],
    "tool_calls": [
        call("ticket", '{"title": "Größe",  "n": 1.0}', "t1", extra_content={"google": {"thought_signature": "CpIB"}}),
        call("mail", "{}", "m1", index=None),
    ],
}


async def test_the_message_is_kept_whole_and_goes_back_as_it_came() -> None:
    with serving(completion(THINKING, "tool_calls")) as wire:
        model = model_at(wire)
        decision = await model.decide(asking())
        assert decision.raw == {"role": "assistant", **THINKING}
        kept = copy.deepcopy(decision)
        await model.decide(asking(answered(decision)))
        assert decision == kept
    sent = wire.asked[1]["messages"][1]
    ticket, mail = THINKING["tool_calls"]
    assert sent == {
        "role": "assistant",
        "annotations": [],
        "reasoning_content": "The ticket first.",
        "reasoning_details": THINKING["reasoning_details"],  # a null inside is part of what was signed
        "tool_calls": [ticket, {name: value for name, value in mail.items() if value is not None}],
    }


async def test_a_message_of_another_adapter_is_told_in_this_ones_words() -> None:
    called = ToolCall(name="mail", arguments='{"to":"d"}', id="x")
    foreign = {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "mail", "input": {"to": "d"}}]}
    history = [
        answered(Decision(text="Wait.", calls=(called,), raw=foreign)),
        answered(Decision(calls=(called,), raw=None)),
        answered(Decision(text="So far.", raw={"role": "assistant", "content": None, "tool_calls": []})),
    ]
    with serving(completion({"content": "Done."})) as wire:
        await model_at(wire).decide(asking(*history))
    first, _, second, _, third = wire.asked[0]["messages"][1:]
    assert first["role"] == "assistant"
    assert first["content"] == "Wait."
    assert first["tool_calls"] == [call("mail", '{"to":"d"}', "x")]
    assert "content" not in second
    assert third == {"role": "assistant", "content": "So far."}


@pytest.mark.parametrize("raw,content", [({"content": "Hi."}, "Hi."), ({"role": "model", "content": "?"}, "Hello.")])
async def test_a_past_message_is_always_the_assistants(raw: dict[str, Any], content: str) -> None:
    with serving(completion({"content": "Done."})) as wire:
        await model_at(wire).decide(asking(answered(Decision(text="Hello.", raw=raw))))
    assert wire.asked[0]["messages"][1] == {"role": "assistant", "content": content}


async def test_a_message_outlives_the_process_that_received_it(tmp_path: Path) -> None:
    """Signed reasoning is worth something only as long as it is whole, and a run may be resumed days later."""
    notes: list[str] = []

    @cf.tool(contract=cf.Read())
    def look_up(title: str) -> str:
        notes.append(title)
        return "known"

    asked_for = {**THINKING, "tool_calls": [call("look_up", '{"title":  "Größe"}', "", extra_content={"sig": "CpIB"})]}
    replies = iter(
        [
            completion(asked_for, "tool_calls"),
            http(401, {"error": {"message": "Expired"}}),
            completion({"content": "Done."}),
        ]
    )
    with serving(lambda body: next(replies)) as wire:
        results = [
            await cf.arun(
                cf.Agent("desk", version="1", model=model_at(wire), tools=[look_up]),
                "go",
                run_id="one",
                store=tmp_path / "runs.db",
            )
            for _ in range(2)
        ]
    assert [result.status for result in results] == [cf.Status.BLOCKED, cf.Status.COMPLETED]
    assert "401: Expired" in results[0].note
    assert notes == ["Größe"]
    before, after = (body["messages"] for body in wire.asked[1:])
    assert before == after
    assert after[1]["reasoning_details"] == THINKING["reasoning_details"]
    assert after[1]["tool_calls"][0] == {**asked_for["tool_calls"][0], "id": after[2]["tool_call_id"]}


# Ids.


def strict(first: bytes) -> Any:
    """Answer as ``first`` until a call was answered, and refuse what a strict provider refuses."""

    def reply(body: dict[str, Any]) -> bytes:
        if complaint := refuses_unpaired(body["messages"]):
            return http(400, {"error": {"message": complaint}})
        return completion({"content": "Done."}) if len(body["messages"]) > 4 else first

    return reply


@pytest.mark.incident("6a")
async def test_an_unpaired_history_is_refused_here_before_the_provider_refuses_it() -> None:
    decision = await decided(completion(THINKING, "tool_calls"))
    half = Exchange(decision=decision, results=answered(decision).results[:1])
    with serving(strict(b"")) as wire:
        with pytest.raises(ModelError, match="turn 1 asks for 2 calls and has 1 results") as raised:
            await model_at(wire).decide(asking(half))
        assert not raised.value.retryable
        assert wire.asked == []
    unpaired: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": decision.raw["tool_calls"]}]
    assert refuses_unpaired(unpaired), "the strict provider is not strict"


@pytest.mark.parametrize("ids", [("", ""), ("c", "c"), (None, None), ("c", ""), ("a", "b")])
async def test_a_strict_provider_takes_every_history_that_a_sloppy_gateway_made(ids: tuple[str | None, ...]) -> None:
    calls = [call("a", "{}", ids[0]), call("b", '{"half', ids[1])]
    with serving(strict(completion({"tool_calls": calls}, "tool_calls"))) as wire:
        model = model_at(wire)
        first = await model.decide(asking())
        assert [called.id for called in first.calls] == [ids[0] or "", ids[1] or ""]
        second = await model.decide(asking(answered(first)))
        last = await model.decide(asking(answered(first), answered(first), answered(second)))
    assert last.text == "Done."
    for message in wire.asked[-1]["messages"]:
        for sent in message.get("tool_calls", ()):
            assert sent["id"] in ids or (len(sent["id"]) == 9 and sent["id"].isalnum())


async def test_a_made_up_id_never_meets_a_real_one() -> None:
    empty = Decision(calls=(ToolCall(name="a", arguments="{}"),))
    with serving(completion({"content": "Done."})) as wire:
        model = model_at(wire)
        await model.decide(asking(answered(empty)))
        made_up = wire.asked[0]["messages"][1]["tool_calls"][0]["id"]
        real = Decision(calls=(ToolCall(name="a", arguments="{}", id=made_up),))
        await model.decide(asking(answered(empty), answered(real)))
    assert refuses_unpaired(wire.asked[1]["messages"]) is None
    assert wire.asked[1]["messages"][3]["tool_calls"][0]["id"] == made_up


# What is said.


@pytest.mark.parametrize(
    "message,text",
    [
        ({"content": None, "refusal": "I will not."}, "I will not."),
        ({"content": ""}, ""),
        ({"content": [{"type": "thinking", "thinking": [{}]}, {"type": "text", "text": "Yes."}]}, "Yes."),
        ({"content": [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "No."}]}, "No."),
    ],
)
async def test_whatever_was_said_is_the_text(message: dict[str, Any], text: str) -> None:
    decision = await decided(completion(message))
    assert (decision.text, decision.calls) == (text, ())


@pytest.mark.parametrize(
    "given,passed_on,sent_back",
    [
        ({"to": "d"}, '{"to": "d"}', '{"to": "d"}'),
        (None, "", "{}"),
        ("", "", "{}"),
        ("[1]", "[1]", '{"malformed_arguments": "[1]"}'),
        ("[" * 100_000, "[" * 100_000, json.dumps({"malformed_arguments": "[" * 100_000})),
    ],
    ids=["an object", "null", "empty", "a list", "too deep"],
)
async def test_arguments_are_passed_on_as_text(given: Any, passed_on: str, sent_back: str) -> None:
    with serving(completion({"tool_calls": [call("mail", given)]}, "tool_calls")) as wire:
        model = model_at(wire)
        decision = await model.decide(asking())
        await model.decide(asking(answered(decision)))
    assert decision.calls[0].arguments == passed_on
    assert wire.asked[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == sent_back


async def test_usage_is_read_and_may_be_missing() -> None:
    told = await decided(completion({"content": "a"}, usage={"prompt_tokens": 7, "completion_tokens": 3, "cost": 1}))
    assert told.usage == Usage(input_tokens=7, output_tokens=3)
    assert (await decided(completion({"content": "a"}, usage=None))).usage == Usage()
    assert (await decided(completion({"content": "a"}, usage={"prompt_tokens": None}))).usage == Usage()


# What was cut off.


@pytest.mark.parametrize("reason", ["length", "content_filter", "model_length", "MAX_TOKENS", "anything new", None])
async def test_no_call_of_an_answer_that_was_cut_off_is_kept_though_it_parses(reason: str | None) -> None:
    error = await refused(completion({"tool_calls": [call("mail", '{"to": "d", "body": "Dear"}')]}, reason))
    assert error.retryable
    assert "mail" in str(error)


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "function_call", "STOP", "eos_token"])
async def test_a_whole_answer_ends_in_many_words(reason: str) -> None:
    assert (await decided(completion({"tool_calls": [call("mail", "{}")]}, reason))).calls


@pytest.mark.parametrize("limit", [{"max_tokens": 50}, {"max_completion_tokens": 50}])
async def test_at_the_limit_the_reason_is_not_believed(limit: dict[str, int]) -> None:
    reply = completion({"tool_calls": [call("mail", "{}")]}, "tool_calls", usage={"completion_tokens": 50})
    assert "at the output limit" in str(await refused(reply, **limit))
    assert (await decided(reply, max_tokens=51)).calls


async def test_nothing_at_all_is_no_decision_when_it_was_cut_off() -> None:
    error = await refused(completion({"content": ""}, "length"))
    assert error.retryable
    assert (await decided(completion({"content": "half a"}, "content_filter"))).text == "half a"


# What is no decision.


@pytest.mark.parametrize(
    "reply,retryable,said",
    [
        pytest.param(http(200, b"<html>Bad gateway</html>", "text/html"), True, "Bad gateway", id="a page"),
        pytest.param(http(200, b'{"choices": [{"mess'), True, "no chat completion", id="half an answer"),
        pytest.param(http(200, b""), True, "no chat completion", id="nothing"),
        pytest.param(http(200, []), True, "no chat completion", id="a list"),
        pytest.param(http(200, {"choices": "none"}), True, "no chat completion", id="no list of choices"),
        pytest.param(http(200, {"choices": []}), True, "choices", id="no choice"),
        pytest.param(completion({"content": 3}), True, "no chat completion", id="no text"),
        pytest.param(completion({"content": "\ud83d"}), True, "no chat completion", id="a text that cannot be stored"),
        pytest.param(http(200, {"error": {"code": 502, "message": "Up"}}), True, "502: Up", id="a failure as success"),
        pytest.param(
            http(200, {"error": {"code": 400, "message": "Bad"}}), False, "400: Bad", id="a refusal as success"
        ),
        pytest.param(http(200, {"error": {"message": "Hm"}}), True, "Hm", id="a failure without a code"),
        pytest.param(http(200, {"error": "Fell over"}), True, "Fell over", id="a failure in words"),
        pytest.param(completion({"content": "It"}, "error"), True, "broke off", id="broken off"),
        pytest.param(
            completion({"content": "It"}, "insufficient_system_resource"), True, "broke off", id="no more room"
        ),
        pytest.param(http(500, b"<html>Oops</html>", "text/html"), True, "500: <html>Oops", id="500 as a page"),
        pytest.param(http(418, {"detail": "Teapot"}), False, "Teapot", id="an error of another shape"),
        pytest.param(http(503, b""), True, "503", id="503 without a word"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", True, "Connection error", id="cut in the body"),
        pytest.param(b"", True, "Connection error", id="cut before the answer"),
        pytest.param(b"no http at all", True, "Connection error", id="no HTTP"),
    ],
)
async def test_what_is_no_answer_is_no_decision(reply: bytes, retryable: bool, said: str) -> None:
    error = await refused(reply)
    assert said in str(error)
    assert error.retryable is retryable


async def test_a_page_of_html_is_not_kept_whole() -> None:
    assert len(str(await refused(http(500, b"x" * 1_000_000, "text/html")))) <= 2000
    assert len(str(await refused(http(200, b"x" * 1_000_000, "text/html")))) <= 2200


async def test_nobody_there_may_pass() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        model = OpenAIChat("m", base_url=f"http://127.0.0.1:{taken.getsockname()[1]}", api_key="test")
        with pytest.raises(ModelError, match="Connection error") as raised:
            await model.decide(asking())
    assert raised.value.retryable


async def test_a_cancelled_ask_leaves_nothing_open() -> None:
    loop, asked, answer = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def reply(body: dict[str, Any]) -> bytes:
        loop.call_soon_threadsafe(asked.set)
        answer.wait(timeout=60)
        return b""

    with serving(reply) as wire:
        ask = asyncio.create_task(model_at(wire).decide(asking()))
        await asked.wait()
        ask.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ask
        answer.set()
    gc.collect()


# Keys and settings.


async def test_a_key_is_not_repeated_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "key-of-mine-123"
    with serving(http(401, {"error": {"message": f"Incorrect API key: {key}"}})) as wire:
        for given in (key, None):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            with pytest.raises(ModelError, match=r"Incorrect API key: \[key\]") as raised:
                await OpenAIChat("m", base_url=wire.base_url, api_key=given).decide(asking())
            assert key not in str(raised.value)
        with pytest.raises(ModelError) as raised:  # a file's last line break, refused by our own side
            await OpenAIChat("m", base_url=wire.base_url, api_key=f"{key}\n").decide(asking())
    assert key not in str(raised.value)
    assert not raised.value.retryable


async def test_no_key_at_all_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match="api_key") as raised:
        await OpenAIChat("m", base_url="http://127.0.0.1:9").decide(asking())
    assert not raised.value.retryable
    gc.collect()


def test_it_is_described_without_anything_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = OpenAIChat(
        "gpt-5",
        base_url="https://me:hunter2@gateway.example:8443/v1?token=hunter2",
        api_key="hunter2",
        temperature=0.5,
        reasoning_effort="high",
        stop=["a"],
        timeout=30,
        extra_headers={"X-Org": "hunter2"},
        extra_body={"data_sources": [{"key": "hunter2"}]},
    )
    assert model.describe() == {
        "model": "gpt-5",
        "base_url": "gateway.example:8443",
        "temperature": "0.5",
        "reasoning_effort": "high",
        "stop": '["a"]',
        "extra_headers": "X-Org",
        "extra_body": "d811facaadae0268",
    }
    assert "hunter2" not in repr(model)
    assert OpenAIChat("m").describe() == {"model": "m", "base_url": "api.openai.com"}


@pytest.mark.parametrize(
    "arguments,complaint",
    [
        ({"messages": []}, "sets messages itself"),
        ({"stream": True, "n": 2}, "sets n, stream itself"),
        ({"base_url": "localhost:11434/v1"}, "http://"),
        ({"base_url": "http://"}, "http://"),
        ({"base_url": "http://host:port"}, "no address"),
        ({"response_format": object}, "response_format is not plain JSON"),
        ({"client": object(), "api_key": "k"}, "not both"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        OpenAIChat("m", **arguments)


# The SDK is an extra.


def in_a_child(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_sdk_is_loaded_when_a_model_is_asked_and_no_sooner() -> None:
    code = """
import sys
import threading
from counterfoil.models.openai import OpenAIChat
OpenAIChat("m", base_url="http://127.0.0.1:9", api_key="k").describe()
print(sorted({"openai", "httpx2", "httpx"} & sys.modules.keys()))
"""
    assert in_a_child(code) == "[]"


def test_without_the_sdk_the_error_is_the_line_to_type() -> None:
    code = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "openai" else found(name, *rest)
from counterfoil.models.openai import OpenAIChat
try:
    OpenAIChat("m")
except ImportError as error:
    print(error)
"""
    assert in_a_child(code) == "OpenAIChat needs the openai SDK: pip install 'counterfoil[openai]'"
