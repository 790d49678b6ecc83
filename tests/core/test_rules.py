"""The generated page says what the code says, and no rule is left without a user."""

from __future__ import annotations

from pathlib import Path

from counterfoil.core.rules import Rule
from tools import rules_page

SOURCES = Path(__file__).resolve().parents[2] / "src" / "counterfoil"


def test_the_page_is_as_new_as_the_code() -> None:
    text = rules_page.PAGE.read_text(encoding="utf-8")
    assert text == rules_page.page(), "run `.venv/bin/python tools/rules_page.py`"


def test_every_rule_has_one_word_one_sentence_and_a_user() -> None:
    sources = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py") if path.name != "rules.py"]
    assert len({rule.value for rule in Rule}) == len({rule.says for rule in Rule}) == len(Rule)
    assert all(rule.says.endswith(".") for rule in Rule)
    unused = {rule.name for rule in Rule if not any(f"Rule.{rule.name}" in source for source in sources)}
    assert unused == {"RESPONSE"}, "a receipt whose proof is `response` carries no rule; the word is kept for people"
