"""`counterfoil run` and `counterfoil resume`: advance a run, say what happens, and leave it resumable whatever comes.

It must not decide how a run goes on: `arun` and `aresume` do.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli import messages
from counterfoil.cli.messages import Usage, command, next_step, note
from counterfoil.cli.options import (
    JsonOption,
    RunId,
    StoreOption,
    describe,
    json_value,
    length_of_time,
    print_json,
    session,
)

if TYPE_CHECKING:
    import asyncio

    from counterfoil.cli.progress import Progress
    from counterfoil.runtime.agent import RunResult
    from counterfoil.runtime.flow import Agent
    from counterfoil.stores.protocol import Head, Store, Tombstone

EXITS = {
    0: "completed",
    1: "failed",
    2: "usage, no such run, or other input for a known id",
    3: "unknown: a person must settle a call",
    4: "waiting for a time, a provider, or proof of death",
    5: "blocked: the flow changed, or a limit is reached",
    6: "cancelled",
    65: "journal damaged or newer",
    74: "store unavailable",
    75: "owned by another worker",
    130: "interrupted, drained, resumable",
}
KEYS = """
run_id, status, exit_code, incident
output       text of the last decision; of a tool's run its result
because      the rule under which it stands still, or null
note, until  why, in words; when it may go on
unknown      calls that a person must settle
differences  how the flow at hand differs: where, journal, now
error        of a tool's run that certainly did nothing: kind, message
"""

Entry = Annotated[str, typer.Argument(metavar="MODULE:FLOW", help="A dotted module or a .py file, and a name in it.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print the output and nothing in passing.")]
ProgressOption = Annotated[
    bool, typer.Option("--progress", help="Print events as they happen, also where stderr is no terminal.")
]
PatienceOption = Annotated[
    str, typer.Option("--patience", metavar="TIME", help="How far away a due time may be to wait for it here.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(
        "run",
        help=describe(
            "Start a run, or continue it: the same id with the same input is the same run.",
            "FLOW is an Agent, a Tool (then the run is one guarded call of it, and the input its arguments as a JSON "
            "object), or a callable without arguments that returns one.",
            "Ctrl-C or SIGTERM once: nothing new is sent, what is under way is awaited, and the run is given up, "
            "resumable. Twice: it is given up at once, resumable too.",
            example='counterfoil run app.flows:support --run-id ticket-77 --input "Login fails"\n'
            "counterfoil run examples/refund.py:flow --run-id order-9 --input-json '{\"order\": 9}'",
            keys=KEYS,
            exits=EXITS,
        ),
    )(run)
    app.command(
        "resume",
        help=describe(
            "Continue a run from its last saved event.",
            "The flow is the one the run was started with; MODULE:FLOW names it where the journal does not.",
            example="counterfoil resume ticket-77",
            keys=KEYS,
            exits=EXITS,
        ),
    )(resume)


def run(
    entry: Entry,
    *,
    run_id: Annotated[str, typer.Option("--run-id", metavar="ID", help="Chosen by you: the run's identity.")],
    text: Annotated[str | None, typer.Option("--input", metavar="TEXT", help="The input, as text.")] = None,
    file: Annotated[str | None, typer.Option("--input-file", metavar="FILE", help="Text from a file; - is stdin.")] = (
        None
    ),
    json_text: Annotated[str | None, typer.Option("--input-json", metavar="JSON", help="Any JSON value.")] = None,
    store: StoreOption = None,
    patience: PatienceOption = "60s",
    quiet: QuietOption = False,
    progress: ProgressOption = False,
    as_json: JsonOption = False,
) -> int:
    """Start a run, or continue it."""
    value = _input(text, file, json_text)
    wait = length_of_time(patience, "--patience")
    with _stdout_for_one_document(as_json):
        from counterfoil.cli.load import load_flow

        flow = load_flow(entry)
        _check_arguments(flow, value)
        with session(store, make=True) as (runner, opened):
            known = runner.run(opened.head(run_id))
            watcher = _watcher(runner, opened, known, shown=_shown(progress, quiet, as_json))
            _name_undeclared(flow, quiet=quiet or as_json)
            advance = _advance(opened, flow, run_id, store, (value,), wait, watcher)
            outcome = runner.run(advance)
    return _report(outcome, store, quiet=quiet, as_json=as_json)


def resume(
    run_id: RunId,
    entry: Annotated[str | None, typer.Argument(metavar="[MODULE:FLOW]", help="Where its flow is.")] = None,
    *,
    store: StoreOption = None,
    patience: PatienceOption = "60s",
    quiet: QuietOption = False,
    progress: ProgressOption = False,
    as_json: JsonOption = False,
) -> int:
    """Continue a run from its last saved event."""
    wait = length_of_time(patience, "--patience")
    with _stdout_for_one_document(as_json), session(store) as (runner, opened):
        from counterfoil.runtime.agent import find_run, standing
        from counterfoil.stores.protocol import Tombstone

        known = runner.run(find_run(opened, run_id))
        watcher = _watcher(runner, opened, known, shown=_shown(progress, quiet, as_json))
        if isinstance(known, Tombstone) or known.status.terminal:
            result = runner.run(standing(opened, known))
            outcome = Outcome(result, None, rejected=runner.run(_rejected(opened, result)))
        else:
            flow = flow_of(known, entry)
            outcome = runner.run(_advance(opened, flow, run_id, store, (), wait, watcher))
    return _report(outcome, store, quiet=quiet, as_json=as_json)


def flow_of(known: Head, entry: str | None) -> Agent:
    """Return the flow of a run: as named, else as its head says. Raises `Usage`."""
    from counterfoil.cli.load import load_flow

    if entry is None and not known.entry:
        raise Usage(
            f"run {known.run_id} does not say where its flow {known.flow!r} is",
            remedy=f"Name it: counterfoil resume {known.run_id} MODULE:FLOW",
        )
    try:
        return load_flow(entry or known.entry)
    except Usage as error:
        if entry is None:
            error.remedy = (
                f"The run's head says {known.entry}. Go to the folder it was started in, or name MODULE:FLOW."
            )
        raise


class Outcome:
    """How a command ended: the result, what one guarded call came to, or no result after a second Ctrl-C.

    ``rejected`` counts the calls that were certainly not done.
    """

    def __init__(
        self, result: RunResult, guarded: tuple[Any, Any] | None, *, rejected: int = 0, broken_off: bool = False
    ) -> None:
        self.result = result
        self.guarded = guarded
        self.rejected = rejected
        self.broken_off = broken_off

    @property
    def exit_code(self) -> int:
        """What the command exits with."""
        if self.broken_off:
            return 130
        if self.guarded is not None and self.guarded[1] is not None:
            return 1
        return self.result.exit_code


async def _advance(
    store: Store,
    flow: Agent,
    run_id: str,
    place: str | None,
    given: tuple[Any, ...],
    patience: timedelta,
    watcher: Progress | None,
) -> Outcome:
    """Advance the run with a hand on the signals."""
    import asyncio

    from counterfoil.cli.load import guarded_tool
    from counterfoil.runtime.agent import aresume, arun, find_run, standing

    stop = asyncio.Event()
    if given:
        work = arun(flow, given[0], run_id=run_id, store=store, patience=patience, progress=watcher, stop=stop)
    else:
        work = aresume(flow, run_id, store=store, patience=patience, progress=watcher, stop=stop)
    task = asyncio.ensure_future(work)
    with _signals(task, stop, command("resume", run_id, store=place)):
        try:
            result = await task
        except asyncio.CancelledError:
            return Outcome(await standing(store, await find_run(store, run_id)), None, broken_off=True)
    guarded = await _guarded(store, run_id) if guarded_tool(flow) is not None else None
    return Outcome(result, guarded, rejected=await _rejected(store, result))


async def _rejected(store: Store, result: RunResult) -> int:
    """Count the calls of a completed run that were certainly not done: they look like success otherwise."""
    from counterfoil.core.events import Rejected
    from counterfoil.stores.protocol import Head

    if result.status != "completed" or not isinstance(await store.head(result.run_id), Head):
        return 0
    return sum(isinstance(recorded.event, Rejected) for recorded in await store.events(result.run_id))


async def _guarded(store: Store, run_id: str) -> tuple[Any, Any] | None:
    """Return result and error of the one call of a tool's run, once it is settled."""
    import msgspec

    from counterfoil.core.events import Receipt, Rejected
    from counterfoil.runtime.guard import settled_by
    from counterfoil.stores.protocol import Head

    if not isinstance(await store.head(run_id), Head):
        return None
    match settled_by(await store.events(run_id)):
        case Receipt(result=result):
            return (msgspec.json.decode(result) if bytes(result) else None), None
        case Rejected(failure=failure):
            return None, failure
        case None:
            return None


