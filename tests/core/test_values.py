"""Keys, bytes, contracts, limits, flows and errors: what they give, and what they refuse."""

from __future__ import annotations

import itertools
import pickle
import uuid
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec import Raw

from counterfoil import errors
from counterfoil.core.codec import canonical, decode, digest, encode, first_link, from_micros, link, to_micros
from counterfoil.core.contracts import (
    FOREVER,
    Bounds,
    ClientId,
    Contract,
    Keyed,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Transactional,
    key_style,
    needs_lookup,
    settle_time,
    wants_record,
)
from counterfoil.core.events import NO_JSON, Completed, Dispatched, Event, Paused, Proof, Receipt, Status
from counterfoil.core.flow import FlowManifest, ToolManifest, differences, fingerprint
from counterfoil.core.keys import KeyStyle, mint, render
from counterfoil.core.limits import (
    Limits,
    Spent,
    Usage,
    after_decision,
    after_dispatch,
    reached_before_ask,
    reached_before_dispatch,
)
from counterfoil.core.rules import Rule

SECOND = timedelta(seconds=1)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

# ---- keys


def test_keys_are_what_they_always_were() -> None:
    """Golden values: a key that changes between versions is a second effect."""
    key = mint(b"namespace", "ticket-77", "", 1, 1)
    assert key == mint(b"namespace", "ticket-77", "", 1, 1)
    assert {form: render(key, KeyStyle(format=form)) for form in ("text", "uuid", "base62", "base32hex")} == GOLDEN


GOLDEN = {
    "text": "cf_0e0d132f62f6156ad185dfcc9e9798fb",
    "uuid": "0e0d132f-62f6-456a-9185-dfcc9e9798fb",
    "base62": "0QVrnzGbh5CXVHbUGzfbvH",
    "base32hex": "1o6h6br2uoamlkc5rv69t5sovc",
}


def test_every_place_has_its_own_key() -> None:
    runs = ("a", "b", "a:1", "a/1", "a\n", "", "1", "a1", "é")
    places = list(itertools.product(runs, ("", "a", "1", "/"), (1, 2, 11), (1, 2, 11)))
    assert len({mint(b"n", *place) for place in places}) == len(places)
    assert mint(b"n", "a", "", 1, 1) != mint(b"m", "a", "", 1, 1)


@pytest.mark.parametrize(
    "form,length,alphabet",
    [
        ("text", 35, set("cf_0123456789abcdef")),
        ("uuid", 36, set("-0123456789abcdef")),
        ("base62", 22, set("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")),
        ("base32hex", 26, set("0123456789abcdefghijklmnopqrstuv")),
    ],
)
def test_renderings_keep_their_length_and_alphabet(form: str, length: int, alphabet: set[str]) -> None:
    style = KeyStyle(format=form)  # type: ignore[arg-type]  # one of the four
    keys = [bytes(16), b"\xff" * 16, *(mint(b"n", "r", "", 1, i) for i in range(50))]
    rendered = [render(key, style) for key in keys]
    assert {len(each) for each in rendered} == {length}
    assert set("".join(rendered)) <= alphabet
    assert len(set(rendered)) == len(keys)
    if form == "uuid":
        assert rendered == [str(uuid.UUID(bytes=key, version=4)) for key in keys]
    assert render(keys[0], KeyStyle(format=form, prefix="x-")) == f"x-{rendered[0]}"  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("wrong", [{"format": "hex"}, {"max_length": 34}, {"prefix": "p" * 221}])
def test_a_style_that_does_not_fit_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.DefinitionError):
        KeyStyle(**wrong)  # type: ignore[arg-type]  # it is wrong


# ---- bytes

EVENT = Dispatched(
    call="1.1",
    attempt=1,
    deadline=NOW,
    because=Rule.NEVER_SENT,
)


def test_bytes_are_what_they_always_were() -> None:
    body = b'{"kind":"dispatched","call":"1.1","attempt":1,"deadline":"2026-03-01T12:00:00Z","because":"never-sent"}'
    assert encode(EVENT) == body
    assert decode(body) == EVENT
    assert link(first_link("r"), 1, to_micros(NOW), 1, body).hex()[:16] == CHAIN


CHAIN = "62595a1d3bb683f9"


