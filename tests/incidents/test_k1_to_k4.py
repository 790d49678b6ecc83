"""Public incidents K1 to K4: effect without receipt, half-finished turns, doubtful outcomes, wrong keys.

Judged by the provider's ledger and the model's own count, both outside of the killed process.
"""

import asyncio
import sqlite3
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import counterfoil as cf
from counterfoil.core.events import Verdict
from counterfoil.core.mail import GiveVerdict
from counterfoil.runtime.run import open_run
from counterfoil.stores.clock import SystemClock
from tests.incidents import flows
from tests.incidents.life import Bench
from tests.waiting import until

# K1. Effect landed, receipt missing.


def test_incident_1a_a_tool_that_outlives_its_lease_is_not_dispatched_again(bench: Bench) -> None:
    lease_s = 1.5
    bench.provider.behave("mail", fault="slow", seconds=3600)
    slow = bench.begin("one_mail", LEASE_S=str(lease_s))
    until(lambda: bench.effects("mail"), "the mail is sent, and its answer is not there yet")
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + 2 * lease_s, "two leases have passed")
    second = bench.live("one_mail", LEASE_S=str(lease_s))
    assert (second.code, second.said["error"]) == (75, "run_owned"), "the lease is renewed while the tool runs"
    bench.provider.advance(3600)
    assert bench.end(slow).status == "completed"
    assert bench.effects("mail") == 1
    assert bench.asked() == {1: 1, 2: 1}


def test_incident_1c_a_run_is_durable_before_start_returns(bench: Bench) -> None:
    async def resume() -> None:
        await cf.aresume(flows.one_mail(), "r1", store=bench.store)

    with pytest.raises(cf.CounterfoilError, match="there is no run 'r1'") as caught:
        asyncio.run(resume())
    assert caught.value.code == "no_such_run"
    bench.live("one_mail", KILL="before:turn_opened")  # started, and nothing else
    assert bench.asked() == {}
    assert bench.live("one_mail").status == "completed"
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1, 2: 1})


def test_incident_1d_a_restart_does_not_start_from_the_top(bench: Bench) -> None:
    bench.live("one_mail", KILL="effect:mail")
    for _ in range(3):
        again = bench.live("one_mail")
        assert (again.code, again.status, again.said["unknown"]) == (3, "unknown", ["1.1"])
    assert bench.effects("mail") == 1
    assert bench.asked() == {1: 1}


def test_incident_1f_an_error_of_one_tool_does_not_repeat_its_sibling(bench: Bench) -> None:
    bench.live("mail_then_broken_read")
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1, 2: 1})

    async def events() -> list[Any]:
        store = cf.open_store(bench.store)
        try:
            return [recorded.event for recorded in await store.events("r1")]
        finally:
            await store.close()

    [error] = [event for event in asyncio.run(events()) if type(event).__name__ == "Rejected"]
    assert (error.call, error.failure.kind, error.failure.message) == ("1.2", "ValueError", "no such thing")


# K2. Parallel calls, only some finished.


@pytest.mark.parametrize("kill", ["before:receipt+dispatched", "after:receipt+dispatched", "entered:ticket"])
def test_incident_2a_the_unanswered_calls_of_a_turn_are_run(bench: Bench, kill: str) -> None:
    bench.live("read_ticket_mail", KILL=kill)
    assert bench.live("read_ticket_mail").status == "completed"
    assert (bench.effects("ticket"), bench.effects("mail")) == (1, 1)
    assert bench.asked() == {1: 1, 2: 1}


def test_incident_2b_a_finished_sibling_does_not_run_again_when_the_other_waits_for_a_person(bench: Bench) -> None:
    assert bench.live("ask_and_mail").said["unknown"] == ["1.1"]
    assert bench.effects("mail") == 1

    async def answer() -> None:
        agent = flows.ask_and_mail()
        async with open_run(agent, "go", run_id="r1", store=bench.store) as run:
            await run.resolve(
                GiveVerdict(call="1.1", verdict=Verdict.APPLIED, by="dana", reason="asked", receipt=Raw(b'"yes"'))
            )

    asyncio.run(answer())
    assert bench.live("ask_and_mail").status == "completed"
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1, 2: 1})


# K3. Ambiguous outcome.


@pytest.mark.parametrize("flow, status, requests", [("one_ticket", "completed", 1), ("one_mail", "unknown", 1)])
def test_incident_3a_a_conflict_or_loss_caused_by_our_own_first_try(
    bench: Bench, flow: str, status: str, requests: int
) -> None:
    endpoint = flow.removeprefix("one_")
    bench.provider.behave(endpoint, fault="drop_response", times=1)
    assert bench.live(flow).status == status  # found by lookup, or said to be unknown: never a clean failure
    assert (bench.effects(endpoint), bench.requests(endpoint)) == (1, requests)


