"""What `doctor` says of a store, a machine and a flow's tools, and which runs a pruning would take.

It must not change anything.
"""

from __future__ import annotations

import platform
import sys
import time
from datetime import timedelta

from msgspec import Struct

from counterfoil.core.contracts import Contract
from counterfoil.core.events import SenderProof, Status
from counterfoil.core.state import fold
from counterfoil.errors import CounterfoilError
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.inbox import inbox
from counterfoil.stores.clock import SystemClock
from counterfoil.stores.owner import LOCKS
from counterfoil.stores.protocol import Head, Store, StoreInfo
from counterfoil.stores.retention import settled

LITTLE_BYTES = 200_000_000
"""Free bytes below which a full disk is near."""


class Machine(Struct, frozen=True, kw_only=True):
    """What this machine can prove.

    Args:
        python: its version.
        platform: its name.
        proof_of_death: a killed worker is known to be dead at once; else its lease must run out.
        boot_clock: there is a clock that counts suspended time.
        remarks: what is reduced here, in words.
    """

    python: str
    platform: str
    proof_of_death: bool
    boot_clock: bool
    remarks: tuple[str, ...]


class ToolReport(Struct, frozen=True, kw_only=True):
    """A tool and its contract; ``declared``: its author said so."""

    name: str
    contract: Contract
    declared: bool


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What is known of a store.

    Args:
        info: its facts.
        waiting: runs that wait for a person.
        abandoned: calls that were given up: their effects may be there.
        deserted: open runs whose worker is dead or gone: a resume takes them over.
        warnings: what to see to, in words.
    """

    info: StoreInfo
    waiting: tuple[str, ...]
    abandoned: tuple[str, ...]
    deserted: tuple[str, ...]
    warnings: tuple[str, ...]


async def diagnose(store: Store) -> Diagnosis:
    """Look at a store."""
    info = await store.info()
    letters = await inbox(store)
    waiting = tuple(one.run_id for one in letters if one.status in (Status.UNKNOWN, Status.BLOCKED))
    abandoned = tuple(f"{one.run_id} {name}" for one in letters for name in one.abandoned)
    gone = {one.incarnation for one in info.leases if one.runs and one.proof is not SenderProof.ALIVE}
    deserted = [head.run_id for head in await store.find(limit=10_000) if head.owner in gone]
    return Diagnosis(
        info=info,
        waiting=waiting,
        abandoned=abandoned,
        deserted=tuple(deserted),
        warnings=tuple(_warnings(info, waiting, deserted)),
    )


def _warnings(info: StoreInfo, waiting: tuple[str, ...], deserted: list[str]) -> list[str]:
    found = []
    if info.incidents:
        found.append(f"{info.incidents} run(s) with an incident: two effects for one intent, seen or likely")
    if waiting:
        found.append(f"{len(waiting)} run(s) wait for a person")
    if deserted:
        found.append(
            f"{len(deserted)} run(s) were left by a worker that is gone; resume them: {', '.join(deserted[:5])}"
        )
    if info.bytes_free < LITTLE_BYTES:
        found.append(f"only {info.bytes_free // 1_000_000} MB are free on its disk")
    if info.journal_mode != "wal" or info.synchronous not in ("full", "extra"):
        found.append(f"a commit is not durable: journal mode {info.journal_mode}, synchronous {info.synchronous}")
    return found


def machine() -> Machine:
    """Look at this machine."""
    boot = bool(SystemClock().boot_id())
    counts = hasattr(time, "CLOCK_BOOTTIME")
    remarks = []
    if not LOCKS or not boot:
        remarks.append("No proof of death here: a killed worker's runs are free once its lease is over.")
    if not counts:
        remarks.append("No clock here counts suspended time: after a sleep the lease may seem longer than it is.")
    if sys.platform == "win32":
        remarks.append("Ctrl-C cannot drain on Windows: it gives the run up at once, resumable.")
    return Machine(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        proof_of_death=LOCKS and boot,
        boot_clock=counts,
        remarks=tuple(remarks),
    )


def tools_of(flow: Agent) -> tuple[ToolReport, ...]:
    """Return a flow's tools and what they declare."""
    return tuple(
        ToolReport(name=name, contract=tool.contract, declared=tool.declared) for name, tool in flow.tools.items()
    )


async def prunable(store: Store, older_than: timedelta) -> list[str]:
    """Return the ids of the runs that a pruning would take now, oldest first."""
    before = store.now() - older_than
    ended = [status for status in Status if status.terminal]
    heads = await store.find(status=ended, limit=sys.maxsize)
    old = [head for head in heads if head.updated_at is not None and head.updated_at < before]
    return [head.run_id for head in reversed(old) if await _may_go(store, head)]


async def _may_go(store: Store, head: Head) -> bool:
    if head.owner and (await store.observe(head.owner)).proof is SenderProof.ALIVE:
        return False
    try:
        return settled(head, fold(await store.events(head.run_id)))
    except CounterfoilError:
        return False
