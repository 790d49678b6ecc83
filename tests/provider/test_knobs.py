"""Mutation check of the judge: each knob breaks a client that is right with a well-behaved provider.

A knob that could break nobody would prove nothing about a client that survives it.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from counterfoil.testing.provider import ProviderProcess
from tests.provider import client
from tests.provider.client import Caller, Naive

LATE = {"fault": "apply_late", "seconds": 50, "times": 1}
DROPPED = {"fault": "drop_response", "times": 1}


@pytest.mark.parametrize(
    "naive,sane,broken,effects",
    [
        # The answer is lost, the effect is not.
        (client.new_keys, {}, DROPPED, 2),
        (client.new_keys, {}, {"fault": "reset_after", "times": 1}, 2),
        (client.new_keys, {}, {"fault": "error_after", "times": 1}, 2),
        (client.new_keys, {}, {"fault": "slow", "seconds": 50, "times": 1}, 2),
        # The answer is lost, and the effect is still to come.
        (client.new_keys, {}, LATE, 2),
        (client.new_keys, {}, LATE | {"late_answer": "hold"}, 2),
        (client.new_keys, {}, {"fault": "slow_before", "seconds": 50, "times": 1}, 2),
        # Nothing has happened.
        (client.believes, {}, {"fault": "reset_before"}, 0),
        (client.believes, {}, {"fault": "error_before"}, 0),
        # The key is not what it seems.
        (client.twice, {}, {"honour_keys": False}, 2),
        (client.twice, {}, {"key_window_s": 0}, 2),
        (client.reworded, {}, {"on_changed_arguments": "run"}, 2),
        (client.same_key, {"fault": "error_before", "times": 1}, {"cache_failures": True}, 0),
        # The lookup is not what it seems.
        (client.looks_first, DROPPED, {"lookup_lag_s": 50}, 2),
        (client.looks_first, DROPPED, {"lookup": "lie_absent"}, 2),
        (client.looks_first, DROPPED, {"lookup": "error"}, 2),
        (client.looks_first, DROPPED, {"lookup": "off"}, 2),
        (client.looks_first, DROPPED, LATE, 2),
        (client.fetches_first, DROPPED | {"client_ids": True}, {"lookup_lag_s": 50}, 2),
        (client.fetches_first, DROPPED | {"client_ids": True}, {"lookup": "lie_absent"}, 2),
        # The conflict is the work of our own first try.
        (client.renames, {"client_ids": True}, DROPPED, 2),
    ],
)
def test_each_knob_breaks_a_client_that_is_right_without_it(
    shared: ProviderProcess,
    call: Caller,
    endpoint: str,
    naive: Naive,
    sane: dict[str, Any],
    broken: dict[str, Any],
    effects: int,
) -> None:
    well = Caller(port=call.port, endpoint=f"{endpoint}-well")
    shared.behave(well.endpoint, **sane)
    naive(well)
    assert len(shared.ledger.effects(endpoint=well.endpoint)) == 1

    shared.behave(endpoint, **sane | broken)
    naive(call)
    shared.advance(51)  # What comes late comes now.
    assert len(shared.ledger.wait_for_effects(effects, endpoint=endpoint)) == effects


def test_the_first_result_for_other_arguments_reports_what_never_happened(
    shared: ProviderProcess, call: Caller, endpoint: str
) -> None:
    assert [reply.status for reply in client.reworded(call)] == [201, 409]
    other = Caller(port=call.port, endpoint=f"{endpoint}-first")
    shared.behave(other.endpoint, on_changed_arguments="first")
    assert [reply.status for reply in client.reworded(other)] == [201, 201]
    assert [effect.arguments for effect in shared.ledger.effects(endpoint=other.endpoint)] == [{"text": "hello"}]


def test_a_cached_failure_after_the_effect_never_becomes_a_success(
    shared: ProviderProcess, call: Caller, endpoint: str
) -> None:
    shared.behave(endpoint, fault="error_after", times=1, cache_failures=True)
    reply = client.same_key(call)
    assert (reply.status, reply.replayed) == (500, True)
    assert len(shared.ledger.effects(endpoint=endpoint)) == 1
    shared.advance(86_401)  # Past the window the failure is forgotten, and the effect with it.
    assert call.create({"to": "dana"}, key="k").status == 201
    assert len(shared.ledger.effects(endpoint=endpoint)) == 2


@pytest.mark.parametrize("in_flight,effects", [("refuse", 2), ("wait", 1)])
def test_a_key_in_flight_breaks_who_takes_the_conflict_for_a_no(
    shared: ProviderProcess, call: Caller, endpoint: str, in_flight: str, effects: int
) -> None:
    shared.behave(endpoint, fault="slow_before", seconds=50, times=1, in_flight=in_flight)
    first = threading.Thread(target=call.create, kwargs={"key": "k"})
    first.start()
    shared.ledger.wait_for_requests(1, endpoint=endpoint)

    def second() -> None:
        if call.create(key="k").status == 409:
            call.create(key="another")

    repeat = threading.Thread(target=second)
    repeat.start()
    shared.ledger.wait_for_requests(2, endpoint=endpoint)
    if in_flight == "refuse":
        repeat.join()
    shared.advance(51)
    first.join()
    repeat.join()
    assert len(shared.ledger.effects(endpoint=endpoint)) == effects


def test_a_fault_without_a_count_fires_on_replays_too(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    shared.behave(endpoint, fault="drop_response")
    assert [call.create(key="k").status for _ in range(3)] == [0, 0, 0]
    shared.behave(endpoint)
    assert call.create(key="k").replayed
    answers = [request.answer for request in shared.ledger.requests("k", endpoint)]
    assert answers == ["drop_response"] * 3 + ["replayed"]
    assert len(shared.ledger.effects(endpoint=endpoint)) == 1


def test_a_fault_with_a_count_fires_that_often(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    shared.behave(endpoint, fault="error_before", times=2)
    assert [call.create().status for _ in range(4)] == [500, 500, 201, 201]
    shared.behave(endpoint, fault="error_before", times=1)
    assert [call.create().status for _ in range(2)] == [500, 201], "set again, it counts again"


def test_late_means_after_the_client_hung_up_and_after_the_lookup_said_absent(
    shared: ProviderProcess, call: Caller, endpoint: str
) -> None:
    shared.behave(endpoint, **LATE)
    assert call.create({"title": "a"}, key="k").status == 0
    assert call.find("k").body == []
    assert call.create({"title": "a"}, key="k").body["error"] == "in_flight"
    shared.advance(51)
    [effect] = shared.ledger.wait_for_effects(1, endpoint=endpoint)
    assert effect.arguments == {"title": "a"}
    assert [found["id"] for found in call.find("k").body] == [effect.object_id]
    assert call.create({"title": "a"}, key="k").replayed


def test_a_held_answer_comes_when_the_late_effect_is_applied(
    shared: ProviderProcess, call: Caller, endpoint: str
) -> None:
    shared.behave(endpoint, **LATE | {"late_answer": "hold"})
    replies: list[client.Reply] = []
    waiting = threading.Thread(target=lambda: replies.append(call.create(key="k")))
    waiting.start()
    shared.ledger.wait_for_requests(1, endpoint=endpoint)
    assert shared.ledger.effects(endpoint=endpoint) == []
    while waiting.is_alive():  # It may have been noted, and not accepted yet, when the clock moves first.
        shared.advance(51)
        waiting.join(0.05)
    assert [reply.status for reply in replies] == [201]


def test_a_reset_is_a_reset_and_a_drop_is_an_end(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    for fault, error in (
        ("reset_before", ConnectionResetError),
        ("reset_after", ConnectionResetError),
        ("drop_response", ConnectionError),
    ):
        shared.behave(endpoint, fault=fault)
        ended = call.create().body
        assert isinstance(ended, error)
        assert ("reset by peer" in str(ended)) == fault.startswith("reset")


def test_a_put_is_performed_each_time_whatever_its_key(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    headers = {"Idempotency-Key": "k", "X-Reference": "r"}
    for object_id in ("red", "blue", "blue"):
        assert call.put(object_id, {"value": 1}, **headers).body["id"] == object_id
    assert len(shared.ledger.effects("k", endpoint)) == 3
    assert [found["id"] for found in call.find("r").body] == ["red", "blue"], "an object is found once"


def test_every_lookup_knob_holds_for_ids_too(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    shared.behave(endpoint, lookup_lag_s=50)
    call.put("a", {"value": 1}, **{"X-Reference": "r"})
    assert call.fetch("a").status == 404
    shared.advance(51)
    assert call.fetch("a").body == {"id": "a", "endpoint": endpoint, "arguments": {"value": 1}, "reference": "r"}
    for lookup, status in (("off", 404), ("error", 500), ("lie_absent", 404)):
        shared.behave(endpoint, lookup=lookup)
        assert call.fetch("a").status == status
    answers = [request.answer for request in shared.ledger.requests(endpoint=endpoint) if request.method == "GET"]
    assert answers == ["absent", "found", "lookup off", "lookup error", "lookup lie_absent"]


def test_a_reference_is_found_where_keys_mean_nothing(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    shared.behave(endpoint, honour_keys=False)
    call.create({"n": 1}, key="k")
    call.create({"n": 2}, key="k")
    call.create({"n": 3}, key="k", reference="r")
    assert [found["arguments"]["n"] for found in call.find("k").body] == [1, 2]
    assert [found["reference"] for found in call.find("r").body] == ["r"]


def test_the_provider_never_takes_an_id_that_a_client_chose(
    shared: ProviderProcess, call: Caller, endpoint: str
) -> None:
    shared.behave(endpoint, client_ids=True)
    after_next = int(call.create().body["id"].rpartition("-")[2]) + 2
    call.create({"id": f"{endpoint}-{after_next}"})
    call.create()
    ids = [effect.object_id for effect in shared.ledger.effects(endpoint=endpoint)]
    assert len(ids) == len(set(ids)) == 3


def test_a_put_may_ask_that_nothing_be_there_yet(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    assert call.put("o1", {"n": 1}, **{"If-None-Match": "*"}).status == 201
    refused = call.put("o1", {"n": 2}, **{"If-None-Match": "*"})
    assert (refused.status, refused.body["error"]) == (412, "exists")
    assert [effect.arguments for effect in shared.ledger.effects(endpoint=endpoint)] == [{"n": 1}]
    assert call.put("o1", {"n": 3}).ok


def test_a_reader_may_ask_for_what_is_new(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    call.create({"n": 1}, key="old")
    effects, requests = shared.ledger.newest()
    call.create({"n": 2}, key="new")
    assert [effect.key for effect in shared.ledger.effects(after=effects)] == ["new"]
    assert [request.key for request in shared.ledger.requests(after=requests)] == ["new"]
