"""The judge must be able to fail: every knob of the reference provider breaks a client that simply tries again."""

import http.client
import json
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil.testing.provider import Behaviour, Ledger, ProviderProcess


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[ProviderProcess]:
    with ProviderProcess(tmp_path / "ledger.db") as running:
        yield running


def ask(
    provider: ProviderProcess, method: str, path: str, body: Any = None, key: str = "", timeout: float = 10
) -> tuple[int, Any, bool]:
    """Send one request; return status, body and whether it was a replay. No answer is status 0."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(provider.url + path, data, method=method)
    if key:
        request.add_header("Idempotency-Key", key)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer), answer.headers.get("Idempotency-Replayed") == "true"
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers.get("Idempotency-Replayed") == "true"
    except (OSError, http.client.HTTPException):
        return 0, None, False


def test_a_known_key_makes_no_second_effect_but_the_request_is_counted(provider: ProviderProcess) -> None:
    first = ask(provider, "POST", "/tickets", {"title": "a"}, "k")
    again = ask(provider, "POST", "/tickets", {"title": "a"}, "k")
    assert (first[0], again[0]) == (201, 201)
    assert first[1] == again[1]
    assert (first[2], again[2]) == (False, True)
    assert provider.ledger.effects_by_key() == {"k": 1}
    assert [request.answer for request in provider.ledger.requests("k")] == ["applied", "replayed"]


def test_a_key_in_the_body_counts_too(provider: ProviderProcess) -> None:
    ask(provider, "POST", "/tickets", {"title": "a", "idempotency_key": "k"})
    ask(provider, "POST", "/tickets", {"title": "a", "idempotency_key": "k"})
    [effect] = provider.ledger.effects("k")
    assert effect.arguments == {"title": "a"}


def test_past_the_window_the_key_is_forgotten_and_the_effect_repeats(provider: ProviderProcess) -> None:
    provider.behave("tickets", key_window_s=100)
    ask(provider, "POST", "/tickets", {}, "k")
    provider.advance(99)
    ask(provider, "POST", "/tickets", {}, "k")
    assert provider.ledger.count() == 1
    provider.advance(2)
    ask(provider, "POST", "/tickets", {}, "k")
    assert provider.ledger.effects_by_key() == {"k": 2}


@pytest.mark.parametrize(
    "mode, status, effects, replayed", [("refuse", 409, 1, False), ("first", 201, 1, True), ("run", 201, 2, False)]
)
def test_a_known_key_with_other_arguments(
    provider: ProviderProcess, mode: str, status: int, effects: int, replayed: bool
) -> None:
    provider.behave("pay", on_changed_arguments=mode)
    ask(provider, "POST", "/pay", {"amount": 10}, "k")
    answer = ask(provider, "POST", "/pay", {"amount": 20}, "k")
    assert (answer[0], answer[2]) == (status, replayed)
    assert provider.ledger.count() == effects


# A client that just tries again, with the same key where the provider honours it, else without any effect of the key.
@pytest.mark.parametrize(
    "behaviour, effects",
    [
        ({"honour_keys": False}, 2),
        ({"honour_keys": False, "fault": "drop_response", "times": 1}, 2),
        ({"honour_keys": False, "fault": "reset_after", "times": 1}, 2),
        ({"honour_keys": False, "fault": "error_after", "times": 1}, 2),
        ({"fault": "drop_response", "times": 1}, 1),
        ({"fault": "reset_before", "times": 1}, 1),
        ({"fault": "error_before", "times": 1}, 1),
        ({"fault": "error_before", "times": 1, "cache_failures": True}, 0),
        ({"fault": "error_after", "times": 1, "cache_failures": True}, 1),
    ],
)
def test_two_tries_make_this_many_effects(
    shared: ProviderProcess, endpoint: str, behaviour: dict[str, Any], effects: int
) -> None:
    shared.behave(endpoint, **behaviour)
    ask(shared, "POST", f"/{endpoint}", {"to": "dana"}, "k")
    ask(shared, "POST", f"/{endpoint}", {"to": "dana"}, "k")
    assert len(shared.ledger.effects(endpoint=endpoint)) == effects
    assert len(shared.ledger.requests(endpoint=endpoint)) == 2


@pytest.mark.parametrize(
    "fault, status, effects",
    [
        ("drop_response", 0, 1),
        ("reset_after", 0, 1),
        ("reset_before", 0, 0),
        ("error_before", 500, 0),
        ("error_after", 500, 1),
    ],
)
def test_what_the_client_sees_does_not_tell_what_happened(
    shared: ProviderProcess, endpoint: str, fault: str, status: int, effects: int
) -> None:
    shared.behave(endpoint, fault=fault)
    assert ask(shared, "POST", f"/{endpoint}", {})[0] == status
    assert len(shared.ledger.effects(endpoint=endpoint)) == effects


def test_a_cached_failure_is_replayed_to_the_same_key(provider: ProviderProcess) -> None:
    provider.behave("pay", fault="error_after", times=1, cache_failures=True)
    assert ask(provider, "POST", "/pay", {}, "k")[0] == 500
    status, _, replayed = ask(provider, "POST", "/pay", {}, "k")
    assert (status, replayed, provider.ledger.count()) == (500, True, 1)


def test_an_effect_that_is_applied_late_commits_after_the_client_is_gone(provider: ProviderProcess) -> None:
    provider.behave("tickets", fault="apply_late", seconds=0.2, times=1)
    assert ask(provider, "POST", "/tickets", {}, "k")[0] == 0
    assert ask(provider, "GET", "/tickets?reference=k")[1] == [], "absent, although it is going to happen"
    provider.behave("tickets", in_flight="wait")
    status, _, replayed = ask(provider, "POST", "/tickets", {}, "k")  # waits for the late one
    assert (status, replayed) == (201, True)
    assert provider.ledger.effects_by_key() == {"k": 1}


def test_a_key_in_flight_is_refused_or_waited_for(provider: ProviderProcess) -> None:
    provider.behave("pay", fault="apply_late", seconds=0.2, times=1)
    ask(provider, "POST", "/pay", {}, "k")
    assert ask(provider, "POST", "/pay", {}, "k")[1]["error"] == "in_flight"


def test_a_lookup_lags_lies_fails_or_is_not_there(provider: ProviderProcess) -> None:
    provider.behave("tickets", lookup_lag_s=50)
    ask(provider, "POST", "/tickets", {"title": "a"}, "k")
    assert ask(provider, "GET", "/tickets?reference=k")[1] == []
    provider.advance(51)
    [found] = ask(provider, "GET", "/tickets?reference=k")[1]
    assert found["arguments"] == {"title": "a"}
    for lookup, status in (("off", 404), ("error", 500), ("lie_absent", 200)):
        provider.behave("tickets", lookup=lookup)
        assert ask(provider, "GET", "/tickets?reference=k")[0] == status


def test_a_client_chosen_id_conflicts_the_second_time(provider: ProviderProcess) -> None:
    provider.behave("events", client_ids=True, honour_keys=False)
    assert ask(provider, "POST", "/events", {"id": "e1"}, "k")[0] == 201
    assert ask(provider, "POST", "/events", {"id": "e1"}, "k")[1]["error"] == "exists"
    assert ask(provider, "GET", "/events/e1")[1]["reference"] == "k"
    assert provider.ledger.count() == 1


def test_every_put_is_an_effect_and_the_end_state_is_the_last(provider: ProviderProcess) -> None:
    provider.behave("settings", honour_keys=False)
    for value in (1, 2, 2):
        ask(provider, "PUT", "/settings/colour", {"value": value})
    assert ask(provider, "GET", "/settings/colour")[1]["arguments"] == {"value": 2}
    assert provider.ledger.count() == 3


def test_the_book_survives_a_kill_and_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first = ProviderProcess(path)
    first.behave("mail", fault="error_before", times=2)
    ask(first, "POST", "/mail", {}, "k")
    ask(first, "POST", "/tickets", {}, "t")
    first.kill()
    assert Ledger(path).effects_by_key() == {"t": 1}
    with ProviderProcess(path) as second:
        assert ask(second, "POST", "/mail", {}, "k")[0] == 500, "the fault had one more to fire"
        assert ask(second, "POST", "/mail", {}, "k")[0] == 201
        assert ask(second, "POST", "/tickets", {}, "t")[2], "the key is remembered"


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import os, sys, signal\n"
        "from counterfoil.testing.provider import ProviderProcess\n"
        "p = ProviderProcess(sys.argv[1])\nprint(p.url, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "l.db")]
    parent = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    port = int(parent.stdout.strip().rsplit(":", 1)[1])
    for _ in range(500):  # the kernel's signal takes a moment to be handled
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=1).request("GET", "/_health")
        except OSError:
            return
    pytest.fail("the provider outlived its parent")


def test_a_taken_port_is_one_clear_line(provider: ProviderProcess, tmp_path: Path) -> None:
    port = provider.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "counterfoil.testing.provider", "--port", port, "--ledger", str(tmp_path / "b.db")]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert second.returncode == 74
    assert len(second.stderr.strip().splitlines()) == 1
    assert port in second.stderr


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("PUT", "/_behaviour/x", {"nonsense": 1}, 400),
        ("PUT", "/_behaviour/x", {"lookup": "maybe"}, 400),
        ("PUT", "/_behaviour/x", {"seconds": -1}, 400),
        ("PUT", "/_behaviour/x", {"times": True}, 400),
        ("POST", "/_clock", {}, 400),
        ("POST", "/x", [1], 400),
        ("GET", "/x", None, 400),
        ("GET", "/x/none", None, 404),
        ("POST", "/_nothing", {}, 404),
    ],
)
def test_bad_input_is_told_and_changes_nothing(
    shared: ProviderProcess, method: str, path: str, body: Any, status: int
) -> None:
    before = shared.ledger.count()
    answer = ask(shared, method, path, body)
    assert answer[0] == status
    assert answer[1]["message"]
    assert shared.ledger.count() == before


def test_hostile_bytes_do_not_end_it(provider: ProviderProcess) -> None:
    host = provider.url.removeprefix("http://")
    for headers, body in (({"Content-Length": "99999999"}, b""), ({"Content-Length": "x"}, b""), ({}, b"{nonsense")):
        connection = http.client.HTTPConnection(host, timeout=5)
        connection.request("POST", "/x", body=body or None, headers=headers)
        assert connection.getresponse().status in (400, 413)
        connection.close()
    assert ask(provider, "GET", "/_health")[0] == 200


def test_many_at_once_each_have_their_effect(provider: ProviderProcess) -> None:
    threads = [threading.Thread(target=ask, args=(provider, "POST", "/x", {"n": n}, f"k{n}")) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert provider.ledger.effects_by_key() == {f"k{n}": 1 for n in range(20)}


def test_a_reader_cannot_write(provider: ProviderProcess) -> None:
    with pytest.raises(sqlite3.OperationalError):
        Ledger(provider.ledger.path.with_name("no-such.db")).count()


def test_behaviour_names_the_field_and_what_it_may_be() -> None:
    with pytest.raises(ValueError, match="on_changed_arguments='x' is not allowed; it is one of refuse, first, run"):
        Behaviour.from_json({"on_changed_arguments": "x"})
