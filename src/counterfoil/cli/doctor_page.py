"""The page of `counterfoil doctor`. It must not look at anything itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from counterfoil.cli.render import UNDECLARED, console, indented, put, status_text
from counterfoil.core.events import SenderProof
from counterfoil.runtime.diagnosis import Diagnosis, Machine, ToolReport
from counterfoil.runtime.wording import contract_words, plain
from counterfoil.stores.protocol import StoreInfo

LEASES_SHOWN = 12


def print_page(
    found: Diagnosis | None, machine: Machine, tools: Sequence[ToolReport], missing: str, restored: int | None
) -> None:
    """Print all that was found."""
    out = console()
    if restored is not None:
        put(out, Text(f"noted: the store was restored; its epoch is {restored}. Open runs look up before they send."))
    put(out, Text("store", style="bold"))
    if found is None:
        put(out, indented(Text(missing, style="yellow")))
    else:
        put(out, indented(_store(found.info)), Text(), Text("runs", style="bold"), indented(_runs(found)))
        put(out, Text(), Text("workers", style="bold"), indented(_leases(found.info)))
    put(out, Text(), Text("machine", style="bold"), indented(_machine(machine)))
    if tools:
        put(out, Text(), Text("tools", style="bold"), indented(_tools(tools)))
        undeclared = [tool.name for tool in tools if not tool.declared]
        if undeclared:
            put(out, indented(Text(f"{', '.join(undeclared)}: {UNDECLARED}", style="yellow")))
    put(out, Text())
    for warning in found.warnings if found is not None else ():
        put(out, Text("see to  ", style="bold yellow").append(plain(warning), style="none"))
    if found is not None and not found.warnings:
        put(out, Text("nothing to see to", style="green"))


def _facts(*pairs: tuple[str, Text | str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, width=14)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    return table


def _store(info: StoreInfo) -> Table:
    used = ", ".join(f"{name} {_bytes(size)}" for name, size in info.bytes_used.items())
    durable = info.journal_mode == "wal" and info.synchronous in ("full", "extra")
    return _facts(
        ("place", info.place),
        ("engine", f"{info.engine}, schema {info.schema}, journal format {info.format}, epoch {info.epoch}"),
        (
            "durability",
            Text(
                f"journal mode {info.journal_mode}, synchronous {info.synchronous}", style="none" if durable else "red"
            ),
        ),
        ("file system", info.file_system or "not told by this platform"),
        ("size", f"{used}; {_bytes(info.bytes_free)} free"),
    )


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:  # noqa: PLR2004 - the step of the units
            return f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def _runs(found: Diagnosis) -> Table:
    counts = Text(", ").join(
        status_text(status).append(f" {count}", style="none") for status, count in found.info.runs.items()
    )
    return _facts(
        ("by status", counts if found.info.runs else "none"),
        ("pruned", str(found.info.tombstones)),
        ("incidents", Text(str(found.info.incidents), style="red" if found.info.incidents else "none")),
        ("wait for you", plain(", ".join(found.waiting)) or "none"),
        ("given up", plain(", ".join(found.abandoned)) or "none"),
        ("deserted", plain(", ".join(found.deserted)) or "none"),
    )


def _leases(info: StoreInfo) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True, overflow="ellipsis")
    holding = [one for one in info.leases if one.runs or one.proof is SenderProof.ALIVE]
    for one in holding[-LEASES_SHOWN:]:
        style = "green" if one.proof is SenderProof.ALIVE else "yellow"
        until = f"lease until {one.free_at:%H:%M:%S} UTC" if one.free_at is not None else "its lease is over"
        table.add_row(Text(str(one.proof), style=style), one.detail, f"holds {one.runs}", Text(until, style="dim"))
    rest = len(info.leases) - len(holding[-LEASES_SHOWN:])
    if rest:
        table.add_row(Text(f"{rest} ended", style="dim"))
    if not info.leases:
        table.add_row("none so far")
    return table


def _machine(machine: Machine) -> Table:
    proof = Text("yes: a kill is seen at once", style="green") if machine.proof_of_death else Text("no", style="yellow")
    return _facts(
        ("python", machine.python),
        ("platform", machine.platform),
        ("proof of death", proof),
        *(("reduced here", remark) for remark in machine.remarks),
    )


def _tools(tools: Sequence[ToolReport]) -> Table:
    return _facts(
        *(
            (tool.name, contract_words(tool.contract) if tool.declared else Text("not declared", style="yellow"))
            for tool in tools
        )
    )


def document(
    found: Diagnosis | None, machine: Machine, tools: Sequence[ToolReport], restored: int | None
) -> dict[str, Any]:
    """Return the page as one JSON document."""
    waiting = None if found is None else {"waiting": found.waiting, "abandoned": found.abandoned}
    return {
        "store": None if found is None else found.info,
        "open": waiting if found is None else {**(waiting or {}), "deserted": found.deserted},
        "machine": machine,
        "tools": [{"name": tool.name, "contract": tool.contract, "declared": tool.declared} for tool in tools],
        "warnings": () if found is None else found.warnings,
        "restored": restored,
    }
