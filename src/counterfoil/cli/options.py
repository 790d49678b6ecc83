"""Options that several commands share, and the shape of every command's help.

It must not load anything heavy: `--help` reads this file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterfoil.cli.messages import Usage

if TYPE_CHECKING:
    import asyncio

    from counterfoil.stores.protocol import Store

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store: sqlite:///path or a plain path. Else COUNTERFOIL_STORE, else ./counterfoil.db.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.", show_default=False)]
EXIT_COMMON = {2: "usage, or no such run", 65: "journal damaged or newer", 74: "store unavailable"}


def describe(purpose: str, *more: str, example: str, exits: dict[int, str], keys: str = "") -> str:
    """Return a command's help: one line of purpose, what else is worth knowing, an example, its exit codes.

    Args:
        purpose: one sentence.
        more: paragraphs.
        example: one or more lines to type.
        exits: what each exit code means.
        keys: of the JSON document, for commands that have one.
    """
    parts = [purpose, *more, "\b\nExample:\n" + _indented(example)]
    if keys:
        parts.append("\b\nKeys of the JSON document:\n" + _indented(keys))
    parts.append("\b\nExit codes:\n" + _indented("\n".join(f"{code:>3}  {meaning}" for code, meaning in exits.items())))
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip("\n").splitlines())


@contextmanager
def session(place: str | None, *, make: bool = False) -> Iterator[tuple[asyncio.Runner, Store]]:
    """Yield an event loop to run things in and the open store. A command that only reads never makes a store.

    Between two runs there is no running loop, so that a flow's module may do at its import what it likes.

    Args:
        place: as given with ``--store``.
        make: whether to make it where there is none.

    Raises:
        Usage: there is no store at that place.
    """
    import asyncio

    from counterfoil.stores.open import open_store

    store = open_store(place if make else existing(place))
    with asyncio.Runner() as runner:
        try:
            yield runner, store
        finally:
            runner.run(store.close())


def existing(place: str | None) -> str:
    """Return the place of a store that is there. Raises `Usage`."""
    from counterfoil.stores.open import DEFAULT, VARIABLE, path_of

    named = place or os.environ.get(VARIABLE) or DEFAULT
    if Path(path_of(named)).exists():
        return named
    where = "--store" if place else VARIABLE if os.environ.get(VARIABLE) else "the working folder"
    raise Usage(
        f"there is no store at {named} (from {where})",
        remedy="Name the store with --store, or start a run: `counterfoil run` makes it.",
    )


def length_of_time(text: str, option: str) -> timedelta:
    """Return a length of time such as ``30d``, ``12h``, ``45m``, ``90s`` or ``250ms``. Raises `Usage`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", text.strip())
    if found is None:
        raise Usage(f"{option} {text!r} is no length of time", remedy="Write 30d, 12h, 45m or 90s.")
    return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])


_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def json_value(text: str, option: str, example: str = '{"a": 1}') -> Any:
    """Return the value that an option holds as JSON. Raises `Usage`."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Usage(f"{option} is no JSON: {error}", remedy=f"Quote it for the shell: '{example}'.") from error


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
