"""The world outside the run, as the judge sees it: every effect there is, whatever the journal says.

It must not ask the library: it reads the reference provider's ledger, or whatever the user's own world is.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from counterfoil.testing.crash.witness import Seen
from counterfoil.testing.ledger import Effect, Ledger, Request
from counterfoil.testing.provider import ProviderProcess

URL = "COUNTERFOIL_PROVIDER_URL"
_QUIET_S = 5.0


class World(Protocol):
    """Where effects happen. One world serves one case at a time."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that tell the flow where it is."""
        ...

    def mark(self) -> None:
        """A case begins: what there is by now is not of it."""
        ...

    def effects(self) -> tuple[Seen, ...]:
        """Return what happened since, oldest first."""
        ...

    def requests(self) -> tuple[Seen, ...]:
        """Return what was asked to happen since, oldest first; nothing where the world does not tell."""
        ...

    def advance(self, seconds: float) -> None:
        """Move the world's clock on, if it has one."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Provider:
    """The reference provider, in a process of its own.

    Args:
        folder: for its ledger.
        behave: how its endpoints behave, by name; fields of `counterfoil.testing.provider.Behaviour`.
    """

    def __init__(self, folder: Path, behave: dict[str, dict[str, Any]] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._process = ProviderProcess(folder / "ledger.db")
        self._ledger: Ledger = self._process.ledger
        self._after = (0, 0)
        for endpoint, behaviour in (behave or {}).items():
            self._process.behave(endpoint, **behaviour)

    @property
    def variables(self) -> dict[str, str]:
        """Where the flow finds it."""
        return {URL: self._process.url}

    def mark(self) -> None:
        """A case begins."""
        self._after = self._ledger.newest()

    def effects(self) -> tuple[Seen, ...]:
        """Return what happened since."""
        self._wait_until_quiet()
        return tuple(_effect(effect) for effect in self._ledger.effects(after=self._after[0]))

    def requests(self) -> tuple[Seen, ...]:
        """Return what was asked to happen since."""
        return tuple(_request(one) for one in self._ledger.requests(after=self._after[1]) if one.method != "GET")

    def advance(self, seconds: float) -> None:
        """Move its clock on."""
        self._process.advance(seconds)

    def close(self) -> None:
        """End it; the ledger stays."""
        self._process.stop()

    def _wait_until_quiet(self) -> None:
        """A request of a killed process may still be worked on: what it does belongs to the case, too."""
        until = time.monotonic() + _QUIET_S
        while time.monotonic() < until:
            if all(one.answer != "none" for one in self._ledger.requests(after=self._after[1])):
                return
            time.sleep(0.002)


def _effect(effect: Effect) -> Seen:
    return Seen(
        key=effect.key or effect.reference,
        endpoint=effect.endpoint,
        slot=f"{effect.endpoint}/{effect.object_id}",
        arguments=json.dumps(effect.arguments, sort_keys=True),
        receipt=Raw(msgspec.json.encode(effect.result)),
    )


def _request(request: Request) -> Seen:
    arguments = json.dumps(request.arguments, sort_keys=True)
    return Seen(key=request.key or request.reference, endpoint=request.endpoint, arguments=arguments)


class Told:
    """A user's own world: a function tells every effect there is, by its key or by whatever tells it from others.

    Args:
        tell: returns all effects so far, of all cases.
        advance: moves that world's clock on; None: it has none.
    """

    def __init__(self, tell: Callable[[], Iterable[str]], advance: Callable[[float], None] | None = None) -> None:
        self._tell = tell
        self._advance = advance
        self._before: Counter[str] = Counter()

    @property
    def variables(self) -> dict[str, str]:
        """Nothing: the flow knows its own world."""
        return {name: os.environ[name] for name in (URL,) if name in os.environ}

    def mark(self) -> None:
        """A case begins."""
        self._before = Counter(self._tell())

    def effects(self) -> tuple[Seen, ...]:
        """Return what happened since."""
        left, found = Counter(self._before), []
        for key in self._tell():
            if left[key]:
                left[key] -= 1
            else:
                found.append(Seen(key=key, endpoint=key))
        return tuple(found)

    def requests(self) -> tuple[Seen, ...]:
        """Return effects: what happened was asked for."""
        return self.effects()

    def advance(self, seconds: float) -> None:
        """Move its clock on."""
        if self._advance is not None:
            self._advance(seconds)

    def close(self) -> None:
        """Nothing was opened."""
