"""A model that says what its script says: for demos, for tests, and to count from outside how often it was asked.

It must not look at anything but the turn's number to choose a decision, so that no length of history can change one.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from counterfoil.core.codec import canonical
from counterfoil.core.flow import short_digest
from counterfoil.core.limits import Usage
from counterfoil.errors import DefinitionError, ModelError
from counterfoil.runtime.model import Decision, Exchange, ModelRequest, ToolCall

Turn: TypeAlias = Decision | Mapping[str, Any]
"""A decision, or the same as plain data: ``{"text": ..., "calls": [{"name": ..., "arguments": {...}, "id": ...}]}``."""

Script: TypeAlias = Sequence[Turn] | Callable[[ModelRequest], Turn | Awaitable[Turn]]
"""One turn after the other, or a function that is asked for each."""


class ScriptedModel:
    """A model that follows a script.

    A call without an ``id`` gets one made of turn and position; ``"id": ""`` stays empty. Arguments may be an object,
    or a text that is passed on as it is, malformed or not.

    Args:
        script: the decisions in order, or a function of the request.
        asks_log: a file to which every ask appends one JSON line (turn, pid, at), synced before the answer, so that
            whoever kills the process can count the asks from outside.
        check_history: refuse a history in which a call has no result, as real providers do. It reads the whole
            history, so a turn costs more the longer the run is.

    Raises:
        DefinitionError: the script is no list of turns.

    Example:
        >>> ScriptedModel([{"calls": [{"name": "refund", "arguments": {"order": 7}}]}, {"text": "Done."}])
    """

    def __init__(
        self, script: Script, *, asks_log: str | os.PathLike[str] | None = None, check_history: bool = False
    ) -> None:
        self._ask = script if callable(script) else None
        self._turns = () if callable(script) else _turns(script)
        self._asks_log = asks_log
        self._check_history = check_history

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        asks_log: str | os.PathLike[str] | None = None,
        check_history: bool = False,
    ) -> ScriptedModel:
        """Read the script from a JSON file, or from a YAML file when its name ends in .yaml or .yml.

        Args:
            path: a file that holds a list of turns.
            asks_log: as above.
            check_history: as above.

        Raises:
            DefinitionError: the file cannot be read, or holds no script.
            ImportError: it is YAML, and PyYAML is not installed.
        """
        try:
            return cls(_load(Path(path)), asks_log=asks_log, check_history=check_history)
        except DefinitionError as error:
            raise DefinitionError(f"{os.fspath(path)}: {error.message}") from error

    def describe(self) -> Mapping[str, str]:
        """Return the digest of the script, or the qualified name of the function."""
        return {"model": "scripted", "script": self._script}

    async def decide(self, request: ModelRequest) -> Decision:
        """Return the decision of the request's turn.

        Raises:
            ModelError: the script has no such turn, or `check_history` found a call without its result.
        """
        if self._asks_log is not None:
            _log_ask(self._asks_log, request.turn)
        if self._check_history:
            _require_pairs(request.history)
        if self._ask is not None:
            turn = self._ask(request)
            return _decision(await turn if inspect.isawaitable(turn) else turn, request.turn)
        if not 1 <= request.turn <= len(self._turns):
            raise ModelError(f"the script has {len(self._turns)} turns; asked for turn {request.turn}", retryable=False)
        return self._turns[request.turn - 1]

    @cached_property
    def _script(self) -> str:
        if self._ask is None:
            return short_digest(canonical(self._turns))
        function = inspect.unwrap(getattr(self._ask, "func", self._ask))  # what a partial stands for
        named = function if hasattr(function, "__qualname__") else type(function)
        return str(named.__qualname__)  # without its module: one file is `__main__` or `agent`, by how it was started


class _ScriptedCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class _ScriptedTurn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str = ""
    calls: tuple[_ScriptedCall, ...] = ()
    usage: Usage = Usage()


def _turns(script: object) -> tuple[Decision, ...]:
    if not isinstance(script, Sequence) or isinstance(script, str | bytes):
        raise DefinitionError(f"a script is a list of turns or a function, not {type(script).__name__}")
    return tuple(_decision(turn, number) for number, turn in enumerate(script, start=1))


def _decision(turn: object, number: int) -> Decision:
    if isinstance(turn, Decision):
        return turn
    try:
        told = msgspec.convert(turn, _ScriptedTurn)
        calls = tuple(_call(call, f"call_{number}_{position}") for position, call in enumerate(told.calls, start=1))
    except (msgspec.ValidationError, TypeError) as error:
        raise DefinitionError(f"turn {number} of the script: {error}") from error
    return Decision(text=told.text, calls=calls, usage=told.usage)


def _call(call: _ScriptedCall, made_up: str) -> ToolCall:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return ToolCall(name=call.name, arguments=arguments, id=made_up if call.id is None else call.id)


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"the script cannot be read: {error}") from error
    if path.suffix.lower() not in {".yaml", ".yml"}:
        try:
            return json.loads(text)
        except ValueError as error:
            raise DefinitionError(f"not JSON: {error}") from error
    try:
        import yaml  # noqa: PLC0415 - an extra, which a script in JSON does not need
    except ImportError as error:
        raise ImportError("a script in YAML needs PyYAML: pip install 'counterfoil[yaml]'") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DefinitionError(f"not YAML: {error}") from error


def _log_ask(path: str | os.PathLike[str], turn: int) -> None:
    """One write with O_APPEND, so that asks of several processes never mix, and a sync, so that a kill loses none."""
    line = json.dumps({"turn": turn, "pid": os.getpid(), "at": time.time()}) + "\n"
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(log, line.encode())
            os.fsync(log)
        finally:
            os.close(log)
    except OSError as error:
        raise ModelError(f"the ask cannot be counted: {error}", retryable=False) from error


def _require_pairs(history: Sequence[Exchange]) -> None:
    """Incident 6a: after a call without its result a real provider refuses every later request."""
    for turn, exchange in enumerate(history, start=1):
        asked = [call.id for call in exchange.decision.calls]
        answered = [result.call.id for result in exchange.results]
        if asked != answered:
            raise ModelError(
                f"turn {turn} of the history asks for {len(asked)} calls {asked}"
                f" and has {len(answered)} results {answered}; every call needs its result",
                retryable=False,
            )
