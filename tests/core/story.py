"""A journal told step by step, for tables: `Story().decided("pay").sent("1.1").state`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Raw

from counterfoil.core import plan
from counterfoil.core.contracts import Contract, Keyed, Lookup, OneShot, Read, Terms
from counterfoil.core.events import (
    Answer,
    AttemptEnded,
    CancelRequested,
    Decided,
    Dispatched,
    Ending,
    Event,
    Failure,
    LifeBegan,
    LookedUp,
    PlannedCall,
    Proof,
    Receipt,
    Recorded,
    RunStarted,
    SenderObserved,
    SenderProof,
    TurnOpened,
    UnknownDeclared,
)
from counterfoil.core.flow import FlowManifest, ToolManifest
from counterfoil.core.limits import Limits
from counterfoil.core.rules import Rule
from counterfoil.core.state import RunState, fold

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
CONTRACTS: dict[str, Contract] = {
    "pay": OneShot(),
    "mail": OneShot(),
    "ticket": Keyed(remembered_for=timedelta(hours=24)),
    "find": Lookup(settles_in=timedelta(seconds=5)),
    "look": Read(),
}
TERMS = {name: Terms(contract=contract) for name, contract in CONTRACTS.items()}


class Story:
    """Events, one after the other, a second apart."""

    def __init__(self, limits: Limits | None = None) -> None:
        tools = {name: ToolManifest(contract=contract) for name, contract in CONTRACTS.items()}
        self.events: list[Recorded] = []
        self.now = START
        self.fence = 0
        manifest = FlowManifest(name="flow", version="1", tools=tools)
        self.add(RunStarted(flow=manifest, input=Raw(b"1"), input_digest="d", limits=limits or Limits()))
        self.life()

    def add(self, *events: Event) -> Story:
        for event in events:
            self.events.append(Recorded(len(self.events) + 1, self.now, self.fence, event))
            self.now += timedelta(seconds=1)
        return self

    @property
    def state(self) -> RunState:
        return fold(self.events)

    def life(self, *, lost: bool = False) -> Story:
        self.fence += 1
        return self.add(LifeBegan(life=self.fence, incarnation="i", pid=1, host="h", version="0", verify_first=lost))

    def asked(self) -> Story:
        return self.add(TurnOpened(turn=self.state.turn + 1))

    def decided(self, *tools: str) -> Story:
        """A turn's decision; a tool named ``!x`` is an invalid call."""
        calls = tuple(
            PlannedCall(
                position=i,
                tool=tool.strip("!"),
                arguments=Raw(b"{}"),
                key=f"k{i}",
                invalid=Failure(kind="UnknownTool", message="") if tool.startswith("!") else None,
            )
            for i, tool in enumerate(tools, start=1)
        )
        if not self.state.asking:
            self.asked()
        return self.add(Decided(turn=self.state.turn, calls=calls, text="done"))

    def sent(self, call: str) -> Story:
        known = self.state.call(call)
        assert known is not None
        terms = None if known.terms else TERMS[known.planned.tool]
        deadline = self.now + timedelta(minutes=1)
        number = len(known.attempts) + 1
        return self.add(Dispatched(call=call, attempt=number, deadline=deadline, because=Rule.NEVER_SENT, terms=terms))

    def receipt(self, call: str, result: bytes = b'"ok"') -> Story:
        return self.add(Receipt(call=call, proof=Proof.RESPONSE, attempt=1, result=Raw(result)))

    def ended(self, call: str, ending: Ending, *, attempt: int = 1, running: bool = False) -> Story:
        failure = Failure(kind="no", message="")
        return self.add(AttemptEnded(call=call, attempt=attempt, ending=ending, running=running, failure=failure))

    def seen(self, proof: SenderProof, fence: int = 1) -> Story:
        return self.add(SenderObserved(sender=fence, proof=proof))

    def looked(self, call: str, answer: Answer) -> Story:
        return self.add(LookedUp(call=call, answer=answer, asked_at=self.now, because=Rule.LOOK_AGAIN))

    def unknown(self, call: str, because: Rule = Rule.NO_EVIDENCE) -> Story:
        return self.add(UnknownDeclared(call=call, because=because))

    def cancel(self) -> Story:
        return self.add(CancelRequested(by="dana"))


def view(*parallel: str, without: str = "", differences: bool = False, limits: Limits | None = None) -> plan.FlowView:
    """Return a flow at hand."""
    tools = {
        name: plan.ToolView(terms=terms, can_look=name == "find", parallel=name in parallel)
        for name, terms in TERMS.items()
        if name != without
    }
    changed = (plan.Difference(where="version", journal="1", now="2"),) if differences else ()
    return plan.FlowView(tools=tools, differences=changed, limits=limits)
