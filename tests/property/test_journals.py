"""Laws that hold for every legal journal, however unlikely."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.core import plan
from counterfoil.core.codec import decode, encode, first_link, link, to_micros
from counterfoil.core.contracts import wants_record
from counterfoil.core.events import Recorded
from counterfoil.core.recovery import Dispatch
from counterfoil.core.state import AFTER_END, apply, fold
from counterfoil.testing import strategies

quiet = settings(deadline=None, derandomize=True, max_examples=40)


@quiet
@given(st.data())
def test_next_action_is_total_and_keeps_its_shape(data: st.DataObject) -> None:
    journal = data.draw(strategies.journals())
    state, flow = fold(journal), data.draw(strategies.flow_views())
    now = journal[-1].at + data.draw(strategies.spans)
    in_flight = data.draw(strategies.in_flights(state))
    own = plan.Ownership(mine=data.draw(st.sampled_from([True] * 5 + [False])), draining=data.draw(st.booleans()))
    action = plan.next_action(state, flow, now, own, in_flight)
    unsettled = [call for call in state.calls if call.outcome is None]
    match action:
        case plan.ForCall(call=call, move=Dispatch()):
            assert own.mine
            assert not own.draining
            assert plan.stop_of(state, flow) is None
            assert call in unsettled
            assert all(busy != call.id for busy, _ in in_flight.attempts)
            assert action.attempt == len(call.attempts) + 1
        case plan.ForCall(call=call):
            assert call in unsettled
        case plan.AskModel():
            assert not unsettled
            assert not in_flight.anything
        case plan.Finish():
            assert not any(call.open_attempts and wants_record(call.terms.contract) for call in unsettled if call.terms)
            assert not in_flight.anything
        case plan.Await(until=until):
            assert in_flight.anything or (until is not None and until > now)
        case _:
            pass


@quiet
@given(strategies.journals(), st.integers(0, 30))
def test_a_fold_may_stop_and_go_on_anywhere(journal: list[Recorded], cut: int) -> None:
    cut = min(cut, len(journal) - 1) or 1
    assert fold(journal[cut:], fold(journal[:cut])) == fold(journal)
    assert fold(journal).position == len(journal)


@quiet
@given(strategies.journals())
def test_a_journal_comes_back_from_its_bytes(journal: list[Recorded]) -> None:
    before = first_link("r")
    for recorded in journal:
        body = encode(recorded.event)
        assert decode(body) == recorded.event
        assert encode(decode(body)) == body
        after = link(before, recorded.position, to_micros(recorded.at), recorded.fence, body)
        assert after != before
        before = after


@quiet
@given(strategies.journals(), strategies.journals())
def test_terminal_is_terminal(journal: list[Recorded], more: list[Recorded]) -> None:
    state = fold(journal)
    if state.ended is None:
        return
    after = state
    for recorded in more[1:]:
        after = apply(after, recorded)
    assert (after.status, after.output, after.failure, after.calls) == (
        state.status,
        state.output,
        state.failure,
        state.calls,
    )
    if not any(isinstance(recorded.event, AFTER_END) for recorded in more):
        assert after.incident == state.incident


def test_the_strategy_reaches_most_kinds_of_event() -> None:
    seen: Counter[str] = Counter()

    @settings(deadline=None, derandomize=True, max_examples=80, database=None)
    @given(strategies.journals())
    def collect(journal: list[Recorded]) -> None:
        seen.update(type(recorded.event).__name__ for recorded in journal)
        assert journal[-1].at - journal[0].at < timedelta(days=365)

    collect()
    assert len(seen) >= 19, sorted(seen)
