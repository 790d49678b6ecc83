"""The pytest plugin: `crash_windows`, for a user's own agent and tools.

It must load nothing at pytest's start: the kit comes with the first test that asks for it.

Example, in a project that has nothing but counterfoil and pytest installed:

    # shop.py
    flow = cf.Agent("shop", version="1", model=..., tools=[charge])      # charge talks to $COUNTERFOIL_PROVIDER_URL

    # test_shop.py
    def test_the_shop_survives_a_kill_anywhere(crash_windows):
        report = crash_windows("shop:flow", input="order 7", depth=2)
        assert report.kills > 20

With a world of your own instead of the reference provider, say what happened in it, one entry for each effect: its key,
or whatever tells it from others.

    def test_no_card_is_charged_twice(crash_windows, tmp_path, monkeypatch):
        monkeypatch.setenv("CHARGES", str(tmp_path / "charges"))
        crash_windows(shop.flow, ledger=lambda: (tmp_path / "charges").read_text().split())
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from counterfoil.testing.crash.report import Report


class PromiseBroken(AssertionError):
    """A promise did not hold. The message names each window, what was seen, and the command that shows it again."""


def crash_windows(
    flow: Any,
    *,
    input: Any = None,  # noqa: A002 - the word that users type
    depth: int = 1,
    freeze: bool = True,
    red: bool = True,
    only: str = "",
    ledger: Callable[[], Iterable[str]] | None = None,
    advance: Callable[[float], None] | None = None,
    behave: dict[str, dict[str, Any]] | None = None,
    prepare: Any = "",
    workers: int = 0,
    keep: str = "",
) -> Report:
    """Kill a flow at every window, resume it, and hold what it promises against what the world shows.

    Args:
        flow: MODULE:FLOW or FILE.py:FLOW; or an agent or tool at the top level of a module.
        input: the run's input, a JSON value.
        depth: how many lives in a row are killed.
        freeze: also freeze a process at each window, let another take over, and wake it.
        red: run the control with the guard off, which must fail.
        only: only windows whose name holds this.
        ledger: returns every effect so far in a world of your own: its key, or what tells it from others. Without it
            the flow runs against a reference provider, whose address stands in ``COUNTERFOIL_PROVIDER_URL``.
        advance: moves that world's clock on by so many seconds, if it has one. Waits are not waited for.
        behave: how endpoints of the reference provider behave, by name.
        prepare: a function, or MODULE:FUNCTION, that each process calls first.
        workers: cases at a time; 0: one for each core.
        keep: a folder for the files of every case.

    Returns:
        The report, of a test in which every promise held.

    Raises:
        PromiseBroken: one did not, or the control passed.
        DefinitionError: the flow cannot be found or does not complete undisturbed.
    """
    __tracebackhide__ = True
    from counterfoil.testing.crash.kit import Plan, run_plan  # noqa: PLC0415 - not at pytest's start
    from counterfoil.testing.crash.loading import entry_of  # noqa: PLC0415 - the same

    report = run_plan(
        Plan(
            entry=flow if isinstance(flow, str) else entry_of(flow),
            value=input,
            depth=depth,
            freeze=freeze,
            red=red,
            only=only,
            tell=ledger,
            advance=advance,
            behave=behave or {},
            prepare=prepare if isinstance(prepare, str) else entry_of(prepare),
            workers=workers,
            keep=keep,
        )
    )
    if not report.ok:
        raise PromiseBroken("\n".join(report.sentences()))
    return report


@pytest.fixture(name="crash_windows")
def crash_windows_fixture() -> Callable[..., Report]:
    """Return `crash_windows`: call it with a flow."""
    return crash_windows
