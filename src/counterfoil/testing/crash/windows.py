"""Windows: the named moments at which a process can die, numbered as they are crossed.

A name says what is about to happen (``before``) or has just happened (``after``): ``append[decided 1, dispatched 1.1]
after`` is the moment in which decision and dispatch are durable and the tool has not been entered. It must not stand in
production code: everything is wrapped from outside.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from counterfoil.core.codec import decode
from counterfoil.core.events import (
    AskFailed,
    AttemptEnded,
    Decided,
    Dispatched,
    Event,
    EvidenceTaken,
    LifeBegan,
    LookedUp,
    Paused,
    Receipt,
    Rejected,
    SenderReleased,
    TurnOpened,
    UnknownDeclared,
    VerdictGiven,
)
from counterfoil.stores.protocol import Entry
from counterfoil.testing.crash.witness import Crossed, Fired, Witness


class Order(Struct, frozen=True, kw_only=True):
    """Where a process is to end or stop: at a number, at the first window of a name, or nowhere.

    Args:
        kill_at: SIGKILL at this number; 0: at none.
        kill_on: SIGKILL at this name; empty: at none.
        freeze_at: SIGSTOP at this number.
        step: SIGSTOP before and after every tool, so that somebody may look what it changed.
        crossed: how many windows earlier processes of the same life have crossed.
    """

    kill_at: int = 0
    kill_on: str = ""
    freeze_at: int = 0
    step: bool = False
    crossed: int = 0


class Windows:
    """Counts the windows of one process, and ends or stops it where it was told to.

    Args:
        witness: told of each.
        order: where to end or stop.
    """

    def __init__(self, witness: Witness, order: Order) -> None:
        self._witness = witness
        self._order = order
        self._number = order.crossed
        self._spent = False
        self._lock = threading.Lock()

    def cross(self, window: str) -> None:
        """Come to a window, from any thread."""
        with self._lock:
            self._number += 1
            how = self._due(self._number, window)
            if how is None:
                self._witness.write(Crossed(number=self._number, window=window))
                return
            self._witness.write(Fired(number=self._number, window=window, how=how))
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                # To this very thread, so that not one more instruction of it runs before all threads stand still.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def _due(self, number: int, window: str) -> Literal["kill", "freeze", "step"] | None:
        order = self._order
        if number == order.kill_at or self._first(order.kill_on, window):
            return "kill"
        if number == order.freeze_at:
            return "freeze"
        return "step" if order.step and window.startswith("tool[") else None

    def _first(self, wanted: str, window: str) -> bool:
        if self._spent or wanted != window:
            return False
        self._spent = True
        return True


def about_call(what: str, tool: str, call: str, attempt: int = 1) -> str:
    """Return the name of a window round a tool, a request or a lookup: ``tool[create_ticket 1.1]``."""
    again = f", attempt {attempt}" if attempt > 1 else ""
    return f"{what}[{tool} {call}{again}]"


def about_append(entries: Sequence[Entry]) -> str:
    """Return the name of the windows round an append: ``append[decided 1, dispatched 1.1]``."""
    return f"append[{', '.join(words(decode(entry.body)) for entry in entries)}]"


def words(event: Event) -> str:  # noqa: PLR0911 - a table: each row returns
    """Return an event in a word or two, the same in every run and every life."""
    match event:
        case TurnOpened(turn=turn, ask=ask):
            return f"turn {turn} opened" if ask == 1 else f"turn {turn} opened again"
        case Decided(turn=turn):
            return f"decided {turn}"
        case Dispatched(call=call, attempt=attempt):
            return f"dispatched {call}" if attempt == 1 else f"dispatched {call} again"
        case AttemptEnded(call=call, ending=ending):
            return f"attempt of {call} ended {ending}"
        case LookedUp(call=call, answer=answer):
            return f"looked up {call}: {answer}"
        case UnknownDeclared(call=call):
            return f"unknown {call}"
        case VerdictGiven(call=call):
            return f"verdict {call}"
        case EvidenceTaken(call=call):
            return f"evidence {call}"
        case Receipt(call=call) | Rejected(call=call) | SenderReleased(call=call):
            return f"{_tag(event)} {call}"
        case Paused(status=status):
            return f"paused {status}"
        case AskFailed(turn=turn):
            return f"ask failed {turn}"
        case LifeBegan():
            return "life began"
        case _:
            return _tag(event)


def _tag(event: Event) -> str:
    return str(type(event).__struct_config__.tag).replace("_", " ")
