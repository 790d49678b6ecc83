"""The command `bench`: what counterfoil costs on this machine, each figure beside what it is judged by.

It must not flatter: an aim that is missed says so, and a rate on a disk stands beside the disk's own at that moment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from counterfoil.cli.messages import Usage, note
from counterfoil.cli.options import JsonOption, describe, print_json

if TYPE_CHECKING:
    from counterfoil.testing.speed import Beside

ROUNDS = 3
"""How often each thing is measured; the median is shown."""
MEMORY = Path("/dev/shm")  # noqa: S108 - Linux's own tmpfs: only for a folder of its own, with a random name
FIRST_LENGTHS = (100, 1000)


class Figure(Struct, frozen=True, kw_only=True):
    """One line of the answer.

    Args:
        name: what was measured.
        value: the figure.
        unit: of it.
        aim: what it should be, in words; empty where nothing is aimed at.
        met: whether it is.
        beside: what it was measured beside, or what else there is to know.
    """

    name: str
    value: float
    unit: str
    aim: str = ""
    met: bool | None = None
    beside: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "bench",
        help=describe(
            "Measure what counterfoil costs on this machine, and say of each aim whether it is met.",
            "A record is one durable commit of a journal; a turn of one call (200 B in, 500 B out) has two. Beside "
            "each rate of runs stands the rate of single-row SQLite commits of the same bytes, measured directly "
            "before and after it on the same disk. What we cost ourselves is measured in memory, where a sync is free.",
            example="counterfoil bench\ncounterfoil bench --dir /var/lib/app --seconds 3\ncounterfoil bench --long",
            keys="figures      one object for each line: name, value, unit, aim, met (null: no aim), beside",
            exits={0: "measured, whatever came of it", 2: "usage"},
        ),
    )(bench)


def bench(
    place: Annotated[Path | None, typer.Option("--dir", help="On which disk. [default: the working folder]")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Length of one measurement of a rate.", min=0.05)] = 0.8,
    turns: Annotated[int, typer.Option("--turns", help="Length of the long run.", min=2000)] = 10_000,
    long: Annotated[bool, typer.Option("--long", help="A long run of 100,000 turns; takes minutes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what counterfoil costs on this machine."""
    disk = place if place is not None else Path.cwd()
    if not disk.is_dir():
        raise Usage(f"--dir {disk} is no folder")
    lengths = sorted({*FIRST_LENGTHS, turns // 2, turns, *((100_000,) if long else ())})
    figures = _measure(disk, seconds, lengths)
    if as_json:
        print_json({"figures": figures})
    else:
        _print(figures, disk)


def _measure(disk: Path, seconds: float, lengths: list[int]) -> list[Figure]:
    from counterfoil.testing import speed

    memory = MEMORY if MEMORY.is_dir() else disk
    with speed.folder(memory) as own:
        size = speed.record_bytes(own)
        figures = [
            *_on_disk(disk, seconds, size),
            *_own_cost(memory, seconds, size),
            *_growth(own, lengths),
            *_start(own),
        ]
    if memory is disk:
        note("there is no tmpfs here: what we cost ourselves was measured on the disk")
    return figures


def _on_disk(disk: Path, seconds: float, size: int) -> list[Figure]:
    from counterfoil.testing import speed

    one: list[Beside] = []
    many: list[Beside] = []
    for number in range(1, ROUNDS + 1):
        _progress(f"one run, and 50 runs at once, beside raw commits: round {number} of {ROUNDS}")
        one.append(speed.beside_raw(disk, seconds, size, speed.one_run))
        many.append(speed.beside_raw(disk, seconds, size, speed.many_runs))
    raws = [rate.per_s for each in (*one, *many) for rate in (each.before, each.after)]
    drift = max(raws) / min(raws)
    return [
        Figure(
            name="raw commits on this disk",
            value=round(median(raws)),
            unit="/s",
            beside=f"{size} B a row; the fastest of {len(raws)} was {drift:.1f} times the slowest",
        ),
        _rate("one run", "records/s", one, 0.8),
        _rate("50 runs at once", "turns/s", many, 1.0),
    ]


def _rate(name: str, unit: str, measured: list[Beside], aim: float) -> Figure:
    ratios = sorted(each.ratio for each in measured)
    return Figure(
        name=name,
        value=round(median(each.ours.per_s for each in measured)),
        unit=unit,
        aim=f"{aim:.1f} of the raw commits or more",
        met=median(ratios) >= aim,
        beside=f"{median(ratios):.2f} of the raw commits around it ({ratios[0]:.2f} to {ratios[-1]:.2f})",
    )


def _own_cost(memory: Path, seconds: float, size: int) -> list[Figure]:
    from counterfoil.testing import speed

    both: list[Beside] = []
    single: list[Beside] = []
    many: list[Beside] = []
    for number in range(1, ROUNDS + 1):
        _progress(f"our own cost, in memory: round {number} of {ROUNDS}")
        both.append(speed.beside_raw(memory, seconds, size, speed.one_run))
        with speed.one_core() as can_be:
            if can_be:
                single.append(speed.beside_raw(memory, seconds, size, speed.one_run))
        many.append(speed.beside_raw(memory, seconds / 2, size, speed.many_runs))
    figures = [_cpu("CPU of a record, one run", both, 0.10)]
    if single:
        figures.append(_cpu("the same, on one core: no thread to be woken on another", single, None))
    return [*figures, _cpu("CPU of a turn (two records), 50 runs at once", many, None)]


def _cpu(name: str, measured: list[Beside], aim: float | None) -> Figure:
    ours = median(each.ours.cpu_ms for each in measured)
    raw = median(rate.cpu_ms for each in measured for rate in (each.before, each.after))
    return Figure(
        name=name,
        value=round(ours, 3),
        unit="ms",
        aim=f"{aim:.2f} ms or less" if aim is not None else "",
        met=ours <= aim if aim is not None else None,
        beside=f"{ours / raw:.1f} times the CPU of a raw commit ({raw:.3f} ms)",
    )


def _growth(own: Path, lengths: list[int]) -> list[Figure]:
    from counterfoil.testing import speed

    _progress(f"one run of {lengths[-1]:,} turns")
    grown = speed.grow(own, lengths)
    first, last = lengths[1], lengths[-1]
    flat = grown.cpu_ms[last] / grown.cpu_ms[first]
    costs = ", ".join(f"{grown.cpu_ms[length]:.2f} at {length:,}" for length in lengths)
    figures = [
        Figure(
            name=f"CPU of a turn, at {last:,} turns beside {first:,}",
            value=round(flat, 2),
            unit="times",
            aim="1.2 or less: flat",
            met=flat <= 1.2,  # noqa: PLR2004 - as the aim says
            beside=f"ms: {costs}",
        ),
        Figure(
            name="stored for a turn",
            value=round(grown.turn_bytes[last]),
            unit="bytes",
            aim="1,500 or less",
            met=grown.turn_bytes[last] <= 1500,  # noqa: PLR2004 - as the aim says
            beside=", ".join(f"{size:,.0f} at {length:,}" for length, size in grown.turn_bytes.items()),
        ),
    ]
    return [*figures, *(_resume(own, length) for length in lengths[1:])]


def _resume(own: Path, length: int) -> Figure:
    from counterfoil.testing import speed

    _progress(f"from a new process to the next call of a run of {length:,} turns")
    found = [speed.resume(own, length) for _ in range(ROUNDS)]
    wall = min(each.wall_ms for each in found)
    judged = length == 5000  # noqa: PLR2004 - the length that the aim names
    return Figure(
        name=f"process start to next call, {length:,} turns",
        value=round(wall),
        unit="ms",
        aim="300 ms or less, and linear" if judged else "",
        met=wall <= 300 if judged else None,  # noqa: PLR2004 - as the aim says
        beside=f"the fastest of {ROUNDS}; CPU {min(each.cpu_ms for each in found):.0f} ms",
    )


def _start(own: Path) -> list[Figure]:
    from counterfoil.testing import speed

    _progress("how long a program takes to start")
    speed.import_ms("counterfoil")
    ours, bare, nothing, hellos = [], [], [], []
    for _ in range(2 * ROUNDS):
        ours.append(speed.import_ms("counterfoil"))
        bare.append(speed.import_ms("asyncio, msgspec"))
        nothing.append(speed.process_ms("-c", "pass"))
        hellos.append(speed.hello(own))
    imported, plain = min(each.wall_ms for each in ours), min(each.wall_ms for each in bare)
    wall, peak = min(each.wall_ms for each in hellos), median(each.peak_mb for each in hellos)
    return [
        Figure(
            name="import counterfoil",
            value=round(imported),
            unit="ms",
            aim="100 ms or less",
            met=imported <= 100,  # noqa: PLR2004 - as the aim says
            beside=f"{imported / plain:.1f} times `import asyncio, msgspec` ({plain:.0f} ms); "
            f"CPU {min(each.cpu_ms for each in ours):.0f} ms",
        ),
        Figure(
            name="a whole program of one turn",
            value=round(wall),
            unit="ms",
            aim="200 ms or less",
            met=wall <= 200,  # noqa: PLR2004 - as the aim says
            beside=f"{wall / min(nothing):.1f} times `python -c pass` ({min(nothing):.0f} ms); "
            f"CPU {min(each.cpu_ms for each in hellos):.0f} ms",
        ),
        Figure(
            name="its peak memory",
            value=round(peak),
            unit="MB",
            aim="40 MB or less",
            met=peak <= 40,  # noqa: PLR2004 - as the aim says
        ),
    ]


def _progress(text: str) -> None:
    """Say what is being measured. It is one line and no spinner: a thread that draws would be measured, too."""
    if sys.stderr.isatty():
        note(f"measuring: {text}")


def _print(figures: list[Figure], disk: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from counterfoil.cli.render import console, put

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what", overflow="fold")
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("beside", overflow="fold")
    table.add_column("aim", overflow="fold")
    for each in figures:
        table.add_row(each.name, f"{each.value:,g} {each.unit}", each.beside, _aim(each, Text))
    missed = sum(each.met is False for each in figures)
    judged = sum(each.met is not None for each in figures)
    busy = f"; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else ""
    put(console(), table, Text(), Text(f"{judged - missed} of {judged} aims met; disk: {disk}{busy}", style="dim"))


def _aim(figure: Figure, text: Any) -> Any:
    if figure.met is None:
        return text("")
    word, style = ("met", "green") if figure.met else ("missed", "bold red")
    return text(f"{word}: ", style=style).append(figure.aim, style="none")
