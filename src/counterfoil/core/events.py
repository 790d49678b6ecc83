"""What can happen to a run: frozen, tagged, versioned. The journal is a list of these and nothing else.

It must not hold derived state: everything else is a fold of these events.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct

from counterfoil.core.contracts import Terms
from counterfoil.core.flow import Difference, FlowManifest
from counterfoil.core.limits import Limits, Usage
from counterfoil.core.rules import Rule

NO_JSON = Raw()
"""Stands where a field holds no JSON at all: not even ``null``, which is a value. (msgspec has no ``Raw | None``.)"""

Moment = Annotated[datetime, Meta(tz=True)]
"""Store time. One without a zone could not be compared with any other, so it is not read."""

FORMAT = 1
"""Version of the journal's format. A newer one is refused and nothing is written."""


class Proof(StrEnum):
    """Where a receipt comes from."""

    RESPONSE = "response"
    LOOKUP = "lookup"
    REPEAT = "repeat"
    TRANSACTION = "transaction"
    OPERATOR = "operator"


class SenderProof(StrEnum):
    """What is known of the process that made an attempt, strongest first."""

    RELEASED = "released"
    DEAD = "dead"
    ALIVE = "alive"
    EXPIRED = "expired"


class Answer(StrEnum):
    """What a lookup said."""

    FOUND = "found"
    SEVERAL = "several"
    ABSENT = "absent"
    CANNOT_TELL = "cannot_tell"
    FAILED = "failed"


class Ending(StrEnum):
    """How an attempt ended without a receipt."""

    UNSURE = "unsure"
    EXISTS = "exists"
    NOT_APPLIED = "not_applied"
    NOT_SENT = "not_sent"


class Status(StrEnum):
    """What a run is doing. Of several reasons the first in unknown, blocked, waiting, running shows."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the run can never go on."""
        return self in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class Verdict(StrEnum):
    """What a person says of an unknown call."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    ABANDON = "abandon"


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as plain data: class name, text, and the JSON-able part of its arguments."""

    kind: str
    message: str
    data: Raw = NO_JSON


class Unstored(Struct, frozen=True, kw_only=True):
    """A result that exists but could not be stored: a fact, never a reason to run the call again."""

    why: str
    size: int
    sha256: str


