"""The commands that carry a person's word: `resolve` an unknown call, `cancel` a run.

They need no flow and never send anything. They must not write more than the word and what follows from it at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal
from uuid import uuid4

import typer

from counterfoil.cli import messages
from counterfoil.cli.messages import Usage, command, next_step, note
from counterfoil.cli.options import (
    EXIT_COMMON,
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
    from msgspec import Raw

    from counterfoil.core.mail import Cancel, GiveVerdict
    from counterfoil.runtime.desk import Delivered

EXITS = {0: "accepted", 4: "pending: the worker that holds the run will take it"}
KEYS = """
run_id, outcome (accepted, refused, pending), why, status
next         the next step, or an empty text
"""
REFUSED = 2
PENDING = 4

ByOption = Annotated[str, typer.Option("--by", metavar="WHO", help="Who says so; it stands in the journal.")]
WaitOption = Annotated[
    str, typer.Option("--wait", metavar="TIME", help="How long to wait for a worker that holds the run.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(
        "resolve",
        help=describe(
            "Settle an unknown call by what a person found out at the provider.",
            "Say one of --applied (with --receipt), --not-applied and --abandon. `counterfoil inbox` shows what is "
            "known of the call and prints these commands to copy.",
            example='counterfoil resolve ticket-77 1.1 --applied --receipt \'{"id": "T-1"}\' --by dana '
            '--reason "found it in the help desk"\n'
            'counterfoil resolve ticket-77 1.1 --not-applied --then dispatch --by dana --reason "not in the help desk"',
            keys=KEYS,
            exits=EXITS | EXIT_COMMON | {2: "refused, with the reason; usage; or no such run"},
        ),
    )(resolve)
    app.command(
        "cancel",
        help=describe(
            "Ask for a run to be cancelled; nothing new is sent from then on.",
            "A call that was sent and is not settled is looked up or waits for a person first: a cancel never "
            "settles one.",
            example='counterfoil cancel ticket-77 --by dana --reason "the customer called"',
            keys=KEYS,
            exits=EXITS | EXIT_COMMON | {2: "refused: it has ended already; usage; or no such run"},
        ),
    )(cancel)


def resolve(
    run_id: RunId,
    call: Annotated[str, typer.Argument(metavar="CALL", help='Its name in the run, as in "1.1".', show_default=False)],
    *,
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="How you know; it stands in the journal.")],
    applied: Annotated[bool, typer.Option("--applied", help="It happened.")] = False,
    receipt: Annotated[
        str | None, typer.Option("--receipt", metavar="JSON|none", help="With --applied: its result, or none.")
    ] = None,
    not_applied: Annotated[bool, typer.Option("--not-applied", help="It certainly did not happen.")] = False,
    then: Annotated[
        str | None,
        typer.Option(
            "--then", metavar="reject|dispatch", help="With --not-applied: tell the model (the default), or send it."
        ),
    ] = None,
    sender_stopped: Annotated[
        bool, typer.Option("--sender-stopped", help="With --not-applied: you made sure that its worker is stopped.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Nobody will know. The run fails; this stays listed.")] = (
        False
    ),
    seen: Annotated[
        int | None,
        typer.Option("--seen", metavar="N", help="The journal's position you looked at: refused if it changed since."),
    ] = None,
    wait: WaitOption = "10s",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Settle an unknown call."""
    from counterfoil.core.events import NO_JSON, Verdict
    from counterfoil.core.mail import GiveVerdict

    given = [applied, not_applied, abandon]
    if sum(given) != 1:
        raise Usage("say one of --applied, --not-applied and --abandon", remedy="See `counterfoil resolve --help`.")
    verdict = (Verdict.APPLIED, Verdict.NOT_APPLIED, Verdict.ABANDON)[given.index(True)]
    _check(verdict, receipt, then, sender_stopped=sender_stopped)
    _check_words(by=by, reason=reason)
    item = GiveVerdict(
        call=call,
        verdict=verdict,
        by=by,
        reason=reason,
        then=_then(then),
        receipt=NO_JSON if receipt is None or receipt == "none" else _json(receipt),
        sender_stopped=sender_stopped,
        seen=seen or 0,
    )
    return _deliver(run_id, item, wait, store, as_json=as_json, what=f"call {call}: {verdict}".replace("_", " "))


