"""The page of `counterfoil inbox`: each thing that waits for a person, what is known, and the commands to copy.

It must not read a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from counterfoil.cli.advice import advice
from counterfoil.cli.explain_page import question_table
from counterfoil.cli.messages import command
from counterfoil.cli.render import ago, console, indented, line_to_copy, moment, put, status_text
from counterfoil.runtime.inbox import UnknownCall, Waiting
from counterfoil.runtime.questions import worker
from counterfoil.runtime.wording import plain, spell


def print_page(found: Sequence[Waiting], now: datetime, store: str | None) -> None:
    """Print all that waits."""
    out = console()
    if not found:
        put(out, Text("Nothing waits for a person.", style="green"))
        return
    for number, one in enumerate(found):
        if number:
            put(out, Text())
        _print_run(out, one, now, store)


def _print_run(out: Console, one: Waiting, now: datetime, store: str | None) -> None:
    title = Text(one.run_id, style="bold").append("  ").append_text(status_text(one.status))
    title.append(f"  {one.flow}", style="dim")
    if one.since is not None:
        title.append(f"  since {moment(one.since)}, {ago(one.since, now)}", style="dim")
    put(out, title)
    if one.damaged:
        put(out, Text(f"  {plain(one.damaged)}", style="red"))
        line_to_copy(out, command("verify", one.run_id, store=store))
    for what in one.incidents:
        put(out, indented(Text("INCIDENT  ", style="bold red").append(plain(what), style="none")))
    for name in one.abandoned:
        put(out, indented(Text("given up  ", style="bold yellow").append(f"{name}: its effect may be there")))
    if one.deserted:
        put(out, indented(Text(f"{plain(one.deserted)}, so nobody advances it", style="yellow")))
        line_to_copy(out, f"next: {command('resume', one.run_id, store=store)}")
    for call in one.unknown:
        _print_call(out, one.run_id, call, store)
    if one.status == "blocked":
        because = f"{one.because}: {one.because.says}" if one.because else ""
        put(out, indented(Text(because).append(f" {plain(one.note)}", style="yellow")))
        line_to_copy(out, f"next: {advice(one.run_id, one.status, one.because, store=store)}")


def _print_call(out: Console, run_id: str, call: UnknownCall, store: str | None) -> None:
    title = Text("UNKNOWN", style="bold white on red").append("  ", style="none")
    title.append(f"{call.call}  ", style="bold").append(spell(call.tool, call.arguments, 200), style="none")
    put(out, indented(title), indented(_facts(call), 4), indented(question_table(call.questions), 4))
    put(out, indented(Text("Look at the provider, then copy one of these:", style="bold"), 4))
    for line, comment in commands(run_id, call, store):
        put(out, indented(Text(f"# {comment}", style="dim"), 4))
        line_to_copy(out, line, indent=4)


def _facts(call: UnknownCall) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    table.add_row("why", f"{call.because}: {call.because.says}")
    table.add_row("key", Text(call.key or "it was sent without a key", style="cyan"))
    for sender in call.past.senders:
        table.add_row("sent", f"{moment(sender.sent_at)}, attempt {sender.attempt}, by {worker(sender)}")
    for at, looked in call.past.lookups:
        said = str(looked.answer).replace("_", " ") + (f" ({plain(looked.note)})" if looked.note else "")
        table.add_row("looked up", f"{moment(at)}: {said}")
    if not call.past.lookups:
        table.add_row("looked up", "never: it has no lookup, or none could be asked")
    return table


def commands(run_id: str, call: UnknownCall, store: str | None) -> list[tuple[str, str]]:
    """Return the commands that settle an unknown call, each with what it means."""
    seen = ("--seen", str(call.seen))
    who = ("--by", "YOU", "--reason", "WHY")
    stopped = () if call.sender_ended else ("--sender-stopped",)
    sure = "" if call.sender_ended else " (first make sure that its worker is stopped)"

    def resolve(*words: str) -> str:
        return command("resolve", run_id, call.call, *words, *who, *seen, store=store)

    return [
        (resolve("--applied", "--receipt", "none"), "it happened; instead of none, its result as JSON"),
        (resolve("--not-applied", *stopped), f"it did not happen, and the model is told so{sure}"),
        (resolve("--not-applied", "--then", "dispatch", *stopped), f"it did not happen: send it again{sure}"),
        (resolve("--abandon"), "nobody will ever know: the run fails, and this stays listed"),
    ]


def document(found: Sequence[Waiting], store: str | None) -> dict[str, Any]:
    """Return the page as one JSON document."""
    return {"waiting": [_run_document(one, store) for one in found]}


def _run_document(one: Waiting, store: str | None) -> dict[str, Any]:
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    fields["unknown"] = [
        {name: getattr(call, name) for name in call.__struct_fields__}
        | {"commands": [line for line, _ in commands(one.run_id, call, store)]}
        for call in one.unknown
    ]
    return fields
