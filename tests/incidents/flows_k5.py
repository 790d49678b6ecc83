"""The flows of incidents K5 to K15. Each model says at its end what it was told, so that a test can read it."""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import counterfoil as cf
from tests.incidents import points
from tests.incidents.flows import calls, mail, pay, post, scripted


def told(request: cf.ModelRequest) -> dict[str, Any]:
    """End the run with all that the model was told, turn by turn."""
    return {"text": json.dumps([[result.content for result in exchange.results] for exchange in request.history])}


def resend_on_error(request: cf.ModelRequest) -> dict[str, Any]:
    """Do what models do: an error is tried again, under a new call."""
    return calls(("mail", {})) if any(result.error for result in request.history[-1].results) else told(request)


def flow(*turns: Any, tools: list[cf.Tool], **options: Any) -> cf.Agent:
    """Return an agent whose model refuses a history in which a call has no result."""
    model = cf.ScriptedModel(scripted(*turns), check_history=True)
    return cf.Agent("incident", version="1", model=model, tools=tools, **options)


def note(line: str) -> None:
    """Write to a file that outlives the process."""
    with Path(os.environ["NOTES"]).open("a") as notes:
        notes.write(line + "\n")


@cf.tool(contract=cf.Read())
def read(what: str = "x") -> str:
    """Look something up."""
    points.cross("entered", "read")
    note(f"read {what}")
    return f"what is known of {what}"


# K5. Ids that repeat.


def same_id_each_turn() -> cf.Agent:
    return flow(
        calls(("read", {"what": "a"}), ids=("run:0",)),
        calls(("read", {"what": "b"}), ids=("run:0",)),
        told,
        tools=[read],
    )


def same_id_in_one_turn() -> cf.Agent:
    return flow(calls(("read", {"what": "a"}), ("read", {"what": "b"}), ids=("X", "X")), told, tools=[read])


def no_ids_in_one_turn() -> cf.Agent:
    return flow(calls(("pay", {"amount": 1}), ("pay", {"amount": 2}), ids=("", "")), told, tools=[pay])


def same_id_pays_twice() -> cf.Agent:
    return flow(calls(("pay", {"amount": 1}), ids=("D",)), calls(("pay", {"amount": 2}), ids=("D",)), told, tools=[pay])


# K6. Dangling calls.


def one_read() -> cf.Agent:
    return flow(calls(("read", {})), told, tools=[read])


def mail_sent_again_on_error() -> cf.Agent:
    return flow(calls(("mail", {})), resend_on_error, told, tools=[mail])


@cf.tool(contract=cf.Repeatable(), name="mail")
def mail_called_repeatable(to: str = "dana@example.com", *, call: cf.Call) -> dict[str, Any]:
    """The planted fault: a mail is declared to be harmless to send again."""
    return post("mail", call.key, {"to": to}, keyed=False)


def mail_declared_repeatable() -> cf.Agent:
    return flow(calls(("mail", {})), resend_on_error, told, tools=[mail_called_repeatable])


# K9. Sizes.


@cf.tool
def mail_with_a_huge_answer(*, call: cf.Call) -> str:
    """Send a mail; the answer is larger than a journal takes."""
    post("mail", call.key, {"to": "dana@example.com"}, keyed=False, tool="huge")
    return "x" * 2_000_000


@cf.tool
def mail_with_a_live_answer(*, call: cf.Call) -> Any:
    """Send a mail; the answer is something that only lives in this process."""
    post("mail", call.key, {"to": "dana@example.com"}, keyed=False, tool="live")
    return os.environ.items


def huge_answer() -> cf.Agent:
    return flow(calls(("mail_with_a_huge_answer", {})), told, tools=[mail_with_a_huge_answer])


def live_answer() -> cf.Agent:
    return flow(calls(("mail_with_a_live_answer", {})), told, tools=[mail_with_a_live_answer])


# K10. Values.


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


@dataclass(frozen=True)
class Label:
    colour: Colour
    size: Size


@dataclass(frozen=True)
class Everything:
    label: Label
    price: Decimal
    at: datetime
    blob: bytes
    id: UUID
    tags: set[str]
    pair: tuple[int, str]
    ratio: float
    weights: dict[Colour, float]