@contextlib.contextmanager
def _signals(task: asyncio.Task[Any], stop: asyncio.Event, resume_command: str) -> Iterator[None]:
    """First signal: drain. Second: give up at once. The run is resumable after both."""
    import asyncio
    import signal

    def asked() -> None:
        if not stop.is_set():
            stop.set()
            note("stopping: nothing new is sent, and what is under way is awaited. Ctrl-C again gives it up at once.")
        else:
            note("giving up at once: what is under way is recovered by its contract.")
            task.cancel()
            for number in numbers:
                loop.remove_signal_handler(number)
        next_step(resume_command)

    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    try:
        for number in numbers:
            loop.add_signal_handler(number, asked)
    except NotImplementedError:  # Windows: Ctrl-C cancels at once, which the loop handles as well.
        numbers = []
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _input(text: str | None, file: str | None, json_text: str | None) -> Any:
    """Return the one input that was given. Raises `Usage`."""
    options = {"--input": text, "--input-file": file, "--input-json": json_text}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise Usage(f"{' and '.join(given)} cannot stand together", remedy="Give one input.")
    if json_text is not None:
        return json_value(json_text, "--input-json")
    if file is not None:
        try:
            return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Usage(f"--input-file {file} cannot be read: {error}", remedy="Give a text file in UTF-8.") from error
    if text is None:
        raise Usage("there is no input", remedy="Give --input TEXT, --input-file FILE or --input-json JSON.")
    return text


