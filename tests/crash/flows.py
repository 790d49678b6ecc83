"""Small flows for the crash kit: two calls that a provider helps with, one that it does not, and one that lies."""

from __future__ import annotations

import os
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import counterfoil as cf

PROVIDER = os.environ.get("COUNTERFOIL_PROVIDER_URL", "")


@cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=24)))
async def create_ticket(title: str, *, call: cf.Call) -> str:
    """Create a ticket."""
    answer = await call.http.post(f"{PROVIDER}/tickets", json={"title": title})
    answer.raise_for_status()
    return str(answer.json()["id"])


@cf.tool(contract=cf.Lookup(settles_in=timedelta(seconds=5)))
async def send_email(to: str, *, call: cf.Call) -> str:
    """Send an email; the provider knows no keys."""
    answer = await call.http.post(f"{PROVIDER}/emails", json={"to": to}, headers={"X-Reference": call.key})
    answer.raise_for_status()
    return str(answer.json()["id"])


@send_email.lookup
async def find_email(call: cf.Call) -> cf.Found[str] | cf.Absent:
    answer = await call.http.get(f"{PROVIDER}/emails", params={"reference": call.key})
    answer.raise_for_status()
    found = answer.json()
    return cf.Found(str(found[0]["id"])) if found else cf.Absent()


@cf.tool(dispatch="late")
async def ring(text: str, *, call: cf.Call) -> str:
    """Ring; nothing is declared, so it is OneShot."""
    answer = await call.http.post(f"{PROVIDER}/rings", json={"text": text})
    answer.raise_for_status()
    return str(answer.json()["id"])


@cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=24)), dispatch="late")
async def hasty(text: str, *, call: cf.Call) -> str:
    """Send first and mark afterwards, which is a lie about when it sends."""
    body = f'{{"text": "{text}"}}'.encode()
    request = urllib.request.Request(f"{PROVIDER}/posts", body, {"Idempotency-Key": call.key}, method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: ASYNC210 - past `call.http` on purpose
        answer.read()
    await call.sending()
    return "sent"


@cf.tool(contract=cf.Read())
def look(what: str) -> str:
    """Look at something."""
    return f"{what} is there"


@cf.tool(contract=cf.Repeatable())
def write_line(text: str) -> str:
    """Write into a world of our own; a line is there or not, however often it was written."""
    with Path(os.environ["CRASH_WORLD"]).open("a") as world:
        world.write(f"{text}\n")
    return text


def _script(*calls: tuple[str, dict[str, Any]]) -> cf.ScriptedModel:
    turns: list[dict[str, Any]] = [{"calls": [{"name": name, "arguments": given}]} for name, given in calls]
    return cf.ScriptedModel([*turns, {"text": "Done."}])


def _flow(name: str, *calls: tuple[cf.Tool, dict[str, Any]]) -> cf.Agent:
    model = _script(*((tool.name, given) for tool, given in calls))
    return cf.Agent(name, version="1", model=model, tools=list(dict.fromkeys(tool for tool, _ in calls)))


two_turns = _flow("two turns", (create_ticket, {"title": "a"}), (send_email, {"to": "dana@example.com"}))
two_calls = cf.Agent(
    "two calls",
    version="1",
    model=cf.ScriptedModel(
        [
            {
                "calls": [
                    {"name": "create_ticket", "arguments": {"title": "a"}},
                    {"name": "send_email", "arguments": {"to": "dana@example.com"}},
                ]
            },
            {"text": "Done."},
        ]
    ),
    tools=[create_ticket, send_email],
)
one_call = _flow("one call", (create_ticket, {"title": "a"}))
rings = _flow("rings", (ring, {"text": "Wake up"}))
late_liar = _flow("late liar", (hasty, {"text": "Out now"}))
reads = _flow("reads", (look, {"what": "the key"}))
own_world = _flow("own world", (write_line, {"text": "one"}))
stuck = cf.Agent("stuck", version="1", model=cf.ScriptedModel([]))
