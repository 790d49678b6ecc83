"""The command `crashtest`: kill a flow at every window, resume it, and let the provider's ledger be the judge.

It must not judge: `testing.crash` does. It shows a row for each window, and how to see a broken promise again.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli.messages import Usage, note
from counterfoil.cli.options import JsonOption, describe, json_value, print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from counterfoil.testing.crash.report import Report, Row

BROKEN = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "crashtest",
        help=describe(
            "Kill a flow at every window, resume it, and judge by the provider's ledger and the model's asks.",
            "The flow runs against a reference provider of its own, whose address stands in COUNTERFOIL_PROVIDER_URL. "
            "With --depth 2 the resume is killed at every window, too, and so on. A process is also frozen at each "
            "window, taken over and woken. The same flow with the guard off must fail, or the judge sees nothing.",
            example="counterfoil crashtest examples/support_desk.py:flow\n"
            'counterfoil crashtest app.flows:support --input "Login fails" --depth 2\n'
            "counterfoil crashtest app.flows:support --kill-at 14 --then 3 --keep kept",
            keys="""
ok           every promise held, and the control failed as it must
kills        how many fired, each proven by signal 9 and the window that the process had reported
freezes      how many fired
rows         one object for each window: number, window, kills, freezes, effects, asks, unknown, broken
broken       one sentence for each broken promise, with the command that shows it again
red          cases and failed: of the control with the guard off
blind        calls of which the ledger shows nothing: they were not judged
cases, depth, seconds
""",
            exits={0: "every promise held", 1: "a promise broke, or the control did not fail", 2: "usage"},
        ),
    )(crashtest)


def crashtest(  # noqa: PLR0917 - typer reads options off parameters
    entry: Annotated[str, typer.Argument(metavar="MODULE:FLOW", help="The flow.", show_default=False)],
    text: Annotated[str | None, typer.Option("--input", metavar="TEXT", help="The run's input, as text.")] = None,
    json_text: Annotated[
        str | None, typer.Option("--input-json", metavar="JSON", help="The run's input, as JSON.")
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=1, help="How many lives in a row are killed.")] = 1,
    freeze: Annotated[bool, typer.Option("--freeze/--no-freeze", help="Freeze at every window, too.")] = True,
    only: Annotated[str, typer.Option("--only", metavar="WINDOW", help="Only windows whose name holds this.")] = "",
    kill_at: Annotated[int, typer.Option("--kill-at", metavar="N", help="One case: kill at window N.")] = 0,
    then: Annotated[list[int] | None, typer.Option("--then", metavar="N", help="Then kill the next life at N.")] = None,
    freeze_at: Annotated[int, typer.Option("--freeze-at", metavar="N", help="One case: freeze at window N.")] = 0,
    behave: Annotated[
        list[str] | None,
        typer.Option("--behave", metavar="ENDPOINT=JSON", help="How an endpoint of the provider behaves."),
    ] = None,
    keep: Annotated[str, typer.Option("--keep", metavar="FOLDER", help="Keep the files of every case.")] = "",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Cases at a time; 0: one for each core.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run the crash test."""
    from counterfoil.cli.load import load_flow
    from counterfoil.testing.crash.kit import Plan, run_plan

    if then and not kill_at:
        raise Usage("--then follows --kill-at", remedy="Write --kill-at 14 --then 3.")
    flow = load_flow(entry)  # For its clear errors: the test itself loads the flow in processes of its own.
    plan = Plan(
        entry=entry,
        value=_input(text, json_text),
        depth=depth,
        freeze=freeze,
        only=only,
        path=(kill_at, *(then or [])) if kill_at else (),
        freeze_at=freeze_at,
        behave=_behaviours(behave or []),
        keep=keep,
        workers=workers,
    )
    with _progress(flow.name, shown=sys.stderr.isatty() and not as_json) as progress:
        report = run_plan(plan, progress)
    if as_json:
        print_json(_document(report))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else BROKEN)


def _input(text: str | None, json_text: str | None) -> Any:
    if text is not None and json_text is not None:
        raise Usage("--input and --input-json cannot stand together", remedy="Give one input.")
    return text if json_text is None else json_value(json_text, "--input-json")


def _behaviours(given: list[str]) -> dict[str, dict[str, Any]]:
    import msgspec

    from counterfoil.testing.behaviour import Behaviour

    found: dict[str, dict[str, Any]] = {}
    for each in given:
        endpoint, _, body = each.partition("=")
        try:
            found[endpoint] = msgspec.json.decode(body, type=dict[str, Any])
            Behaviour.from_json(found[endpoint])
        except (msgspec.DecodeError, ValueError) as error:
            raise Usage(
                f"--behave {each}: {error}", remedy='Write ENDPOINT=JSON, as in emails={"lookup_lag_s": 3}.'
            ) from error
    return found


@contextmanager
def _progress(name: str, *, shown: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    if not shown:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from counterfoil.cli.render import console_for_stderr

    columns = (TextColumn("{task.fields[flow]}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.fields[window]}"), console=console_for_stderr(), transient=True
    ) as progress:
        bar = progress.add_task("", total=None, flow=name, window="")
        yield lambda done, total, window: progress.update(bar, completed=done, total=total, window=window)


def _document(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "flow": report.flow,
        "entry": report.entry,
        "depth": report.depth,
        "cases": report.cases,
        "kills": report.kills,
        "freezes": report.freezes,
        "rows": report.rows,
        "broken": report.sentences(),
        "red": {"cases": len(report.red), "failed": sum(bool(tried.broken) for tried in report.red)},
        "blind": report.blind,
        "seconds": round(report.seconds, 3),
    }


def _show(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from counterfoil.cli.render import STYLES, console

    out = console()
    if not out.is_terminal:
        out.width = max(out.width, 110)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (("#", "right"), ("killed or frozen at", "left"), ("kills", "right"), ("freezes", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]  # rich wants literals
    for name in ("effects", "asks", "by a person"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in report.rows:
        word = Text("held", STYLES["good"]) if row.held else Text("BROKEN", STYLES["bad"])
        table.add_row(*_cells(row), word)
    out.print(table)
    for sentence in report.sentences():
        out.print(Text(f"\nBROKEN  {sentence}", STYLES["bad"]))
    out.print()
    out.print(_totals(report))
    if report.red:
        failed = sum(bool(tried.broken) for tried in report.red)
        if failed:
            out.print(f"Red control failed as it must: with the guard off, {failed} of {len(report.red)} cases broke.")
    if report.blind:
        note(f"not judged, the ledger shows nothing of: {', '.join(report.blind)}")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.number),
        row.window,
        str(row.kills),
        str(row.freezes or ""),
        _range(row.effects),
        _range(row.asks),
        str(row.unknown or ""),
    )


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def _totals(report: Report) -> str:
    held = "every promise held" if not report.failures else f"{len(report.failures)} cases broke a promise"
    return (
        f"{report.kills} kills fired, each proven by signal 9 and its reported window; {report.freezes} freezes; "
        f"{report.cases} cases to depth {report.depth} in {report.seconds:.1f} s: {held}."
    )
