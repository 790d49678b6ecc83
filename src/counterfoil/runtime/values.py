"""Results to JSON and back, by the type that the tool declares. Never pickle.

It must not let a value change in storage without a word: what does not come back equal is not stored, and that is a
fact about a settled call, never a reason to run it again.
"""

from __future__ import annotations

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
        self.plain = annotation in _JSON_TYPES
        self.schema = short_digest(repr(annotation).encode()) if self.plain else ""
        self._adapter: TypeAdapter[Any] | None = None
        if not self.plain:
            self._adapter = _adapter(annotation, where)
            schema = self._adapter.json_schema(mode="serialization")
            self.schema = short_digest(msgspec.json.encode(schema, order="sorted"))

    def dump(self, value: Any) -> Raw | Unstored:
        """Return a result's JSON; or, where it would not come back equal, what is known of it."""
        try:
            body = self._encode(value)
        except Exception as error:  # noqa: BLE001 - whatever a value's own code raises, the effect has happened
            return _unstored(f"{type(error).__name__}: {error}", repr_of(value))
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
        return self._adapter.validate_json(bytes(raw))

    def _encode(self, value: Any) -> bytes | None:
        if self._adapter is None:
            return msgspec.json.encode(value) if _is_json(value) else None
        body = self._adapter.dump_json(value)
        back = self._adapter.validate_json(body)
        return body if type(back) is type(value) and back == value else None


def _adapter(annotation: Any, where: str) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter  # noqa: PLC0415 - 50 ms, paid by those who declare types
    from pydantic.errors import PydanticUserError  # noqa: PLC0415 - as above

    try:
        config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
        try:
            adapter = TypeAdapter(annotation, config=config)
        except PydanticUserError:
            adapter = TypeAdapter(annotation)  # a model or dataclass brings its own configuration
        adapter.json_schema(mode="serialization")
    except Exception as error:
        raise DefinitionError(
            f"tool {where}: a result of type {annotation!r} cannot be stored as JSON and read back ({error})",
            remedy="Return a dataclass, a pydantic model, a standard type or plain JSON.",
        ) from error
    return adapter


def _is_json(value: Any) -> bool:
    """Tell whether a value is plain JSON and comes back equal: no tuples, no NaN, text keys only."""
    match value:
        case None | bool() | str():
            return True
        case int():
            return type(value) is int and -(2**63) <= value < 2**64
        case float():
            return math.isfinite(value)
        case list():
            return all(_is_json(item) for item in value)
        case dict():
            return all(type(key) is str and _is_json(item) for key, item in value.items())
        case _:
            return False


def _unstored(why: str, body: bytes) -> Unstored:
    return Unstored(why=why, size=len(body), sha256=hashlib.sha256(body).hexdigest())


def repr_of(value: Any) -> bytes:
    """Return some bytes that stand for a value that has no JSON; never raises."""
    try:
        return repr(value).encode()
    except Exception:  # noqa: BLE001 - a value's own repr may do anything
        return type(value).__name__.encode()


def failure_of(error: BaseException) -> Failure:
    """Return an exception as plain data: nothing in it needs the class to be read back."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception's own text may raise
        message = "(its text could not be made)"
    data = NO_JSON
    if len(error.args) > 1 and _is_json(list(error.args)):
        data = Raw(msgspec.json.encode(list(error.args)))
    return Failure(kind=type(error).__name__, message=message[:4000], data=data)
