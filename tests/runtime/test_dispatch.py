"""The mark before the bytes, the key on the request, and what a late, slow or lost attempt comes to."""

import asyncio
import json
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

import counterfoil as cf
from counterfoil.core import plan
from counterfoil.core.events import AttemptEnded, Dispatched, Ending, Receipt
from counterfoil.core.keys import KeyStyle
from counterfoil.core.mail import Cancel, encode_item
from counterfoil.errors import DispatchRefused
from counterfoil.runtime import perform
from counterfoil.runtime.loop import Driver
from counterfoil.stores.protocol import Appended, Refused
from counterfoil.stores.sqlite import SqliteStore
from tests.runtime.outside import Outside, agent, calling, events, kinds
from tests.waiting import until_async

FOREVER = cf.Keyed(remembered_for=cf.FOREVER)


async def send(outside: Outside, call: cf.Call, body: Any = None) -> str:
    answer = await call.http.post(outside.url, json={"a": 1} if body is None else body)
    return str(answer.json()["id"])


# The mark.


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_mark_of_a_late_tool_is_durable_before_its_request_arrives(
    store: SqliteStore, outside: Outside, is_async: bool
) -> None:
    seen: list[int] = []
    append = store.append

    async def watched(*args: Any, entries: Any, **kwargs: Any) -> Any:
        answer = await append(*args, entries=entries, **kwargs)
        if any(entry.kind == "dispatched" for entry in entries):
            seen.append(len(outside.requests))
        return answer

    store.append = watched  # type: ignore[method-assign]  # it only looks on

    @cf.tool(contract=FOREVER, dispatch="late", name="late")
    async def in_loop(*, call: cf.Call) -> str:
        """Send."""
        return await send(outside, call)

    @cf.tool(contract=FOREVER, dispatch="late", name="late")
    def in_thread(*, call: cf.Call) -> str:
        """Send."""
        return str(call.http.post(outside.url, json={"a": 1}).json()["id"])

    flow = agent(in_loop if is_async else in_thread)
    assert (await cf.arun(flow, 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert (seen, outside.effects) == ([0], 1), "no request had arrived when the mark was acknowledged"


async def test_a_refused_mark_sends_nothing_and_cannot_be_swallowed(store: SqliteStore, outside: Outside) -> None:
    """The lease is lost between entry and mark: another owner's fence refuses the append."""
    append = store.append
    swallowed: list[str] = []

    async def fenced(*args: Any, entries: Any, **kwargs: Any) -> Appended | Refused:
        if entries[-1].kind == "dispatched":
            kwargs["fence"] -= 1
        return await append(*args, entries=entries, **kwargs)

    store.append = fenced  # type: ignore[method-assign]  # the store itself judges the fence

    @cf.tool(contract=FOREVER, dispatch="late")
    async def late(*, call: cf.Call) -> str:
        """Send, and hide whatever goes wrong."""
        try:
            return await send(outside, call)
        except Exception as error:  # noqa: BLE001 - that is what the test is about
            swallowed.append(str(error))
            return "sent"

    with pytest.raises(cf.CounterfoilError, match="another worker may own it"):
        await cf.arun(agent(late), 1, run_id="r1", store=store)
    assert (outside.requests, swallowed) == ([], [])
    assert "receipt" not in kinds(await events(store))
    del store.append
    assert (await cf.arun(agent(late), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert outside.effects == 1


async def test_even_one_that_catches_everything_sends_nothing_and_its_outcome_is_discarded(
    store: SqliteStore, outside: Outside
) -> None:
    @cf.tool(contract=FOREVER, dispatch="late", repeats=1)
    async def late(*, call: cf.Call) -> str:
        """Send, and hide even what is no Exception."""
        await store.post("r1", "c", encode_item(Cancel(by="dana")))
        try:
            return await send(outside, call)
        except DispatchRefused:
            return "sent"

    result = await cf.arun(agent(late), 1, run_id="r1", store=store)
    assert (result.status, outside.requests) == (cf.Status.CANCELLED, [])
    [ended] = [event for event in await events(store) if isinstance(event, AttemptEnded)]
    assert ended.ending is Ending.NOT_SENT


async def test_incident_4d_a_repeat_of_another_request_is_refused_before_it_is_sent(
    store: SqliteStore, outside: Outside
) -> None:
    """The journal level is in tests/incidents; here the tool itself derives another request for the same key."""
    outside.behave(fault="drop_response", times=1)
    amounts = iter([10, 20, 30, 40, 50])

    @cf.tool(contract=FOREVER, dispatch="late", repeats=2)
    async def pay(*, call: cf.Call) -> str:
        """Pay what a clock, or a model asked again, says now."""
        return await send(outside, call, {"amount": next(amounts)})

    result = await cf.arun(agent(pay), 1, run_id="r1", store=store)
    assert (result.status, result.unknown) == (cf.Status.UNKNOWN, ("1.1",))
    assert [request.arguments for request in outside.requests] == [{"amount": 10}]
    endings = [event.ending for event in await events(store) if isinstance(event, AttemptEnded)]
    assert endings == [Ending.UNSURE, Ending.NOT_SENT, Ending.NOT_SENT]


# call.http.


@pytest.mark.parametrize(
    "style, where",
    [
        (KeyStyle(), lambda sent: sent.headers["idempotency-key"]),
        (KeyStyle(name="X-Key", format="uuid"), lambda sent: sent.headers["x-key"]),
        (KeyStyle(channel="query", name="key"), lambda sent: sent.url.params["key"]),
        (KeyStyle(channel="body", name="idempotency_key"), lambda sent: json.loads(sent.content)["idempotency_key"]),
    ],
)
async def test_the_key_goes_where_the_contract_says_whatever_the_tool_put_there(
    store: SqliteStore, outside: Outside, style: KeyStyle, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[str, str]] = []
    sent: list[Any] = []
    handle = httpx2.AsyncHTTPTransport.handle_async_request

    async def look(transport: Any, request: Any) -> Any:
        sent.append(request)
        return await handle(transport, request)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", look)

    @cf.tool(contract=cf.Keyed(remembered_for=cf.FOREVER, key=style))
    async def pay(*, call: cf.Call) -> int:
        """Pay."""
        headers = {"Idempotency-Key": "mine"} if style.name == "Idempotency-Key" else {}
        answer = await call.http.post(outside.url, json={"a": 1}, headers=headers)
        keys.append((call.key, where(sent[-1])))
        return int(answer.status_code)

    assert (await cf.arun(agent(pay), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    [(key, seen)] = keys
    assert key == seen
    [request] = outside.requests
    assert request.arguments.get("a") == 1
    if style.name in ("Idempotency-Key", "idempotency_key"):
        assert request.key == key


async def test_a_refused_connection_is_not_applied_unless_something_was_sent_before(
    store: SqliteStore, outside: Outside, tmp_path: Any
) -> None:
    nowhere = "http://127.0.0.1:1/"

    @cf.tool
    async def cannot(*, call: cf.Call) -> int:
        """Never arrive."""
        return int((await call.http.post(nowhere, json={})).status_code)

    @cf.tool
    async def half(*, call: cf.Call) -> int:
        """Arrive with the first of two requests."""
        await send(outside, call)
        return int((await call.http.post(nowhere, json={})).status_code)

    assert (await cf.arun(agent(cannot), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert kinds(await events(store)).count("rejected") == 1
    result = await cf.arun(agent(half), 1, run_id="r2", store=store)
    assert (result.status, outside.effects) == (cf.Status.UNKNOWN, 1)


async def test_a_lookup_through_http_carries_no_key_and_needs_no_mark(store: SqliteStore, outside: Outside) -> None:
    outside.behave(fault="drop_response", times=1)
    searched: list[str] = []

    @cf.tool(contract=cf.Lookup(settles_in=timedelta(0), key=KeyStyle()), dispatch="late")
    async def pay(*, call: cf.Call) -> str:
        """Pay."""
        return await send(outside, call)

    @pay.lookup
    async def find(call: cf.Call) -> Any:
        answer = await call.http.post(f"{outside.url}search", json={"q": call.key})
        searched.append(answer.request.headers.get("idempotency-key", ""))
        return cf.Found("found")

    assert (await cf.arun(agent(pay), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert (searched, outside.effects) == ([""], 1)


async def test_http_follows_no_redirect_and_tries_nothing_twice(store: SqliteStore, outside: Outside) -> None:
    outside.behave(fault="error_before")
    statuses: list[int] = []

    @cf.tool
    async def post(*, call: cf.Call) -> int:
        """Send."""
        assert call.http.follow_redirects is False
        statuses.append((await call.http.post(outside.url, json={})).status_code)
        return statuses[-1]

    await cf.arun(agent(post), 1, run_id="r1", store=store)
    assert (statuses, len(outside.requests)) == ([500], 1)


# Children, threads, deadlines.


async def test_a_child_of_call_spawn_holds_the_owner_lock_when_its_parent_is_killed(tmp_path: Any) -> None:
    script = (
        "import sys, os, signal, counterfoil as cf\n"
        "@cf.tool\n"
        "def start(*, call: cf.Call) -> int:\n"
        "    child = call.spawn([sys.executable, '-c', 'import sys; print(1, flush=True); sys.stdin.read()'],\n"
        "                       stdin=0)\n"
        "    print(child.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return 1\n"
        "flow = cf.Agent('t', version='1', tools=[start],\n"
        "                model=cf.ScriptedModel([{'calls': [{'name': 'start'}]}]))\n"
        "cf.run(flow, 1, run_id='r1', store=sys.argv[1])\n"
    )
    path = tmp_path / "counterfoil.db"
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        str(path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    lines = [await parent.stdout.readline(), await parent.stdout.readline()]
    [child] = [int(line) for line in lines if int(line) != 1]
    await parent.wait()
    store = SqliteStore(path)
    try:
        head = await store.head("r1")
        owner = str(getattr(head, "owner", ""))
        assert (await store.observe(owner)).proof == "alive", "killed, but its child may still send"
        parent.stdin.close()
        await until_async(lambda: not Path(f"/proc/{child}").exists(), "the child ends")
        assert (await store.observe(owner)).proof == "dead"
    finally:
        await store.close()


async def test_an_async_tool_that_times_out_is_cancelled_and_unsure(store: SqliteStore) -> None:
    ended: list[str] = []

    @cf.tool(timeout=timedelta(milliseconds=50))
    async def slow() -> None:
        """Wait."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    assert (await cf.arun(agent(slow), 1, run_id="r1", store=store)).status is cf.Status.UNKNOWN
    [attempt] = [event for event in await events(store) if isinstance(event, AttemptEnded)]
    assert (ended, attempt.ending, attempt.running) == (["cancelled"], Ending.UNSURE, False)


@pytest.mark.parametrize("parallel", [True, False])
async def test_what_is_decided_of_a_turn_grows_with_its_calls_and_not_with_their_square(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, parallel: bool
) -> None:
    decided, move_of = [0], plan.move_of

    def counted(*args: Any) -> Any:
        decided[0] += 1
        return move_of(*args)

    monkeypatch.setattr(plan, "move_of", counted)

    @cf.tool(contract=cf.Read())
    async def look() -> int:
        """Look."""
        return 1

    flow = agent(look, turns=[calling(*["look"] * 100)], parallel=parallel)
    assert (await cf.arun(flow, 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert 100 <= decided[0] <= 1000, "one by one it would be 5000 and more"


async def test_a_thread_that_outlives_its_deadline_is_heard_all_the_same(store: SqliteStore) -> None:
    gate = threading.Event()

    @cf.tool(timeout=timedelta(milliseconds=50))
    def slow() -> str:
        """Wait."""
        assert gate.wait(60)
        return "late"

    def progress(event: Any) -> None:
        if isinstance(event, AttemptEnded):
            assert event.running
            gate.set()

    result = await cf.arun(agent(slow), 1, run_id="r1", store=store, progress=progress)
    assert result.status is cf.Status.COMPLETED
    found = kinds(await events(store))
    assert found.index("unknown_declared") < found.index("receipt")


async def test_what_a_thread_brings_while_the_last_event_is_being_written_is_kept_as_evidence(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    gate, heard = threading.Event(), asyncio.Event()
    append, listen = store.append, Driver._late

    @cf.tool(contract=FOREVER, timeout=timedelta(milliseconds=50))
    def slow(*, call: cf.Call) -> str:
        """Wait."""
        entered.append(call.attempt)
        assert gate.wait(60)
        return "late"

    def listened(self: Driver, event: Any) -> None:
        listen(self, event)
        heard.set()

    async def with_the_answer_meanwhile(*args: Any, entries: Any, **kwargs: Any) -> Any:
        if any(entry.kind == "paused" for entry in entries):
            gate.set()
            await heard.wait()
        return await append(*args, entries=entries, **kwargs)

    monkeypatch.setattr(Driver, "_late", listened)
    monkeypatch.setattr(perform, "next_try", lambda now, tries: now + timedelta(hours=1))
    store.append = with_the_answer_meanwhile  # type: ignore[method-assign]  # a moment that no test could hit
    left = await cf.arun(agent(slow), 1, run_id="r1", store=store, patience=timedelta(0))
    assert (left.status, left.because, heard.is_set()) == (cf.Status.WAITING, "backoff", True)
    assert [each.item_id for each in await store.mail("r1", 0)] == ["evidence:1:1.1:1:receipt"]
    assert (await cf.arun(agent(slow), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert entered == [1]


async def test_a_thread_that_goes_on_keeps_its_worker_from_counting_as_released(tmp_path: Any) -> None:
    gate = threading.Event()

    @cf.tool(timeout=timedelta(milliseconds=50))
    def slow() -> str:
        """Wait."""
        gate.wait(60)
        return "late"

    path = tmp_path / "counterfoil.db"
    first = SqliteStore(path)
    await cf.arun(agent(slow), 1, run_id="r1", store=first, patience=timedelta(0))
    incarnation = first.lease.incarnation
    await first.close()
    second = SqliteStore(path)
    try:
        assert (await second.observe(incarnation)).proof == "alive"
    finally:
        gate.set()
        await second.close()


@pytest.mark.parametrize("parallel", [True, False])
async def test_calls_run_in_sequence_unless_all_say_otherwise(store: SqliteStore, parallel: bool) -> None:
    running, most = 0, 0
    together = asyncio.Event()

    @cf.tool(parallel=parallel)
    async def work() -> None:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if parallel:
            if running == 3:
                together.set()
            await together.wait()
        running -= 1

    flow = agent(work, turns=[calling("work", "work", "work")])
    assert (await cf.arun(flow, 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert most == (3 if parallel else 1)


async def test_with_one_unknown_what_is_in_flight_is_awaited_and_nothing_new_begins(store: SqliteStore) -> None:
    lost, entered = asyncio.Event(), []

    @cf.tool(parallel=True)
    async def loses() -> None:
        """Lose the answer."""
        lost.set()
        raise ConnectionResetError

    @cf.tool(parallel=True)
    async def slow() -> str:
        """Answer after the other has failed."""
        await lost.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        return "answered"

    @cf.tool
    async def later() -> None:
        """Come last."""
        entered.append(1)

    result = await cf.arun(agent(loses, slow, later), 1, run_id="r1", store=store)
    assert (result.status, result.unknown, entered) == (cf.Status.UNKNOWN, ("1.1",), [])
    [receipt] = [event for event in await events(store) if isinstance(event, Receipt)]
    assert receipt.call == "1.2"


async def test_repeats_are_bounded_over_all_lives(store: SqliteStore, outside: Outside) -> None:
    outside.behave(fault="drop_response")

    @cf.tool(contract=FOREVER, repeats=2)
    async def pay(*, call: cf.Call) -> str:
        """Pay."""
        return await send(outside, call)

    for _ in range(3):
        assert (await cf.arun(agent(pay), 1, run_id="r1", store=store)).status is cf.Status.UNKNOWN
    assert (len(outside.requests), outside.effects) == (3, 1)
    assert len([event for event in await events(store) if isinstance(event, Dispatched)]) == 3


# Cancel, stop, and a lost lease.


async def test_a_cancel_from_another_process_is_heard_during_a_long_call(store: SqliteStore, tmp_path: Any) -> None:
    entered, gate = asyncio.Event(), asyncio.Event()
    second: list[int] = []

    @cf.tool
    async def long() -> str:
        """Take long."""
        entered.set()
        await gate.wait()
        return "done"

    @cf.tool
    async def next_one() -> None:
        """Come next."""
        second.append(1)

    run = asyncio.ensure_future(cf.arun(agent(long, next_one), 1, run_id="r1", store=store))
    await entered.wait()
    code = (
        "import sys, asyncio, counterfoil as cf\n"
        "from counterfoil.core.mail import Cancel, encode_item\n"
        "async def main():\n"
        "    store = cf.open_store(sys.argv[1])\n"
        "    await store.post('r1', 'c1', encode_item(Cancel(by='dana')))\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(store.path))
    assert await other.wait() == 0

    async def heard() -> bool:
        found = kinds(await events(store))
        return "cancel_requested" in found

    await until_async(heard, "the cancel stands in the journal while the call is under way")
    gate.set()
    result = await run
    assert (result.status, second) == (cf.Status.CANCELLED, [])
    assert kinds(await events(store)).count("receipt") == 1, "what was under way is settled first"


async def test_a_stop_lets_what_is_under_way_end_and_can_be_resumed(store: SqliteStore) -> None:
    entered, gate, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    later: list[int] = []

    @cf.tool
    async def first() -> str:
        """Come first."""
        entered.set()
        await gate.wait()
        return "done"

    @cf.tool
    async def second() -> None:
        """Come second."""
        later.append(1)

    run = asyncio.ensure_future(cf.arun(agent(first, second), 1, run_id="r1", store=store, stop=stop))
    await entered.wait()
    stop.set()
    await asyncio.sleep(0)
    gate.set()
    stopped = await run
    assert (stopped.status, stopped.exit_code, later) == (cf.Status.WAITING, 130, [])
    assert (await cf.arun(agent(first, second), 1, run_id="r1", store=store)).status is cf.Status.COMPLETED
    assert later == [1]


async def test_what_comes_in_after_the_lease_is_lost_is_evidence_for_the_next_owner(
    store: SqliteStore, outside: Outside, tmp_path: Any
) -> None:
    """The store takes the lease away in mid-call, as `doctor --restored` would."""
    other = SqliteStore(store.path)

    @cf.tool
    async def send_once(*, call: cf.Call) -> str:
        """Send."""
        sent = await send(outside, call)
        await other.restored()
        return sent

    try:
        with pytest.raises(cf.CounterfoilError, match="another worker may own it"):
            await cf.arun(agent(send_once), 1, run_id="r1", store=store)
        result = await cf.arun(agent(send_once), 1, run_id="r1", store=other)
        assert (result.status, result.incident) == (cf.Status.COMPLETED, False)
        assert "evidence_taken" in kinds(await events(other))
        assert (outside.effects, len(outside.requests)) == (1, 1)
    finally:
        await other.close()
