"""Random worlds in which processes freeze and die, judged by what truly happened at the provider."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.faults import FAULTS, OTHER_FAULTS, Fault, planted
from tests.property.world import KINDS, Broken, World

WORLDS = 400
"""How many worlds may pass before a planted fault must have shown."""


def thrown(seed: int, fixed: Fault | None = None) -> Any:
    """Dice: the same seed throws the same world. A planted fault may fix what is to happen in it."""
    dice = random.Random(seed)

    def choose(what: str, options: Sequence[Any]) -> Any:
        wanted = fixed.given.get(what) if fixed else None
        return wanted if wanted is not None and wanted in options else dice.choice(options)

    return choose


@given(data=st.data())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_no_world_breaks_a_promise(data: st.DataObject) -> None:
    World(lambda what, options: data.draw(st.sampled_from(options), label=what)).play()


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_world_of_one_kind_breaks_a_promise(kind: str, restores: bool) -> None:
    for seed in range(150):
        World(thrown(seed), kind=kind, restores=restores).play()


@pytest.mark.soak
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_many_worlds(kind: str, restores: bool) -> None:
    for seed in range(150, 20_000):
        World(thrown(seed), kind=kind, restores=restores).play()


def test_the_world_reaches_every_end() -> None:
    """A world in which nothing ever goes wrong would prove nothing."""
    ends = set()
    for seed in range(150):
        world = World(thrown(seed))
        world.play()
        unknown = any(call.unknown for call in world.run.calls)
        ends |= {
            world.run.status.value,
            *(["unknown"] if unknown else []),
            *(["incident"] if world.run.incident else []),
        }
        ends |= {type(recorded.event).__name__ for recorded in world.journal}
    assert ends >= {
        "completed",
        "cancelled",
        "failed",
        "EvidenceTaken",
        "VerdictGiven",
        "MailRefused",
        "SenderReleased",
    }


@pytest.mark.parametrize("fault", [*FAULTS, *OTHER_FAULTS], ids=lambda fault: fault.wrong)
def test_the_world_notices(fault: Fault) -> None:
    with planted(fault):
        for seed in range(WORLDS):
            world = World(thrown(seed, fault), kind=fault.kind or None, restores=fault.restores)
            try:
                world.play()
            except AssertionError:
                return
    pytest.fail(f"{WORLDS} worlds did not notice: {fault.wrong}")


def test_a_broken_promise_is_an_assertion_and_not_an_error_of_the_world() -> None:
    assert issubclass(Broken, AssertionError)