EVERYTHING = Everything(
    label=Label(Colour.BLUE, Size.SMALL),
    price=Decimal("10.10"),
    at=datetime(2026, 12, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    blob=b"\x00\xff\xfe",
    id=UUID(int=7),
    tags={"b", "a"},
    pair=(1, "one"),
    ratio=float("nan"),
    weights={Colour.RED: float("inf")},
)

AS_JSON = {
    "label": {"colour": "blue", "size": 1},
    "price": "10.10",
    "at": "2026-12-01T12:00:00.123456+05:30",
    "blob": "\x01",
    "id": str(UUID(int=7)),
    "tags": ["a", "b"],
    "pair": [1, "one"],
    "ratio": 0.5,
    "weights": {"red": 1.5},
}


@cf.tool(contract=cf.Read())
def take(thing: Everything) -> str:
    """Say what the argument is, in types and values."""
    shown = repr({**vars(thing), "tags": sorted(thing.tags)})
    note(shown)
    points.cross("entered", "take")
    return shown


@cf.tool(contract=cf.Read())
def give() -> Everything:
    """Return one of everything."""
    note("give")
    return EVERYTHING


def values_in() -> cf.Agent:
    return flow(calls(("take", {"thing": AS_JSON})), told, tools=[take])


def values_out() -> cf.Agent:
    return flow(calls(("give", {})), told, tools=[give])


@dataclass(frozen=True)
class Invoice:
    number: int


@dataclass(frozen=True)
class Bill:
    """What `Invoice` is called after a deploy."""

    number: int


@cf.tool(contract=cf.Read(), name="fetch")
def fetch_invoice() -> Invoice:
    """Fetch it."""
    return Invoice(7)


@cf.tool(contract=cf.Read(), name="fetch")
def fetch_bill() -> Bill:
    """Fetch it."""
    return Bill(7)


def before_the_deploy() -> cf.Agent:
    return flow(calls(("fetch", {})), calls(("mail", {})), told, tools=[fetch_invoice, mail])


def after_the_deploy() -> cf.Agent:
    return flow(calls(("fetch", {})), calls(("mail", {})), told, tools=[fetch_bill, mail])


class OutOfStock(Exception):
    """Its constructor takes what `args` does not hold."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(f"only {left} of {item} left")
        self.left = left


class Holding(Exception):
    """It holds what no file can."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__("the connection broke", connection)


def _broken(error: Callable[[], Exception]) -> cf.Tool:
    @cf.tool(name="ship", not_applied=(OutOfStock, Holding))
    def ship() -> str:
        """Fail before anything is shipped."""
        raise error()

    return ship


def custom_error() -> cf.Agent:
    return flow(calls(("ship", {})), told, tools=[_broken(lambda: OutOfStock("spoons", 2))])


def holding_error() -> cf.Agent:
    def fail() -> Exception:
        with socket.socket() as held:
            return Holding(held)

    return flow(calls(("ship", {})), told, tools=[_broken(fail)])


# K13. Cancel.


def read_then_mail() -> cf.Agent:
    return flow(calls(("read", {}), ("mail", {})), told, tools=[read, mail])


# K15. The whole reply.

REPLY = cf.Decision(
    text="Let me look.",
    calls=(
        cf.ToolCall(name="read", arguments='{ "what":  "odd \\u00e9 spaces" }', id="a"),
        cf.ToolCall(name="read", arguments="{}", id="b"),
    ),
    usage=cf.Usage(input_tokens=11, output_tokens=7, usd=0.25),
    raw={
        "role": "assistant",
        "reasoning": [{"type": "thinking", "text": "hm", "signature": "sgn=="}],
        "content": "Let me look.",
        "extra": {"z": 1, "a": [None, True, 1.5]},
    },
)


def show_reply(request: cf.ModelRequest) -> dict[str, Any]:
    said = request.history[0].decision
    same = said == REPLY and said.raw == REPLY.raw
    return {"text": json.dumps({"same": same, "results": [result.content for result in request.history[0].results]})}


def whole_reply() -> cf.Agent:
    return flow(REPLY, show_reply, tools=[read], limits=cf.Limits(usd=0.26))
