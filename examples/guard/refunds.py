"""One guarded function, shared by the three examples beside this file: a refund at a provider that honours our key."""

import os
from datetime import timedelta
from typing import Any

import counterfoil as cf

PROVIDER = os.environ.get("COUNTERFOIL_PROVIDER_URL", "http://127.0.0.1:8321")


@cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=24)))
def refund(order: str, cents: int, *, call: cf.Call) -> dict[str, Any]:
    """Pay an order back."""
    answer = call.http.post(f"{PROVIDER}/refunds", json={"order": order, "cents": cents})  # the key goes along
    answer.raise_for_status()
    return dict(answer.json())


def say(done: cf.Guarded) -> str:
    """Put the outcome into one line: only `done.done` may be told as success."""
    if done.done:
        return f"refunded: {done.value['id']}"
    if done.error is not None:
        return f"not refunded: {done.error.message}"
    return f"{done.status}: {done.note or done.because}; nothing will be sent again before a person has looked"