def cancel(
    run_id: RunId,
    *,
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", metavar="WHY", help="It stands in the journal.")] = "",
    wait: WaitOption = "10s",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Ask for a run to be cancelled."""
    from counterfoil.core.mail import Cancel

    _check_words(by=by)
    item = Cancel(by=by, reason=reason)
    return _deliver(run_id, item, wait, store, as_json=as_json, what="cancel")


def _check(verdict: str, receipt: str | None, then: str | None, *, sender_stopped: bool) -> None:
    """Refuse options that mean nothing together."""
    if verdict == "applied" and receipt is None:
        remedy = "Give its result as JSON, or --receipt none where there is none."
        raise Usage("--applied needs --receipt JSON or --receipt none", remedy=remedy)
    if verdict != "applied" and receipt is not None:
        raise Usage("--receipt goes with --applied", remedy="What did not happen has no receipt.")
    if verdict != "not_applied" and (then is not None or sender_stopped):
        word = "--then" if then is not None else "--sender-stopped"
        raise Usage(f"{word} goes with --not-applied", remedy="See `counterfoil resolve --help`.")
    if then not in (None, "reject", "dispatch"):
        raise Usage(f"--then {then!r} is neither reject nor dispatch", remedy="reject tells the model; dispatch sends.")


def _check_words(**words: str) -> None:
    for name, word in words.items():
        if not word.strip():
            raise Usage(f"--{name} is empty", remedy="It stands in the journal, for whoever reads it later.")


def _then(then: str | None) -> Literal["", "reject", "dispatch"]:
    return "dispatch" if then == "dispatch" else "reject" if then == "reject" else ""


def _json(text: str) -> Raw:
    import msgspec

    json_value(text, "--receipt", '{"id": 1}')
    return msgspec.Raw(text.encode())


def _deliver(run_id: str, item: GiveVerdict | Cancel, wait: str, store: str | None, *, as_json: bool, what: str) -> int:
    from msgspec.structs import replace

    from counterfoil.core.mail import GiveVerdict
    from counterfoil.runtime.agent import find_run
    from counterfoil.runtime.desk import deliver
    from counterfoil.stores.protocol import Head

    patience = length_of_time(wait, "--wait")
    with session(store) as (runner, opened):
        known = runner.run(find_run(opened, run_id))
        if isinstance(item, GiveVerdict) and not item.seen and isinstance(known, Head):
            item = replace(item, seen=known.position)
        delivered = runner.run(deliver(opened, known, item, str(uuid4()), wait=patience))
    return _report(run_id, delivered, store, as_json=as_json, what=what)


def _report(run_id: str, delivered: Delivered, store: str | None, *, as_json: bool, what: str) -> int:
    step = _next(run_id, delivered, store)
    if as_json:
        outcome, why = delivered.outcome, delivered.why
        print_json({"run_id": run_id, "outcome": outcome, "why": why, "status": delivered.status, "next": step})
    else:
        tone = {"accepted": "good", "refused": "bad", "pending": "doubt"}[delivered.outcome]
        why = f": {delivered.why}" if delivered.why else ""
        note(f"{messages.painted(delivered.outcome, tone)} ({what}){why}; run {run_id} is {delivered.status}")
        if step:
            next_step(step)
    return {"accepted": 0, "refused": REFUSED, "pending": PENDING}[delivered.outcome]


def _next(run_id: str, delivered: Delivered, store: str | None) -> str:
    show = command("show", run_id, store=store)
    if delivered.outcome == "refused" and delivered.status == "unknown":
        return f"{command('inbox', store=store)}   (what is open, and the commands that settle it, as of now)"
    if delivered.outcome == "refused" or delivered.status.terminal:
        return show
    if delivered.outcome == "pending":
        return f"{show}   (it has the answer once the worker has read it)"
    return command("resume", run_id, store=store)
