"""Small journals, written by hand: for tests that need a run in a store and no flow, model or tool.

It must not use the runtime: what is tested here is what the runtime stands on.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Raw

from counterfoil.core.codec import digest, first_link
from counterfoil.core.contracts import OneShot, Terms
from counterfoil.core.events import (
    Completed,
    Decided,
    Dispatched,
    Event,
    PlannedCall,
    Proof,
    Receipt,
    Recorded,
    RunStarted,
    Status,
    TurnOpened,
)
from counterfoil.core.flow import FlowManifest
from counterfoil.core.limits import Limits
from counterfoil.core.rules import Rule
from counterfoil.stores.protocol import (
    Appended,
    Claimed,
    Entry,
    Head,
    HeadChange,
    Refused,
    Store,
    Tombstone,
    entry_of,
)


async def start(store: Store, run_id: str, *, flow: str = "a flow", value: bytes = b"1") -> Head | Tombstone:
    """Start a run whose input is some JSON."""
    manifest = FlowManifest(name=flow, version="1")
    begun = RunStarted(flow=manifest, input=Raw(value), input_digest=digest(value), limits=Limits())
    first = entry_of(Recorded(1, store.now(), 0, begun), first_link(run_id))
    return await store.start(Head(run_id=run_id, flow=flow, input_digest=digest(value)), first)


async def pen_for(store: Store, run_id: str) -> Pen:
    """Claim a run and return what writes to it."""
    claimed = await store.claim(run_id)
    assert isinstance(claimed, Claimed), f"{run_id} could not be claimed: {claimed}"
    return Pen(store, claimed.head)


async def fresh(store: Store, run_id: str) -> Pen:
    """Start and claim a run."""
    await start(store, run_id)
    return await pen_for(store, run_id)


class Pen:
    """Writes to one run under one fence, and remembers where it stands.

    Args:
        store: through which it writes.
        head: of the run, as it was claimed.
    """

    def __init__(self, store: Store, head: Head) -> None:
        self.store = store
        self.run_id = head.run_id
        self.fence = head.fence
        self.position = head.position
        self.link = head.link
        self.mail = head.mail

    def entries(self, *events: Event) -> list[Entry]:
        """Return the next entries, without writing them."""
        entries: list[Entry] = []
        before = self.link
        for position, event in enumerate(events, start=self.position + 1):
            entries.append(entry_of(Recorded(position, self.store.now(), self.fence, event), before))
            before = entries[-1].link
        return entries

    async def put(
        self, entries: list[Entry], *, status: Status = Status.RUNNING, due: datetime | None = None
    ) -> Appended | Refused:
        """Write entries; stay where we were if that is refused."""
        answer = await self.store.append(
            self.run_id,
            fence=self.fence,
            at=entries[0].position - 1,
            mail=self.mail,
            entries=entries,
            head=HeadChange(status=status, due=due),
        )
        if isinstance(answer, Appended):
            self.position, self.link = entries[-1].position, entries[-1].link
        return answer

    async def write(self, *events: Event, status: Status = Status.RUNNING) -> Appended | Refused:
        """Write events."""
        return await self.put(self.entries(*events), status=status)

    async def must(self, *events: Event, status: Status = Status.RUNNING) -> None:
        """Write events, or fail."""
        answer = await self.write(*events, status=status)
        assert isinstance(answer, Appended), f"refused: {answer}"

    async def note(self, turn: int) -> None:
        """Write something small, or fail."""
        await self.must(TurnOpened(turn=turn))

    async def finish(self, *, key: str = "") -> None:
        """Bring the run to its end: with one call under this key, or without any."""
        if key:
            planned = PlannedCall(position=1, tool="send", arguments=Raw(b"{}"), key=key)
            await self.must(
                TurnOpened(turn=1),
                Decided(turn=1, calls=(planned,)),
                Dispatched(
                    call="1.1",
                    attempt=1,
                    deadline=self.store.now(),
                    because=Rule.NEVER_SENT,
                    terms=Terms(contract=OneShot()),
                ),
                Receipt(call="1.1", proof=Proof.RESPONSE, attempt=1, result=Raw(b"true")),
            )
        await self.must(Completed(output=Raw(b'"done"')), status=Status.COMPLETED)
