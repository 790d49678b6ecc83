"""One write at the reference provider, with whatever it was told to let go wrong about it.

It must not know HTTP: how a connection is dropped is the business of the service.
"""

from __future__ import annotations

import contextlib
import threading

from counterfoil.testing.behaviour import Behaviour, FaultKind
from counterfoil.testing.book import Book, BookClosed, Outcome, Pending, Write

FAILURE = Outcome(500, {"error": "server_error", "message": "told to fail"}, "server_error")


class Faulted(Exception):
    """The request ends in its fault: with 500, or without an answer."""

    def __init__(self, word: FaultKind) -> None:
        super().__init__(word)
        self.word = word


def perform(book: Book, write: Write, behaviour: Behaviour, fault: FaultKind | None) -> Outcome:
    """Do what a request asks for; return its answer. A fault that fires decides the answer, of a replay too.

    Args:
        book: where it is written down.
        write: the request.
        behaviour: of its endpoint.
        fault: what goes wrong with this one.

    Raises:
        Faulted: it ends in its fault.
        BookClosed: the provider stops.
    """
    return _Job(book, write, behaviour, fault).run()


class _Job:
    def __init__(self, book: Book, write: Write, behaviour: Behaviour, fault: FaultKind | None) -> None:
        self.book, self.write, self.behaviour, self.fault = book, write, behaviour, fault

    def run(self) -> Outcome:
        """Return the answer; raises `Faulted` where there is none, or a bad one."""
        if self.fault == "reset_before":
            raise Faulted("reset_before")
        known = self.book.begin(self.write, self.behaviour)
        if known is not None:
            return self._answer(known)
        if self.fault == "apply_late":
            return self._apply_late()
        try:
            return self._answer(None)
        finally:
            self.book.end(self.write, self.behaviour)

    def _answer(self, known: Outcome | None) -> Outcome:
        """Do what the request asks, unless its answer is known already, and what goes wrong before and after."""
        if self.fault == "error_before":
            if known is None and self.behaviour.cache_failures:
                self.book.remember(self.write, self.behaviour, FAILURE)
            raise Faulted("error_before")
        if self.fault == "slow_before":
            self._wait()
        outcome = known or self._apply()
        match self.fault:
            case "slow":
                self._wait()
            case "drop_response" | "reset_after" | "error_after":
                raise Faulted(self.fault)
            case "apply_late" if self.behaviour.late_answer == "drop":
                raise Faulted("apply_late")
            case _:
                pass
        return outcome

    def _apply(self) -> Outcome:
        cached = self.fault == "error_after" and self.behaviour.cache_failures
        return self.book.apply(self.write, self.behaviour, failure=FAILURE if cached else None)

    def _apply_late(self) -> Outcome:
        due_at = self.book.now() + self.behaviour.seconds
        late = self.book.accept(self.write, self.behaviour, due_at)
        if self.behaviour.late_answer == "drop":
            land_by_itself(self.book, late)
            raise Faulted("apply_late")
        return _land(self.book, late)

    def _wait(self) -> None:
        self.book.wait_until(self.book.now() + self.behaviour.seconds)


def _land(book: Book, late: Pending) -> Outcome:
    """Apply what was accepted, when it is due."""
    try:
        book.wait_until(late.due_at)
        return book.apply(late.write, late.behaviour, pending=late.id)
    finally:
        book.end(late.write, late.behaviour)


def land_by_itself(book: Book, late: Pending) -> None:
    """Let what was accepted happen when it is due, with nobody waiting for it."""

    def land() -> None:
        with contextlib.suppress(BookClosed):  # Our next life takes it up.
            _land(book, late)

    threading.Thread(target=land, daemon=True).start()
