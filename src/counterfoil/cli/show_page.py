"""The page of `counterfoil show`: who did what, when, under which key, and where the proof came from.

It must not read a store: it is given the timeline.
"""

from __future__ import annotations

from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from counterfoil.cli.render import (
    STYLES,
    VALUE,
    WHERE,
    WIDE,
    WORD,
    ago,
    moment,
    offset,
    row_detail,
    row_margin,
    status_text,
)
from counterfoil.core.state import RunState
from counterfoil.runtime.timeline import LifeLine, Row, Timeline
from counterfoil.runtime.wording import json_text, span
from counterfoil.stores.protocol import Head

BESIDE = 8 + 2 + WHERE + 2 + WORD + 2 + 2
"""Width of what stands beside a row's details."""
ABSOLUTE = 14
"""Width of the column of absolute times."""
TAIL = 200
"""Rows that are shown where not all are asked for."""


class ShowPage:
    """Lays a timeline out.

    Args:
        head: the run's.
        state: its fold.
        story: its timeline.
        now: store time.
        width: of the page.
        full: show all rows, and every value whole.
    """

    def __init__(self, head: Head, state: RunState, story: Timeline, now: datetime, width: int, *, full: bool) -> None:
        self.head, self.state, self.story, self.now = head, state, story, now
        self.width, self.full = width, full
        self.wide = width >= WIDE
        self.limit = 0 if full else VALUE
        self.value_limit = 0 if full else max(20, width - BESIDE - (ABSOLUTE if self.wide else 0))
        assert story.started.at is not None
        self.start = story.started.at

    def parts(self) -> list[RenderableType]:
        """Return the page, part by part."""
        parts = self._top()
        skip = 0 if self.full else max(0, sum(len(life.rows) for life in self.story.lives) - TAIL)
        if skip:
            parts += [Text(), Text(f"  … {skip} earlier events are left out; --full shows them", style="dim")]
        for number, life in enumerate(self.story.lives):
            if skip >= len(life.rows) > 0:
                skip -= len(life.rows)
                continue
            after = self.story.lives[number + 1] if number + 1 < len(self.story.lives) else None
            before = self.story.lives[number - 1] if number else None
            parts += [Text(), self._life_head(life, before), self._rows(life.rows[skip:], life, after)]
            skip = 0
        return parts

    def _top(self) -> list[RenderableType]:
        flow = self.state.flow
        title = Text()
        title.append(self.head.run_id, style="bold").append("  ").append_text(status_text(self.state.status))
        if self.state.incident:
            title.append("  INCIDENT", style="bold white on red")
        facts = [f"{flow.name} {flow.version}", f"started {moment(self.start)}, {ago(self.start, self.now)}"]
        counts = [
            _count(len(self.story.lives), "life", "lives"),
            _count(self.story.decisions, "decision"),
            self._calls(),
        ]
        lost = self.story.asks - self.story.decisions
        if lost:
            counts.append(_count(lost, "question to the model", "questions to the model") + " without a saved answer")
        given = Text("input  ", style="dim").append(json_text(self.state.input, self.limit), style="none")
        return [title, Text(" · ".join(facts), style="dim"), Text(" · ".join(counts), style="dim"), given]

    def _calls(self) -> str:
        """Say how many calls were rejected too: a run completes even where nothing of it was done."""
        calls = _count(self.state.spent.calls, "call with a record", "calls with a record")
        return f"{calls}, {self.story.rejected} rejected" if self.story.rejected else calls

    def _life_head(self, life: LifeLine, before: LifeLine | None) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"life {life.number}", style="bold").append(f"  pid {life.pid} on {life.host}")
        text.append(f"  {life.began_at:%H:%M:%S} UTC", style="dim")
        if before is not None:
            text.append(f"  {span(life.began_at - before.last_at)} later", style="dim")
        fill = self.width - text.cell_len - 1
        return text.append(" " + "─" * fill, style="dim") if fill > 0 else text

    def _rows(self, rows: tuple[Row, ...], life: LifeLine, after: LifeLine | None) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", no_wrap=True, width=8, style="dim")
        if self.wide:
            table.add_column(no_wrap=True, width=12, style="dim")
        table.add_column(no_wrap=True, width=WHERE, style="dim")
        table.add_column(no_wrap=True, width=WORD)
        table.add_column(overflow="fold", ratio=1)
        for row in rows:
            self._add(table, row)
        self._add_ending(table, life, after)
        return table

    def _add(self, table: Table, row: Row) -> None:
        parts = [row_detail(row, limit=self.limit, value=False), row_margin(row, full=self.full)]
        if row.proof is not None:  # On the line of its receipt: it is what one looks for.
            parts = [Text("  ").join(part for part in parts if part)]
        if bytes(row.value):
            parts.append(Text(json_text(row.value, self.value_limit), style="dim" if row.tool else "none"))
        detail = Text("\n").join(part for part in parts if part)
        cells: list[RenderableType] = [offset(row.at, self.start) if row.at else ""]
        if self.wide:
            cells.append(f"{row.at:%H:%M:%S}.{row.at.microsecond // 1000:03}" if row.at else "")
        style = "bold white on red" if row.word.isupper() else STYLES[row.tone]
        table.add_row(*cells, row.where, Text(row.word, style=style), detail)

    def _add_ending(self, table: Table, life: LifeLine, after: LifeLine | None) -> None:
        """Show a kill as what it is: a gap in which nobody wrote."""
        silence = f"; nobody wrote for {span(after.began_at - life.last_at)}" if after is not None else ""
        if life.ending == "left":
            return
        mark, style, said = _ENDINGS[life.ending]
        said += silence
        cells: list[RenderableType] = ["", *([""] if self.wide else []), "", Text(mark, style=style)]
        table.add_row(*cells, Text(said, style=style.removeprefix("bold ")))


_ENDINGS = {
    "died": ("✗ died", "bold red", "without a word: the kernel says it is dead"),
    "silent": ("✗ silent", "bold yellow", "its lease is over, and no more is known"),
    "going": ("● holds it", "bold cyan", "this worker holds the run now"),
}


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
