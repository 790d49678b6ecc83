"""Cases of the conformance suite: starting a run, reading it, and the rule by which events are appended.

They must not know what a store is made of.
"""

# ruff: noqa: D103, PLR2004 - a case's name is its sentence, and its numbers are the expectation

from __future__ import annotations

import asyncio
from datetime import timedelta

from counterfoil.core.events import RunStarted, Status, TurnOpened
from counterfoil.core.state import fold
from counterfoil.errors import NoSuchRun
from counterfoil.stores.protocol import Appended, Head, HeadChange, Refused
from counterfoil.testing.journals import Pen, fresh, pen_for, start
from counterfoil.testing.workers import DAY, LEASE, SECOND, Case, Workers, refused, snapshot

# Starting and reading.


async def a_run_is_started_once(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    head = await start(one, "r", flow="f", value=b"1")
    assert isinstance(head, Head)
    assert (head.run_id, head.flow, head.position, head.status) == ("r", "f", 1, Status.PENDING)
    assert (head.fence, head.owner, head.mail, head.lives) == (0, "", 0, 0)
    assert head.created_at == head.updated_at == one.now()
    workers.clock.advance(SECOND)
    assert await start(other, "r", flow="another", value=b"2") == head, "a known id was started anew"
    (first,) = await other.events("r")
    assert isinstance(first.event, RunStarted)
    assert bytes(first.event.input) == b"1"


async def many_start_the_same_run(workers: Workers) -> None:
    stores = [workers.open() for _ in range(4)]
    heads = await asyncio.gather(*(start(store, "r", value=b"%d" % n) for n, store in enumerate(stores)))
    assert all(head == heads[0] for head in heads)


async def an_unknown_run(workers: Workers) -> None:
    store = workers.open()
    assert await store.head("nobody") is None
    assert await store.claim("nobody") is None
    assert await store.mail("nobody", 0) == []
    pen = Pen(store, Head(run_id="nobody", flow="f", fence=1, position=1))
    for attempt in (store.events("nobody"), store.post("nobody", "i", b"{}"), pen.write(TurnOpened(turn=1))):
        try:
            await attempt
        except NoSuchRun:
            continue
        raise AssertionError("something was done to a run that is not there")


async def events_come_back_as_written(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    await pen.must(TurnOpened(turn=1), TurnOpened(turn=2, digest="ü"))
    workers.clock.advance(SECOND)
    await pen.note(3)
    events = await pen.store.events("r")
    assert [recorded.position for recorded in events] == [1, 2, 3, 4]
    assert [recorded.fence for recorded in events] == [0, pen.fence, pen.fence, pen.fence]
    assert [recorded.event for recorded in events[1:]] == [
        TurnOpened(turn=1), TurnOpened(turn=2, digest="ü"), TurnOpened(turn=3),
    ]  # fmt: skip
    assert [recorded.at for recorded in events[2:]] == [pen.store.now() - SECOND, pen.store.now()]
    assert await pen.store.events("r", after=2) == events[2:]
    assert await pen.store.events("r", after=4) == []


async def the_head_follows_the_journal(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    workers.clock.advance(SECOND)
    due = pen.store.now() + DAY
    entries = pen.entries(TurnOpened(turn=1), TurnOpened(turn=2))
    change = HeadChange(status=Status.WAITING, due=due, incident=True)
    answer = await pen.store.append("r", fence=pen.fence, at=1, mail=0, entries=entries, head=change)
    head = await pen.store.head("r")
    assert answer == Appended(position=3)
    assert isinstance(head, Head)
    assert (head.position, head.link, head.status, head.due) == (3, entries[-1].link, Status.WAITING, due)
    assert head.incident
    assert head.updated_at == pen.store.now() == (head.created_at or due) + SECOND


async def order_is_by_position_never_by_clock(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    for turn in range(1, 6):
        workers.clock.set_wall_back(timedelta(seconds=10))
        await pen.note(turn)
    events = await pen.store.events("r")
    turns = [recorded.event.turn for recorded in events if isinstance(recorded.event, TurnOpened)]
    assert turns == [1, 2, 3, 4, 5]
    assert [recorded.at for recorded in events] == sorted((recorded.at for recorded in events), reverse=True)
    assert fold(events).turn == 5
    assert await pen.store.verify() == []


async def runs_are_found(workers: Workers) -> None:
    store = workers.open()
    for number in range(4):
        await start(store, f"r{number}", flow="even" if number % 2 == 0 else "odd")
    await (await pen_for(store, "r2")).must(TurnOpened(turn=1), status=Status.UNKNOWN)
    assert [head.run_id for head in await store.find()] == ["r3", "r2", "r1", "r0"]
    assert [head.run_id for head in await store.find(limit=2)] == ["r3", "r2"]
    assert [head.run_id for head in await store.find(flow="even")] == ["r2", "r0"]
    assert [head.run_id for head in await store.find(status=[Status.UNKNOWN])] == ["r2"]
    open_ones = await store.find(status=[Status.UNKNOWN, Status.PENDING], flow="even")
    assert [head.run_id for head in open_ones] == ["r2", "r0"]
    assert await store.find(status=[Status.BLOCKED]) == []


# The append rule.


async def a_stale_fence_writes_nothing(workers: Workers) -> None:
    store = workers.open()
    stale = await fresh(store, "r")
    await store.release("r", fence=stale.fence)
    current = await pen_for(store, "r")
    assert current.fence > stale.fence
    await refused(stale, "fence")
    await current.note(1)
    await refused(stale, "fence")


async def a_fence_counts_only_with_its_owner(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    await start(one, "r")
    theirs = await pen_for(other, "r")
    mine = await fresh(one, "mine")  # So that this worker has a lease of its own.
    thief = Pen(one, (await snapshot(one, "r"))[0])
    assert thief.fence == theirs.fence
    await refused(thief, "lease")
    await mine.note(1)


async def a_released_run_is_not_written(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    await pen.store.release("r", fence=pen.fence)
    await refused(pen, "lease")


async def an_expired_lease_writes_nothing(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    lease = pen.store.lease
    workers.clock.advance(LEASE - SECOND)
    await pen.note(1)
    workers.clock.advance(LEASE)
    assert not lease.alive()
    await refused(pen, "lease")


async def a_clock_turned_back_revives_no_lease(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    workers.clock.advance(LEASE)
    workers.clock.set_wall_back(DAY)
    assert not pen.store.lease.alive()
    await refused(pen, "lease")


async def a_wrong_position_writes_nothing(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    behind = Pen(pen.store, (await snapshot(pen.store, "r"))[0])
    await pen.note(1)
    await refused(behind, "position")
    ahead = Pen(pen.store, (await snapshot(pen.store, "r"))[0])
    ahead.position += 1
    await refused(ahead, "position")
    await pen.note(2)


async def unread_mail_stops_a_write(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    pen_mail = await pen.store.post("r", "evidence", b"{}")
    await refused(pen, "mail")
    pen.mail = pen_mail + 1
    await refused(pen, "mail")
    pen.mail = pen_mail
    await pen.note(1)


async def a_lost_acknowledgement_is_no_conflict(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    lost = pen.entries(TurnOpened(turn=1), TurnOpened(turn=2))
    assert await pen.put(lost) == Appended(position=3)
    before = await snapshot(pen.store, "r")
    assert await pen.put(lost) == Appended(position=3), "the same bytes were refused under our own fence"
    assert await snapshot(pen.store, "r") == before
    await pen.note(3)
    await pen.store.post("r", "evidence", b"{}")
    assert await pen.put(lost) == Appended(position=3), "what came later makes it no conflict"


async def other_bytes_at_a_position_are_a_conflict(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    one, other = pen.entries(TurnOpened(turn=1)), pen.entries(TurnOpened(turn=2))
    longer = pen.entries(TurnOpened(turn=1), TurnOpened(turn=2))
    assert await pen.put(one) == Appended(position=2)
    for entries in (other, longer):
        answer = await pen.put(entries)
        assert isinstance(answer, Refused)
        assert answer.why == "position"
    assert len(await pen.store.events("r")) == 2


async def a_lost_acknowledgement_is_nothing_under_a_lost_fence(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    lost = pen.entries(TurnOpened(turn=1))
    assert await pen.put(lost) == Appended(position=2)
    await pen.store.release("r", fence=pen.fence)
    await pen_for(pen.store, "r")
    answer = await pen.put(lost)
    assert isinstance(answer, Refused)
    assert answer.why == "fence"


async def one_of_two_writers_wins(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    rivals = [pen.entries(TurnOpened(turn=turn)) for turn in range(1, 9)]
    answers = await asyncio.gather(*(pen.put(entries) for entries in rivals))
    assert sum(isinstance(answer, Appended) for answer in answers) == 1
    assert all(answer.why == "position" for answer in answers if isinstance(answer, Refused))
    assert len(await pen.store.events("r")) == 2


async def runs_do_not_stand_in_each_others_way(workers: Workers) -> None:
    stores = [workers.open(), workers.open()]
    pens = [await fresh(stores[number % 2], f"r{number}") for number in range(10)]
    for turn in range(1, 4):
        await asyncio.gather(*(pen.note(turn) for pen in pens))
    for pen in pens:
        assert [recorded.position for recorded in await pen.store.events(pen.run_id)] == [1, 2, 3, 4]
    assert await stores[0].verify() == []


async def what_makes_no_sense_is_refused_before_it_is_written(workers: Workers) -> None:
    pen = await fresh(workers.open(), "r")
    entries = pen.entries(TurnOpened(turn=1), TurnOpened(turn=2))
    for nonsense in ([], entries[1:], [entries[0], entries[0]]):
        try:
            change = HeadChange(status=Status.RUNNING)
            await pen.store.append("r", fence=pen.fence, at=1, mail=0, entries=nonsense, head=change)
        except ValueError:
            continue
        raise AssertionError(f"positions {[entry.position for entry in nonsense]} were written after 1")
    assert len(await pen.store.events("r")) == 1


CASES: tuple[Case, ...] = (
    a_run_is_started_once,
    many_start_the_same_run,
    an_unknown_run,
    events_come_back_as_written,
    the_head_follows_the_journal,
    order_is_by_position_never_by_clock,
    runs_are_found,
    a_stale_fence_writes_nothing,
    a_fence_counts_only_with_its_owner,
    a_released_run_is_not_written,
    an_expired_lease_writes_nothing,
    a_clock_turned_back_revives_no_lease,
    a_wrong_position_writes_nothing,
    unread_mail_stops_a_write,
    a_lost_acknowledgement_is_no_conflict,
    other_bytes_at_a_position_are_a_conflict,
    a_lost_acknowledgement_is_nothing_under_a_lost_fence,
    one_of_two_writers_wins,
    runs_do_not_stand_in_each_others_way,
    what_makes_no_sense_is_refused_before_it_is_written,
)
