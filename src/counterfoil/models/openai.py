"""Any endpoint that speaks OpenAI's chat completions, through the official SDK.

It must not retry, and it must not change what was saved: a message goes back to its provider as it came.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from counterfoil.core.codec import canonical
from counterfoil.core.flow import short_digest
from counterfoil.core.limits import Usage
from counterfoil.errors import DefinitionError, ModelError
from counterfoil.runtime.model import Decision, Exchange, ModelRequest, ToolCall, ToolSpec

if TYPE_CHECKING:
    import ssl

    from openai import AsyncOpenAI, OpenAIError

DEFAULT_HOST = "api.openai.com"

OURS = frozenset({"messages", "tools", "stream", "stream_options", "n", "functions", "function_call"})
"""What the adapter itself says to the provider; no setting may."""

WHOLE = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "end_turn", "tool_use", "stop_sequence"})
"""How an answer ends that was not cut off, in the words of OpenAI and of the gateways that use their own."""

BROKEN_OFF = frozenset({"error", "insufficient_system_resource"})
"""How an answer ends when the provider failed half-way (OpenRouter and Mistral, DeepSeek)."""

RETRYABLE = frozenset({408, 409, 429})
TEXT_SHOWN = 2000
"""How many characters of a provider's error are kept: a proxy may answer with a page of HTML."""


class OpenAIChat:
    """A model behind a chat-completions endpoint.

    The provider's message is kept whole in `Decision.raw`, reasoning and signatures too, and sent back exactly, less
    fields that are null. Text that is no JSON object goes on as the call's arguments; the loop refuses it.

    Args:
        model: the model's name at the provider.
        base_url: of another provider or gateway; else ``OPENAI_BASE_URL``, else OpenAI.
        api_key: else ``OPENAI_API_KEY``; for a gateway without keys any text.
        client: an `openai.AsyncOpenAI` of your own, used as it is, but for its retries, and closed by you. It is
            bound to one event loop.
        usd_per_million: dollars for a million input and a million output tokens. Without it the adapter knows no
            cost, and a limit in dollars is never reached. Discounts for cached input are not counted.
        settings: passed on with every request: ``temperature``, ``max_completion_tokens``, ``extra_body``, ...

    Raises:
        ImportError: the SDK is not installed.
        DefinitionError: a setting or address that cannot be used.

    Example:
        >>> OpenAIChat("gpt-5-mini", max_completion_tokens=4000)
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: AsyncOpenAI | None = None,
        usd_per_million: tuple[float, float] | None = None,
        **settings: Any,
    ) -> None:
        if client is None and find_spec("openai") is None:
            raise ImportError("OpenAIChat needs the openai SDK: pip install 'counterfoil[openai]'")
        if client is not None and (base_url is not None or api_key is not None):
            raise DefinitionError("OpenAIChat takes base_url and api_key, or a client that has its own, not both")
        if taken := sorted(OURS & settings.keys()):
            raise DefinitionError(f"OpenAIChat sets {', '.join(taken)} itself")
        self._model = model
        self._client = client
        self._api_key = api_key
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        self._usd_per_million = usd_per_million
        self._settings = settings
        self._host = _host(str(client.base_url) if client is not None else self._base_url)
        self._described = {name: _described(name, value) for name, value in settings.items() if name != "timeout"}

    def describe(self) -> Mapping[str, str]:
        """Return the model, the host that it is reached at and the settings; no key, no header's value."""
        return {"model": self._model, "base_url": self._host, **self._described}

    async def decide(self, request: ModelRequest) -> Decision:
        """Ask once.

        Raises:
            ModelError: the provider gave no decision. Retryable: no connection, a timeout, overload (408, 409, 429,
                5xx), an answer that cannot be read or was cut off. Not: any other refusal.
        """
        from openai import OpenAIError  # noqa: PLC0415 - half a second, paid when a model is first asked

        asked: dict[str, Any] = {"model": self._model, "messages": _messages(request), **self._settings}
        if request.tools:  # Providers refuse an empty list.
            asked["tools"] = [_tool(spec) for spec in request.tools]
        try:
            async with self._opened() as client:
                response = await client.chat.completions.with_raw_response.create(**asked)
                body: bytes = response.content
        except OpenAIError as error:
            raise self._no_decision(error) from error
        # Read here and not by the SDK's types, which add fields that the provider never sent.
        return _decision(body, output_limit=self._output_limit, usd_per_million=self._usd_per_million)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[AsyncOpenAI]:
        """One client for one ask.

        A client is bound to an event loop and must be closed in it, and nobody tells a model that its loop ends. With
        the TLS context kept, making one costs 0.2 ms (20 ms without) and one more handshake; a user who wants the
        connection kept brings a client.
        """
        if self._client is not None:
            yield self._client.with_options(max_retries=0)
            return
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # noqa: PLC0415 - see decide

        async with DefaultAsyncHttpxClient(verify=self._tls) as http:
            yield AsyncOpenAI(api_key=self._api_key, base_url=self._base_url, max_retries=0, http_client=http)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        import httpx2  # noqa: PLC0415 - loaded by the SDK anyhow

        return httpx2.create_ssl_context()

    @property
    def _output_limit(self) -> int | None:
        limit = self._settings.get("max_completion_tokens", self._settings.get("max_tokens"))
        return limit if isinstance(limit, int) else None

    def _no_decision(self, error: OpenAIError) -> ModelError:
        import httpx2  # noqa: PLC0415 - loaded by the SDK
        from openai import APIError, APIStatusError  # noqa: PLC0415 - loaded: it raised this error

        if isinstance(error, APIStatusError):
            body = error.body
            said = body.get("message") if isinstance(body, dict) else None
            text = f"{error.status_code}: {said or error.response.text or error.message}"
            return ModelError(self._without_key(text), retryable=_may_pass(error.status_code))
        if isinstance(error, APIError):
            cause = error.__cause__
            text = f"{error.message} {cause!r}" if cause is not None else error.message
            # What our own side cannot send, such as a key with a line break in it, it cannot send later either.
            ours = isinstance(cause, httpx2.LocalProtocolError | httpx2.UnsupportedProtocol)
            return ModelError(self._without_key(text), retryable=not ours)
        return ModelError(self._without_key(str(error)), retryable=False)

    def _without_key(self, text: str) -> str:
        """An error is journaled and shown, and some gateways and some causes repeat the key."""
        key = self._client.api_key if self._client is not None else self._api_key or os.environ.get("OPENAI_API_KEY")
        for secret in (key, (key or "").strip()):
            if secret:
                text = text.replace(secret, "[key]")
        return text[:TEXT_SHOWN]