class PlannedCall(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One tool call of a decision, as it will be dispatched.

    Args:
        position: place in the turn, from 1. With run and turn, the call's identity.
        tool: the tool's name, as the model gave it.
        arguments: JSON exactly as first decided; never derived again.
        key: the idempotency key in the provider's form.
        alias: the model provider's own call id, if any; not an identity.
        invalid: why the call can never be dispatched (unknown tool, arguments that fail the schema).
    """

    position: int
    tool: str
    arguments: Raw
    key: str
    alias: str = ""
    invalid: Failure | None = None


class _Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False):
    """Base of all events. Times inside a body are store time.

    ``gc=False``: an event holds no cycle, and a journal of thousands is read twice as fast if nobody looks for one.
    """


class RunStarted(_Event, frozen=True, kw_only=True, tag="run_started"):
    """The run is durable: its flow, its input and the limits it was launched under."""

    flow: FlowManifest
    input: Raw
    input_digest: str
    limits: Limits
    labels: dict[str, str] = {}
    verify_first: bool = False


class LifeBegan(_Event, frozen=True, kw_only=True, tag="life_began"):
    """A process took its turn at the run. Its fence is in the envelope."""

    life: int
    incarnation: str
    pid: int
    host: str
    version: str
    verify_first: bool = False


class TurnOpened(_Event, frozen=True, kw_only=True, tag="turn_opened"):
    """The model is about to be asked. ``ask`` counts from 1; more than one means that an answer was lost or failed."""

    turn: int
    ask: int = 1
    digest: str = ""


class AskFailed(_Event, frozen=True, kw_only=True, tag="ask_failed"):
    """The model gave no decision."""

    turn: int
    ask: int
    failure: Failure
    retryable: bool = True
    retry_at: Moment | None = None


class Decided(_Event, frozen=True, kw_only=True, tag="decided"):
    """The model's decision, whole. It is never asked for again."""

    turn: int
    text: str = ""
    calls: tuple[PlannedCall, ...] = ()
    usage: Usage = Usage()
    raw: Raw = NO_JSON


class Dispatched(_Event, frozen=True, kw_only=True, tag="dispatched"):
    """An attempt is about to be made. ``terms`` stand in the first dispatch of a call and rule while it is open."""

    call: str
    attempt: int
    deadline: Moment
    because: Rule
    terms: Terms | None = None
    request: str = ""


class AttemptEnded(_Event, frozen=True, kw_only=True, tag="attempt_ended"):
    """An attempt ended without a receipt. ``running``: its thread outlived the deadline and may still send."""

    call: str
    attempt: int
    ending: Ending
    failure: Failure | None = None
    running: bool = False
    retry_at: Moment | None = None


class SenderReleased(_Event, frozen=True, kw_only=True, tag="sender_released"):
    """A thread that had outlived its deadline has ended."""

    call: str
    attempt: int


class SenderObserved(_Event, frozen=True, kw_only=True, tag="sender_observed"):
    """What was seen of the process that held ``sender`` (a fence)."""

    sender: int
    proof: SenderProof
    detail: str = ""


class LookedUp(_Event, frozen=True, kw_only=True, tag="looked_up"):
    """A lookup's answer. ``asked_at`` is when the question left; only that decides whether an absence counts.

    ``matches``: what was found was shown to be made by this very request, argument for argument.
    """

    call: str
    answer: Answer
    asked_at: Moment
    because: Rule
    matches: bool = False
    result: Raw = NO_JSON
    unstored: Unstored | None = None
    note: str = ""
    retry_at: Moment | None = None


class Receipt(_Event, frozen=True, kw_only=True, tag="receipt"):
    """Proof that a call is settled as applied: its result, and where the proof came from."""

    call: str
    proof: Proof
    attempt: int = 0
    result: Raw = NO_JSON
    unstored: Unstored | None = None
    because: Rule | None = None


class Rejected(_Event, frozen=True, kw_only=True, tag="rejected"):
    """The call is settled: it certainly changed nothing, and the model is told so."""

    call: str
    because: Rule
    failure: Failure


class UnknownDeclared(_Event, frozen=True, kw_only=True, tag="unknown_declared"):
    """Dispatched, not settled, and nothing can tell. A person settles it."""

    call: str
    because: Rule


class VerdictGiven(_Event, frozen=True, kw_only=True, tag="verdict_given"):
    """A person settled an unknown call."""

    call: str
    verdict: Verdict
    by: str
    reason: str
    then: Literal["", "reject", "dispatch"] = ""
    receipt: Raw = NO_JSON
    sender_stopped: bool = False
    item: int = 0


class EvidenceTaken(_Event, frozen=True, kw_only=True, tag="evidence_taken"):
    """Something a worker learned after it had lost the run. What follows from it stands in the next events."""

    call: str
    note: str
    sender: int
    item: int = 0


class MailRefused(_Event, frozen=True, kw_only=True, tag="mail_refused"):
    """A mailbox item that did not fit the journal any more, and why."""

    item: int
    item_id: str
    why: str


class CancelRequested(_Event, frozen=True, kw_only=True, tag="cancel_requested"):
    """Nothing new is dispatched from here on; the run is cancelled when no call is open."""

    by: str
    reason: str = ""
    item: int = 0


class Paused(_Event, frozen=True, kw_only=True, tag="paused"):
    """Why the run does not go on now, and when it may."""

    status: Status
    because: Rule
    until: Moment | None = None
    differences: tuple[Difference, ...] = ()
    note: str = ""


class IncidentRaised(_Event, frozen=True, kw_only=True, tag="incident_raised"):
    """Two effects for one intent, or a late effect after another verdict. Shown, never hidden."""

    call: str
    what: str


class Completed(_Event, frozen=True, kw_only=True, tag="completed"):
    """The run reached its end."""

    output: Raw


class Failed(_Event, frozen=True, kw_only=True, tag="failed"):
    """The run was given up; obligations of abandoned calls stay listed."""

    failure: Failure


class Cancelled(_Event, frozen=True, kw_only=True, tag="cancelled"):
    """The run was cancelled with no call open."""


Event = (
    RunStarted
    | LifeBegan
    | TurnOpened
    | AskFailed
    | Decided
    | Dispatched
    | AttemptEnded
    | SenderReleased
    | SenderObserved
    | LookedUp
    | Receipt
    | Rejected
    | UnknownDeclared
    | VerdictGiven
    | EvidenceTaken
    | MailRefused
    | CancelRequested
    | Paused
    | IncidentRaised
    | Completed
    | Failed
    | Cancelled
)


class Recorded(Struct, frozen=True, gc=False):
    """An event in its place.

    Args:
        position: from 1, without gaps. The only order there is.
        at: store time of the write, for people and windows; never used for order.
        fence: who wrote it.
        event: what happened.
    """

    position: int
    at: datetime
    fence: int
    event: Event


def call_id(turn: int, position: int) -> str:
    """Return a call's name inside its run: ``"2.1"`` is the first call of the second turn."""
    return f"{turn}.{position}"