def test_any_changed_byte_swap_or_gap_breaks_the_chain() -> None:
    bodies = [encode(Receipt(call=f"1.{i}", proof=Proof.RESPONSE, result=Raw(b"1"))) for i in range(3)]

    def chain(some: list[bytes], start: int = 1) -> bytes:
        last = first_link("r")
        for position, body in enumerate(some, start=start):
            last = link(last, position, 5, 1, body)
        return last

    right = chain(bodies)
    assert all(
        chain([*bodies[:1], bodies[1][:i] + bytes([bodies[1][i] ^ 1]) + bodies[1][i + 1 :], bodies[2]]) != right
        for i in range(len(bodies[1]))
    )
    assert chain([bodies[1], bodies[0], bodies[2]]) != right
    assert chain(bodies[1:]) != right
    assert link(b"", 1, 5, 1, b"x") != link(b"", 1, 5, 2, b"x") != link(b"", 1, 6, 1, b"x")
    assert first_link("r") != first_link("s")


@pytest.mark.parametrize(
    "event",
    [
        Completed(output=Raw(b"nonsense")),
        Completed(output=Raw(b"Infinity")),
        Dispatched(call="1.1", attempt=1, deadline=datetime(2026, 1, 1), because=Rule.FOUND),  # noqa: DTZ001 - no zone
    ],
)
def test_what_could_not_be_read_back_is_not_written(event: Event) -> None:
    with pytest.raises(msgspec.DecodeError):
        encode(event)


def test_what_is_nested_too_deep_is_not_written() -> None:
    with pytest.raises(RecursionError):
        encode(Completed(output=Raw(b"[" * 100_000 + b"]" * 100_000)))


def test_absent_json_and_null_stay_apart() -> None:
    assert decode(encode(Receipt(call="1.1", proof=Proof.LOOKUP))).result == NO_JSON  # type: ignore[union-attr]  # a receipt
    assert decode(encode(Receipt(call="1.1", proof=Proof.LOOKUP, result=Raw(b"null")))).result == Raw(b"null")  # type: ignore[union-attr]  # a receipt


def test_digests_know_no_order_and_moments_no_loss() -> None:
    assert digest(b'{"a":1,"b":[2]}') == digest(b'{ "b": [2], "a": 1 }') != digest(b'{"a":1,"b":[3]}')
    assert canonical({"b": 1, "a": 2}) == b'{"a":2,"b":1}'
    assert from_micros(to_micros(NOW + timedelta(microseconds=1))) == NOW + timedelta(microseconds=1)


# ---- contracts

LINES: tuple[Contract, ...] = (
    Read(),
    Repeatable(),
    Keyed(),
    Lookup(settles_in=SECOND),
    ClientId(),
    Transactional(),
    OneShot(),
)


@pytest.mark.parametrize("first,then", list(itertools.product(LINES, LINES)))
def test_only_a_lookup_may_follow_and_only_what_can_be_repeated(first: Contract, then: Contract) -> None:
    if isinstance(then, Lookup) and isinstance(first, (Repeatable, Keyed, ClientId)):
        both = first | then
        assert needs_lookup(both)
        assert settle_time(both) == SECOND
        with pytest.raises(errors.DefinitionError, match="third line"):
            both | then
    else:
        with pytest.raises(errors.DefinitionError, match="means nothing"):
            first | then  # type: ignore[operator]  # that is the point


@pytest.mark.parametrize("span", [-SECOND, FOREVER + SECOND, timedelta.max])
def test_a_span_that_no_clock_can_be_asked_is_refused(span: timedelta) -> None:
    for make in (
        lambda: Keyed(remembered_for=span),
        lambda: Keyed(margin=span),
        lambda: Lookup(settles_in=span),
        lambda: Transactional(settles_in=span),
        lambda: Bounds(timeout=span),
        lambda: Bounds(proof_within=span),
    ):
        with pytest.raises(errors.DefinitionError):
            make()
    with pytest.raises(errors.DefinitionError):
        Bounds(repeats=-1)
    with pytest.raises(errors.DefinitionError):
        Bounds(lookups=0)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"keyed","margin":"-PT1S"}', type=Contract)


