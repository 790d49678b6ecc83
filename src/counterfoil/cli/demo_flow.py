"""The agent of `counterfoil demo`: an ordinary flow, and one line that kills its own process where the demo says so.

It must not know the demo's story: it reads from its environment where the provider is and where to die.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from counterfoil.core.contracts import Keyed, Lookup, OneShot
from counterfoil.models.scripted import ScriptedModel
from counterfoil.runtime.calls import Absent, Call, Found
from counterfoil.runtime.flow import Agent
from counterfoil.runtime.model import Decision, ModelRequest
from counterfoil.runtime.tools import tool

PROVIDER = "COUNTERFOIL_DEMO_PROVIDER"
ASKS = "COUNTERFOIL_DEMO_ASKS"
DIE = "COUNTERFOIL_DEMO_DIE"
SPARED = "COUNTERFOIL_DEMO_SPARED"
"""The red control: with it set nothing is killed, and the demo must notice."""

AFTER_TICKET = "after-ticket"
BEFORE_TURN_3 = "before-turn-3"

DAY = timedelta(hours=24)
SCRIPT: list[dict[str, Any]] = [
    {"calls": [{"name": "create_ticket", "arguments": {"title": "Login fails"}}]},
    {"calls": [{"name": "send_email", "arguments": {"to": "dana@example.com"}}]},
    {"text": "The ticket is filed and Dana knows."},
]


def _die(where: str) -> None:
    """A real SIGKILL of this very process: no handler, no clean-up, no last word."""
    if os.environ.get(DIE) == where and not os.environ.get(SPARED):
        os.kill(os.getpid(), signal.SIGKILL)


async def _post(call: Call, what: str, body: dict[str, str]) -> dict[str, Any]:
    answer = await call.http.post(f"{os.environ[PROVIDER]}/{what}", json=body)
    answer.raise_for_status()
    made: dict[str, Any] = answer.json()
    return made


@tool(contract=Keyed(remembered_for=DAY, lookup_first=True) | Lookup(settles_in=timedelta(seconds=5)))
async def create_ticket(title: str, *, call: Call) -> dict[str, Any]:
    """File a ticket in the help desk."""
    made = await _post(call, "tickets", {"title": title})
    _die(AFTER_TICKET)  # The ticket is there, and nobody has written down that it is.
    return made


@create_ticket.lookup
async def find_ticket(call: Call) -> Found[dict[str, Any]] | Absent:
    """Look the ticket up by our key."""
    answer = await call.http.get(f"{os.environ[PROVIDER]}/tickets", params={"reference": call.key})
    found = answer.raise_for_status().json()
    return Found(found[0]) if found else Absent()


@tool(contract=Keyed(remembered_for=DAY))
async def send_email(to: str, *, call: Call) -> dict[str, Any]:
    """Send an email."""
    return await _post(call, "emails", {"to": to})


@tool(contract=OneShot(), name="create_ticket")
async def create_ticket_blindly(title: str, *, call: Call) -> dict[str, Any]:
    """File a ticket in a help desk that offers neither key nor lookup."""
    made = await _post(call, "tickets", {"title": title})
    _die(AFTER_TICKET)
    return made


class _Model(ScriptedModel):
    """The script, and a process that ends between two of its turns."""

    async def decide(self, request: ModelRequest) -> Decision:
        if request.turn == len(SCRIPT):
            _die(BEFORE_TURN_3)
        return await super().decide(request)


def support() -> Agent:
    """Return the flow whose provider offers a key and a lookup."""
    model = _Model(SCRIPT, asks_log=os.environ[ASKS])
    return Agent("support", version="1", model=model, tools=[create_ticket, send_email])


def one_shot() -> Agent:
    """Return the same flow at a provider that offers neither."""
    model = _Model(SCRIPT, asks_log=os.environ[ASKS])
    return Agent("one-shot", version="1", model=model, tools=[create_ticket_blindly, send_email])
