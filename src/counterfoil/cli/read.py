"""The commands that only read: `runs`, `show`, `explain` and `inbox`.

They must not change anything in a journal, and what they print as JSON is documented in their help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli.messages import Usage, command, note
from counterfoil.cli.options import EXIT_COMMON, JsonOption, RunId, StoreOption, describe, print_json, session

if TYPE_CHECKING:
    from counterfoil.core.events import Recorded
    from counterfoil.core.state import RunState
    from counterfoil.stores.protocol import Head, Observation, Tombstone

FullOption = Annotated[bool, typer.Option("--full", help="Show every event, and every value whole.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(
        "runs",
        help=describe(
            "List runs, newest first.",
            example="counterfoil runs --status unknown --status blocked",
            keys="""
runs         one object for each: run_id, status, incident, flow, entry, lives, events,
             created_at, updated_at, due, labels, owner (what is seen of who holds it, or null)
truncated    whether there are more than --limit
""",
            exits={0: "listed", **EXIT_COMMON},
        ),
    )(runs)
    app.command(
        "show",
        help=describe(
            "Show what happened to a run: who did what, when, under which key, by which proof.",
            example="counterfoil show ticket-77 --full",
            keys="""
run_id, status, incident, flow, version, entry, input, output, owner
events       the journal: position, at, fence, kind and the event's own fields
next         the next step, or an empty text
pruned       true where only a tombstone is left: then there are no events
""",
            exits={0: "shown", **EXIT_COMMON},
        ),
    )(show)
    app.command(
        "explain",
        help=describe(
            "Say what a resume would do now, call by call and under which rule, without doing any of it.",
            example="counterfoil explain ticket-77",
            keys="""
run_id, status, owner, differences
steps        in order: does, because, says, call, tool, key, until, note, branches
repeats      effects that would or might be sent again: call, tool, key, attempt, certain, because
calls        unsettled calls: call, tool, arguments, key, attempts, move, questions
             (the five stop questions in order: question, says, answer, source)
""",
            exits={0: "explained", **EXIT_COMMON},
        ),
    )(explain)
    app.command(
        "inbox",
        help=describe(
            "List all that waits for a person, with what is known of it and the commands that settle it.",
            example="counterfoil inbox",
            keys="""
waiting      one object for each run: run_id, status, flow, entry, because, note, since,
             unknown, incidents, abandoned, damaged
unknown      calls: call, tool, arguments, key, because, past, seen, sender_ended,
             questions (the five), commands
""",
            exits={0: "listed, whether anything waits or not", **EXIT_COMMON},
        ),
    )(inbox)


def runs(
    status: Annotated[list[str] | None, typer.Option("--status", metavar="S", help="Only these; may be repeated.")] = (
        None
    ),
    flow: Annotated[str | None, typer.Option("--flow", metavar="NAME", help="Only runs of this flow.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 50,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs."""
    wanted = _statuses(status or [])
    with session(store) as (runner, opened):
        heads = runner.run(opened.find(status=wanted, flow=flow, limit=limit + 1))
        heads, more = heads[:limit], len(heads) > limit
        owners = {head.run_id: runner.run(opened.observe(head.owner)) for head in heads if head.owner}
        now = opened.now()
    if as_json:
        print_json({"runs": [_run_row(head, owners.get(head.run_id)) for head in heads], "truncated": more})
        return
    if not heads:
        note("no such runs" if wanted or flow else "no runs yet")
        return
    from counterfoil.cli.lists import runs_table
    from counterfoil.cli.render import console, put

    put(console(), runs_table(heads, owners, now))
    if more:
        note(f"there are more than {limit}; raise --limit to see them")


def _statuses(words: list[str]) -> list[Any]:
    from counterfoil.core.events import Status

    known = [str(status) for status in Status]
    for word in words:
        if word not in known:
            raise Usage(f"--status {word!r} is no status", remedy=f"One of: {', '.join(known)}.")
    return [Status(word) for word in words]


def _run_row(head: Head, owner: Observation | None) -> dict[str, Any]:
    return {
        "run_id": head.run_id,
        "status": head.status,
        "incident": head.incident,
        "flow": head.flow,
        "entry": head.entry,
        "lives": head.lives,
        "events": head.position,
        "created_at": head.created_at,
        "updated_at": head.updated_at,
        "due": head.due,
        "labels": head.labels,
        "owner": owner,
    }


