"""Write docs/reference/rules.md from the code: `python tools/rules_page.py`. A test fails when the page is older.

The table of recovery is not written by hand: each row asks `recover` what it does in that situation.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from counterfoil.core import events
from counterfoil.core.contracts import (
    ClientId,
    Contract,
    Keyed,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Terms,
    Transactional,
)
from counterfoil.core.events import Answer, SenderProof
from counterfoil.core.evidence import Facts
from counterfoil.core.recovery import recover
from counterfoil.core.rules import Rule

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "rules.md"

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
KEYED, LOOKUP = Keyed(remembered_for=24 * HOUR), Lookup(settles_in=MINUTE)

CONTRACTS: dict[str, Contract] = {
    "Read()": Read(),
    "Repeatable()": Repeatable(),
    "Keyed(…)": KEYED,
    "Keyed(…) \\| Lookup(…)": KEYED | LOOKUP,
    "Lookup(…)": LOOKUP,
    "ClientId()": ClientId(),
    "Transactional()": Transactional(),
    "OneShot()": OneShot(),
}

DEAD = {"sender": SenderProof.DEAD, "sender_since": NOW - HOUR}
JUST_DEAD = {"sender": SenderProof.DEAD, "sender_since": NOW}
EXPIRED = {"sender": SenderProof.EXPIRED, "sender_since": NOW, "sender_seen_at": NOW}
NEVER_SEEN_TO_END = {"sender": SenderProof.EXPIRED, "sender_since": NOW - HOUR, "sender_seen_at": NOW}

SITUATIONS: dict[str, dict[str, object]] = {
    "sender dead, within the key's window": DEAD,
    "sender dead, past the key's window": {**DEAD, "first_sent_at": NOW - 48 * HOUR},
    "sender dead, settle time not over, looked and absent": {
        **JUST_DEAD,
        "first_sent_at": NOW - 48 * HOUR,
        "answer": Answer.ABSENT,
        "asked_at": NOW,
    },
    "looked once nothing could land, absent": {
        **DEAD,
        "first_sent_at": NOW - 48 * HOUR,
        "answer": Answer.ABSENT,
        "asked_at": NOW,
    },
    "looked, found": {**DEAD, "answer": Answer.FOUND, "asked_at": NOW},
    "looks used up without an answer": {
        **DEAD,
        "first_sent_at": NOW - 48 * HOUR,
        "answer": Answer.FAILED,
        "asked_at": NOW,
        "asks_left": 0,
    },
    "sender's lease expired, within the window": {**EXPIRED, "answer": Answer.ABSENT, "asked_at": NOW - MINUTE},
    "sender never seen to end, looks used up": {
        **NEVER_SEEN_TO_END,
        "first_sent_at": NOW - 48 * HOUR,
        "answer": Answer.ABSENT,
        "asked_at": NOW,
        "asks_left": 0,
    },
    "the provider says that it exists already": {**DEAD, "exists": True},
    "the run is stopped": {**DEAD, "stopped": True},
    "another account or region at hand": {**DEAD, "same_scope": False},
}


def page() -> str:
    """Return the page's text."""
    return "\n".join([*_head(), *_table(), *_rules(), *_kinds()]) + "\n"


def _head() -> list[str]:
    return [
        "# Rules of recovery",
        "",
    move = recover(Terms(contract=contract), Facts(**(known | facts)), NOW)  # type: ignore[arg-type]  # a row
        "",
        "The same word stands in the journal, in `show`, `explain` and the inbox, and in the tests.",
        "",
        "## What happens to a dispatched, unsettled call",
        "",
        "Each cell is what the library does, and the rule under which it does it.",
        "",
    ]


def _table() -> list[str]:
    rows = ["| situation | " + " | ".join(f"`{name}`" for name in CONTRACTS) + " |"]
    rows.append("|---" * (len(CONTRACTS) + 1) + "|")
    for situation, facts in SITUATIONS.items():
        cells = [_cell(contract, facts) for contract in CONTRACTS.values()]
        rows.append(f"| {situation} | " + " | ".join(cells) + " |")
    return [*rows, ""]


def _cell(contract: Contract, facts: dict[str, object]) -> str:
    looks = _looks(contract)
    if "answer" in facts and not looks and facts["answer"] is Answer.FOUND:
        return "has no lookup"
    known: dict[str, object] = {"open": True, "first_sent_at": NOW - HOUR, "asks_left": 3, "can_look": looks}
    move = recover(Terms(contract=contract), Facts(**(known | facts)), NOW)  # type: ignore[arg-type]  # a table
    return f"{type(move).__name__.lower()}: `{move.because.value}`"


def _looks(contract: Contract) -> bool:
    return not isinstance(contract, (Read, Repeatable, Keyed, OneShot))


def _rules() -> list[str]:
    rows = [f"| `{rule.value}` | {rule.says} |" for rule in Rule]
    return ["## Every rule", "", "| rule | says |", "|---|---|", *rows, ""]


def _kinds() -> list[str]:
    structs = (value for value in vars(events).values() if isinstance(value, type) and issubclass(value, Struct))
    kinds = {
        str(struct.__struct_config__.tag): " ".join((struct.__doc__ or "").split("\n\n")[0].split())
        for struct in structs
        if struct.__struct_config__.tag_field == "kind" and not struct.__name__.startswith("_")
    }
    rows = [f"| `{kind}` | {says} |" for kind, says in kinds.items()]
    return ["## Every kind of event", "", "| kind | says |", "|---|---|", *rows]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")
