"""Results to JSON and back, by the type that the tool declares. Never pickle.

It must not let a value change in storage without a word: what does not come back equal is not stored, and that is a
fact about a settled call, never a reason to run it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from counterfoil.core.events import NO_JSON, Failure, Unstored
from counterfoil.core.flow import short_digest
from counterfoil.errors import DefinitionError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_BYTES = 1_000_000
"""Largest result, in bytes of JSON, that is kept in a journal."""

_JSON_TYPES = (Any, object, None, type(None), str, int, float, bool, dict, list)


class ResultType:
    """How a tool's results are stored.

    Args:
        annotation: the tool's return annotation; missing or Any means plain JSON values.
        where: the tool's name, for messages.

    Raises:
        DefinitionError: the type cannot make the way to JSON and back.
    """

    def __init__(self, annotation: Any, where: str) -> None:
        self.schema = short_digest(repr(annotation).encode())
        self._adapter: TypeAdapter[tuple[Any]] | None = None
        if annotation not in _JSON_TYPES:
            self._adapter = _adapter(annotation, where)
            schema = self._adapter.json_schema(mode="serialization")
            self.schema = short_digest(msgspec.json.encode(schema, order="sorted"))

    def dump(self, value: Any) -> Raw | Unstored:
        """Return a result's JSON; or, where it would not come back equal, what is known of it."""
        try:
            body = self._encode(value)
        except Exception as error:  # noqa: BLE001 - whatever a value's own code raises, the effect has happened
            failure = failure_of(error)
            return _unstored(f"{failure.kind}: {failure.message}", repr_of(value))
        if body is None:
            return _unstored("it does not come back equal from JSON", repr_of(value))
        if len(body) > MAX_BYTES:
            return _unstored(f"larger than {MAX_BYTES} bytes", body)
        return Raw(body)

    def load(self, raw: Raw | bytes) -> Any:
        """Return the value that was stored, in the declared type."""
        if not raw:
            return None
        if self._adapter is None:
            return msgspec.json.decode(raw)
        return self._adapter.validate_json(b"[%b]" % bytes(raw))[0]

    def _encode(self, value: Any) -> bytes | None:
        if self._adapter is None:
            return msgspec.json.encode(value) if _is_json(value) else None
        body = self._adapter.dump_json((value,), by_alias=True, round_trip=True, warnings="none")[1:-1]
        msgspec.json.decode(body)  # What the journal could not hold is found here, not when it is written.
        return body if _same(self.load(body), value) else None


def _adapter(annotation: Any, where: str) -> TypeAdapter[tuple[Any]]:
    """Return what makes the type's JSON: as a tuple of one, since a dataclass takes settings only inside a type."""
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415 - 50 ms, paid by those who declare types

    try:
        config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")
        adapter = TypeAdapter(tuple[annotation], config=config)
        adapter.json_schema(mode="serialization")
    except Exception as error:
        raise DefinitionError(
            f"tool {where}: a result of type {annotation!r} cannot be stored as JSON and read back ({error})",
            remedy="Return a dataclass, a pydantic model, a standard type or plain JSON.",
        ) from error
    return adapter


def _same(back: Any, value: Any) -> bool:
    """Tell whether a value came back in the same types all the way down: an enum that is now a number has changed."""
    if type(back) is not type(value):
        return False
    match value:
        case float():
            return back == value or (math.isnan(back) and math.isnan(value))
        case list() | tuple():
            return len(back) == len(value) and all(map(_same, back, value))
        case dict():
            return _same(list(back), list(value)) and all(_same(back[key], item) for key, item in value.items())
        case set() | frozenset():
            return bool(back == value) and {type(item) for item in back} == {type(item) for item in value}
        case _ if fields := _fields(value):
            return all(_same(getattr(back, name, None), getattr(value, name, None)) for name in fields)
        case _:
            return bool(back == value)


def _fields(value: Any) -> tuple[str, ...]:
    """Return what a dataclass, or a pydantic model with whatever else it was given, is made of."""
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    declared = getattr(type(value), "model_fields", None)
    return (*declared, "model_extra") if isinstance(declared, dict) else ()


def _is_json(value: Any) -> bool:
    """Tell whether a value is plain JSON and comes back the same: no tuples, no NaN, text keys, no subclasses."""
    match value:
        case None | bool():
            return True
        case str():
            return type(value) is str
        case int():
            return type(value) is int and -(2**63) <= value < 2**64
        case float():
            return type(value) is float and math.isfinite(value)
        case list():
            return type(value) is list and all(map(_is_json, value))
        case dict():
            return type(value) is dict and all(type(key) is str and _is_json(item) for key, item in value.items())
        case _:
            return False


def _unstored(why: str, body: bytes) -> Unstored:
    return Unstored(why=why, size=len(body), sha256=hashlib.sha256(body).hexdigest())


def storable(text: str) -> str:
    """Return a text that UTF-8 can hold; half a surrogate pair, as some models and file names have it, becomes "?"."""
    return text.encode(errors="replace").decode()


def repr_of(value: Any) -> bytes:
    """Return some bytes that stand for a value that has no JSON; never raises."""
    try:
        return repr(value).encode(errors="replace")
    except Exception:  # noqa: BLE001 - a value's own repr may do anything
        return type(value).__name__.encode()


def failure_of(error: BaseException) -> Failure:
    """Return an exception as plain data: nothing in it needs the class to be read back."""
    try:
        message = storable(str(error))
    except Exception:  # noqa: BLE001 - an exception's own text may raise
        message = "(its text could not be made)"
    return Failure(kind=storable(type(error).__name__), message=message[:4000], data=_data_of(error))


def _data_of(error: BaseException) -> Raw:
    """Return the arguments that an exception was made with, where there are several and all of them are JSON."""
    try:
        plain = len(error.args) > 1 and _is_json(list(error.args))
        return Raw(msgspec.json.encode(error.args)) if plain else NO_JSON
    except Exception:  # noqa: BLE001 - too deep, or no text that UTF-8 can hold
        return NO_JSON