def show(run_id: RunId, full: FullOption = False, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show what happened to a run."""
    from counterfoil.cli.advice import advice
    from counterfoil.core.state import fold
    from counterfoil.runtime.agent import find_run
    from counterfoil.stores.protocol import Tombstone

    with session(store) as (runner, opened):
        head = runner.run(find_run(opened, run_id))
        if isinstance(head, Tombstone):
            _show_tombstone(head, as_json=as_json)
            return
        events = runner.run(opened.events(run_id))
        owner = runner.run(opened.observe(head.owner)) if head.owner else None
        now = opened.now()
    state = fold(events)
    paused = state.paused
    step = advice(run_id, state.status, paused.because if paused else None, paused.until if paused else None, store)
    if as_json:
        print_json(_show_document(head, state, events, owner, step))
        return
    _print_show(head, state, events, owner, now, step, full=full)


def _print_show(
    head: Head, state: RunState, events: list[Recorded], owner: Observation | None, now: Any, step: str, *, full: bool
) -> None:
    from rich.text import Text

    from counterfoil.cli.lists import standing_line
    from counterfoil.cli.render import console, line_to_copy, put
    from counterfoil.cli.show_page import ShowPage
    from counterfoil.runtime.timeline import timeline

    out = console()
    story = timeline(events, head.owner, {head.owner: owner} if owner is not None else None)
    put(out, *ShowPage(head, state, story, now, out.width, full=full).parts())
    put(out, Text(), standing_line(state, owner))
    if step:
        line_to_copy(out, f"next: {step}", indent=0)


def _show_document(
    head: Head, state: RunState, events: list[Recorded], owner: Observation | None, step: str
) -> dict[str, Any]:
    return {
        "run_id": head.run_id,
        "status": state.status,
        "incident": state.incident,
        "flow": state.flow.name,
        "version": state.flow.version,
        "entry": head.entry,
        "input": state.input,
        "output": state.output if bytes(state.output) else None,
        "owner": owner,
        "events": [_event_row(recorded) for recorded in events],
        "next": step,
        "pruned": False,
    }


def _event_row(recorded: Recorded) -> dict[str, Any]:
    import msgspec

    from counterfoil.core.codec import encode

    place: dict[str, Any] = {"position": recorded.position, "at": recorded.at, "fence": recorded.fence}
    return {**place, **msgspec.json.decode(encode(recorded.event))}


def _show_tombstone(grave: Tombstone, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        document: dict[str, Any] = {
            "run_id": grave.run_id,
            "status": grave.status,
            "flow": grave.flow,
            "output": None if grave.output is None else msgspec.Raw(grave.output),
            "keys": grave.keys,
            "pruned_at": grave.pruned_at,
            "events": [],
            "next": "",
            "pruned": True,
        }
        print_json(document)
        return
    from counterfoil.cli.render import console, moment, put, status_text

    line = status_text(grave.status).append(f", pruned {moment(grave.pruned_at)}; its id cannot start another run")
    put(console(), line)


def explain(
    run_id: RunId,
    entry: Annotated[str | None, typer.Argument(metavar="[MODULE:FLOW]", help="Where its flow is.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a resume would do now."""
    import contextlib
    import sys

    from counterfoil.cli.run import flow_of
    from counterfoil.runtime.agent import find_run
    from counterfoil.runtime.explain import explain as foresee
    from counterfoil.stores.protocol import Tombstone

    with session(store) as (runner, opened):
        head = runner.run(find_run(opened, run_id))
        if isinstance(head, Tombstone):
            raise Usage(f"run {run_id} is {head.status} and pruned", remedy="A resume would only report its output.")
        with contextlib.redirect_stdout(sys.stderr):
            flow = flow_of(head, entry)
        foreseen = runner.run(foresee(opened, head, flow))
    if as_json:
        from counterfoil.cli.explain_page import document

        print_json(document(foreseen))
        return
    from counterfoil.cli.explain_page import parts
    from counterfoil.cli.render import console, line_to_copy, put

    out = console()
    put(out, *parts(foreseen, flow.entry))
    line_to_copy(out, f"next: {command('resume', run_id, *([entry] if entry else []), store=store)}", indent=0)


def inbox(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List all that waits for a person."""
    from counterfoil.cli.inbox_page import document, print_page
    from counterfoil.runtime.inbox import inbox as collect

    with session(store) as (runner, opened):
        found = runner.run(collect(opened))
        now = opened.now()
    if as_json:
        print_json(document(found, store))
        return
    print_page(found, now, store)
