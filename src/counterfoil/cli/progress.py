"""A run's events as they happen, one line each, on stderr.

It must not say more than the events do, and it says nothing where nobody watches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterfoil.cli.render import console_for_stderr, row_line
from counterfoil.core.events import Completed, Decided, Event, Paused, Receipt, Recorded, Rejected, TurnOpened
from counterfoil.runtime.timeline import Known, Row, say

if TYPE_CHECKING:
    from rich.console import Console

SAVED_SHOWN = 8
"""Settled calls of earlier lives that are named; the rest is a number."""


class Progress:
    """Prints events as they happen.

    Args:
        console: where to.
        events: what the journal holds already.
    """

    def __init__(self, console: Console, events: list[Recorded]) -> None:
        self._console = console
        self._known = Known()
        self._saved: list[Row] = []
        for recorded in events:
            self._known.learn(recorded.event, recorded.fence)
            if isinstance(recorded.event, (Receipt, Rejected)):
                self._saved.append(say(recorded.event, self._known))

    def begin(self) -> None:
        """Say what is saved already: none of it is asked for or sent again."""
        left_out = len(self._saved) - SAVED_SHOWN
        if left_out > 0:
            self._print(Row(word="already saved", tone="good", text=f"{left_out} earlier calls"))
        for row in self._saved[-SAVED_SHOWN:]:
            self._print(Row(word="already saved", tone="good", where=row.where, tool=row.tool, value=row.value))

    def __call__(self, event: Event) -> None:
        """Print one event."""
        self._known.learn(event)
        if isinstance(event, (Completed, Paused)):
            return  # How the run stands is said once it is left.
        if isinstance(event, TurnOpened) and event.ask == 1 and not self._console.is_terminal:
            return  # Its answer says it all, where nobody waits for it.
        if isinstance(event, Decided) and not event.calls:
            self._print(Row(word="decided", where=f"turn {event.turn}", text="no more calls"))
            return
        self._print(say(event, self._known))

    def _print(self, row: Row) -> None:
        self._console.print(row_line(row), no_wrap=True, overflow="ellipsis", crop=True)


def watching(events: list[Recorded]) -> Progress:
    """Return what prints on stderr."""
    return Progress(console_for_stderr(), events)