# What the provider is told.


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    said = request.input if isinstance(request.input, str) else canonical(request.input).decode()
    messages: list[dict[str, Any]] = [{"role": "user", "content": said}]
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    for exchange, ids in zip(request.history, _unique_ids(request.history), strict=True):
        messages.append(_assistant(exchange.decision, ids))
        messages.extend(
            {"role": "tool", "tool_call_id": call_id, "content": result.content}
            for call_id, result in zip(ids, exchange.results, strict=True)
        )
    return messages


def _unique_ids(history: Sequence[Exchange]) -> Iterator[list[str]]:
    """Yield the ids under which each turn's calls and results are paired.

    Gateways send calls with an empty id, with one id for two calls of a message, or with ids that start again in each
    message; sent back like that, providers answer 400, or give one call the other's result. Which call is which is
    known by turn and position, so a later or empty id is replaced by one made of those: the same at every ask, in
    the request only. Nine letters and digits, because Mistral takes no other.
    """
    given = {call.id for exchange in history for call in exchange.decision.calls}
    seen = {""}
    for turn, exchange in enumerate(history, start=1):
        if len(exchange.results) != len(exchange.decision.calls):
            # Incident 6a: sent, it would be refused, now and with every later request.
            asked, answered = len(exchange.decision.calls), len(exchange.results)
            raise ModelError(f"turn {turn} asks for {asked} calls and has {answered} results", retryable=False)
        ids = []
        for position, call in enumerate(exchange.decision.calls, start=1):
            call_id, tries = call.id, 0
            while call_id in seen or (tries and call_id in given):
                call_id = hashlib.sha256(b"%d/%d/%d" % (turn, position, tries)).hexdigest()[:9]
                tries += 1
            seen.add(call_id)
            ids.append(call_id)
        yield ids


def _assistant(decision: Decision, ids: Sequence[str]) -> dict[str, Any]:
    raw = decision.raw if _fits(decision) else _rebuilt(decision)
    message = {name: value for name, value in raw.items() if value is not None}
    message["role"] = "assistant"
    message.pop("tool_calls", None)  # Providers refuse an empty list.
    if ids:
        message["tool_calls"] = [
            _sent_back(call, call_id) for call, call_id in zip(raw["tool_calls"], ids, strict=True)
        ]
    else:
        message.setdefault("content", decision.text)
    return message


def _fits(decision: Decision) -> bool:
    """Whether the raw message is of this API and holds the decision's calls: another adapter may have taken it."""
    try:
        message = msgspec.convert(decision.raw, _Message)
    except msgspec.ValidationError:
        return False
    names = [call.function.name for call in message.tool_calls or ()]
    return message.role == "assistant" and names == [call.name for call in decision.calls]


def _rebuilt(decision: Decision) -> dict[str, Any]:
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in decision.calls
    ]
    return {"role": "assistant", "content": decision.text or None, "tool_calls": calls}


