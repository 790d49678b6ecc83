"""`run` and `arun`: start a run, or continue it, until it ends or must stand still.

It must not hold state between calls: everything is in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from counterfoil.core.events import Event, Status
from counterfoil.core.flow import Difference
from counterfoil.core.rules import Rule
from counterfoil.core.state import RunState, fold
from counterfoil.errors import CounterfoilError, DefinitionError, LeaseLost, NoSuchRun, RunOwned
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.lives import begin_life, start_run
from counterfoil.runtime.loop import Driver
from counterfoil.stores.open import open_store
from counterfoil.stores.protocol import Head, Store, Tombstone

T = TypeVar("T")

PATIENCE = timedelta(seconds=60)
"""How far away a due time may be for a run to be held on to in this process."""

EXIT_CODES = {
    Status.COMPLETED: 0,
    Status.FAILED: 1,
    Status.UNKNOWN: 3,
    Status.WAITING: 4,
    Status.PENDING: 4,
    Status.RUNNING: 4,
    Status.BLOCKED: 5,
    Status.CANCELLED: 6,
}


class RunResult(Struct, frozen=True, kw_only=True):
    """How a run stands when it is left.

    Args:
        run_id: the run.
        status: what shows. Only ``completed`` means that everything was done.
        output: the text of the last decision, once completed.
        because: why it stands still.
        note: the same for people.
        until: when it may go on, if it waits for a time.
        unknown: calls that a person must settle.
        differences: how the flow at hand differs from the journal's, if that is what blocks it.
        incident: two effects for one intent, or a late effect after another verdict, were seen.
    """

    run_id: str
    status: Status
    output: Any = None
    because: Rule | None = None
    note: str = ""
    until: datetime | None = None
    unknown: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    incident: bool = False

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
        if self.because is Rule.INTERRUPTED:
            return 130
        return EXIT_CODES[self.status]


StoreLike = Store | str | os.PathLike[str] | None


async def arun(
    agent: Agent,
    input: Any,  # noqa: A002 - the word that users type
    *,
    run_id: str,
    store: StoreLike = None,
    labels: dict[str, str] | None = None,
    patience: timedelta = PATIENCE,
    progress: Callable[[Event], None] | None = None,
    stop: asyncio.Event | None = None,
) -> RunResult:
    """Start a run, or continue it, and advance it until it ends or must stand still.

    Args:
        agent: the flow.
        input: any JSON value. The same id with the same input continues; with another it is refused.
        run_id: chosen by you; it is the run's identity, for ever.
        store: an open store, or a path or URL; by default ``$COUNTERFOIL_STORE``, else ``./counterfoil.db``.
        labels: for queries.
        patience: how far away a due time (a provider's settle time, proof of death) may be to wait for it here.
        progress: told of every event.
        stop: set it to have the run given up, resumable, once what is under way has ended.

    Returns:
        How the run stands. Nothing is raised for unknown, waiting or blocked: they are in ``status``.

    Raises:
        InputMismatch: the id is known, with another input.
        RunOwned: another live worker advances the run.
        JournalDamaged: the run's journal cannot be trusted; nothing was done.
        StoreUnavailable: nothing more could be written; the run can be resumed.
    """
    async with use_store(store) as opened:
        known = await start_run(opened, agent, input, run_id, labels=labels)
        return await _continue(opened, agent, known, patience, progress, stop)


async def aresume(
    agent: Agent,
    run_id: str,
    *,
    store: StoreLike = None,
    patience: timedelta = PATIENCE,
    progress: Callable[[Event], None] | None = None,
    stop: asyncio.Event | None = None,
) -> RunResult:
    """Continue a run by its id alone; arguments, result and errors as for `arun`. Raises `NoSuchRun` too."""
    async with use_store(store) as opened:
        return await _continue(opened, agent, await find_run(opened, run_id), patience, progress, stop)


def run(
    agent: Agent,
    input: Any,  # noqa: A002 - as in arun
    *,
    run_id: str,
    store: StoreLike = None,
    labels: dict[str, str] | None = None,
    patience: timedelta = PATIENCE,
    progress: Callable[[Event], None] | None = None,
) -> RunResult:
    """Do what `arun` does, from code without an event loop. Arguments, result and errors are the same."""
    return blocking(arun, agent, input, run_id=run_id, store=store, labels=labels, patience=patience, progress=progress)


def resume(
    agent: Agent,
    run_id: str,
    *,
    store: StoreLike = None,
    patience: timedelta = PATIENCE,
    progress: Callable[[Event], None] | None = None,
) -> RunResult:
    """Do what `aresume` does, from code without an event loop. Arguments, result and errors are the same."""
    return blocking(aresume, agent, run_id, store=store, patience=patience, progress=progress)


async def find_run(store: Store, run_id: str) -> Head | Tombstone:
    """Return a run's head, or what pruning left of it. Raises `NoSuchRun`."""
    known = await store.head(run_id)
    if known is None:
        raise NoSuchRun(f"there is no run {run_id!r} in this store")
    return known


async def standing(store: Store, known: Head | Tombstone) -> RunResult:
    """Return how a run stands, read and not claimed."""
    if isinstance(known, Tombstone):
        output = None if known.output is None else msgspec.json.decode(known.output)
        return RunResult(run_id=known.run_id, status=known.status, output=output, note="pruned")
    return result_of(known.run_id, fold(await store.events(known.run_id)))


def result_of(run_id: str, state: RunState) -> RunResult:
    """Return how a run stands, from its fold."""
    paused = state.paused
    failure = state.failure
    note = f"{failure.kind}: {failure.message}" if failure else ""
    return RunResult(
        run_id=run_id,
        status=state.status,
        output=msgspec.json.decode(state.output) if state.output else None,
        because=paused.because if paused else None,
        note=paused.note if paused else note,
        until=paused.until if paused else None,
        unknown=tuple(call.id for call in state.calls if call.unknown is not None and call.outcome is None),
        differences=paused.differences if paused else (),
        incident=state.incident,
    )


async def _continue(
    store: Store,
    agent: Agent,
    known: Head | Tombstone,
    patience: timedelta,
    progress: Callable[[Event], None] | None,
    stop: asyncio.Event | None,
) -> RunResult:
    if isinstance(known, Tombstone):
        return await standing(store, known)
    if known.status.terminal:
        return await _ended(store, known)
    while True:
        try:
            state = await _live(store, agent, known.run_id, patience, progress, stop)
        except LeaseLost:
            # Nobody need have taken it (a laptop that slept): a new incarnation may claim it, with a new fence.
            if not await store.renew():
                raise
        else:
            return result_of(known.run_id, state)


async def _live(
    store: Store,
    agent: Agent,
    run_id: str,
    patience: timedelta,
    progress: Callable[[Event], None] | None,
    stop: asyncio.Event | None,
) -> RunState:
    """One life of a run, from its lease to its release."""
    journal = await begin_life(store, run_id)
    driver: Driver | None = None
    watcher: asyncio.Task[None] | None = None
    try:
        driver = Driver(journal, agent, patience=patience, progress=progress)
        if stop is not None:
            watcher = asyncio.create_task(_watch(stop, driver))
        await driver.drive()
        return journal.state
    finally:
        if watcher is not None:
            watcher.cancel()
        if driver is not None and not driver.all_ended:
            journal.lease.outlived = True
        await asyncio.shield(release(store, run_id, journal.fence))


async def _ended(store: Store, known: Head) -> RunResult:
    """Return how a run has ended, after weighing what was written to it since: that can raise the incident flag."""
    state = fold(await store.events(known.run_id))
    if known.mail == state.mail:
        return result_of(known.run_id, state)
    try:
        journal = await begin_life(store, known.run_id)
    except RunOwned:  # Whoever holds it reads it.
        return result_of(known.run_id, state)
    try:
        await journal.commit()
        return result_of(known.run_id, journal.state)
    finally:
        await asyncio.shield(release(store, known.run_id, journal.fence))


async def release(store: Store, run_id: str, fence: int) -> None:
    """Give the run up; where that cannot be written, the lease's end does it."""
    with contextlib.suppress(CounterfoilError):
        await store.release(run_id, fence=fence)


async def _watch(stop: asyncio.Event, driver: Driver) -> None:
    await stop.wait()
    driver.drain()


@asynccontextmanager
async def use_store(store: StoreLike) -> AsyncIterator[Store]:
    """Yield an open store; one that is opened here is closed here."""
    if store is not None and not isinstance(store, (str, os.PathLike)):
        yield store
        return
    opened = open_store(store)
    try:
        yield opened
    finally:
        await opened.close()


def blocking(function: Callable[..., Coroutine[None, None, T]], *args: Any, **kwargs: Any) -> T:
    """Run an async function from code without an event loop.

    Raises:
        DefinitionError: there is a running event loop in this thread; use the async twin.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        name = function.__name__
        raise DefinitionError(
            f"{name.removeprefix('a')}() was called inside a running event loop", remedy=f"Use `await {name}(...)`."
        )
    return asyncio.run(function(*args, **kwargs))
