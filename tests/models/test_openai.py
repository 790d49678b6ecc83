"""The adapter through the real SDK, over a real socket, against a mock server that its authors do not know."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Reply
from llmock.scenarios import ToolCall as Scripted
from openai import AsyncOpenAI

from counterfoil.core.limits import Usage
from counterfoil.errors import ModelError
from counterfoil.models.openai import OpenAIChat
from counterfoil.runtime.model import Decision, Exchange, ModelRequest, ToolResult, ToolSpec

EMAIL = ToolSpec(
    name="send_email",
    description="Send a mail.",
    parameters={"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
)


def asking(*history: Exchange, tools: tuple[ToolSpec, ...] = (EMAIL,), **more: Any) -> ModelRequest:
    return ModelRequest(
        turn=len(history) + 1,
        **{"instructions": "Be brief.", "input": "Write to Dana", "history": history, "tools": tools, **more},
    )


def answered(decision: Decision) -> Exchange:
    results = [ToolResult(call=call, content=f'"sent {place}"') for place, call in enumerate(decision.calls)]
    return Exchange(decision=decision, results=tuple(results))


def last_body(llmock: LLMock) -> dict[str, Any]:
    body = llmock.last_request.body
    assert isinstance(body, dict)
    return body


@pytest.fixture
def model(llmock: LLMock) -> OpenAIChat:
    return OpenAIChat("gpt-4o", base_url=llmock.base_url(), api_key="test")


async def test_a_text_is_a_decision(llmock: LLMock, model: OpenAIChat) -> None:
    llmock.reply("All is well.")
    decision = await model.decide(asking())
    assert decision.text == "All is well."
    assert decision.calls == ()
    assert last_body(llmock) == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write to Dana"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "send_email", "description": "Send a mail.", "parameters": EMAIL.parameters},
            }
        ],
    }


async def test_what_is_not_there_is_not_sent_and_a_value_is_sent_as_json(llmock: LLMock, model: OpenAIChat) -> None:
    await model.decide(asking(tools=(), instructions="", input={"ticket": "Größe"}))
    assert last_body(llmock) == {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": '{"ticket":"Größe"}'}],
    }


async def test_a_call_is_given_as_the_model_wrote_it(llmock: LLMock, model: OpenAIChat) -> None:
    llmock.call_tool("send_email", {"to": "dana@example.com"}, text="On it.")
    decision = await model.decide(asking())
    (call,) = decision.calls
    assert (decision.text, call.name, call.arguments) == ("On it.", "send_email", '{"to": "dana@example.com"}')
    assert call.id.startswith("call_")
    assert decision.raw["tool_calls"][0]["id"] == call.id


async def test_two_calls_and_their_results_go_back_in_pairs(llmock: LLMock, model: OpenAIChat) -> None:
    calls = (Scripted("send_email", {"to": "a"}), Scripted("send_email", {"to": "b"}))
    llmock.add(Reply(tool_calls=calls)).reply("Both sent.")
    first = await model.decide(asking())
    second = await model.decide(asking(answered(first)))
    one, two = (call.id for call in first.calls)
    assert one != two
    assert second.text == "Both sent."
    assert last_body(llmock)["messages"][2:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": one, "type": "function", "function": {"name": "send_email", "arguments": '{"to": "a"}'}},
                {"id": two, "type": "function", "function": {"name": "send_email", "arguments": '{"to": "b"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": one, "content": '"sent 0"'},
        {"role": "tool", "tool_call_id": two, "content": '"sent 1"'},
    ]


@pytest.mark.parametrize("given", ["", "call_0"])
async def test_two_calls_with_one_id_stay_two_calls(
    llmock: LLMock, model: OpenAIChat, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr("llmock.completion.new_tool_call_id", lambda prefix="call": given)
    calls = (Scripted("send_email", {"to": "a"}), Scripted("send_email", {"to": "b"}))
    llmock.add(Reply(tool_calls=calls, times=2))
    first = await model.decide(asking())
    assert [call.id for call in first.calls] == [given, given]
    second = await model.decide(asking(answered(first)))
    await model.decide(asking(answered(first), answered(second)))
    earlier, later = (request.body["messages"] for request in llmock.requests[-2:])
    assert later[: len(earlier)] == earlier, "an id changed from one ask to the next"
    asked = [call["id"] for message in later for call in message.get("tool_calls", ())]
    assert asked == [message["tool_call_id"] for message in later if message["role"] == "tool"]
    assert len(set(asked)) == 4
    assert "" not in asked


async def test_malformed_arguments_are_passed_on_and_cannot_spoil_later_asks(llmock: LLMock, model: OpenAIChat) -> None:
    llmock.call_tool("send_email", {"to": "dana@example.com"}).break_tool_call()
    decision = await model.decide(asking())
    assert decision.calls[0].arguments == '{"to": "dana@'
    assert decision.raw["tool_calls"][0]["function"]["arguments"] == '{"to": "dana@'
    await model.decide(asking(answered(decision)))
    (sent,) = last_body(llmock)["messages"][2]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == {"malformed_arguments": '{"to": "dana@'}


async def test_tokens_are_counted_and_priced(llmock: LLMock) -> None:
    model = OpenAIChat("gpt-4o", base_url=llmock.base_url(), api_key="test", usd_per_million=(2.0, 10.0))
    llmock.reply("x" * 400)
    usage = (await model.decide(asking())).usage
    assert usage.output_tokens == 100  # llmock takes four letters for a token
    assert usage.input_tokens > 0
    assert usage.usd == pytest.approx(usage.input_tokens * 2e-6 + 0.001)
    free = await OpenAIChat("gpt-4o", base_url=llmock.base_url(), api_key="test").decide(asking())
    assert free.usage.usd == 0
    assert Usage() != free.usage


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_overload_may_pass_and_is_not_retried_here(llmock: LLMock, model: OpenAIChat, status: int) -> None:
    llmock.fail(status, message="Slow down, please.")
    with pytest.raises(ModelError, match=f"^{status}: Slow down, please.$") as raised:
        await model.decide(asking())
    assert raised.value.retryable
    assert len(llmock.requests) == 1
    assert llmock.last_request.sdk_retry_count == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_refusal_does_not_pass(llmock: LLMock, model: OpenAIChat, status: int) -> None:
    said = "An assistant message with 'tool_calls' must be followed by tool messages"
    llmock.fail(status, message=said)
    with pytest.raises(ModelError, match=f"^{status}: {said}") as raised:
        await model.decide(asking())
    assert not raised.value.retryable
    assert len(llmock.requests) == 1


async def test_a_timeout_may_pass(llmock: LLMock) -> None:
    llmock.delay(0.5)
    model = OpenAIChat("gpt-4o", base_url=llmock.base_url(), api_key="test", timeout=0.05)
    with pytest.raises(ModelError, match="timed out") as raised:
        await model.decide(asking())
    assert raised.value.retryable


async def test_a_call_cut_off_at_the_limit_is_no_decision(llmock: LLMock, model: OpenAIChat) -> None:
    llmock.add(Reply(tool_calls=(Scripted("send_email", {"to": "d"}),), finish_reason="length")).break_tool_call()
    with pytest.raises(ModelError, match=r"'length'.*send_email.*max_completion_tokens") as raised:
        await model.decide(asking())
    assert raised.value.retryable


async def test_a_text_cut_off_at_the_limit_is_what_was_said(llmock: LLMock, model: OpenAIChat) -> None:
    llmock.add(Reply(text="It is because", finish_reason="length"))
    assert (await model.decide(asking())).text == "It is because"


async def test_settings_go_with_every_ask(llmock: LLMock) -> None:
    model = OpenAIChat(
        "gpt-4o", base_url=llmock.base_url(), api_key="test", temperature=0.2, extra_body={"top_k": 3}, seed=7
    )
    await model.decide(asking())
    assert {"temperature": 0.2, "top_k": 3, "seed": 7}.items() <= last_body(llmock).items()


async def test_address_and_key_are_taken_from_the_environment(llmock: LLMock) -> None:
    llmock.reply("Found you.")
    model = OpenAIChat("gpt-4o")
    assert (await model.decide(asking())).text == "Found you."
    assert model.describe()["base_url"] == llmock.url.removeprefix("http://")


def test_one_model_serves_any_number_of_event_loops(llmock: LLMock, model: OpenAIChat) -> None:
    llmock.reply("Hello.", times=None)
    said: list[str] = []

    def ask_in_a_loop_of_its_own() -> None:
        said.append(asyncio.run(model.decide(asking())).text)

    threads = [threading.Thread(target=ask_in_a_loop_of_its_own) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ask_in_a_loop_of_its_own()
    gc.collect()  # An open connection would warn now, and a warning is an error.
    assert said == ["Hello."] * 5


async def test_a_client_of_ones_own_is_used_without_its_retries_and_left_open(llmock: LLMock) -> None:
    llmock.fail(500).reply("Better.")
    async with AsyncOpenAI(base_url=llmock.base_url(), api_key="own", max_retries=5) as client:
        model = OpenAIChat("gpt-4o", client=client)
        with pytest.raises(ModelError):
            await model.decide(asking())
        assert len(llmock.requests) == 1
        assert (await model.decide(asking())).text == "Better."
        assert model.describe()["base_url"] == llmock.url.removeprefix("http://")
        assert not client.is_closed()
        assert client.max_retries == 5
