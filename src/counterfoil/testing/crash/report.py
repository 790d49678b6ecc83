"""What a crash test comes to: a row for each window, totals, and every broken promise with the way to see it again.

It must not decide anything, and it has no colours: the command line and the pytest plugin show it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import Struct

from counterfoil.testing.crash.judge import Broken


class Tried(Struct, frozen=True, kw_only=True):
    """One case that came to its end.

    Args:
        how: ``kill``, ``freeze`` or ``naive``.
        path: numbers of the windows at which its lives ended, first life first; none: undisturbed.
        windows: their names.
        fired: how many kills or freezes fired.
        lives: how many processes it took.
        effects: how many the world shows.
        asks: how often the model was asked.
        unknown: a person had to settle something.
        broken: promises that did not hold.
        folder: where its files are, if they are kept.
    """

    how: str
    path: tuple[int, ...]
    windows: tuple[str, ...]
    fired: int
    lives: int
    effects: int
    asks: int
    unknown: bool
    broken: tuple[Broken, ...]
    folder: str = ""


class Row(Struct, frozen=True, kw_only=True):
    """All cases whose first life ended at one window.

    Args:
        number: of the window.
        window: its name.
        kills: how many fired, in first and later lives.
        freezes: how many fired.
        cases: how many were tried.
        effects: the fewest and the most that the world showed.
        asks: the fewest and the most asks of the model.
        unknown: in how many a person had to settle something.
        broken: the promises that did not hold.
    """

    number: int
    window: str
    kills: int
    freezes: int
    cases: int
    effects: tuple[int, int]
    asks: tuple[int, int]
    unknown: int
    broken: tuple[Broken, ...]

    @property
    def held(self) -> bool:
        """Whether every promise held."""
        return not self.broken


class Report(Struct, frozen=True, kw_only=True):
    """All of it.

    Args:
        flow: its name.
        entry: where it was found.
        given: the options that a repeated case needs as well: its input, and how the provider behaves.
        depth: how many lives in a row were killed.
        rows: by window.
        failures: the cases that broke a promise.
        red: the cases with the guard off; none: it was not asked for.
        blind: calls with an effect of which the world showed nothing: they were not judged.
        judged: how many calls with an effect were judged.
        cases: how many were tried.
        kills: how many fired, each proven by signal 9 and the window that the process had reported.
        freezes: how many fired.
        seconds: how long it took.
    """

    flow: str
    entry: str
    given: tuple[str, ...] = ()
    depth: int
    rows: tuple[Row, ...]
    failures: tuple[Tried, ...]
    red: tuple[Tried, ...]
    blind: tuple[str, ...]
    judged: int
    cases: int
    kills: int
    freezes: int
    seconds: float

    @property
    def red_failed(self) -> bool:
        """Whether the control failed, as it must: by a second effect, where the flow has effects."""
        seen = {broken.promise for tried in self.red for broken in tried.broken}
        return "one effect" in seen or (bool(seen) and not self.judged and not self.blind)

    @property
    def ok(self) -> bool:
        """Whether every promise held, at one window at least, and the control failed."""
        return not self.sentences()

    def sentences(self) -> list[str]:
        """Return what is wrong, in words: one for each broken promise, and one for a control that passed."""
        found = [
            f"{where(tried)}: {broken.text}\n    again: {again(self.entry, tried, self.given)}"
            for tried in self.failures
            for broken in tried.broken
        ]
        if not self.rows:
            found.append("no window was tried: nothing is proven")
        if self.blind and not self.judged:
            found.append(f"the ledger shows no effect of {', '.join(self.blind)}: nothing was judged")
        if self.red and not self.red_failed:
            found.append(
                "the red control passed: with the guard off, a flow that is killed and started over broke nothing that "
                "this judge can see. Look whether the ledger shows the flow's effects"
            )
        return found


def where(tried: Tried) -> str:
    """Return where the lives of a case ended, in words."""
    verb = {"freeze": "frozen", "naive": "with the guard off, killed"}.get(tried.how, "killed")
    if not tried.windows:
        return "undisturbed"
    places = [f"at window {number}, {window}" for number, window in zip(tried.path, tried.windows, strict=False)]
    return f"{verb} {', then '.join(places)}"


def again(entry: str, tried: Tried, given: Sequence[str] = ()) -> str:
    """Return the command that tries a case again."""
    if tried.how == "freeze":
        options = ["--freeze-at", str(tried.path[0])]
    else:
        options = ["--kill-at", str(tried.path[0])] if tried.path else []
        options += [word for number in tried.path[1:] for word in ("--then", str(number))]
    return shlex.join(["counterfoil", "crashtest", entry, *given, *options, "--keep", "kept"])


def rows_of(tried: Sequence[Tried]) -> tuple[Row, ...]:
    """Return a row for each window of the first life, in order."""
    by_window: dict[tuple[int, str], list[Tried]] = {}
    for one in tried:
        if one.windows and one.how != "naive":
            by_window.setdefault((one.path[0], one.windows[0]), []).append(one)
    return tuple(_row(number, window, of_it) for (number, window), of_it in sorted(by_window.items()))


def _row(number: int, window: str, of_it: list[Tried]) -> Row:
    return Row(
        number=number,
        window=window,
        kills=sum(one.fired for one in of_it if one.how == "kill"),
        freezes=sum(one.fired for one in of_it if one.how == "freeze"),
        cases=len(of_it),
        effects=(min(one.effects for one in of_it), max(one.effects for one in of_it)),
        asks=(min(one.asks for one in of_it), max(one.asks for one in of_it)),
        unknown=sum(one.unknown for one in of_it),
        broken=tuple(broken for one in of_it for broken in one.broken),
    )
