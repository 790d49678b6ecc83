"""The page of `counterfoil explain`: what a resume would do, under which rules, and the five questions for each call.

It must not read a store.
"""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from counterfoil.cli.lists import owner_words
from counterfoil.cli.render import indented, moment, status_text
from counterfoil.runtime.explain import CallReport, Explanation, Step
from counterfoil.runtime.questions import Question
from counterfoil.runtime.wording import plain, spell

MARKS = {"yes": ("yes", "green"), "no": ("no", "red"), "unclear": ("?", "yellow"), "fact": ("·", "dim")}
_STEP_STYLES = {
    "send": "bold",
    "send again": "bold yellow",
    "look up": "bold cyan",
    "settle": "bold green",
    "declare unknown": "bold red",
    "pause": "bold yellow",
    "refuse": "bold red",
    "end": "bold green",
}


def parts(found: Explanation, entry: str) -> list[RenderableType]:
    """Return the page, part by part."""
    title = Text(found.run_id, style="bold").append("  ").append_text(status_text(found.state.status))
    title.append("  nothing is changed by looking", style="dim")
    flow = f"flow {found.state.flow.name} {found.state.flow.version}, from {entry}: "
    same = "the same as the journal's" if not found.differences else f"{len(found.differences)} differences"
    page: list[RenderableType] = [title, Text(flow + same, style="dim")]
    page += [Text(f"  {plain(str(difference))}", style="yellow") for difference in found.differences]
    if found.owner is not None:
        page.append(Text(owner_words(found.owner), style="dim"))
    page += [Text(), Text("A resume now would", style="bold"), *_steps(found.steps), Text()]
    page += _repeats(found)
    for report in found.calls:
        page += [Text(), *_call(report)]
    page.append(Text())
    return page


def _steps(steps: tuple[Step, ...]) -> list[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=3, justify="right", style="dim", no_wrap=True)
    table.add_column(width=15, no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for number, step in enumerate(steps, start=1):
        table.add_row(f"{number}.", Text(step.does, style=_STEP_STYLES.get(step.does, "bold")), _said(step))
        for branch in step.branches:
            said = Text(f"{branch.answer}".replace("_", " "), style="bold").append(f": {branch.does}  ", style="none")
            table.add_row("", "", said.append(f"{branch.because}: {branch.says}", style="dim"))
    return [table]


def _said(step: Step) -> Text:
    text = Text()
    named = " ".join(part for part in (step.call, step.tool) if part)
    first = "  ".join(part for part in (named, plain(step.note)) if part)
    if first:
        text.append(first + "  ")
    text.append(f"{step.because}: {step.says}", style="dim")
    if step.key:
        text.append(f"\nkey {step.key}", style="cyan")
    if step.until is not None:
        text.append(f"\nuntil {moment(step.until)}", style="cyan")
    return text


def _repeats(found: Explanation) -> list[RenderableType]:
    if not found.repeats:
        return [Text("Repeats: no effect would be sent a second time.")]
    lines: list[RenderableType] = [Text("Repeats", style="bold")]
    for repeat in found.repeats:
        how = "would be sent again" if repeat.certain else "would be sent again only after that answer of its lookup"
        under = f"under the same key {repeat.key}" if repeat.key else "without a key"
        said = f"  {repeat.call} {repeat.tool} {how}, as attempt {repeat.attempt}, {under} ({repeat.because})"
        lines.append(Text(said, style="yellow"))
    return lines


def _call(report: CallReport) -> list[RenderableType]:
    planned = report.call.planned
    title = Text(f"{report.call.id}  ", style="bold").append(spell(planned.tool, planned.arguments, 100))
    return [title, indented(question_table(report.questions))]


def question_table(asked: tuple[Question, ...]) -> Table:
    """Return the five questions, each with answer and source."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=2, justify="right", style="dim", no_wrap=True)
    table.add_column(width=3, no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for number, question in enumerate(asked, start=1):
        mark, style = MARKS[question.says]
        said = Text(question.question + "\n", style="dim").append(plain(question.answer), style="none")
        table.add_row(str(number), Text(mark, style=style), said.append(f"  [{question.source}]", style="dim"))
    return table


def document(found: Explanation) -> dict[str, Any]:
    """Return the page as one JSON document."""
    return {
        "run_id": found.run_id,
        "status": found.state.status,
        "owner": found.owner,
        "differences": found.differences,
        "steps": found.steps,
        "repeats": found.repeats,
        "calls": [
            {
                "call": report.call.id,
                "tool": report.call.planned.tool,
                "arguments": report.call.planned.arguments,
                "key": report.key,
                "attempts": len(report.call.attempts),
                "move": report.move,
                "questions": report.questions,
            }
            for report in found.calls
        ],
    }
