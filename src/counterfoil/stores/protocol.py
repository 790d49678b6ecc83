"""What a store promises. Small on purpose: `append` is the only writer of events, and the head is computed in core.

It must not decide anything about a run: it compares numbers and writes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol

from msgspec import Struct

from counterfoil.core.codec import encode, link, to_micros
from counterfoil.core.events import Event, Recorded, SenderProof, Status


class Head(Struct, frozen=True, kw_only=True):
    """A run's row: what queries need. All of it but fence, owner and mailbox mark is derived from the events.

    Args:
        run_id: the run.
        flow: the flow's name.
        entry: MODULE:FLOW, where the command line finds the flow again; may be empty.
        fingerprint: of the flow it was started under.
        status: what shows.
        position: of the last event.
        link: hash of the last event.
        fence: grows with every change of owner; 0 before the first. Its high bits are the store's epoch.
        owner: incarnation that holds the run, or empty.
        mail: the mailbox mark: number of the newest item.
        due: when a waiting run may go on.
        lives: claims so far, counted before any work.
        incident: an incident was raised.
        verify_first: set by a noticed restore.
        input_digest: of the run's input.
        labels: for queries.
        created_at: store time.
        updated_at: store time.
    """

    run_id: str
    flow: str
    entry: str = ""
    fingerprint: str = ""
    status: Status = Status.PENDING
    position: int = 0
    link: bytes = b""
    fence: int = 0
    owner: str = ""
    mail: int = 0
    due: datetime | None = None
    lives: int = 0
    incident: bool = False
    verify_first: bool = False
    input_digest: str = ""
    labels: dict[str, str] = {}
    created_at: datetime | None = None
    updated_at: datetime | None = None


class HeadChange(Struct, frozen=True, kw_only=True):
    """The derived part of a head after an append: ``core.state`` computed it."""

    status: Status
    due: datetime | None = None
    incident: bool = False


class Entry(Struct, frozen=True, kw_only=True):
    """An event ready to be written: its bytes and its place. A repeated append sends identical bytes.

    Args:
        position: where it goes.
        at_us: store time in microseconds since 1970.
        kind: the event's tag.
        body: canonical JSON.
        link: its hash, chained to the one before.
    """

    position: int
    at_us: int
    kind: str
    body: bytes
    link: bytes


class Appended(Struct, frozen=True, kw_only=True):
    """The append is durable."""

    position: int


class Refused(Struct, frozen=True, kw_only=True):
    """The append was refused and nothing was written.

    Args:
        why: ``fence`` or ``lease``: this worker may write no more. ``position``: the journal is longer than was
            thought. ``mail``: there is mail that was not read.
        head: the head as it is now.
    """

    why: Literal["fence", "lease", "position", "mail"]
    head: Head


class Claimed(Struct, frozen=True, kw_only=True):
    """The run is ours under this fence.

    Args:
        head: with the new fence and owner.
        previous: incarnation that held it before, if it had not given it up.
        proof: what was known of that one when it was taken over.
    """

    head: Head
    previous: str = ""
    proof: SenderProof | None = None


class Owned(Struct, frozen=True, kw_only=True):
    """Another worker holds the run and may be alive.

    Args:
        owner: its incarnation.
        proof: what was seen of it.
        detail: host and pid, for people.
        free_at: when its lease ends if it is not renewed (store time).
    """

    owner: str
    proof: SenderProof
    detail: str
    free_at: datetime | None


class Mail(Struct, frozen=True, kw_only=True):
    """One mailbox item.

    Args:
        number: its mark.
        item_id: chosen by the sender; posting the same id twice keeps the first.
        body: an encoded `counterfoil.core.mail.Item`.
        posted_at: store time.
    """

    number: int
    item_id: str
    body: bytes
    posted_at: datetime


class Observation(Struct, frozen=True, kw_only=True):
    """What was seen of an incarnation: proof, and detail for people."""

    proof: SenderProof
    detail: str = ""


class Tombstone(Struct, frozen=True, kw_only=True):
    """What is left of a pruned run, so that a reused id meets its answer and not a second run."""

    run_id: str
    flow: str
    input_digest: str
    status: Status
    output: bytes | None
    keys: tuple[str, ...]
    pruned_at: datetime


class Damage(Struct, frozen=True, kw_only=True):
    """One broken place that `verify` found."""

    run_id: str
    position: int
    what: str


class LeaseInfo(Struct, frozen=True, kw_only=True):
    """One incarnation's lease, for people.

    Args:
        incarnation: its id.
        proof: what is known of it now.
        detail: host and pid.
        pid_namespace: in which the pid means anything.
        free_at: when its lease ends if it is not renewed (store time); None where it is over.
        runs: how many runs it holds.
    """

    incarnation: str
    proof: SenderProof
    detail: str
    pid_namespace: str
    free_at: datetime | None
    runs: int


class StoreInfo(Struct, frozen=True, kw_only=True):
    """The facts of a store, for `doctor`.

    Args:
        place: where it is.
        engine: what keeps it, with its version.
        schema: number of its newest migration.
        format: of its journals.
        epoch: how often it was restored from a backup.
        journal_mode: of the engine.
        synchronous: how much of a commit is on the disk when it is acknowledged.
        file_system: its type, or empty where the platform does not tell.
        bytes_used: by file.
        bytes_free: on its disk.
        runs: how many, by status.
        incidents: runs with an incident.
        tombstones: pruned runs.
        leases: all that are known.
    """

    place: str
    engine: str
    schema: int
    format: int
    epoch: int
    journal_mode: str
    synchronous: str
    file_system: str
    bytes_used: dict[str, int]
    bytes_free: int
    runs: dict[str, int]
    incidents: int
    tombstones: int
    leases: tuple[LeaseInfo, ...]


class Lease(Protocol):
    """One worker incarnation's right to advance runs: taken with the first claim, renewed by a thread of its own.

    It is bound to its incarnation: an expired lease is never renewed, and the store's next one is another object.
    Whoever checks ``alive()`` before a dispatch keeps the lease under which the run was claimed. ``alive()`` is local:
    it compares a clock that counts suspended time with the moment *before* the last renewal left, so it errs on the
    early side.
    """

    outlived: bool
    """Set once a thread may outlive the store: its owner lock is then kept until the process ends, and no close says
    that it was released."""

    @property
    def incarnation(self) -> str:
        """Random, never reused."""
        ...

    @property
    def owner_fd(self) -> int | None:
        """Descriptor of the owner lock, for children that must hold it too; None where there is none."""
        ...

    def alive(self) -> bool:
        """Whether this worker may still dispatch, by its own clock."""
        ...


class Store(Protocol):
    """A place for journals. Every method may raise `StoreUnavailable`, and none leaves half a write behind."""

    @property
    def namespace(self) -> bytes:
        """The secret under which keys are minted."""
        ...

    @property
    def lease(self) -> Lease:
        """This process incarnation's lease, the newest if one was lost."""
        ...

    def now(self) -> datetime:
        """Return store time, in UTC."""
        ...

    async def start(self, head: Head, first: Entry) -> Head | Tombstone:
        """Write a run's head and first event; return the head.

        Where the id is known, write nothing and return what is there.
        """
        ...

    async def head(self, run_id: str) -> Head | Tombstone | None:
        """Return a run's head, or what pruning left of it, or None."""
        ...

    async def events(self, run_id: str, after: int = 0) -> list[Recorded]:
        """Return the events after a position, checked against their hash chain and (from 0) the head.

        Raises:
            NoSuchRun: there is no such run.
            JournalDamaged: naming the first event that is missing, changed or torn.
        """
        ...

    async def append(
        self, run_id: str, *, fence: int, at: int, mail: int, entries: Sequence[Entry], head: HeadChange
    ) -> Appended | Refused:
        """Write events after position ``at``, if fence, lease, position and mailbox mark all hold; else write nothing.

        A repeat of an append that did succeed (lost acknowledgement) finds its own hash there and is a success.
        """
        ...

    async def claim(self, run_id: str) -> Claimed | Owned | None:
        """Take the run, if nobody holds it or its holder's lease is over or its holder is dead; None: no such run.

        Counts a life and grows the fence in the same write. A run that this incarnation holds already is `Owned`: a
        second resume must not run beside the first. A lost lease is replaced first, as by `renew`. A claim that is
        cancelled is given back.
        """
        ...

    async def renew(self) -> bool:
        """Take a new incarnation after the lease was lost, or the first; return whether one was needed."""
        ...

    async def release(self, run_id: str, *, fence: int) -> None:
        """Give the run up, if it is still ours under this fence."""
        ...

    async def observe(self, incarnation: str) -> Observation:
        """Look whether an incarnation still lives: `released`, `dead`, `alive`, `expired`; never guessed from a pid."""
        ...

    async def post(self, run_id: str, item_id: str, body: bytes) -> int:
        """Put an item into a run's mailbox and grow its mark in one transaction; return the mark. Unfenced.

        Raises:
            NoSuchRun: there is no such run.
        """
        ...

    async def mail(self, run_id: str, after: int) -> list[Mail]:
        """Return the items after a mark, oldest first."""
        ...

    async def find(self, *, status: Sequence[Status] = (), flow: str | None = None, limit: int = 1000) -> list[Head]:
        """Return heads, newest first."""
        ...

    async def prune(
        self, *, older_than: timedelta, keep_keys: bool = True, forget_after: timedelta | None = None
    ) -> int:
        """Turn terminal runs without incident, open obligation or unread mail into tombstones; return how many.

        ``forget_after``: how old a tombstone of a run without effects may become; the others stay for good.
        """
        ...

    async def verify(self, run_id: str | None = None) -> list[Damage]:
        """Check hash chains, gaps and heads of one run or all; return what is broken, by name."""
        ...

    async def restored(self) -> int:
        """Note that the store was restored from a backup; return the new epoch.

        Every owner from before loses its runs and its lease, and open runs look up before they dispatch.
        """
        ...

    async def info(self) -> StoreInfo:
        """Return the facts that `doctor` shows."""
        ...

    async def close(self, *, attempts_ended: bool = True) -> None:
        """Release what is held and close.

        ``attempts_ended``: nothing that was dispatched can still send. If not, nobody takes this worker for released,
        and only the end of the process proves its death.
        """
        ...


def entry_kind(event: Event) -> str:
    """Return the tag that an event is stored under."""
    tag = type(event).__struct_config__.tag
    return str(tag)


def entry_of(recorded: Recorded, before: bytes) -> Entry:
    """Return an event ready to be written in its place, behind the one whose link is given."""
    body, at_us = encode(recorded.event), to_micros(recorded.at)
    its_link = link(before, recorded.position, at_us, recorded.fence, body)
    return Entry(position=recorded.position, at_us=at_us, kind=entry_kind(recorded.event), body=body, link=its_link)
