"""How a run stands, in one sentence, and the next step from there.

It must not look at a store: it is told how the run stands.
"""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from counterfoil.cli import messages
from counterfoil.cli.messages import command
from counterfoil.core.events import Status
from counterfoil.core.rules import Rule
from counterfoil.runtime.agent import RunResult

TONES = {
    Status.PENDING: "quiet",
    Status.RUNNING: "quiet",
    Status.WAITING: "doubt",
    Status.UNKNOWN: "bad",
    Status.BLOCKED: "bad",
    Status.COMPLETED: "good",
    Status.FAILED: "bad",
    Status.CANCELLED: "doubt",
}


def standing_words(result: RunResult) -> str:
    """Return how a run stands, and why."""
    status = messages.painted(str(result.status), TONES[result.status])
    why = "; ".join(part for part in (_spelled(result.note), result.because.says if result.because else "") if part)
    until = f" (until {result.until:%Y-%m-%d %H:%M:%S} UTC)" if result.until else ""
    incident = messages.painted(" INCIDENT: see `counterfoil show`", "bad") if result.incident else ""
    return f"run {result.run_id} is {status}{until}" + (f": {why}" if why else "") + incident


def _spelled(note: str) -> str:
    """Put a rule's sentence behind its word: ``call 1.1: no-evidence`` says little to who has not read the rules."""
    before, separator, word = note.rpartition(": ")
    rule = next((rule for rule in Rule if rule == word), None)
    return note if rule is None else f"{before}{separator}{word} ({rule.says.rstrip('.')})"


def advice(
    run_id: str, status: Status, because: Rule | None, until: datetime | None = None, store: str | None = None
) -> str:
    """Return the next step; empty where there is none.

    Args:
        run_id: the run.
        status: how it stands.
        because: why.
        until: when it may go on.
        store: as it was named by an option, for the commands to copy.
    """
    resume = command("resume", run_id, store=store)
    match status:
        case Status.UNKNOWN:
            return f"{command('inbox', store=store)}   (what is known of the call, and the commands that settle it)"
        case Status.BLOCKED:
            return _unblock(run_id, because, resume, store)
        case Status.WAITING if until is not None:
            return f"{resume}   (from {until:%H:%M:%S} UTC on)"
        case Status.WAITING | Status.PENDING | Status.RUNNING:
            return resume
        case Status.FAILED | Status.CANCELLED:
            return command("show", run_id, store=store)
        case Status.COMPLETED:
            return ""
        case _:
            assert_never(status)


def _unblock(run_id: str, because: Rule | None, resume: str, store: str | None) -> str:
    cancel = command("cancel", run_id, "--by", "WHO", store=store)
    match because:
        case Rule.FLOW_CHANGED:
            return f"resume it with the flow it was started under ({resume} MODULE:FLOW), or give it up: {cancel}"
        case Rule.LIMIT:
            return f"its limits were fixed when it was started; give it up: {cancel}, and start another"
        case Rule.MODEL_REFUSED:
            return f"mend what the model's provider complains of, then: {resume}"
        case _:
            return resume
