"""The flows of the incident tests. Their tools act on the reference provider; nothing else remembers what happened."""

import asyncio
import http.client
import json
import os
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import counterfoil as cf
from tests.incidents import points

URL = os.environ.get("COUNTERFOIL_PROVIDER_URL", "")
DAY = timedelta(hours=24)


def post(endpoint: str, key: str, body: dict[str, Any], *, keyed: bool, tool: str | None = None) -> dict[str, Any]:
    """Make the effect, with a point on either side."""
    points.cross("entered", tool or endpoint)
    headers = {"X-Reference": key} | ({"Idempotency-Key": key} if keyed else {})
    request = urllib.request.Request(f"{URL}/{endpoint}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            result: dict[str, Any] = json.load(answer)
    except (OSError, http.client.HTTPException):
        points.cross("lost", tool or endpoint)
        raise
    points.cross("effect", tool or endpoint)
    return result


def find(endpoint: str, key: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{URL}/{endpoint}?reference={key}", timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


@cf.tool(contract=cf.Read())
def read(what: str = "x") -> str:
    """Look something up."""
    points.cross("entered", "read")
    return f"read {what}"


@cf.tool(contract=cf.Read())
def broken_read() -> str:
    """Fail."""
    raise ValueError("no such thing")


@cf.tool
def mail(to: str = "dana@example.com", *, call: cf.Call) -> dict[str, Any]:
    """Send a mail; nobody can tell afterwards."""
    return post("mail", call.key, {"to": to}, keyed=False)


@cf.tool(timeout=timedelta(seconds=0.3))
async def slow_mail(to: str = "dana@example.com", *, call: cf.Call) -> dict[str, Any]:
    """Send a mail at once, and time out while the answer is awaited."""
    sent = await asyncio.to_thread(post, "mail", call.key, {"to": to}, keyed=False)
    await asyncio.Event().wait()
    return sent


@cf.tool(contract=cf.Keyed(remembered_for=DAY))
def pay(amount: int, *, call: cf.Call) -> dict[str, Any]:
    """Pay; the provider honours our key."""
    return post("pay", call.key, {"amount": amount}, keyed=True)


@cf.tool(contract=cf.Keyed(remembered_for=DAY) | cf.Lookup(settles_in=timedelta(0)), name="pay_or_find")
def pay_or_find(amount: int, *, call: cf.Call) -> dict[str, Any]:
    """Pay; and payments can be found by our key."""
    return post("pay", call.key, {"amount": amount}, keyed=True)


@pay_or_find.lookup
def find_payment(call: cf.Call) -> Any:
    found = find("pay", call.key)
    return cf.Found(found[0]) if found else cf.Absent()


def _ticket(settles_in: timedelta) -> cf.Tool:
    @cf.tool(contract=cf.Lookup(settles_in=settles_in), name="ticket")
    def ticket(title: str = "Login fails", *, call: cf.Call) -> dict[str, Any]:
        """Open a ticket; it can be found by our reference."""
        return post("ticket", call.key, {"title": title}, keyed=False)

    @ticket.lookup
    def find_ticket(call: cf.Call) -> Any:
        found = find("ticket", call.key)
        return cf.Found(found[0]) if found else cf.Absent()

    return ticket


ticket = _ticket(timedelta(0))


@cf.tool
def ask_human(question: str = "ok?") -> str:
    """A person answers; nothing in this process can."""
    raise RuntimeError(f"nobody has answered {question!r} yet")


def scripted(*turns: Any) -> Callable[[cf.ModelRequest], Any]:
    """Return a model's answers by turn, with a point on either side, counted in a file that outlives the process."""

    def decide(request: cf.ModelRequest) -> Any:
        points.cross("asked", str(request.turn))
        with Path(os.environ["ASKS"]).open("a") as asks:
            asks.write(f"{request.turn}\n")
        answer = turns[request.turn - 1] if request.turn <= len(turns) else {"text": "done"}
        points.cross("replied", str(request.turn))
        return answer(request) if callable(answer) else answer

    return decide


def calls(*wanted: tuple[str, dict[str, Any]], ids: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a decision with these calls."""
    return {
        "calls": [
            {"name": name, "arguments": arguments} | ({"id": ids[number]} if ids else {})
            for number, (name, arguments) in enumerate(wanted)
        ]
    }


TOOLS = [read, broken_read, mail, slow_mail, pay, pay_or_find, ticket, ask_human]


def flow(*turns: Any, **options: Any) -> cf.Agent:
    """Return an agent with all the tools above."""
    tools = options.pop("tools", TOOLS)
    return cf.Agent("incident", version="1", model=cf.ScriptedModel(scripted(*turns)), tools=tools, **options)


def one_mail() -> cf.Agent:
    return flow(calls(("mail", {})))


def mail_then_broken_read() -> cf.Agent:
    return flow(calls(("mail", {}), ("broken_read", {})))


def read_ticket_mail() -> cf.Agent:
    return flow(calls(("read", {}), ("ticket", {}), ("mail", {})))


def ask_and_mail() -> cf.Agent:
    return flow(calls(("ask_human", {}), ("mail", {})), parallel=True)


def one_ticket() -> cf.Agent:
    return flow(calls(("ticket", {})))


def slowly_visible_ticket() -> cf.Agent:
    return flow(calls(("ticket", {})), tools=[_ticket(timedelta(seconds=2))])


def mail_that_times_out() -> cf.Agent:
    return flow(calls(("slow_mail", {})), calls(("slow_mail", {})))


def pay_5() -> cf.Agent:
    return flow(calls(("pay", {"amount": 5}), ids=("call_0",)), calls(("pay", {"amount": 9}), ids=("call_0",)))


def pay_7() -> cf.Agent:
    return flow(calls(("pay", {"amount": 7}), ids=("call_0",)))


def two_equal_payments() -> cf.Agent:
    return flow(calls(("pay", {"amount": 3}), ("pay", {"amount": 3})))


def pay_10() -> cf.Agent:
    return flow(calls(("pay", {"amount": 10})))


def pay_10_or_find() -> cf.Agent:
    return flow(calls(("pay_or_find", {"amount": 10})))
