"""Flows for the tests of the command line. What they do in mid-call is told to them by their environment."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from typing import Any

import counterfoil as cf

DAY = timedelta(hours=24)
KEYED = cf.Keyed(remembered_for=DAY, lookup_first=True) | cf.Lookup(settles_in=timedelta(0))


def die(where: str) -> None:
    if os.environ.get("DIE") == where:
        os.kill(os.getpid(), signal.SIGKILL)


async def stand_still(where: str) -> None:
    """Say on stdout that we are here, and go on once somebody writes to the pipe that is named."""
    if os.environ.get("HOLD") != where:
        return
    loop = asyncio.get_running_loop()
    written = loop.create_future()
    pipe = os.open(os.environ["GO_ON"], os.O_RDONLY | os.O_NONBLOCK)
    loop.add_reader(pipe, lambda: written.cancel() if written.done() else written.set_result(None))
    try:
        print(f"holding at {where}", flush=True)
        await written
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


@cf.tool(contract=KEYED)
async def create_ticket(title: str, *, call: cf.Call) -> dict[str, Any]:
    """File a ticket."""
    await stand_still("ticket")
    die("ticket")
    return {"id": "T-1", "title": title}


@create_ticket.lookup
async def find_ticket(call: cf.Call) -> cf.Found[dict[str, Any]] | cf.Absent:
    return cf.Absent() if os.environ.get("ABSENT") else cf.Found({"id": "T-1", "title": "found"})


@cf.tool
async def send_email(to: str) -> dict[str, Any]:
    """Send an email; nothing is declared, so it is a one-shot."""
    await stand_still("email")
    die("email")
    return {"to": to}


@cf.tool(contract=cf.Keyed(remembered_for=DAY))
async def refund(order: int) -> str:
    """Pay back."""
    if order < 0:
        raise cf.NotApplied("there is no such order")
    return f"refunded {order}"


SCRIPT: list[dict[str, Any]] = [
    {"calls": [{"name": "create_ticket", "arguments": {"title": "Login fails"}}]},
    {"calls": [{"name": "send_email", "arguments": {"to": "dana@example.com"}}]},
    {"text": "All is done."},
]

support = cf.Agent("support", version="1", model=cf.ScriptedModel(SCRIPT), tools=[create_ticket, send_email])
newer = cf.Agent(
    "support", version="2", model=cf.ScriptedModel(SCRIPT), tools=[create_ticket, send_email], instructions="Be kind."
)
limited = cf.Agent(
    "limited",
    version="1",
    model=cf.ScriptedModel(SCRIPT),
    tools=[create_ticket, send_email],
    limits=cf.Limits(calls=1),
)
quick = cf.Agent("quick", version="1", model=cf.ScriptedModel([{"text": "Hello \x1b[31mred."}]))


refunds = cf.Agent(
    "refunds",
    version="1",
    model=cf.ScriptedModel(
        [
            {"calls": [{"name": "refund", "arguments": {"order": order}} for order in (-1, 1, -2)]},
            {"text": "All is refunded."},
        ]
    ),
    tools=[refund],
)


def made() -> cf.Agent:
    return support


def needs(what: str) -> cf.Agent:
    return support


def wrong() -> int:
    return 7


number = 7
