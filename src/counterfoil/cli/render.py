"""The words of the runtime with colours and widths: what every page that people read is made of.

It must not put data into markup: everything is built as text, so that no value can colour or move anything.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from counterfoil.runtime.timeline import Row
from counterfoil.runtime.wording import contract_words, json_text, plain, shorten, spell

WIDE = 110
"""From this width on there is room for absolute times in every row."""

STYLES = {"plain": "bold", "quiet": "dim", "good": "bold green", "doubt": "bold yellow", "bad": "bold red"}
STATUS_STYLES = {
    "pending": "dim",
    "running": "bold cyan",
    "waiting": "bold yellow",
    "unknown": "bold red",
    "blocked": "bold red",
    "completed": "bold green",
    "failed": "bold red",
    "cancelled": "bold yellow",
}
WORD = 15
"""Width of the word that says what happened."""
WHERE = 7
"""Width of the call's or turn's name."""
VALUE = 160
"""Characters of a value that are shown where not all of it is asked for."""

UNDECLARED = (
    "no contract, so a lost reply is never repeated and waits for a person. Say what may be done, in one line:\n"
    "         @cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=24)))   or Read(), Repeatable(), Lookup(...), "
    "OneShot()"
)


def console() -> Console:
    """Return what prints pages on stdout."""
    return Console(highlight=False, markup=False, emoji=False)


def console_for_stderr() -> Console:
    """Return what prints progress on stderr."""
    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False)


def put(out: Console, *parts: RenderableType) -> None:
    """Print parts one below the other."""
    out.print(Group(*parts))


def line_to_copy(out: Console, text: str, indent: int = 2) -> None:
    """Print a command on one line, however long: it must survive being copied."""
    out.print(Text(" " * indent + text, style="cyan"), soft_wrap=True)


def moment(at: datetime) -> str:
    """Return a moment with its date, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(at: datetime, now: datetime) -> str:
    """Return how long ago a moment was."""
    length = now - at
    if length < timedelta(seconds=1):
        return "just now"
    return f"{_long_span(length)} ago"


def _long_span(length: timedelta) -> str:
    seconds = int(length.total_seconds())
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count = seconds // size
        if count:
            return f"{count} {name}" + ("s" if count > 1 else "")
    return "0 seconds"


def offset(at: datetime, start: datetime) -> str:
    """Return a moment as its distance from a run's start: ``+0.42 s``, ``+3 min 07``."""
    seconds = max(0.0, (at - start).total_seconds())
    if seconds < 100:  # noqa: PLR2004 - as far as two decimals fit
        return f"+{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 100:  # noqa: PLR2004 - as above
        return f"+{minutes} m {rest:02}"
    hours, minutes = divmod(minutes, 60)
    if hours < 100:  # noqa: PLR2004 - as above
        return f"+{hours} h {minutes:02}"
    return f"+{hours // 24} d {hours % 24:02}"


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=STATUS_STYLES.get(status, ""))


def row_line(row: Row) -> Text:
    """Return a row on one line, for progress."""
    text = Text("  ")
    text.append(f"{row.word:<{WORD}} ", style=STYLES[row.tone])
    text.append(f"{row.where:<{WHERE}} ", style="dim")
    text.append_text(row_detail(row, limit=72))
    if row.key and bytes(row.call):
        text.append(f"  key {shorten(row.key, 16)}", style="dim")
    return text


def row_detail(row: Row, *, limit: int = VALUE, value: bool = True) -> Text:
    """Return what a row says besides its word: the call, or the tool with what came of it."""
    text = Text()
    if bytes(row.call):
        return text.append(spell(row.tool, row.call, limit))
    if row.tool:
        text.append(row.tool)
    said = shorten(plain(row.text), limit)
    if said:
        text.append("  " if row.tool else "").append(said)
    if value and bytes(row.value):
        text.append("  " if text else "").append(json_text(row.value, limit), style="dim" if row.tool else "")
    return text


def row_margin(row: Row, *, full: bool) -> Text:
    """Return the second line of a row: under which key and contract, by which proof, and why."""
    parts: list[tuple[str, str]] = []
    if row.key and bytes(row.call):
        parts.append((f"key {row.key}", "cyan"))
    if row.terms is not None:
        parts.append((contract_words(row.terms.contract), "dim"))
    if row.proof is not None:
        parts.append((f"proof: {row.proof}", "cyan"))
    if row.because is not None and (full or str(row.because) not in ("never-sent", "found", "operator", row.word)):
        parts.append((str(row.because), "dim"))
    text = Text()
    for said, style in parts:
        text.append("  " if text else "").append(said, style=style)
    return text


def indented(part: RenderableType, by: int = 2) -> Padding:
    """Return a part moved to the right."""
    return Padding(part, (0, 0, 0, by))
