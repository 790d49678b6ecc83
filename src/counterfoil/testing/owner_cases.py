"""Cases of the conformance suite: owning a run, losing it, being looked at, and writing to a run that one does not own.

They must not know what a store is made of.
"""

# ruff: noqa: D103, PLR2004 - a case's name is its sentence, and its numbers are the expectation

from __future__ import annotations

import asyncio

from counterfoil.core.events import SenderProof, Status, TurnOpened
from counterfoil.errors import StoreUnavailable
from counterfoil.stores.protocol import Claimed, Head, Owned
from counterfoil.testing.journals import Pen, fresh, start
from counterfoil.testing.workers import DAY, LEASE, SECOND, Case, Workers, refused, snapshot


async def a_claim_counts_a_life_and_grows_the_fence(workers: Workers) -> None:
    store = workers.open()
    await start(store, "r")
    first = await store.claim("r")
    assert isinstance(first, Claimed)
    assert (first.previous, first.proof) == ("", None)
    assert (first.head.lives, first.head.owner) == (1, store.lease.incarnation)
    assert store.lease.alive()
    await store.release("r", fence=first.head.fence)
    second = await store.claim("r")
    assert isinstance(second, Claimed)
    assert second.head.fence == first.head.fence + 1
    assert second.head.lives == 2
    assert second.head == await store.head("r")


async def a_claim_takes_the_due_time_away(workers: Workers) -> None:
    store = workers.open()
    pen = await fresh(store, "r")
    due = store.now() + DAY
    await pen.put(pen.entries(TurnOpened(turn=1)), status=Status.WAITING, due=due)
    await store.release("r", fence=pen.fence)
    waiting = await store.head("r")
    assert isinstance(waiting, Head)
    assert waiting.due == due
    claimed = await store.claim("r")
    assert isinstance(claimed, Claimed)
    assert claimed.head.due is None


async def a_run_of_mine_is_not_mine_twice(workers: Workers) -> None:
    store = workers.open()
    await start(store, "r")
    answers = await asyncio.gather(*(store.claim("r") for _ in range(4)))
    owned = [answer for answer in answers if isinstance(answer, Owned)]
    assert len(owned) == 3, "two resumes of one process run beside each other"
    assert all(answer.owner == store.lease.incarnation for answer in owned)
    assert all(answer.proof is SenderProof.ALIVE for answer in owned)


async def one_of_many_claimants_wins(workers: Workers) -> None:
    stores = [workers.open() for _ in range(4)]
    await start(stores[0], "r")
    answers = await asyncio.gather(*(store.claim("r") for store in stores))
    (won,) = [answer for answer in answers if isinstance(answer, Claimed)]
    owned = [answer for answer in answers if isinstance(answer, Owned)]
    assert len(owned) == 3
    assert {answer.owner for answer in owned} == {won.head.owner}
    assert won.head.lives == 1


