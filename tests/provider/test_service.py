"""The provider as a process: what survives a kill, what it refuses, and that nothing makes it stumble."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from counterfoil.testing.provider import Behaviour, Ledger, ProviderProcess
from tests.provider.client import Caller, hang_up, raw

COMMAND = [sys.executable, "-m", "counterfoil.testing.provider"]


def again(stopped: ProviderProcess) -> ProviderProcess:
    """Start it once more, under its old URL."""
    return ProviderProcess(stopped.ledger.path, port=stopped.port)


def test_what_was_accepted_happens_even_if_the_provider_is_killed_first(own: ProviderProcess) -> None:
    call = Caller(port=own.port, endpoint="tickets")
    own.behave("tickets", fault="apply_late", seconds=1000, times=1)
    call.create({"title": "a"}, key="k")
    own.kill()
    assert own.ledger.effects() == []
    with again(own) as second:
        assert second.url == own.url
        assert call.create({"title": "a"}, key="k").body["error"] == "in_flight"
        second.advance(1001)
        [effect] = second.ledger.wait_for_effects(1)
        assert (effect.key, effect.arguments) == ("k", {"title": "a"})
        assert call.create({"title": "a"}, key="k").replayed
        second.kill()
    with again(own) as third:
        third.behave("other", fault="apply_late", seconds=0.001)  # Would come after what was left over.
        Caller(port=third.port, endpoint="other").create()
        assert [effect.endpoint for effect in third.ledger.wait_for_effects(2)] == ["tickets", "other"], "not again"


def test_what_only_waited_in_memory_is_gone_with_the_provider(own: ProviderProcess) -> None:
    call = Caller(port=own.port, endpoint="mail")
    own.behave("mail", fault="slow_before", seconds=1000, times=1)
    call.create(key="k", timeout=0.1)
    own.kill()
    with again(own) as second:
        second.advance(1001)
        assert [request.answer for request in second.ledger.requests()] == ["none"]
        assert call.create(key="k").status == 201
        assert second.ledger.effects_by_key() == {"k": 1}


def test_behaviour_clock_and_keys_outlive_a_kill(own: ProviderProcess) -> None:
    call = Caller(port=own.port, endpoint="pay")
    own.behave("pay", key_window_s=100, lookup_lag_s=50)
    call.create(key="old")
    own.advance(60)
    call.create(key="new")
    own.kill()
    with again(own) as second:
        assert call.send("GET", "/_behaviour/pay").body["key_window_s"] == 100
        assert call.find("old").body, "the clock is still ahead"
        assert call.find("new").body == []
        second.advance(60)
        call.create(key="old")
        call.create(key="new")
        assert second.ledger.effects_by_key() == {"old": 2, "new": 1}


def test_a_kill_between_many_requests_leaves_key_and_effect_together(own: ProviderProcess) -> None:
    call = Caller(port=own.port, endpoint="pay")

    def pay(lane: int) -> None:
        n = 0
        while call.create({"n": n}, key=f"{lane}-{n}").ok:
            n += 1

    lanes = [threading.Thread(target=pay, args=(lane,)) for lane in range(4)]
    for lane in lanes:
        lane.start()
    own.ledger.wait_for_effects(50)
    own.kill()
    for lane in lanes:
        lane.join()
    with again(own) as second:
        for request in second.ledger.requests():
            assert call.create(request.arguments, key=request.key).ok
        keys = {request.key for request in second.ledger.requests()}
        assert second.ledger.effects_by_key() == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_although_somebody_waits(tmp_path: Path, number: signal.Signals) -> None:
    command = [*COMMAND, "--ledger", str(tmp_path / "ledger.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        call = Caller(port=json.loads(process.stdout.readline())["port"], endpoint="mail")
        call.send("PUT", "/_behaviour/mail", {"fault": "slow", "seconds": 1000})
        waiting = threading.Thread(target=call.create)
        waiting.start()
        Ledger(tmp_path / "ledger.db").wait_for_effects(1)
        process.send_signal(number)
        output = process.communicate(timeout=10)
        waiting.join()
    assert (process.returncode, *output) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.db"], "nothing is left in the log"
    assert Ledger(tmp_path / "ledger.db").count() == 1


def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "counterfoil.db"
    db = sqlite3.connect(path)
    db.execute("create table events(run text)")
    db.commit()
    db.close()
    before = path.read_bytes()
    ended = subprocess.run([*COMMAND, "--ledger", str(path)], capture_output=True, text=True, check=False, timeout=30)
    assert (ended.returncode, ended.stdout) == (74, "")
    [line] = ended.stderr.splitlines()
    assert line.endswith(f"{path} cannot be used as a ledger: it is another database")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "port,ledger,words", [("0", "no/such/folder/l.db", "cannot be used as a ledger"), ("70000", "l.db", "port 70000")]
)
def test_what_cannot_be_served_is_one_clear_line(tmp_path: Path, port: str, ledger: str, words: str) -> None:
    command = [*COMMAND, "--port", port, "--ledger", str(tmp_path / ledger)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (ended.returncode, ended.stdout) == (74, "")
    [line] = ended.stderr.splitlines()
    assert words in line


def test_a_process_that_does_not_start_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="did not start"):
        ProviderProcess(tmp_path / "no" / "l.db")


POST = b"POST /hostile HTTP/1.1\r\nHost: x\r\n"


def post(body: bytes, headers: bytes = b"") -> bytes:
    return POST + headers + b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Content-Length: -1\r\n\r\n{}",
        POST + b"Content-Length: 1_0\r\n\r\n{}",
        POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
        post(b"x" * 12_000_000),
        POST + b"Content-Length: 99999999999\r\n\r\n{}",
        post(b"[" * 200_000),
        post(b'{"a":NaN}'),
        post(b'{"idempotency_key":[1,2,3]}'),
        post(b'{"idempotency_key":"\\ud800"}'),
        post(b"{}", b"Idempotency-Key: \xff\xfe\r\n"),
        post(b"{}", b"X-Reference: " + b"r" * 256 + b"\r\n"),
        post(b"{}", b"A: b\r\n" * 200),
        b"POST /hostile%0a HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST //[hostile HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /hostile/extra/part HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"DELETE /hostile/1 HTTP/1.1\r\n\r\n",
        b"PUT /_behaviour/_ledger HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /hostile/" + b"%ff" * 30_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00 a handshake\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
    ],
)
def test_hostile_bytes_are_refused_in_our_own_shape(shared: ProviderProcess, sent: bytes) -> None:
    head, _, body = raw(shared.port, sent).partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1"):
        assert head.split()[1][:1] in (b"4", b"5")
        assert b" 500 " not in head
    else:  # The request line was not understood, so the answer has no head either.
        body = head
    if sent.startswith(b"HEAD"):
        assert body == b""
    else:
        assert json.loads(body)["error"] in ("invalid", "not_found")
    assert shared.ledger.effects(endpoint="hostile") == []


def test_what_cannot_be_read_is_a_request_all_the_same(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    assert call.send("POST", f"/{endpoint}", "{nonsense").status == 400
    assert call.send("POST", f"/{endpoint}", "[]").status == 400
    assert [request.answer for request in shared.ledger.requests(endpoint=endpoint)] == ["invalid", "invalid"]


def test_no_key_is_no_key(shared: ProviderProcess, call: Caller, endpoint: str) -> None:
    for body in ({"idempotency_key": None}, {}):
        assert call.send("POST", f"/{endpoint}", body).status == 201
    assert [effect.key for effect in shared.ledger.effects(endpoint=endpoint)] == ["", ""]


@pytest.mark.parametrize("refused", [b"POST /_nothing", b"GET /_health", b"POST /_clock", b"PUT /_behaviour/x"])
def test_a_body_is_never_taken_for_the_next_request(shared: ProviderProcess, refused: bytes) -> None:
    body = b'{"x": "GET /_ledger HTTP/1.1"}'
    first = refused + b" HTTP/1.1\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    answers = raw(shared.port, first + b"GET /_health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answers.count(b"HTTP/1.1 ") == 2
    assert answers.endswith(b'{"ok": true}')


def test_a_client_that_dies_in_the_middle_changes_nothing_and_is_no_news(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    with log.open("w") as stderr:
        command = [*COMMAND, "--ledger", str(tmp_path / "ledger.db")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    with process:
        assert process.stdout is not None
        call = Caller(port=json.loads(process.stdout.readline())["port"], endpoint="mail")
        whole = b"POST /mail HTTP/1.1\r\nIdempotency-Key: k\r\nContent-Length: 10\r\n\r\n" + b'{"a": 123}'
        for torn in (whole[:length] for length in range(0, len(whole), 3)):
            for reset in (False, True):
                hang_up(call.port, torn, reset=reset)
        for fault in ("reset_before", "reset_after", "drop_response", "slow"):
            call.send("PUT", "/_behaviour/mail", {"fault": fault, "seconds": 0.02})
            call.create(timeout=0.01 if fault == "slow" else 5)
        call.send("PUT", "/_behaviour/mail", {})
        assert call.create().status == 201
        process.terminate()
    assert process.returncode == 0
    assert log.read_text() == ""
    assert Ledger(tmp_path / "ledger.db").count() == 4


@pytest.mark.parametrize("field", ["honour_keys", "key_window_s", "lookup", "fault", "seconds", "times", "late_answer"])
def test_a_bad_field_is_named_with_what_it_may_be(
    shared: ProviderProcess, call: Caller, endpoint: str, field: str
) -> None:
    for value in ("x" * 10_000, -1, [], {}, 1e300, "Infinity"):
        with pytest.raises(ValueError, match=f"^{field}=.* is not allowed; it is "):
            shared.behave(endpoint, **{field: value})
        reply = call.send("PUT", f"/_behaviour/{endpoint}", {field: value})
        assert (reply.status, reply.body["error"]) == (400, "invalid")
        assert reply.body["message"].startswith(f"{field}=")
        assert len(reply.body["message"]) < 400
    with pytest.raises(ValueError, match="unknown field 'colour'; there are: cache_failures, "):
        Behaviour.from_json({"colour": 1})
    with pytest.raises(ValueError, match="lookup='x' is not allowed"):
        Behaviour(lookup="x")  # type: ignore[arg-type] - that is the point
    assert call.send("GET", f"/_behaviour/{endpoint}").body["lookup"] == "on"


@pytest.mark.parametrize("seconds", [-1, 1e300, float("inf")])
def test_the_clock_only_goes_forward(shared: ProviderProcess, seconds: float) -> None:
    with pytest.raises(OSError, match=r"advance_s|no JSON"):
        shared.advance(seconds)


def test_the_totals_over_http_are_those_of_the_file(shared: ProviderProcess, call: Caller) -> None:
    call.create(key="k")
    call.create(key="k")
    ledger = shared.ledger
    assert call.send("GET", "/_ledger").body == {"effects": ledger.count(), "requests": len(ledger.requests())}


def test_a_ledger_may_lie_anywhere_and_waiting_for_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # Our own calls go past it.
    (folder := tmp_path / "a b?c#d%20").mkdir()
    monkeypatch.chdir(folder)
    with ProviderProcess("ledger.db") as provider:
        provider.behave("x", lookup="off")
        Caller(port=provider.port, endpoint="x").create(key="k")
        assert Ledger(folder / "ledger.db").effects_by_key() == {"k": 1}
        with pytest.raises(TimeoutError, match=r"1 effects after 0\.02 s, not 2"):
            provider.ledger.wait_for_effects(2, timeout_s=0.02)
        with pytest.raises(sqlite3.Error):
            provider.ledger._rows("nothing", "id", None, None)


def test_it_notices_a_parent_that_died_before_it_could_ask(tmp_path: Path) -> None:
    command = [*COMMAND, "--ledger", str(tmp_path / "l.db"), "--die-with-parent"]
    ended = subprocess.run([*command, str(os.getppid())], capture_output=True, check=False, timeout=30)
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_it_needs_nothing_but_the_standard_library() -> None:
    script = (
        "import sys, counterfoil.errors; before = set(sys.modules)\n"
        "import counterfoil.testing.provider\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before} - {'counterfoil'}\n"
        "print(sorted(new - sys.stdlib_module_names))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert told.stdout.strip() == "[]"
