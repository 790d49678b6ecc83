"""What users write, as a type checker sees it. It is checked by `make types`, and not run."""

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

import counterfoil as cf


@dataclass
class Ticket:
    id: str


@cf.tool(contract=cf.Keyed(remembered_for=timedelta(hours=24)) | cf.Lookup(settles_in=timedelta(seconds=5)))
async def create_ticket(title: str, *, call: cf.Call) -> Ticket:
    answer = await call.http.post("https://example.com/tickets", json={"title": title})
    return Ticket(answer.json()["id"])


@create_ticket.lookup
async def find_ticket(call: cf.Call) -> cf.Found[Ticket] | cf.Absent | cf.CannotTell:
    return cf.Found(Ticket(call.key)) if call.attempt else cf.Absent()


@cf.tool
def send_email(to: str) -> str:
    return to


assert_type(create_ticket, cf.Tool)
assert_type(send_email, cf.Tool)

support = cf.Agent(
    "support",
    version="1",
    model=cf.ScriptedModel([{"text": "done"}]),
    tools=[create_ticket, send_email],
    limits=cf.Limits(usd=2, turns=20),
)


async def main() -> None:
    assert_type(await cf.arun(support, "Login fails", run_id="ticket-77"), cf.RunResult)
    assert_type(cf.run(support, "Login fails", run_id="ticket-77"), cf.RunResult)
    assert_type(await cf.aguard("order-1", send_email, {"to": "dana"}), cf.Guarded)
    async with cf.open_run(support, "Login fails", run_id="ticket-77") as run:
        assert_type(run, cf.Run)
        assert_type(await run.claim("1.1"), cf.Go | cf.Replay | cf.Hold)
        assert_type(await run.settle("1.1", cf.Done("x")), cf.Replay | cf.Hold | None)
