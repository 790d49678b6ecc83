"""Contracts, calls, spans of time and values in words, the same ones wherever a person reads them.

It must not choose colours or widths, and nothing it returns can move a terminal's cursor.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import assert_never

import msgspec
from msgspec import Raw

from counterfoil.core.contracts import (
    FOREVER,
    ClientId,
    Combined,
    Contract,
    Keyed,
    Line,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Transactional,
)

ELLIPSIS = "…"


def plain(text: str) -> str:
    """Return a text without anything that a terminal could take for an order, on one line."""
    return "".join(char if char.isprintable() else _ESCAPED.get(char) or f"\\u{ord(char):04x}" for char in text)


_ESCAPED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def shorten(text: str, limit: int) -> str:
    """Return a text of at most so many characters; 0 is no limit."""
    return text if not limit or len(text) <= limit else text[: max(1, limit - 1)].rstrip() + ELLIPSIS


def json_text(raw: Raw | bytes, limit: int = 0) -> str:
    """Return JSON on one line, shortened."""
    return shorten(plain(bytes(raw).decode(errors="replace")), limit)


def spell(tool: str, arguments: Raw, limit: int = 0) -> str:
    """Return a call as one would write it: ``create_ticket(title="Login fails")``."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return f"{tool}({json_text(arguments, limit)})"
    if not isinstance(value, dict):
        return f"{tool}({json_text(arguments, limit)})"
    each = limit // 2 if limit else 0
    named = [f"{plain(str(name))}={shorten(_value(one), each)}" for name, one in value.items()]
    inside = shorten(", ".join(named), max(limit - len(tool) - 2, 8) if limit else 0)
    return f"{tool}({inside})"


def _value(value: object) -> str:
    return plain(json.dumps(value, ensure_ascii=False))


def span(length: timedelta) -> str:
    """Return a length of time: ``0.42 s``, ``90 s``, ``12 min``, ``24 h``, ``3 d``."""
    seconds = length.total_seconds()
    if seconds < 10:  # noqa: PLR2004 - below it hundredths matter
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {name}"
    return f"{seconds:.0f} s"


def contract_words(contract: Contract) -> str:
    """Return a contract in a few words: ``Keyed 24 h, then Lookup 5 s``."""
    if isinstance(contract, Combined):
        return f"{contract_words(contract.first)}, then {contract_words(contract.then)}"
    match contract:
        case Keyed(remembered_for=None):
            return "Keyed, for how long is not known"
        case Keyed(remembered_for=window) if window is not None:
            return "Keyed for ever" if window >= FOREVER else f"Keyed {span(window)}"
        case Lookup(settles_in=settles):
            return f"Lookup {span(settles)}"
        case _:
            return type(contract).__name__


def contract_promise(line: Line) -> str:
    """Return in one sentence what the provider offers under one line of a contract."""
    match line:
        case Read():
            return "It has no effect."
        case Repeatable():
            return "Neither is needed: repeating it gives the same end state."
        case Keyed(remembered_for=None):
            return "A key, but for how long the provider remembers it is not known, so that counts as over."
        case Keyed(remembered_for=window):
            assert window is not None
            forever = window >= FOREVER
            return "A key, remembered for ever." if forever else f"A key, remembered for {span(window)}."
        case Lookup(settles_in=settles):
            return f"A lookup; an absence counts {span(settles)} after the last sender has ended."
        case ClientId():
            return "We chose the object's id: creating it twice conflicts."
        case Transactional():
            return "Its receipt row commits together with the effect."
        case OneShot():
            return "Neither."
        case _:
            assert_never(line)