def _sent_back(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    function = call["function"]
    copy = {name: value for name, value in call.items() if value is not None}
    return copy | {"id": call_id, "function": function | {"arguments": _readable(function.get("arguments"))}}


def _readable(arguments: object) -> str:
    """Return arguments that every provider can read.

    vLLM and llama.cpp parse the arguments of *past* calls and answer 400 to what is no object: one malformed call,
    long since rejected and told to the model, would end the run. What the model wrote stays readable to it.
    """
    text = _arguments(arguments)
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    return json.dumps({"malformed_arguments": text}, ensure_ascii=False) if text else "{}"


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


# What the provider says. Only what is read has a type here; the rest is kept, not judged.


class _Function(Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(Struct):
    function: _Function
    id: str | None = None


class _Part(Struct):
    type: str = ""
    text: str | None = None


class _Message(Struct):
    role: str = "assistant"
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None
    error: Any = None


class _Tokens(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Answer(Struct):
    choices: list[_Choice] | None = None
    usage: _Tokens | None = None
    error: Any = None


def _decision(body: bytes, *, output_limit: int | None, usd_per_million: tuple[float, float] | None) -> Decision:
    try:
        whole = msgspec.json.decode(body)
        answer = msgspec.convert(whole, _Answer)
    except msgspec.DecodeError as error:
        shown = body[:TEXT_SHOWN].decode(errors="replace")
        raise ModelError(f"the answer is no chat completion ({error}): {shown}", retryable=True) from error
    if not answer.choices:
        raise _failed_inside(answer.error or whole)
    choice = answer.choices[0]
    if (choice.finish_reason or "").lower() in BROKEN_OFF:
        raise _failed_inside(choice.error or f"the provider broke off: {choice.finish_reason}")
    usage = _usage(answer.usage or _Tokens(), usd_per_million)
    calls = tuple(
        ToolCall(name=call.function.name, arguments=_arguments(call.function.arguments), id=call.id or "")
        for call in choice.message.tool_calls or ()
    )
    text = _text(choice.message)
    _refuse_half(choice.finish_reason, text, calls, at_limit=usage.output_tokens >= (output_limit or float("inf")))
    return Decision(text=text, calls=calls, usage=usage, raw=whole["choices"][0]["message"])


def _refuse_half(reason: str | None, text: str, calls: tuple[ToolCall, ...], *, at_limit: bool) -> None:
    """Raise if the answer was cut off before there was anything whole to go by.

    A text that was cut off is still what the model said. A call is not: half a mail would be sent. That the arguments
    parse proves nothing, because servers close what was cut (vLLM's parsers return the fields that were complete), and
    that the reason says `tool_calls` proves nothing at the limit itself, because some report it for a cut call too. So
    none of such an answer's calls is kept. Asking again may help, as a model does not write the same twice.
    """
    cut = (reason or "").lower() not in WHOLE
    if calls and (cut or at_limit):
        why = "at the output limit" if at_limit else f"with finish_reason {reason!r}"
        names = ", ".join(call.name for call in calls)
        raise ModelError(
            f"the answer ended {why}, so its calls ({names}) may be cut off; raise max_completion_tokens",
            retryable=True,
        )
    if cut and not calls and not text:
        raise ModelError(f"the answer is empty, with finish_reason {reason!r}", retryable=True)


def _failed_inside(said: object) -> ModelError:
    """An error in an answer with status 200, as routers send it when the provider behind them failed."""
    match said:
        case {"code": int(code), "message": str(text)}:
            return ModelError(f"{code}: {text}"[:TEXT_SHOWN], retryable=_may_pass(code))
        case {"message": str(text)} | str(text):
            return ModelError(text[:TEXT_SHOWN], retryable=True)
        case _:
            return ModelError(canonical(said).decode()[:TEXT_SHOWN], retryable=True)


def _may_pass(status: int) -> bool:
    return status in RETRYABLE or not 400 <= status < 500  # noqa: PLR2004 - the classes of HTTP


def _arguments(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False)  # some gateways send an object


def _text(message: _Message) -> str:
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text or "" for part in content if part.type == "text")
    return content or message.refusal or ""


def _usage(tokens: _Tokens, usd_per_million: tuple[float, float] | None) -> Usage:
    read, written = tokens.prompt_tokens or 0, tokens.completion_tokens or 0
    per_input, per_output = usd_per_million or (0.0, 0.0)
    return Usage(input_tokens=read, output_tokens=written, usd=(read * per_input + written * per_output) / 1_000_000)


# What the flow's fingerprint is told.


def _host(base_url: str | None) -> str:
    if base_url is None:
        return DEFAULT_HOST
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise DefinitionError(f"base_url is no address: {error}") from error
    if parts.scheme not in {"http", "https"} or not host:
        raise DefinitionError("base_url must begin with http:// or https:// and name a host")
    return host if port is None else f"{host}:{port}"


def _described(name: str, value: Any) -> str:
    try:
        if name in {"extra_headers", "extra_query"}:
            return ", ".join(sorted(value))  # A value may be a credential, and a new one is no other flow.
        encoded = canonical(value)
    except TypeError as error:
        raise DefinitionError(f"OpenAIChat: setting {name} is not plain JSON: {error}") from error
    # Azure takes keys in the body, so of that only a digest is shown.
    return short_digest(encoded) if name == "extra_body" else value if isinstance(value, str) else encoded.decode()
