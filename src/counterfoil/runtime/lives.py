"""How a run begins and how a life of it begins: start or continue by id, take the lease, say who took it.

It must not advance the run: `loop` does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

from counterfoil.core.codec import digest, first_link
from counterfoil.core.events import LifeBegan, Recorded, RunStarted, SenderObserved
from counterfoil.core.flow import fingerprint
from counterfoil.core.state import ENDED, CallState
from counterfoil.errors import DefinitionError, InputMismatch, NoSuchRun, RunOwned
from counterfoil.runtime import perform
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.journal import Journal
from counterfoil.stores.clock import host
from counterfoil.stores.protocol import Claimed, Entry, Head, Owned, Store, Tombstone, entry_of
from counterfoil.version import __version__

MAX_RUN_ID = 200


async def start_run(
    store: Store, agent: Agent, value: Any, run_id: str, *, labels: dict[str, str] | None = None
) -> Head | Tombstone:
    """Make a run durable, or find it: the same id with the same input is the same run.

    Args:
        store: where.
        agent: the flow.
        value: its input; a JSON value.
        run_id: chosen by the caller.
        labels: for queries.

    Returns:
        The run's head, or what pruning left of it.

    Raises:
        DefinitionError: the input is no JSON value.
        InputMismatch: the id is known, with another input.
    """
    check_run_id(run_id)
    try:
        raw = Raw(msgspec.json.encode(value))
        json.dumps(msgspec.to_builtins(value, enc_hook=repr), allow_nan=False)  # msgspec makes null of NaN.
    except (TypeError, ValueError, RecursionError) as error:
        raise DefinitionError(f"the input of run {run_id} is no JSON value: {error}") from error
    input_digest = digest(raw)
    known = await store.head(run_id)
    if known is None:
        known = await store.start(*_first(store, agent, raw, input_digest, run_id, labels or {}))
    if known.input_digest != input_digest:
        raise InputMismatch(f"run {run_id} was started with another input")
    return known


def _first(
    store: Store, agent: Agent, raw: Raw, input_digest: str, run_id: str, labels: dict[str, str]
) -> tuple[Head, Entry]:
    manifest = msgspec.structs.replace(agent.manifest, entry=agent.entry)
    now = store.now()
    event = RunStarted(flow=manifest, input=raw, input_digest=input_digest, limits=agent.limits, labels=labels)
    first = entry_of(Recorded(1, now, 0, event), first_link(run_id))
    head = Head(
        run_id=run_id,
        flow=manifest.name,
        entry=agent.entry,
        fingerprint=fingerprint(manifest),
        position=1,
        link=first.link,
        input_digest=input_digest,
        labels=labels,
        created_at=now,
        updated_at=now,
    )
    return head, first


async def begin_life(store: Store, run_id: str) -> Journal:
    """Take a run and say so in its journal, together with what was seen of the worker that held it before.

    Of a run that has ended only the mail is read: late evidence can be an incident, and changes nothing else.

    Raises:
        NoSuchRun: there is no such run.
        RunOwned: another live worker holds it.
        JournalDamaged: it cannot be read.
    """
    claimed = await store.claim(run_id)
    match claimed:
        case None:
            raise NoSuchRun(f"there is no run {run_id!r} in this store")
        case Owned():
            raise RunOwned(
                f"run {run_id} is held by another worker ({claimed.detail or claimed.owner}; {claimed.proof})"
            )
        case Claimed():
            pass
    try:
        journal = await read_journal(store, claimed.head)
        if not journal.state.status.terminal:
            _say_who(journal, claimed)
        await journal.drain_mail()
    except BaseException:
        await store.release(run_id, fence=claimed.head.fence)
        raise
    return journal


def _say_who(journal: Journal, claimed: Claimed) -> None:
    before = journal.state.fence
    journal.note(life_began(claimed.head, journal.lease.incarnation), fact=True)
    if claimed.previous and claimed.proof is not None and journal.lives.get(before) == claimed.previous:
        journal.note(SenderObserved(sender=before, proof=claimed.proof, detail="at take-over"), fact=True)


def life_began(head: Head, incarnation: str) -> LifeBegan:
    """Return what this process says of itself at the beginning of the life that a claimed head counts last."""
    return LifeBegan(
        life=head.lives,
        incarnation=incarnation,
        pid=os.getpid(),
        host=host(),
        version=__version__,
        verify_first=head.verify_first,
    )


async def look_at_senders(journal: Journal, calls: Iterable[CallState]) -> list[SenderObserved]:
    """Return what is seen of every sender of the calls' open attempts that has not been seen to end; a fact to note."""
    fences = {attempt.fence for call in calls for attempt in call.open_attempts if attempt.proof not in ENDED}
    return [await perform.observe(journal.store, fence, journal.lives.get(fence, "")) for fence in sorted(fences)]


async def read_journal(store: Store, head: Head) -> Journal:
    """Return a run's journal under the fence in its head, checked against its hash chain."""
    return Journal(store, head, await store.events(head.run_id))


def check_run_id(run_id: str) -> None:
    """Raise `DefinitionError` for an id that cannot be shown on one line."""
    if not isinstance(run_id, str):
        raise DefinitionError(f"a run id is text, not {type(run_id).__name__}")
    if not run_id or len(run_id) > MAX_RUN_ID or not run_id.isprintable() or run_id != run_id.strip():
        raise DefinitionError(
            f"run id {run_id[:40]!r} is empty, longer than {MAX_RUN_ID} characters, or holds what cannot be printed"
        )
