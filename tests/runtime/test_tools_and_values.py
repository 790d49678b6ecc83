"""What a definition must be to be taken, and what a value must be to be kept."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from functools import wraps
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from msgspec import Raw
from pydantic import BaseModel, Field, computed_field

import counterfoil as cf
from counterfoil.core.codec import decode, encode
from counterfoil.core.events import Proof, Receipt, Unstored
from counterfoil.errors import DefinitionError
from counterfoil.runtime.values import ResultType, failure_of
from counterfoil.stores.sqlite import SqliteStore
from tests.runtime.outside import agent, calling, events, kinds


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Word(StrEnum):
    A = "a"


@dataclass
class Inner:
    blob: bytes
    ratio: float = 1.0


@dataclass(eq=False)
class Outer:
    inner: Inner
    many: list[Inner]


class Model(BaseModel):
    name: str = Field(alias="theName")
    colour: Colour

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def loud(self) -> str:
        return self.name.upper()


class Base(BaseModel):
    x: int


class Sub(Base):
    y: int


class Pair(NamedTuple):
    a: int
    b: bytes


KEPT: list[tuple[Any, Any]] = [
    (str, "é"),
    (int, 2**63),
    (float, -0.0),
    (bool, True),
    (None, None),
    (Any, {"a": [1, None, "x", 1.5, True]}),
    (dict, {}),
    (Colour, Colour.RED),
    (Number, Number.ONE),
    (Decimal, Decimal("1.10")),
    (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3)))),
    (datetime, datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    (timedelta, timedelta(days=1, microseconds=1)),
    (bytes, b"\x00\xff"),
    (UUID, UUID(int=5)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset("ab")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (list[Colour], [Colour.RED]),
    (dict[int, Decimal], {1: Decimal(2)}),
    (float | None, float("inf")),
    (list[float], [float("nan")]),
    (Inner, Inner(b"\xff", float("-inf"))),
    (Outer, Outer(Inner(b"\xff"), [Inner(b"")])),
    (Model, Model(theName="n", colour=Colour.RED)),
    (Pair, Pair(1, b"\xfe")),
]

NOT_KEPT: list[tuple[Any, Any]] = [
    (Any, (1, 2)),
    (Any, {1: 2}),
    (Any, float("nan")),
    (Any, float("inf")),
    (Any, 2**64),
    (Any, b"x"),
    (Any, Word.A),
    (Any, Number.ONE),
    (Any, Decimal(1)),
    (str, Word.A),
    (Any, "\ud800"),
    (Any, object()),
    (dict[str, Any], {"n": Number.ONE}),
    (dict[str, Any], {"d": Decimal(1)}),
    (dict[str, Any], {"t": (1,)}),
    (list[Any], [b"\xff"]),
    (int | None, "5"),
    (Base, Sub(x=1, y=2)),
    (str | bytes, b"\xff"),
    (list[int], [1] * 600_000),
]


@pytest.mark.parametrize("declared, value", KEPT)
def test_what_is_kept_comes_back_as_the_same_value_in_the_same_type(declared: Any, value: Any) -> None:
    kind = ResultType(declared, "t")
    stored = kind.dump(value)
    assert isinstance(stored, Raw), stored
    event = decode(encode(Receipt(call="1.1", proof=Proof.RESPONSE, result=stored)))
    assert isinstance(event, Receipt)
    back = kind.load(event.result)
    assert type(back) is type(value)
    assert repr(back) == repr(value) or back == value or vars(back).keys() == vars(value).keys()


@pytest.mark.parametrize("declared, value", NOT_KEPT)
def test_what_would_come_back_changed_is_not_kept_and_that_is_said(declared: Any, value: Any) -> None:
    lost = ResultType(declared, "t").dump(value)
    assert isinstance(lost, Unstored)
    assert lost.why
    assert (lost.size > 0, len(lost.sha256)) == (True, 64)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_no_value_and_no_exception_breaks_what_keeps_them() -> None:
    assert isinstance(ResultType(Any, "t").dump(Hostile()), Unstored)

    class Worse(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert failure_of(Worse()).message == "(its text could not be made)"
    assert failure_of(ValueError("\ud800")).message == "?"
    assert bytes(failure_of(ValueError("a", 1)).data) == b'["a",1]'
    assert bytes(failure_of(ValueError("a", object())).data) == b""
    assert bytes(failure_of(ValueError("a", "\ud800")).data) == b""


@pytest.mark.parametrize("declared", [object.__class__, Hostile, type(lambda: 0), list[Hostile]])
def test_a_result_type_that_cannot_make_the_way_is_refused_when_the_tool_is_defined(declared: Any) -> None:
    def work() -> Any:
        """Work."""

    work.__annotations__["return"] = declared
    with pytest.raises(DefinitionError, match="tool work: a result of type"):
        cf.tool(work)


def positional(a: int, /) -> None:
    """Work."""


def many(*values: int) -> None:
    """Work."""


def named(**values: int) -> None:
    """Work."""


def unknown_hint(a: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821 - that is the point
    """Work."""


def called(call: str) -> None:
    """Work."""


def generator() -> Any:
    """Work."""
    yield 1


async def async_generator() -> Any:
    """Work."""
    yield 1


@pytest.mark.parametrize(
    "function, says",
    [
        (positional, "a model passes names"),
        (many, "a model passes names"),
        (named, "a model passes names"),
        (unknown_hint, "type hints cannot be read"),
        (called, "its parameter `call` is handed the `Call`"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
    ],
)
def test_a_function_that_is_no_tool_is_refused_when_it_is_defined(function: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        cf.tool(function)


def test_what_only_a_flow_can_see_is_refused_when_the_flow_is_made() -> None:
    @cf.tool(contract=cf.Lookup(settles_in=timedelta(0)))
    def blind() -> None:
        """Work."""

    @cf.tool
    def hostile(a: Hostile) -> None:
        """Work."""

    @cf.tool
    def defaulted(a: int = Field(ge=1)) -> None:
        """Work."""

    @cf.tool
    def twin() -> None:
        """Work."""

    refused: list[tuple[list[Any], str]] = [
        ([blind], "has none"),
        ([hostile], "cannot be described as JSON"),
        ([defaulted], "Annotated"),
        ([twin, twin], "two tools named twin"),
        ([lambda: 1], "is not a tool"),
    ]
    for tools, says in refused:
        with pytest.raises(DefinitionError, match=says):
            cf.Agent("test", version="1", model=cf.ScriptedModel([]), tools=tools)


def test_the_schema_is_made_from_the_hints_whatever_the_names() -> None:
    @cf.tool
    def work(json: str, copy: Annotated[int, Field(ge=1)] = 3, model_config: bool = False, *, call: cf.Call) -> str:
        """Do the work."""
        return json * copy

    assert work.description == "Do the work."
    assert work.spec.parameters["required"] == ["json"]
    assert set(work.spec.parameters["properties"]) == {"json", "copy", "model_config"}
    assert work.spec.parameters["additionalProperties"] is False
    assert work.parse(Raw(b'{"json":"a"}')) == {"json": "a", "copy": 3, "model_config": False}
    assert work(json="a", copy=2, call=None) == "aa", "calling it runs the bare function"
    refused = work.refusal('{"json": "a", "copy": 0}')
    assert refused is not None
    assert refused.message == "work: copy: Input should be greater than or equal to 1"


async def test_a_plain_function_that_returns_a_coroutine_is_not_called_done(store: SqliteStore) -> None:
    ran: list[int] = []

    async def send() -> str:
        """Send."""
        ran.append(1)
        return "sent"

    def wrapped() -> Any:
        return send()

    tool = cf.tool(name="send")(wrapped)
    result = await cf.arun(agent(tool), 1, run_id="r1", store=store)
    assert (result.status, ran) == (cf.Status.UNKNOWN, [])

    @wraps(send)
    async def properly(*args: Any, **kwargs: Any) -> Any:
        return await send(*args, **kwargs)

    done = await cf.arun(agent(cf.tool(name="send")(properly)), 1, run_id="r2", store=store)
    assert (done.status, ran) == (cf.Status.COMPLETED, [1])


async def test_a_tool_without_a_contract_is_one_shot_and_listed(store: SqliteStore) -> None:
    @cf.tool
    def plain() -> None:
        """Work."""

    @cf.tool(contract=cf.Read())
    def declared() -> None:
        """Work."""

    flow = agent(plain, declared)
    assert (flow.undeclared, plain.contract) == (("plain",), cf.OneShot())


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_declared_exception_proves_that_nothing_happened(store: SqliteStore, is_async: bool) -> None:
    @cf.tool(not_applied=(LookupError,), name="work")
    async def in_loop() -> None:
        """Work."""
        raise KeyError("gone")

    @cf.tool(not_applied=(LookupError,), name="work")
    def in_thread() -> None:
        """Work."""
        raise KeyError("gone")

    tool = in_loop if is_async else in_thread
    assert (await cf.arun(agent(tool), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert kinds(await events(store)).count("rejected") == 1


@pytest.mark.parametrize("error", [SystemExit(1), RuntimeError("x"), TimeoutError()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_else_a_tool_raises_proves_nothing(store: SqliteStore, error: Any, is_async: bool) -> None:
    @cf.tool(name="work")
    async def in_loop() -> None:
        """Work."""
        raise error

    @cf.tool(name="work")
    def in_thread() -> None:
        """Work."""
        raise error

    tool = in_loop if is_async else in_thread
    assert (await cf.arun(agent(tool), 1, run_id="r1", store=store)).status is cf.Status.UNKNOWN


async def test_an_existing_object_is_looked_up_and_never_a_clean_failure(store: SqliteStore) -> None:
    @cf.tool(contract=cf.ClientId())
    async def create(*, call: cf.Call) -> str:
        """Create."""
        raise cf.AlreadyExists(call.key)

    @create.lookup
    async def find(call: cf.Call) -> Any:
        return cf.Found(f"ours {call.key}") if call.arguments == {} else cf.CannotTell("not ours")

    assert (await cf.arun(agent(create), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    [receipt] = [event for event in await events(store) if isinstance(event, Receipt)]
    assert receipt.proof is Proof.LOOKUP


@pytest.mark.parametrize("answer", [None, "absent", RuntimeError("no"), SystemExit(1), cf.CannotTell("?")])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_lookup_that_does_not_answer_is_bounded_and_not_an_absence(
    store: SqliteStore, answer: Any, is_async: bool
) -> None:
    entered: list[int] = []
    asked: list[int] = []

    @cf.tool(contract=cf.Lookup(settles_in=timedelta(0)), lookups=2)
    async def send() -> None:
        """Send."""
        entered.append(1)
        raise ConnectionResetError

    def say() -> Any:
        asked.append(1)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def in_loop(call: cf.Call) -> Any:
        return say()

    def in_thread(call: cf.Call) -> Any:
        return say()

    send.lookup(in_loop if is_async else in_thread)
    result = await cf.arun(agent(send, turns=[calling("send")]), 1, run_id="r1", store=store)
    assert (result.status, entered, len(asked)) == (cf.Status.UNKNOWN, [1], 2)


def test_msgspec_is_what_judges_a_journal() -> None:
    """What the values test stands on: an event that cannot be read back is refused when it is written."""
    with pytest.raises(msgspec.DecodeError):
        encode(Receipt(call="1.1", proof=Proof.RESPONSE, result=Raw(b"Infinity")))


def test_a_key_window_that_no_repeat_can_ever_use_is_refused() -> None:
    @cf.tool(contract=cf.Keyed(remembered_for=timedelta(seconds=90)))
    def pay(amount: int) -> int:
        return amount

    with pytest.raises(cf.CounterfoilError, match="can never be used again") as caught:
        pay.check()
    assert "shorter timeout" in caught.value.remedy


@pytest.mark.parametrize("status,proves", [(422, True), (404, True), (409, False), (500, False)])
def test_a_status_proves_that_nothing_was_done_only_if_the_author_says_so(status: int, proves: bool) -> None:
    @cf.tool(not_applied=(ValueError, 404, 422))
    def send() -> None:
        """Send."""

    class Refused(Exception):
        def __init__(self) -> None:
            self.response = SimpleNamespace(status_code=status)

    assert send.proves_not_applied(Refused()) is proves
    assert send.proves_not_applied(ValueError())
    assert not send.proves_not_applied(KeyError())