def _check_arguments(flow: Agent, value: Any) -> None:
    """A tool's run takes arguments: what does not fit is refused before a run is made of it."""
    import msgspec

    from counterfoil.cli.load import guarded_tool

    tool = guarded_tool(flow)
    if tool is None:
        return
    refusal = tool.refusal(msgspec.json.encode(value).decode())
    if refusal is not None:
        raise Usage(refusal.message, remedy="Give the tool's arguments as a JSON object with --input-json.")


def _shown(progress: bool, quiet: bool, as_json: bool) -> bool:
    return progress or (sys.stderr.isatty() and not quiet and not as_json)


def _watcher(runner: asyncio.Runner, store: Store, known: Head | Tombstone | None, *, shown: bool) -> Progress | None:
    """Return what prints progress, primed with what is saved already; None where nobody watches."""
    if not shown:
        return None
    from counterfoil.cli.progress import watching
    from counterfoil.stores.protocol import Head

    events = runner.run(store.events(known.run_id)) if isinstance(known, Head) else []
    progress = watching(events)
    progress.begin()
    return progress


def _name_undeclared(flow: Agent, *, quiet: bool) -> None:
    if quiet or not flow.undeclared:
        return
    from counterfoil.cli.render import UNDECLARED

    note(f"{messages.painted('note:', 'doubt')}  {', '.join(flow.undeclared)}: {UNDECLARED}")


@contextlib.contextmanager
def _stdout_for_one_document(as_json: bool) -> Iterator[None]:
    """What a flow prints goes to stderr where stdout is promised to one JSON document."""
    if not as_json:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _report(outcome: Outcome, store: str | None, *, quiet: bool, as_json: bool) -> int:
    """Print how the run stands, and return the exit code."""
    result, code = outcome.result, outcome.exit_code
    value, failure = outcome.guarded or (result.output, None)
    if as_json:
        document = {
            "run_id": result.run_id,
            "status": result.status,
            "exit_code": code,
            "incident": result.incident,
            "output": value,
            "because": result.because,
            "note": result.note,
            "until": result.until,
            "unknown": result.unknown,
            "differences": result.differences,
            "error": failure,
        }
        print_json(document)
    if not as_json and result.status == "completed" and failure is None:
        if not quiet:
            note(f"{messages.painted('run completed', 'good')}")
            if outcome.rejected:
                calls = "1 call was" if outcome.rejected == 1 else f"{outcome.rejected} calls were"
                note(f"{calls} certainly not done: {command('show', result.run_id, store=store)}")
        _print_output(value)
    elif not as_json:
        _say_how_it_stands(outcome, store)
    return code


def _print_output(value: Any) -> None:
    import msgspec

    if isinstance(value, str):
        print(value)
    elif value is not None:
        print(msgspec.json.encode(value).decode())


def _say_how_it_stands(outcome: Outcome, store: str | None) -> None:
    from counterfoil.cli.advice import advice, standing_words

    result = outcome.result
    if outcome.guarded is not None and outcome.guarded[1] is not None:
        failure = outcome.guarded[1]
        note(f"{messages.painted('not applied', 'doubt')}: {failure.kind}: {failure.message}")
        return
    note(standing_words(result))
    for difference in result.differences:
        note(f"  differs: {difference}")
    step = advice(result.run_id, result.status, result.because, result.until, store)
    if step:
        next_step(step)
