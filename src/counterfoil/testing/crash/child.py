"""What one forked process of a case does: a life of the run, the same with the guard off, or a person's verdict.

It must not judge: it acts, writes down what it did, and leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from counterfoil.core.events import NO_JSON, Decided, Dispatched, Verdict
from counterfoil.core.keys import render
from counterfoil.core.mail import GiveVerdict
from counterfoil.core.state import fold
from counterfoil.errors import CounterfoilError, JournalDamaged
from counterfoil.runtime.agent import RunResult, arun
from counterfoil.runtime.calls import Call
from counterfoil.runtime.desk import deliver
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.model import Exchange, ModelRequest, ToolCall, ToolResult
from counterfoil.stores.protocol import Head, Store
from counterfoil.stores.sqlite import SqliteStore
from counterfoil.testing.crash.shared_clock import SharedClock
from counterfoil.testing.crash.windows import Order, Windows
from counterfoil.testing.crash.witness import Acknowledged, Began, Ended, Raised, Witness
from counterfoil.testing.crash.wrapping import WatchedStore, watch_flow

LEASE = timedelta(seconds=10)
"""Of every worker. Nobody waits for its end: the clock is moved on, so it need not be short to be quick."""

PATIENCE = timedelta(seconds=0.5)
"""A first backoff is waited for; anything longer leaves the run waiting, and the clock is moved on."""

BUSY_S = 2.0
MOST_TURNS = 200


class Word(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person says of an unknown call."""

    call: str
    applied: bool
    receipt: Raw = NO_JSON


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process is to do.

    Args:
        act: ``run``: a life of the run. ``naive``: the same flow with the guard off. ``person``: a verdict.
        folder: of the case.
        number: of the process in the case, from 1.
        run_id: of the run.
        value: its input.
        order: where to end or stop.
        one_by_one: no call beside another, so that a look outside tells whose an effect is.
        word: for a person.
    """

    act: Literal["run", "naive", "person"]
    folder: str
    number: int
    run_id: str
    value: Raw
    order: Order = Order()
    one_by_one: bool = False
    word: Word | None = None

    @property
    def witness(self) -> Path:
        """The file in which the process writes down what it did."""
        return Path(self.folder) / f"process-{self.number}.jsonl"


def perform(task: Task, flow: Agent) -> int:
    """Do the task; return the exit code. It returns only where the process is not killed."""
    witness = Witness(task.witness)
    windows = Windows(witness, task.order)
    if task.one_by_one:
        flow.parallel = False
        for tool in flow.tools.values():
            tool.parallel = False
    watch_flow(flow, windows, witness)
    work = _naive if task.act == "naive" else _guarded
    try:
        witness.write(asyncio.run(work(task, flow, windows, witness)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the judge is told
        witness.write(Raised(error=type(error).__name__, message=str(error)))
        traceback.print_exc()
        return error.exit_code if isinstance(error, CounterfoilError) else 1
    return 0


async def _guarded(task: Task, flow: Agent, windows: Windows, witness: Witness) -> Ended:
    folder = Path(task.folder)
    windows.cross("open before")
    opened = SqliteStore(
        folder / "store.db",
        lease=LEASE,
        clock=SharedClock(folder / "clock"),
        busy_timeout=timedelta(seconds=BUSY_S),
    )
    windows.cross("open after")
    witness.write(await _found(opened, task.run_id))
    store = cast("Store", WatchedStore(opened, windows, witness))
    try:
        if task.word is not None:
            return await _speak(task, task.word, store)
        value = msgspec.json.decode(task.value)
        result = await arun(flow, value, run_id=task.run_id, store=store, patience=PATIENCE)
        return await _ended(result, opened, task.run_id)
    finally:
        await store.close()


async def _found(store: Store, run_id: str) -> Began:
    """Read the journal as the last process left it, for the judge to compare with the world."""
    head = await store.head(run_id)
    if not isinstance(head, Head):
        return Began()
    try:
        events = [recorded.event for recorded in await store.events(run_id)]
    except JournalDamaged as error:
        return Began(status=head.status, damage=error.message)
    keys = {
        f"{decided.turn}.{call.position}": call.key
        for decided in events
        if isinstance(decided, Decided)
        for call in decided.calls
    }
    dispatched = {event.call for event in events if isinstance(event, Dispatched)}
    return Began(status=head.status, keys=keys, dispatched=tuple(sorted(dispatched)))


async def _ended(result: RunResult, store: Store, run_id: str) -> Ended:
    head = await store.head(run_id)
    return Ended(
        status=result.status,
        because=result.because or "",
        note=result.note,
        until=result.until.isoformat() if result.until else "",
        unknown=result.unknown,
        incident=result.incident,
        position=head.position if isinstance(head, Head) else 0,
    )


async def _speak(task: Task, word: Word, store: Store) -> Ended:
    """Settle an unknown call, as a person does who looked at the provider's own records."""
    head = await store.head(task.run_id)
    assert isinstance(head, Head)
    item = GiveVerdict(
        call=word.call,
        verdict=Verdict.APPLIED if word.applied else Verdict.NOT_APPLIED,
        by="crashtest",
        reason="the provider's ledger shows it" if word.applied else "the provider's ledger does not show it",
        then="" if word.applied else "dispatch",
        receipt=word.receipt,
        sender_stopped=not word.applied,
        seen=fold(await store.events(task.run_id)).position,
    )
    delivered = await deliver(store, head, item, f"crashtest:{task.number}", wait=timedelta(seconds=1))
    note = f"verdict {delivered.outcome}: {delivered.why}" if delivered.outcome != "accepted" else ""
    return Ended(status=delivered.status, note=note)