def test_incident_3d_not_found_is_no_proof_while_the_first_request_may_still_land(bench: Bench) -> None:
    bench.provider.behave("ticket", fault="apply_late", seconds=3600, times=1)
    bench.live("slowly_visible_ticket", KILL="lost:ticket")
    second = bench.begin("slowly_visible_ticket")
    until(lambda: lookups(bench), "it looks, and finds nothing")
    assert bench.effects("ticket") == 0
    bench.provider.advance(3600)  # what the killed process had sent lands now
    assert bench.end(second).status == "completed"
    assert (bench.effects("ticket"), bench.requests("ticket")) == (1, 1)
    assert len(lookups(bench)) >= 2, "the first look found nothing, and that was not taken for proof"


def test_incident_3d_the_same_lookup_taken_for_proof_at_once_creates_a_second_ticket(bench: Bench) -> None:
    """The planted fault: a settle time of zero, where the provider needs more."""
    bench.provider.behave("ticket", fault="apply_late", seconds=3600, times=1)
    bench.live("one_ticket", KILL="lost:ticket")
    bench.live("one_ticket")
    assert bench.effects("ticket") == 1, "it was created a second time"
    bench.provider.advance(3600)
    until(lambda: bench.effects("ticket") == 2, "the late one lands beside the second")


def lookups(bench: Bench) -> list[Any]:
    return [request for request in bench.provider.ledger.requests(endpoint="ticket") if request.method == "GET"]


def test_incident_3g_a_timeout_after_dispatch_is_not_told_to_the_model_as_an_error(bench: Bench) -> None:
    ended = bench.live("mail_that_times_out")
    assert (ended.status, ended.said["unknown"]) == ("unknown", ["1.1"])
    assert (bench.effects("mail"), bench.asked()) == (1, {1: 1})


# K4. Wrong identity for the key.


def test_incident_4a_the_providers_call_id_is_no_key(bench: Bench) -> None:
    bench.live("pay_5", "r1")
    bench.live("pay_7", "r2")
    amounts = sorted(effect.arguments["amount"] for effect in bench.provider.ledger.effects(endpoint="pay"))
    assert amounts == [5, 7, 9]
    assert len(bench.provider.ledger.effects_by_key()) == 3


def test_incident_4b_the_key_does_not_depend_on_what_is_minted_per_attempt(bench: Bench) -> None:
    bench.live("pay_10", KILL="effect:pay", TOKEN="first")
    assert bench.live("pay_10", TOKEN="second").status == "completed"
    assert (bench.effects("pay"), bench.requests("pay")) == (1, 2)
    [key] = {request.key for request in bench.provider.ledger.requests(endpoint="pay")}
    assert key.startswith("cf_")


def test_incident_4d_a_known_key_with_other_arguments_is_refused_before_any_request(bench: Bench) -> None:
    """The journal is edited so that the saved call pays 20 under the key that paid 10."""
    bench.live("pay_10", KILL="effect:pay")
    connection = sqlite3.connect(bench.store)
    with connection:
        changed = connection.execute(
            "update events set body = replace(body, '\"amount\":10', '\"amount\":20') where kind = 'decided'"
        ).rowcount
    connection.close()
    assert changed == 1
    again = bench.live("pay_10")
    assert (again.code, again.said["error"]) == (65, "journal_damaged")
    assert (bench.effects("pay"), bench.requests("pay")) == (1, 1)


@pytest.mark.parametrize("kill", ["before:receipt+dispatched", "after:receipt+dispatched", "effect:pay:2"])
def test_incident_4f_two_equal_calls_of_one_turn_are_two_calls(bench: Bench, kill: str) -> None:
    bench.live("two_equal_payments", KILL=kill)
    assert bench.live("two_equal_payments").status == "completed"
    assert sorted(bench.provider.ledger.effects_by_key().values()) == [1, 1]
    assert bench.asked() == {1: 1, 2: 1}


class Later(SystemClock):
    """The wall clock two days on; the boot-time clock stays what it is."""

    def now_us(self) -> int:
        return super().now_us() + int(timedelta(hours=48) / timedelta(microseconds=1))


@pytest.mark.parametrize("flow, status", [("pay_10", "unknown"), ("pay_10_or_find", "completed")])
def test_incident_4g_past_its_declared_life_the_key_proves_nothing(
    bench: Bench, flow: str, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench.live(flow, KILL="effect:pay")
    bench.provider.advance(48 * 3600)  # the provider purges old keys, so a repeat would be a second payment
    monkeypatch.setattr(flows, "URL", bench.provider.url)
    monkeypatch.setenv("ASKS", str(tmp_path / "asks"))

    async def two_days_later() -> str:
        store = cf.open_store(bench.store, clock=Later())
        try:
            return str((await cf.aresume(getattr(flows, flow)(), "r1", store=store)).status)
        finally:
            await store.close()

    assert asyncio.run(two_days_later()) == status
    assert (bench.effects("pay"), bench.requests("pay")) == (1, 1)
