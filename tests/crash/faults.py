"""Planted faults: each breaks one promise in every process of a case, and the kit must say which."""

from __future__ import annotations

import os
from typing import Any

from counterfoil.core import plan
from counterfoil.core.codec import decode
from counterfoil.core.contracts import OneShot
from counterfoil.core.events import Decided, Dispatched
from counterfoil.core.recovery import Dispatch
from counterfoil.core.rules import Rule
from counterfoil.runtime.attempts import Attempts
from counterfoil.stores.protocol import Appended
from counterfoil.stores.sqlite import SqliteStore


def _forget_from(kind: type) -> None:
    """A store that says "durable" and writes nothing, from the first event of a kind on."""
    append, forgetting = SqliteStore.append, []

    async def forgetful(self: SqliteStore, run_id: str, **given: Any) -> Any:
        if forgetting or any(isinstance(decode(entry.body), kind) for entry in given["entries"]):
            forgetting.append(True)
            return Appended(position=given["entries"][-1].position)
        return await append(self, run_id, **given)

    SqliteStore.append = forgetful  # type: ignore[method-assign]  # in a forked child


def forget_decisions() -> None:
    _forget_from(Decided)


def forget_dispatches() -> None:
    _forget_from(Dispatched)


def repeat_one_shots() -> None:
    recover = plan.recover

    def careless(terms: Any, facts: Any, now: Any) -> Any:
        if isinstance(terms.contract, OneShot) and facts.open:
            return Dispatch(Rule.REPEAT_KEYED)
        return recover(terms, facts, now)

    plan.recover = careless


def mint_a_new_key_for_a_repeat() -> None:
    make = Attempts.context

    def other(self: Attempts, *args: Any, **given: Any) -> Any:
        call = make(self, *args, **given)
        if call.attempt > 1:
            call.key += "x"
        return call

    Attempts.context = other  # type: ignore[method-assign]  # in a forked child


def survive_kills() -> None:
    os.kill = lambda *_: None  # type: ignore[assignment]  # in a forked child