def test_what_a_contract_asks_of_its_tool() -> None:
    styles = [key_style(line) for line in LINES]
    assert [style is not None for style in styles] == [False, True, True, True, True, True, False]
    assert [needs_lookup(line) for line in LINES] == [False, False, False, True, False, True, False]
    assert [wants_record(line) for line in LINES] == [False] + [True] * 6
    assert [settle_time(line) is not None for line in LINES] == [False, False, False, True, False, True, False]


# ---- limits and flows


def test_what_is_spent_adds_up_over_all_lives() -> None:
    spent = after_dispatch(after_decision(Spent(), Usage(input_tokens=3, output_tokens=4, usd=0.5)))
    assert spent == Spent(turns=1, calls=1, tokens=7, usd=0.5)
    assert reached_before_ask(Limits(turns=1), spent) == "turns: 1 of 1 used"
    assert reached_before_ask(Limits(tokens=7), spent) == "tokens: 7 of 7 used"
    assert reached_before_ask(Limits(usd=0.5), spent) == "usd: 0.5000 of 0.5000 used"
    assert reached_before_ask(Limits(turns=2, tokens=8, usd=0.6), spent) is None
    assert reached_before_ask(Limits(turns=None), spent) is None
    assert reached_before_dispatch(Limits(calls=1), spent) == "calls: 1 of 1 used"
    assert reached_before_dispatch(Limits(calls=2), spent) is None
    assert reached_before_dispatch(Limits(), spent) is None


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_an_amount_that_is_none_is_refused(amount: float) -> None:
    with pytest.raises(errors.DefinitionError):
        Limits(usd=amount)
    with pytest.raises(errors.DefinitionError):
        Usage(usd=amount)


FLOW = FlowManifest(
    name="f", version="1", model={"name": "m"}, instructions="i", tools={"t": ToolManifest(contract=OneShot())}
)


@pytest.mark.parametrize(
    "change,where",
    [
        ({"name": "g"}, "flow name"),
        ({"version": "2"}, "flow version"),
        ({"instructions": "j"}, "instructions"),
        ({"loop_rules": 2}, "loop rules"),
        ({"model": {"name": "n"}}, "model name"),
        ({"tools": {}}, "tool t"),
        ({"tools": {"t": ToolManifest(contract=Read())}}, "tool t: contract"),
        ({"tools": {"t": ToolManifest(contract=OneShot(), bounds=Bounds(repeats=1))}}, "tool t: bounds"),
        ({"tools": {"t": ToolManifest(contract=OneShot(), description="d")}}, "tool t: description"),
        ({"tools": {"t": ToolManifest(contract=OneShot(), arguments="a")}}, "tool t: arguments"),
        ({"tools": {"t": ToolManifest(contract=OneShot(), result="r")}}, "tool t: result"),
    ],
)
def test_each_difference_between_two_flows_is_named(change: dict[str, object], where: str) -> None:
    other = msgspec.structs.replace(FLOW, **change)
    found = differences(FLOW, other)
    assert where in {each.where for each in found}
    assert all("was" in str(each) for each in found)
    assert fingerprint(other) != fingerprint(FLOW)


def test_the_place_of_a_flow_is_no_difference() -> None:
    other = msgspec.structs.replace(FLOW, entry="m:f")
    assert differences(FLOW, other) == ()
    assert fingerprint(other) == fingerprint(FLOW)


# ---- errors


def test_every_error_can_be_pickled_and_names_the_next_step() -> None:
    leaves = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.CounterfoilError)
    ]
    assert len(leaves) >= 12
    for leaf in leaves:
        again = pickle.loads(pickle.dumps(leaf("what", remedy="do this")))
        assert (type(again), str(again), again.remedy) == (leaf, "what", "do this")
        assert again.__notes__ == ["next: do this"], "a traceback shows the next step"
        assert leaf("what").remedy.endswith(".")
        assert leaf.code
    assert len({leaf.code for leaf in leaves}) == len(leaves)
    model = pickle.loads(pickle.dumps(errors.ModelError("busy", retryable=True)))
    assert (str(model), model.retryable) == ("busy", True)
    assert not issubclass(errors.DispatchRefused, Exception)


def test_a_status_knows_whether_it_is_the_end() -> None:
    assert {status for status in Status if status.terminal} == {Status.COMPLETED, Status.FAILED, Status.CANCELLED}
    assert Paused(status=Status.WAITING, because=Rule.CANCEL).until is None