async def a_living_owner_keeps_its_run(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    pen = await fresh(one, "r")
    workers.clock.advance(LEASE - SECOND)
    answer = await other.claim("r")
    assert isinstance(answer, Owned)
    assert (answer.owner, answer.proof) == (one.lease.incarnation, SenderProof.ALIVE)
    assert answer.free_at is not None
    assert one.now() < answer.free_at <= one.now() + LEASE
    assert answer.detail
    await pen.note(1)


async def a_released_run_is_free(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    pen = await fresh(one, "r")
    await one.release("r", fence=pen.fence)
    answer = await other.claim("r")
    assert isinstance(answer, Claimed)
    assert (answer.previous, answer.proof) == ("", None)


async def only_the_owner_releases(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    pen = await fresh(one, "r")
    await other.release("r", fence=pen.fence)
    await one.release("r", fence=pen.fence + 1)
    await pen.note(1)
    assert isinstance(await other.claim("r"), Owned)


async def a_lease_that_is_over_frees_its_runs(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    late = await fresh(one, "r")
    workers.clock.advance(LEASE)
    answer = await other.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.previous == one.lease.incarnation
    assert answer.proof in (SenderProof.ALIVE, SenderProof.EXPIRED), "an expired lease proves no death"
    await refused(late, "fence")
    await Pen(other, answer.head).note(1)


async def an_expired_lease_is_never_renewed(workers: Workers) -> None:
    store = workers.open()
    pen = await fresh(store, "r")
    old = store.lease
    assert not await store.renew(), "a lease that lives needs no new incarnation"
    workers.clock.advance(LEASE)
    assert await store.renew()
    assert not old.alive()
    assert store.lease.alive()
    assert store.lease.incarnation != old.incarnation
    await refused(pen, "lease")
    again = await store.claim("r")
    assert isinstance(again, Claimed)
    assert (again.previous, again.head.fence) == (old.incarnation, pen.fence + 1)
    await refused(pen, "fence")
    await Pen(store, again.head).note(1)


async def a_claim_replaces_a_lost_lease(workers: Workers) -> None:
    store = workers.open()
    await fresh(store, "r")
    old = store.lease
    workers.clock.advance(LEASE)
    answer = await store.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.head.owner == store.lease.incarnation != old.incarnation
    assert not old.alive()


async def a_cancelled_claim_is_given_back(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    await fresh(one, "another")
    await start(one, "r")
    for steps in range(3):
        claiming = asyncio.ensure_future(one.claim("r"))
        for _ in range(steps):
            await asyncio.sleep(0)
        claiming.cancel()
        try:
            won = await claiming
        except asyncio.CancelledError:
            won = None
        assert won is None
    await one.head("r")  # What was asked for before is done by now.
    assert isinstance(await other.claim("r"), Claimed)


async def a_closed_store_lets_go(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    await fresh(one, "r")
    name = one.lease.incarnation
    await one.close()
    await one.close()
    assert not one.lease.alive()
    assert (await other.observe(name)).proof is SenderProof.RELEASED
    answer = await other.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.previous == ""
    for attempt in (one.head("r"), one.claim("r"), one.find()):
        try:
            await attempt
        except StoreUnavailable:
            continue
        raise AssertionError("a closed store answered")


async def closing_does_not_end_what_still_sends(workers: Workers) -> None:
    one, other, third = workers.open(), workers.open(), workers.open()
    await fresh(one, "r")
    await fresh(other, "s")
    other.lease.outlived = True
    await one.close(attempts_ended=False)
    await other.close()
    for store, run_id in ((one, "r"), (other, "s")):
        seen = await third.observe(store.lease.incarnation)
        assert seen.proof in (SenderProof.ALIVE, SenderProof.EXPIRED), "a sender was taken for ended"
        assert isinstance(await third.claim(run_id), Claimed), "the run itself was given up"


async def an_incarnation_knows_itself(workers: Workers) -> None:
    store = workers.open()
    await fresh(store, "r")
    assert (await store.observe(store.lease.incarnation)).proof is SenderProof.ALIVE
    old = store.lease.incarnation
    workers.clock.advance(LEASE)
    await store.renew()
    assert (await store.observe(old)).proof is SenderProof.ALIVE, "its process lives, and so may its attempts"


async def a_stranger_proves_nothing(workers: Workers) -> None:
    assert (await workers.open().observe("nobody")).proof is SenderProof.EXPIRED


async def another_boot_proves_nothing(workers: Workers) -> None:
    one = workers.open()
    await fresh(one, "r")
    name = one.lease.incarnation
    workers.clock.reboot("another boot")
    other = workers.open()
    assert (await other.observe(name)).proof is SenderProof.EXPIRED
    answer = await other.claim("r")
    assert isinstance(answer, Claimed)
    assert answer.proof is SenderProof.EXPIRED


# The mailbox.


async def mail_is_kept_in_order_and_once(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    await fresh(one, "r")
    marks = [await other.post("r", item, item.encode()) for item in ("a", "b", "a", "c", "b")]
    assert marks == [1, 2, 1, 3, 2]
    mail = await one.mail("r", 0)
    assert [(item.number, item.item_id, item.body) for item in mail] == [(1, "a", b"a"), (2, "b", b"b"), (3, "c", b"c")]
    assert mail[0].posted_at == one.now()
    assert await one.mail("r", 1) == mail[1:]
    assert await one.mail("r", 3) == []
    head = await one.head("r")
    assert isinstance(head, Head)
    assert head.mail == 3


async def mail_wakes_a_run(workers: Workers) -> None:
    store = workers.open()
    pen = await fresh(store, "r")
    await pen.put(pen.entries(TurnOpened(turn=1)), status=Status.WAITING, due=store.now() + DAY)
    await store.post("r", "a", b"{}")
    head = await store.head("r")
    assert isinstance(head, Head)
    assert head.due == store.now()
    workers.clock.advance(SECOND)
    await store.post("r", "a", b"{}")
    assert await store.head("r") == head, "a repeated item grew something"


async def mail_of_several_senders_has_one_order(workers: Workers) -> None:
    stores = [workers.open() for _ in range(3)]
    await start(stores[0], "r")
    posts = [
        store.post("r", f"{number} of {place}", b"{}") for place, store in enumerate(stores) for number in range(5)
    ]
    marks = await asyncio.gather(*posts)
    assert sorted(marks) == list(range(1, 16))
    assert [item.number for item in await stores[0].mail("r", 0)] == list(range(1, 16))


async def mail_between_fold_and_write_is_seen(workers: Workers) -> None:
    one, other = workers.open(), workers.open()
    pen = await fresh(one, "r")
    before = await snapshot(one, "r")
    await other.post("r", "late evidence", b"{}")
    await refused(pen, "mail")
    assert (await snapshot(one, "r"))[1] == before[1]


CASES: tuple[Case, ...] = (
    a_claim_counts_a_life_and_grows_the_fence,
    a_claim_takes_the_due_time_away,
    a_run_of_mine_is_not_mine_twice,
    one_of_many_claimants_wins,
    a_living_owner_keeps_its_run,
    a_released_run_is_free,
    only_the_owner_releases,
    a_lease_that_is_over_frees_its_runs,
    an_expired_lease_is_never_renewed,
    a_claim_replaces_a_lost_lease,
    a_cancelled_claim_is_given_back,
    a_closed_store_lets_go,
    closing_does_not_end_what_still_sends,
    an_incarnation_knows_itself,
    a_stranger_proves_nothing,
    another_boot_proves_nothing,
    mail_is_kept_in_order_and_once,
    mail_wakes_a_run,
    mail_of_several_senders_has_one_order,
    mail_between_fold_and_write_is_seen,
)
