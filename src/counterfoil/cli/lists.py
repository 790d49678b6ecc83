"""Tables and single lines of several pages: runs, and how one stands.

It must not read a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from counterfoil.cli.render import ago, status_text
from counterfoil.core.events import SenderProof
from counterfoil.core.state import RunState
from counterfoil.runtime.wording import json_text, plain
from counterfoil.stores.protocol import Head, Observation


def runs_table(heads: Sequence[Head], owners: Mapping[str, Observation], now: datetime) -> Table:
    """Return runs as a table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("flow", overflow="fold")
    table.add_column("lives", justify="right", no_wrap=True)
    table.add_column("events", justify="right", no_wrap=True)
    table.add_column("last event", no_wrap=True)
    table.add_column("", overflow="fold")
    for head in heads:
        status = status_text(head.status)
        if head.incident:
            status.append(" INCIDENT", style="bold red")
        last = ago(head.updated_at, now) if head.updated_at else ""
        lives, events = str(head.lives), str(head.position)
        table.add_row(head.run_id, status, head.flow, lives, events, last, _remark(head, owners.get(head.run_id)))
    return table


def _remark(head: Head, owner: Observation | None) -> Text:
    if owner is not None:
        return Text(owner_words(owner), style="dim" if owner.proof is SenderProof.ALIVE else "yellow")
    if head.due is not None and not head.status.terminal:
        return Text(f"due {head.due:%H:%M:%S} UTC", style="dim")
    return Text()


def owner_words(owner: Observation) -> str:
    """Return who holds a run and what is seen of that one."""
    match owner.proof:
        case SenderProof.ALIVE:
            return f"held by {owner.detail}"
        case SenderProof.DEAD:
            return f"its worker ({owner.detail}) is dead; a resume takes over at once"
        case SenderProof.RELEASED:
            return f"given up by {owner.detail}"
        case SenderProof.EXPIRED:
            return f"the lease of its worker ({owner.detail}) is over; a resume takes over"


def standing_line(state: RunState, owner: Observation | None) -> Text:
    """Return how a run stands, as the last line of its page."""
    text = status_text(state.status)
    paused = state.paused
    if state.output and bytes(state.output):
        text.append("  ").append(json_text(state.output, 300), style="none")
    if state.failure is not None:
        text.append(f"  {plain(state.failure.kind)}: {plain(state.failure.message)}", style="none")
    if paused is not None:
        text.append(f"  {paused.because}: {paused.because.says}", style="none")
        if paused.until is not None:
            text.append(f" Until {paused.until:%Y-%m-%d %H:%M:%S} UTC.", style="none")
    if owner is not None:
        text.append(f"  {owner_words(owner)}", style="none")
    return text
