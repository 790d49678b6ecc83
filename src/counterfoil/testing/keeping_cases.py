"""Cases of the conformance suite: pruning, restoring, and what stays when a store is opened again.

They must not know what a store is made of.
"""

# ruff: noqa: D103, PLR2004 - a case's name is its sentence, and its numbers are the expectation

from __future__ import annotations

from msgspec import Raw

from counterfoil.core.events import (
    CancelRequested,
    Completed,
    Decided,
    Dispatched,
    Failed,
    Failure,
    IncidentRaised,
    PlannedCall,
    Status,
    TurnOpened,
    UnknownDeclared,
    Verdict,
    VerdictGiven,
)
from counterfoil.core.rules import Rule
from counterfoil.errors import NoSuchRun
from counterfoil.stores.protocol import Claimed, Head, HeadChange, Tombstone
from counterfoil.testing.journals import Pen, fresh, pen_for, start
from counterfoil.testing.workers import DAY, SECOND, Case, Workers, refused


async def _finished(workers: Workers, run_id: str, *, key: str = "") -> Pen:
    pen = await fresh(workers.open(), run_id)
    await pen.finish(key=key)
    await pen.store.release(run_id, fence=pen.fence)
    return pen


async def pruning_leaves_an_answer(workers: Workers) -> None:
    store = (await _finished(workers, "r", key="cf_1")).store
    head = await store.head("r")
    assert isinstance(head, Head)
    assert await store.prune(older_than=DAY) == 0, "it is not old enough"
    workers.clock.advance(2 * DAY)
    assert await store.prune(older_than=DAY) == 1
    grave = await store.head("r")
    assert isinstance(grave, Tombstone)
    assert (grave.run_id, grave.flow, grave.status) == ("r", head.flow, Status.COMPLETED)
    assert (grave.input_digest, grave.output, grave.keys) == (head.input_digest, b'"done"', ("cf_1",))
    assert grave.pruned_at == store.now()
    assert await start(store, "r") == grave, "a reused id met no answer"
    assert await store.claim("r") is None
    assert await store.find() == []
    assert await store.prune(older_than=DAY) == 0
    try:
        await store.post("r", "late", b"{}")
    except NoSuchRun:
        return
    raise AssertionError("mail for a pruned run was taken and will be read by nobody")


async def tombstones_of_effects_stay(workers: Workers) -> None:
    store = workers.open()
    await _finished(workers, "with an effect", key="cf_1")
    await _finished(workers, "without")
    workers.clock.advance(2 * DAY)
    assert await store.prune(older_than=DAY, keep_keys=False) == 2
    grave = await store.head("with an effect")
    assert isinstance(grave, Tombstone)
    assert grave.keys == ()
    workers.clock.advance(2 * DAY)
    await store.prune(older_than=DAY, forget_after=DAY)
    assert await store.head("with an effect") == grave
    assert await store.head("without") is None


async def what_is_open_is_not_pruned(workers: Workers) -> None:
    store = workers.open()
    await start(store, "pending")
    await (await fresh(store, "running")).note(1)
    raised = await fresh(store, "incident")
    ended = raised.entries(Completed(output=Raw(b"1")), IncidentRaised(call="1.1", what="two effects"))
    change = HeadChange(status=Status.COMPLETED, incident=True)
    await store.append("incident", fence=raised.fence, at=1, mail=0, entries=ended, head=change)
    unread = await fresh(store, "unread")
    await unread.finish()
    await store.post("unread", "late evidence", b"{}")
    read = await fresh(store, "read")
    read.mail = await store.post("read", "cancel", b"{}")
    await read.must(CancelRequested(by="me", item=read.mail), Completed(output=Raw(b"1")), status=Status.COMPLETED)
    owing = await fresh(store, "owing")
    planned = PlannedCall(position=1, tool="send", arguments=Raw(b"{}"), key="k")
    await owing.must(
        TurnOpened(turn=1),
        Decided(turn=1, calls=(planned,)),
        Dispatched(call="1.1", attempt=1, deadline=store.now(), because=Rule.NEVER_SENT),
        UnknownDeclared(call="1.1", because=Rule.UNKNOWN),
        VerdictGiven(call="1.1", verdict=Verdict.ABANDON, by="me", reason="it does not matter"),
        Failed(failure=Failure(kind="Abandoned", message="1.1")),
        status=Status.FAILED,
    )
    for pen in (raised, unread, read, owing):
        await store.release(pen.run_id, fence=pen.fence)
    workers.clock.advance(2 * DAY)
    assert await store.prune(older_than=DAY) == 1
    assert isinstance(await store.head("read"), Tombstone)
    assert {head.run_id for head in await store.find()} == {"pending", "running", "incident", "unread", "owing"}


async def a_run_that_is_held_is_not_pruned(workers: Workers) -> None:
    store = workers.open()
    pen = await fresh(store, "r")
    await pen.finish()
    workers.clock.advance(SECOND)
    assert await store.prune(older_than=0 * DAY) == 0
    await store.release("r", fence=pen.fence)
    assert await store.prune(older_than=0 * DAY) == 1


async def a_restore_ends_every_fence_and_lease(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    before = await fresh(one, "r")
    await _finished(workers, "ended")
    epoch = await other.restored()
    assert epoch == 1
    await refused(before, "fence")
    answer = await other.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.head.fence > before.fence
    assert answer.head.verify_first
    await Pen(other, answer.head).note(1)
    ended = await other.head("ended")
    assert isinstance(ended, Head)
    assert not ended.verify_first
    workers.clock.advance(SECOND)
    again = await one.claim("ended")
    assert isinstance(again, Claimed)
    assert await other.restored() == 2
    newest = await other.claim("r")
    assert isinstance(newest, Claimed)
    assert newest.head.fence > answer.head.fence


async def the_namespace_stays(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    assert one.namespace == other.namespace
    assert len(one.namespace) >= 16


async def a_sound_store_has_no_damage(workers: Workers) -> None:
    store = workers.open()
    await _finished(workers, "ended", key="k")
    await (await fresh(store, "running")).note(1)
    await store.post("running", "a", b"{}")
    assert await store.verify() == []
    assert await store.verify("running") == []
    try:
        await store.verify("nobody")
    except NoSuchRun:
        return
    raise AssertionError("a run that is not there was found sound")


async def the_facts_are_told(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    await fresh(one, "r")
    await start(one, "s")
    await pen_for(other, "s")
    info = await other.info()
    assert info.runs == {"pending": 2}
    assert (info.incidents, info.tombstones, info.epoch) == (0, 0, 0)
    assert {lease.incarnation for lease in info.leases} == {one.lease.incarnation, other.lease.incarnation}
    assert [lease.runs for lease in info.leases] == [1, 1]
    assert info.engine
    assert info.place


CASES: tuple[Case, ...] = (
    pruning_leaves_an_answer,
    tombstones_of_effects_stay,
    what_is_open_is_not_pruned,
    a_run_that_is_held_is_not_pruned,
    a_restore_ends_every_fence_and_lease,
    the_namespace_stays,
    a_sound_store_has_no_damage,
    the_facts_are_told,
)