async def _naive(task: Task, flow: Agent, windows: Windows, witness: Witness) -> Ended:
    """Run the flow as agents are run without a guard: no journal, from the start each time, a new key for each try."""
    history: list[Exchange] = []
    value = msgspec.json.decode(task.value)
    for turn in range(1, MOST_TURNS):
        request = ModelRequest(
            turn=turn, instructions=flow.instructions, input=value, history=history, tools=flow.specs
        )
        decision = await flow.model.decide(request)
        witness.write(Acknowledged(events=(f"decided {turn}",)))  # It acts on it from here on.
        windows.cross(f"loop[turn {turn}] after")
        results = [
            await _bare_call(flow, call, f"{turn}.{place}", task.run_id)
            for place, call in enumerate(decision.calls, start=1)
        ]
        history.append(Exchange(decision=decision, results=tuple(results)))
        if not decision.calls:
            return Ended(status="completed")
    return Ended(status="failed", note=f"more than {MOST_TURNS} turns")


async def _bare_call(flow: Agent, asked: ToolCall, name: str, run_id: str) -> ToolResult:
    tool = flow.tools.get(asked.name)
    if tool is None or tool.refusal(asked.arguments) is not None:
        return ToolResult(call=asked, content="it cannot be called so", error=True)
    key = secrets.token_bytes(16)
    call = Call(
        run_id=run_id,
        id=name,
        key=render(key, tool.style) if tool.style else key.hex(),
        attempt=1,
        fence=0,
        arguments=tool.parse(Raw(asked.arguments.encode())),
        deadline=datetime.now(UTC) + tool.bounds.timeout,
        first_sent_at=None,
        repeat=False,
        style=tool.style,
        timeout_s=tool.bounds.timeout.total_seconds(),
        sending=_unasked,
        loop=None if tool.is_async else asyncio.get_running_loop(),
        owner_fd=None,
        asks_only=False,
    )
    try:
        work: Callable[..., Any] = tool.function
        if tool.is_async:
            value = await work(**call.arguments, call=call)
        else:
            value = await asyncio.to_thread(work, **call.arguments, call=call)
        stored = tool.result.dump(value)
        content = bytes(stored).decode() if isinstance(stored, bytes | Raw) else "null"
        return ToolResult(call=asked, content=content)
    except Exception as error:  # noqa: BLE001 - as a naive loop does
        return ToolResult(call=asked, content=f"{type(error).__name__}: {error}", error=True)
    finally:
        with contextlib.suppress(Exception):
            await call.aclose_clients()


async def _unasked(_request: str) -> None:
    """Nobody stands between a naive agent and its provider."""
