"""One 128-bit key for each call, and the forms in which providers accept it.

It must not read a clock or draw randomness: the same place in the same run has the same key for ever.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from counterfoil.errors import DefinitionError

KeyFormat = Literal["text", "uuid", "base62", "base32hex"]

KEY_BYTES = 16
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LENGTH = {"text": 35, "uuid": 36, "base62": 22, "base32hex": 26}


class KeyStyle(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a provider wants our key.

    Args:
        format: ``text`` ("cf_" and 32 hex digits), ``uuid`` (36), ``base62`` (22) or ``base32hex`` (26, 0-9a-v).
        channel: where the key goes when the tool sends through ``call.http``; ``none`` leaves it to the tool.
        name: the header, body field or query parameter.
        prefix: put before the key, for providers that demand one.
        max_length: the provider's limit in characters; a style that does not fit is refused when it is made.
    """

    format: KeyFormat = "text"
    channel: Literal["header", "body", "query", "none"] = "header"
    name: str = "Idempotency-Key"
    prefix: str = ""
    max_length: int = 255

    def __post_init__(self) -> None:
        if self.format not in _LENGTH:
            raise DefinitionError(f"key format {self.format!r} is not one of {', '.join(_LENGTH)}")
        needed = len(self.prefix) + _LENGTH[self.format]
        if needed > self.max_length:
            raise DefinitionError(
                f"a {self.format} key with prefix {self.prefix!r} needs {needed} characters; "
                f"max_length is {self.max_length}"
            )


def mint(namespace: bytes, run_id: str, scope: str, turn: int, position: int) -> bytes:
    """Return the call's 128-bit key: an HMAC-SHA256 over its length-prefixed place, under the store's namespace.

    Args:
        namespace: the store's own secret, or one named by the user so that even a lost store mints the same keys.
        run_id: the run.
        scope: path of the (child) flow inside the run.
        turn: the turn, from 1.
        position: the call's place in the turn, from 1.
    """
    parts = [run_id.encode(), scope.encode(), str(turn).encode(), str(position).encode()]
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(namespace, message, "sha256")[:KEY_BYTES]


def render(key: bytes, style: KeyStyle) -> str:
    """Return the key in the provider's form."""
    return style.prefix + _RENDER[style.format](key)


def _base62(key: bytes) -> str:
    number, digits = int.from_bytes(key, "big"), ""
    for _ in range(_LENGTH["base62"]):
        number, digit = divmod(number, 62)
        digits = _BASE62[digit] + digits
    return digits


def _uuid(key: bytes) -> str:
    """Version 4 and its variant take six of the 128 bits; the rest is the key."""
    digits = (key[:6] + bytes([key[6] & 0x0F | 0x40, key[7], key[8] & 0x3F | 0x80]) + key[9:]).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_RENDER: dict[KeyFormat, Callable[[bytes], str]] = {
    "text": lambda key: "cf_" + key.hex(),
    "uuid": _uuid,
    "base62": _base62,
    "base32hex": lambda key: base64.b32hexencode(key).decode().rstrip("=").lower(),
}
