"""What goes to stderr: notes, errors with their next step, and nothing that a program would read.

It must not load rich: an error is one line and has to be there at once.
"""

from __future__ import annotations

import os
import shlex
import sys

from counterfoil.errors import CounterfoilError
from counterfoil.runtime.wording import plain

DEBUG = "COUNTERFOIL_DEBUG"

_CODES = {"bad": "1;31", "doubt": "33", "good": "32", "quiet": "2"}


class Usage(CounterfoilError):
    """A command was typed in a way that has no meaning."""

    code = "usage"
    exit_code = 2
    remedy = "See `counterfoil --help`."


def note(text: str) -> None:
    """Say something in passing."""
    print(text, file=sys.stderr, flush=True)


def error(message: str, remedy: str = "") -> None:
    """Say what is wrong in one line, and in another what to do next."""
    note(f"{painted('error:', 'bad')} {plain(message)}")
    if remedy:
        note(f"{painted('next:', 'quiet')}  {remedy}")


def next_step(text: str) -> None:
    """Say what to do next."""
    note(f"{painted('next:', 'quiet')}  {text}")


def painted(text: str, tone: str) -> str:
    """Return a text in the colour of its tone, if stderr is a terminal that wants colours."""
    wanted = bool(os.environ.get("FORCE_COLOR")) or sys.stderr.isatty()
    if not wanted or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[tone]}m{text}\x1b[0m"


def command(*words: str, store: str | None = None) -> str:
    """Return a counterfoil command to copy, with the store where it was named by an option."""
    where = () if store is None else ("--store", store)
    return shlex.join(("counterfoil", *words, *where))
