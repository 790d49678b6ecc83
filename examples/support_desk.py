"""A support desk: find the customer, open a ticket, write to the customer, page whoever is on call.

    counterfoil provider --port 8321 --ledger ledger.db &
    counterfoil run examples/support_desk.py:flow --run-id ticket-77 --input "Login fails"
    counterfoil crashtest examples/support_desk.py:flow

Each tool says what may be done about it when nobody saw its answer. The model is a script, so that it runs offline; put
`counterfoil.models.openai.OpenAIChat` in its place, and nothing else changes.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import counterfoil as cf

PROVIDER = os.environ.get("COUNTERFOIL_PROVIDER_URL", "http://127.0.0.1:8321")


@dataclass(frozen=True)
class Ticket:
    id: str
    title: str


@cf.tool(contract=cf.Read())
async def find_customer(email: str, *, call: cf.Call) -> list[dict[str, Any]]:
    """Find what is known of a customer."""
    answer = await call.http.get(f"{PROVIDER}/customers", params={"reference": email})
    answer.raise_for_status()
    return list(answer.json())


# The ticket system honours our key for a day, and finds a ticket by it. We look before we repeat, which costs little.
@cf.tool(
    contract=cf.Keyed(remembered_for=timedelta(hours=24), lookup_first=True)
    | cf.Lookup(settles_in=timedelta(seconds=5))
)
async def create_ticket(title: str, *, call: cf.Call) -> Ticket:
    """Open a ticket."""
    answer = await call.http.post(f"{PROVIDER}/tickets", json={"title": title})  # call.http puts our key on it
    answer.raise_for_status()
    return Ticket(answer.json()["id"], title)


@create_ticket.lookup
async def find_ticket(call: cf.Call) -> cf.Found[Ticket] | cf.Several[Ticket] | cf.Absent:
    """Find the tickets that carry our key."""
    answer = await call.http.get(f"{PROVIDER}/tickets", params={"reference": call.key})
    answer.raise_for_status()
    found = tuple(Ticket(one["id"], one["arguments"]["title"]) for one in answer.json())
    return cf.Absent() if not found else cf.Found(found[0]) if len(found) == 1 else cf.Several(found)


# The mail service knows no keys. It finds a message by the reference that we leave in it, a few seconds later.
@cf.tool(contract=cf.Lookup(settles_in=timedelta(seconds=5)))
async def send_email(to: str, text: str, *, call: cf.Call) -> str:
    """Write to a customer."""
    answer = await call.http.post(
        f"{PROVIDER}/emails", json={"to": to, "text": text}, headers={"X-Reference": call.key}
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


@send_email.lookup
async def find_email(call: cf.Call) -> cf.Found[str] | cf.Several[str] | cf.Absent:
    """Find the messages that carry our reference."""
    answer = await call.http.get(f"{PROVIDER}/emails", params={"reference": call.key})
    answer.raise_for_status()
    found = tuple(str(one["id"]) for one in answer.json())
    return cf.Absent() if not found else cf.Found(found[0]) if len(found) == 1 else cf.Several(found)


# The pager knows neither: a lost answer is unknown, and a person decides whether anybody's telephone rang.
@cf.tool(contract=cf.OneShot())
async def page_on_call(text: str, *, call: cf.Call) -> str:
    """Ring whoever is on call."""
    answer = await call.http.post(f"{PROVIDER}/pages", json={"text": text})
    answer.raise_for_status()
    return str(answer.json()["id"])


def script(request: cf.ModelRequest) -> dict[str, Any]:
    """Say what a model would say in each turn."""
    problem = str(request.input)
    match request.turn:
        case 1:
            return {"calls": [{"name": "find_customer", "arguments": {"email": "dana@example.com"}}]}
        case 2:
            return {"calls": [{"name": "create_ticket", "arguments": {"title": problem}}]}
        case 3:
            ticket = request.history[1].results[0].content
            mail = {"to": "dana@example.com", "text": f"We are on it: {ticket}"}
            return {
                "calls": [
                    {"name": "send_email", "arguments": mail},
                    {"name": "page_on_call", "arguments": {"text": problem}},
                ]
            }
        case _:
            return {"text": "Dana knows, and somebody is on it."}


flow = cf.Agent(
    "support desk",
    version="1",
    model=cf.ScriptedModel(script),
    tools=[find_customer, create_ticket, send_email, page_on_call],
    instructions="You answer the telephone of a small company.",
)
