"""What a process of a case did, told outside its journal: one line for each thing, in a file that survives SIGKILL.

It must not read or trust the journal: the judge compares the two.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from counterfoil.core.events import NO_JSON


class _Record(Struct, frozen=True, kw_only=True, tag=True, tag_field="what", omit_defaults=True):
    """Base of all records; their order in the file is the order in which things happened."""


class Began(_Record, frozen=True, kw_only=True):
    """The journal as the process found it, before it did anything.

    Args:
        status: of the run; empty: there is no run yet.
        keys: of the calls that stand in it, by call.
        dispatched: calls with a dispatch record.
        damage: why it cannot be read.
    """

    status: str = ""
    keys: dict[str, str] = {}
    dispatched: tuple[str, ...] = ()
    damage: str = ""


class Crossed(_Record, frozen=True, kw_only=True):
    """A window was crossed unharmed."""

    number: int
    window: str


class Fired(_Record, frozen=True, kw_only=True):
    """The process is about to end, or to stop, by its own hand."""

    number: int
    window: str
    how: Literal["kill", "freeze", "step"]


class Asked(_Record, frozen=True, kw_only=True):
    """The model is about to be asked. ``told``: what it hears of the calls before, where that is an error."""

    turn: int
    told: dict[str, str] = {}


class AskRaised(_Record, frozen=True, kw_only=True):
    """The model gave no decision, so asking again is no second decision."""

    turn: int


class Opened(_Record, frozen=True, kw_only=True):
    """The store was told that a turn is open."""

    turn: int


class Acknowledged(_Record, frozen=True, kw_only=True):
    """The store said that this is durable: ``decided 1``, ``dispatched 1.1``, ``receipt 1.1``."""

    events: tuple[str, ...]


class Handed(_Record, frozen=True, kw_only=True):
    """A tool was handed a call."""

    call: str
    tool: str
    key: str
    attempt: int
    arguments: str = ""


class Left(_Record, frozen=True, kw_only=True):
    """A tool was left. ``error``: what it raised, if it did."""

    call: str
    error: str = ""


class Ended(_Record, frozen=True, kw_only=True):
    """The process left the run in an orderly way, and this is how the run stands."""

    status: str
    because: str = ""
    note: str = ""
    until: str = ""
    unknown: tuple[str, ...] = ()
    incident: bool = False
    position: int = 0


class Raised(_Record, frozen=True, kw_only=True):
    """The process ended in an error."""

    error: str
    message: str


Record = Began | Crossed | Fired | Asked | AskRaised | Opened | Acknowledged | Handed | Left | Ended | Raised

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_R = TypeVar("_R", bound=_Record)


class Witness:
    """Writes one process's records.

    Args:
        path: of its file. One write with O_APPEND for each line, so that threads do not mix and a kill tears nothing.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, record: Record, *, sync: bool = False) -> None:
        """Write a record down. ``sync``: have it on the disk before anything else happens."""
        os.write(self._fd, _encoder.encode(record) + b"\n")
        if sync:
            os.fsync(self._fd)


class Seen(Struct, frozen=True, kw_only=True):
    """One effect, or one request for one, as the world tells of it.

    Args:
        key: the key or reference that it carries; empty: none.
        endpoint: the operation.
        slot: the object that it made or set.
        arguments: of the request, as JSON with sorted keys.
        receipt: what a person would hand in as its receipt.
    """

    key: str = ""
    endpoint: str = ""
    slot: str = ""
    arguments: str = ""
    receipt: Raw = NO_JSON

    @property
    def mark(self) -> str:
        """What tells it from others that have no key either."""
        return f"{self.endpoint} {self.arguments}".strip()


class Life(Struct, frozen=True, kw_only=True):
    """One process of a case, as it is known once it has ended or stopped.

    Args:
        number: from 1.
        act: what it was to do.
        records: what it did.
        code: how it ended: an exit code, minus a signal's number, or None while it is stopped.
        effects: what the world showed when it had ended or stopped, since the case began.
        requests: what had been asked of the world by then.
        moved_s: by how much time had been moved on since the case began.
        output: what it printed last, where it ended in a way that it should not have.
        beside: it ran while another process of the case was frozen.
    """

    number: int
    act: str
    records: tuple[Record, ...]
    code: int | None
    effects: tuple[Seen, ...] = ()
    requests: tuple[Seen, ...] = ()
    moved_s: float = 0.0
    output: str = ""
    beside: bool = False

    def all(self, kind: type[_R]) -> list[_R]:
        """Return the records of one kind."""
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def fired(self) -> Fired | None:
        """Where it killed or froze itself, if it did."""
        return next((record for record in self.all(Fired) if record.how != "step"), None)

    @property
    def stands_at(self) -> str:
        """The window at which it stopped last."""
        return self.all(Fired)[-1].window

    @property
    def began(self) -> Began | None:
        """The journal as it found it."""
        return next(iter(self.all(Began)), None)

    @property
    def ended(self) -> Ended | None:
        """How it left the run, if it did so in an orderly way."""
        return next(iter(self.all(Ended)), None)

    @property
    def raised(self) -> Raised | None:
        """The error that it ended in."""
        return next(iter(self.all(Raised)), None)

    @property
    def crossed(self) -> int:
        """The number of the last window that it came to."""
        return max((record.number for record in self.records if isinstance(record, (Crossed, Fired))), default=0)

    @property
    def before_the_end(self) -> tuple[Record, ...]:
        """What it did before it was killed or frozen; all of it, if it was not."""
        fired = self.fired
        return self.records if fired is None else self.records[: self.records.index(fired)]

    @property
    def acknowledged(self) -> set[str]:
        """What the store had said to be durable before it was killed or frozen."""
        return {event for record in self.before_the_end if isinstance(record, Acknowledged) for event in record.events}


def read(path: Path) -> tuple[Record, ...]:
    """Return the records of a process; none where it did not come so far."""
    if not path.exists():
        return ()
    return tuple(_decoder.decode(line) for line in path.read_bytes().splitlines())
