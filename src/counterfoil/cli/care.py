"""The commands that look after a store: `verify`, `prune` and `doctor`.

They must not touch a run that could still matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli.messages import Usage, command, next_step, note
from counterfoil.cli.options import (
    EXIT_COMMON,
    JsonOption,
    StoreOption,
    describe,
    length_of_time,
    print_json,
    session,
)

if TYPE_CHECKING:
    from counterfoil.runtime.diagnosis import ToolReport
    from counterfoil.stores.protocol import Damage

DAMAGED = 65


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(
        "verify",
        help=describe(
            "Check that no event is missing, changed or torn, and name each that is.",
            example="counterfoil verify\ncounterfoil verify ticket-77",
            keys="runs         how many were checked\ndamage       one object for each: run_id, position, what",
            exits=EXIT_COMMON | {0: "all is whole", 65: "something is damaged, or newer"},
        ),
    )(verify)
    app.command(
        "prune",
        help=describe(
            "Turn old, ended runs into tombstones, so that a reused id meets its answer and not a second run.",
            "Runs with an incident, an abandoned call, unread mail or damage are never pruned.",
            example="counterfoil prune --older-than 30d --dry-run",
            keys="runs         ids that would be pruned (with --dry-run)\npruned       how many were pruned",
            exits={0: "done", **EXIT_COMMON},
        ),
    )(prune)
    app.command(
        "doctor",
        help=describe(
            "Say what the store, this machine and a flow's tools are fit for.",
            "With MODULE:FLOW it also lists the tools without a declared contract. After the store was put back from "
            "a backup, --restored says so: from then on no call counts as never sent just because the store says so.",
            example="counterfoil doctor app.flows:support\ncounterfoil doctor --restored",
            keys="""
store        place, engine, schema, format, epoch, journal_mode, synchronous, file_system, bytes_used,
             bytes_free, runs (by status), incidents, tombstones, leases; null where there is none
open         runs that wait for a person, and calls that were given up
machine      python, platform, proof_of_death, boot_clock, remarks
tools        of MODULE:FLOW: name, contract, declared
warnings     what to see to, in words
restored     the new epoch, with --restored
""",
            exits={0: "nothing to see to", 1: "there are warnings", **EXIT_COMMON},
        ),
    )(doctor)


def verify(
    run_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this run.", show_default=False)] = None,
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check that no event is missing, changed or torn."""
    with session(store) as (runner, opened):
        if run_id is not None:
            from counterfoil.runtime.agent import find_run

            runner.run(find_run(opened, run_id))
        damage = runner.run(opened.verify(run_id))
        count = 1 if run_id is not None else sum(runner.run(opened.info()).runs.values())
    if as_json:
        print_json({"runs": count, "damage": damage})
    elif damage:
        _print_damage(damage)
    else:
        note(f"whole: {count} run{'' if count == 1 else 's'} checked")
    return DAMAGED if damage else 0


def _print_damage(damage: list[Damage]) -> None:
    from rich.text import Text

    from counterfoil.cli.render import console, put
    from counterfoil.runtime.wording import plain

    out = console()
    for one in damage:
        where = f"{one.run_id}  " if one.run_id else ""
        put(out, Text("damaged  ", style="bold red").append(plain(where), style="bold").append(plain(one.what)))
    next_step("restore the store from a backup, then say so: counterfoil doctor --restored")


def prune(
    older_than: Annotated[str, typer.Option("--older-than", metavar="TIME", help="As in 30d, 12h, 45m.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn old, ended runs into tombstones."""
    from counterfoil.runtime.diagnosis import prunable

    age = length_of_time(older_than, "--older-than")
    ids: list[str] = []
    count = 0
    with session(store) as (runner, opened):
        if dry_run:
            ids = runner.run(prunable(opened, age))
        else:
            count = runner.run(opened.prune(older_than=age))
    if as_json:
        print_json({"runs": ids, "pruned": count})
    elif dry_run:
        for run_id in ids:
            print(run_id)
        note(f"{len(ids)} run{'' if len(ids) == 1 else 's'} would be pruned")
    else:
        note(f"{count} run{'' if count == 1 else 's'} pruned")


def doctor(
    entry: Annotated[str | None, typer.Argument(metavar="[MODULE:FLOW]", help="A flow to look at.")] = None,
    *,
    restored: Annotated[bool, typer.Option("--restored", help="The store was put back from a backup.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what the store, this machine and a flow's tools are fit for."""
    import contextlib
    import sys

    from counterfoil.runtime.diagnosis import Diagnosis, diagnose, machine, tools_of

    found: dict[str, Any] = {"store": None, "open": None, "restored": None}
    tools: tuple[ToolReport, ...] = ()
    if entry is not None:
        from counterfoil.cli.load import load_flow

        with contextlib.redirect_stdout(sys.stderr):
            tools = tools_of(load_flow(entry))
    diagnosis: Diagnosis | None = None
    missing = ""
    try:
        with session(store) as (runner, opened):
            if restored:
                found["restored"] = runner.run(opened.restored())
            diagnosis = runner.run(diagnose(opened))
    except Usage as error:
        if restored:
            raise
        missing = error.message
    from counterfoil.cli.doctor_page import document, print_page

    if as_json:
        print_json(document(diagnosis, machine(), tools, found["restored"]))
    else:
        print_page(diagnosis, machine(), tools, missing, found["restored"])
    if diagnosis is not None and diagnosis.waiting and not as_json:
        next_step(command("inbox", store=store))
    return 1 if diagnosis is not None and diagnosis.warnings else 0
