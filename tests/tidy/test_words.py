"""One word for one thing: what the journal and the decisions say, the reference explains."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct

from counterfoil.core import events
from counterfoil.core.rules import Rule

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "rules.md"


def kinds() -> list[str]:
    """The tag of every event: what stands in the journal's `kind`."""
    structs = (value for value in vars(events).values() if isinstance(value, type) and issubclass(value, Struct))
    configs = [struct.__struct_config__ for struct in structs if not struct.__name__.startswith("_")]
    return sorted(str(config.tag) for config in configs if config.tag_field == "kind")


@pytest.mark.parametrize("what,words", [("rule", [rule.value for rule in Rule]), ("event kind", kinds())])
def test_the_reference_names_every(what: str, words: list[str]) -> None:
    assert words
    assert REFERENCE.is_file(), f"docs/reference/rules.md is missing; it must name every {what}: {', '.join(words)}"
    text = REFERENCE.read_text(encoding="utf-8")
    assert [word for word in words if f"`{word}`" not in text] == []
