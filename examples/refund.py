"""A refund, with tools that are plain functions: check the order, pay it back, mark it as paid back, write a letter.

    counterfoil provider --port 8321 --ledger ledger.db &
    counterfoil run examples/refund.py:flow --run-id order-9 --input-json '{"order": 9, "cents": 500}'
    counterfoil crashtest examples/refund.py:flow --input-json '{"order": 9, "cents": 500}'

Sync tools run in threads of their own; `call.http` is then a sync client. The model is a script.
"""

import os
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import counterfoil as cf

MOST_CENTS = 100_000
PROVIDER = os.environ.get("COUNTERFOIL_PROVIDER_URL", "http://127.0.0.1:8321")


@cf.tool(contract=cf.Read())
def find_order(order: int, *, call: cf.Call) -> list[dict[str, Any]]:
    """Find what has been done about an order."""
    answer = call.http.get(f"{PROVIDER}/refunds", params={"reference": f"order-{order}"})
    answer.raise_for_status()
    return list(answer.json())


# The bank remembers our key for a day. The tool checks first and sends late: the dispatch is written down directly
# before the bytes leave, so a crash in the check leaves no doubt behind.
@cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=24)), dispatch="late")
def pay_back(order: int, cents: int, *, call: cf.Call) -> dict[str, Any]:
    """Pay money back."""
    if cents > MOST_CENTS:
        raise cf.NotApplied(f"order {order}: a person pays back more than 1000.00")
    answer = call.http.post(f"{PROVIDER}/refunds", json={"order": order, "cents": cents})
    if answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY:
        raise cf.NotApplied("the bank documents that it did not process what it answers with 422")
    answer.raise_for_status()
    return dict(answer.json())


# Setting a state is repeatable: done twice, it is as if it were done once.
@cf.tool(contract=cf.Repeatable())
def mark_paid_back(order: int, *, call: cf.Call) -> str:
    """Mark an order as paid back."""
    answer = call.http.put(f"{PROVIDER}/orders/{order}", json={"state": "paid back"})
    answer.raise_for_status()
    return "marked"


# The letter goes to a printer that knows no keys and keeps no list: nothing is declared, so it is OneShot.
@cf.tool
def print_letter(text: str, *, call: cf.Call) -> str:
    """Print a letter; it goes out with the post."""
    answer = call.http.post(f"{PROVIDER}/letters", json={"text": text})
    answer.raise_for_status()
    return str(answer.json()["id"])


def script(request: cf.ModelRequest) -> dict[str, Any]:
    """Say what a model would say in each turn."""
    given = request.input if isinstance(request.input, dict) else {}
    order, cents = given.get("order", 9), given.get("cents", 500)
    match request.turn:
        case 1:
            return {"calls": [{"name": "find_order", "arguments": {"order": order}}]}
        case 2:
            return {"calls": [{"name": "pay_back", "arguments": {"order": order, "cents": cents}}]}
        case 3:
            return {
                "calls": [
                    {"name": "mark_paid_back", "arguments": {"order": order}},
                    {"name": "print_letter", "arguments": {"text": f"We paid back {cents / 100:.2f}."}},
                ]
            }
        case _:
            return {"text": f"Order {order} is paid back."}


flow = cf.Agent(
    "refund",
    version="1",
    model=cf.ScriptedModel(script),
    tools=[find_order, pay_back, mark_paid_back, print_letter],
    limits=cf.Limits(turns=10, calls=10),
)
