"""What a run does next: the gates in order, then each open call's recovery.

`next_action` is pure and total: data in, one action out. It must not repeat what `recovery` decides for one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from counterfoil.core.contracts import Terms, wants_record
from counterfoil.core.events import Failure, Status
from counterfoil.core.evidence import facts_of
from counterfoil.core.flow import Difference
from counterfoil.core.limits import Limits, reached_before_ask, reached_before_dispatch
from counterfoil.core.recovery import (
    Ask,
    Dispatch,
    Hold,
    Move,
    Observe,
    Reject,
    Settle,
    Unknown,
    Wait,
    recover,
)
from counterfoil.core.rules import Rule
from counterfoil.core.state import CallState, RunState


class ToolView(Struct, frozen=True, kw_only=True):
    """What the plan must know of a tool in the flow at hand.

    Args:
        terms: what a first dispatch made now would be sent under, with the scope at hand.
        can_look: whether it has a lookup.
        parallel: whether it may run beside its siblings.
        late: whether it writes its dispatch mark itself, directly before the bytes leave.
    """

    terms: Terms
    can_look: bool = False
    parallel: bool = False
    late: bool = False

    def beside_others(self) -> ToolView:
        """Return this view with leave to run beside its siblings."""
        return replace(self, parallel=True)


class FlowView(Struct, frozen=True, kw_only=True):
    """What the plan must know of the flow at hand: how it differs from the journal's, and its tools."""

    tools: Mapping[str, ToolView]
    differences: tuple[Difference, ...] = ()
    limits: Limits | None = None


class InFlight(Struct, frozen=True, kw_only=True):
    """What is under way in this process: attempts by (call, number), lookups by call, and the model."""

    attempts: frozenset[tuple[str, int]] = frozenset()
    lookups: frozenset[str] = frozenset()
    asking: bool = False

    @property
    def anything(self) -> bool:
        """Whether something is under way."""
        return bool(self.attempts or self.lookups or self.asking)


class Ownership(Struct, frozen=True, kw_only=True):
    """Whether this worker may advance the run, and whether it was asked to stop."""

    mine: bool = True
    draining: bool = False


class ForCall(Struct, frozen=True):
    """Make one call's move.

    Args:
        call: the call.
        move: its move.
        attempt: the number that a dispatch gets.
        terms: what a dispatch is to be journaled with, where that is not known already.
        record: whether a dispatch is journaled before it is made.
    """

    call: CallState
    move: Dispatch | Settle | Reject | Ask | Observe | Unknown
    attempt: int = 0
    terms: Terms | None = None
    record: bool = True


class AskModel(Struct, frozen=True):
    """Open the turn and ask for its decision."""

    turn: int
    ask: int
    because: Rule


class Await(Struct, frozen=True):
    """Wait for what is under way, or for this moment, whichever comes first."""

    until: datetime | None
    because: Rule


class Pause(Struct, frozen=True):
    """The run stands still: write down why, and give it up."""

    status: Status
    because: Rule
    until: datetime | None = None
    note: str = ""


class Finish(Struct, frozen=True):
    """The run ends."""

    status: Status
    failure: Failure | None = None
    because: Rule = Rule.FINISHED


class Stop(Struct, frozen=True):
    """This worker may write nothing more, or there is nothing left to do."""

    because: Rule


Action = ForCall | AskModel | Await | Pause | Finish | Stop


def next_action(state: RunState, flow: FlowView, now: datetime, ownership: Ownership, in_flight: InFlight) -> Action:
    """Decide what a run does next.

    Args:
        state: the fold of its journal.
        flow: the flow at hand.
        now: store time.
        ownership: whether this worker may act.
        in_flight: what is already under way in this process. ``sent`` and not in here is a recovery decision.

    Returns:
        One action. After its intent is durable and it is under way, ask again.
    """
    if state.status.terminal:
        return Stop(Rule.FINISHED)
    if not ownership.mine:
        return Stop(Rule.LEASE_LOST)
    stop = stop_of(state, flow)
    moves = _moves(state, flow, now, in_flight, stop)
    may_start = stop is None and not ownership.draining
    return (
        _evidence_first(moves, draining=ownership.draining)
        or _declare_unknown(moves)
        or (_dispatch(state, flow, moves) if may_start else None)
        or _await(moves, in_flight)
        or _stand_still(state, moves, flow, stop, ownership)
        or _sleep(moves)
        or _go_on(state, flow, now)
    )


def stop_of(state: RunState, flow: FlowView) -> Rule | None:
    """Return why nothing may be dispatched, or None. Rules are read again every time."""
    if state.cancel is not None:
        return Rule.CANCEL
    if state.abandoned:
        return Rule.ABANDONED
    if flow.differences:
        return Rule.FLOW_CHANGED
    return None


def move_of(state: RunState, flow: FlowView, call: CallState, now: datetime, stop: Rule | None) -> Move:
    """Return one unsettled call's move, as if nothing of it were under way.

    A flow that changed may come back: what only the right flow could do is held, and is not unknown.
    """
    if call.planned.invalid is not None:
        return Reject(Rule.INVALID_CALL)
    tool, terms = flow.tools.get(call.planned.tool), terms_of(flow, call)
    if terms is None:
        return Hold(Rule.FLOW_CHANGED)
    scope = tool.terms.scope if tool else terms.scope
    can_look = tool is not None and tool.can_look
    stopped = stop is not None or tool is None
    since = state.verify_since
    facts = facts_of(
        call, terms, scope=scope, can_look=can_look, stopped=stopped, verify_since=since, latest=state.latest
    )
    move = recover(terms, facts, now)
    changed = tool is None or bool(flow.differences)
    if not changed or not isinstance(move, (Hold, Unknown)):
        return move
    for_good = stop not in (None, Rule.FLOW_CHANGED)
    facts = facts_of(
        call, terms, scope=terms.scope, can_look=True, stopped=for_good, verify_since=since, latest=state.latest
    )
    under_the_right_flow = recover(terms, facts, now)
    return under_the_right_flow if isinstance(under_the_right_flow, (Hold, Unknown)) else Hold(Rule.FLOW_CHANGED)


def may_dispatch(state: RunState, flow: FlowView, call: CallState, now: datetime) -> Rule | None:
    """Return the rule that licenses a dispatch of this call now, or None: the last check before the bytes leave."""
    if stop_of(state, flow) is not None or _beside_unknown(state, call) or _over_limit(state, flow, call):
        return None
    move = move_of(state, flow, call, now, None)
    return move.because if isinstance(move, Dispatch) else None


def terms_of(flow: FlowView, call: CallState) -> Terms | None:
    """Return what a call is recovered, or would be sent, under; None where the flow at hand has no such tool.

    An open call stays under what it was sent under. A call of which nothing is open is sent under the terms at hand,
    and they are journaled: a scope that changed meanwhile must not be forgotten.
    """
    tool = flow.tools.get(call.planned.tool)
    return call.terms if call.open_attempts or tool is None else tool.terms


def _moves(
    state: RunState, flow: FlowView, now: datetime, in_flight: InFlight, stop: Rule | None
) -> list[tuple[CallState, Move]]:
    """Return the move of each unsettled call that is not under way here.

    An event changes one call: those of one tool that last changed at the same one were only decided, and move alike.
    A turn of thousands of calls is asked about thousands of times.
    """
    busy = {call for call, _ in in_flight.attempts} | in_flight.lookups
    alike: dict[tuple[str, bool, int], Move] = {}
    moves: list[tuple[CallState, Move]] = []
    for call in state.calls:
        if call.outcome is None and call.id not in busy:
            kind = (call.planned.tool, call.planned.invalid is None, call.changed_at)
            if kind not in alike:
                alike[kind] = move_of(state, flow, call, now, stop)
            moves.append((call, alike[kind]))
    return moves


def _evidence_first(moves: list[tuple[CallState, Move]], *, draining: bool) -> Action | None:
    """What settles a call, or asks, waits for nothing else: a stop forbids dispatch, not evidence."""
    for call, move in moves:
        if isinstance(move, (Settle, Reject)) or (isinstance(move, (Ask, Observe)) and not draining):
            return ForCall(call, move)
    return None


def _declare_unknown(moves: list[tuple[CallState, Move]]) -> Action | None:
    for call, move in moves:
        if isinstance(move, Unknown) and call.unknown is not move.because:
            return ForCall(call, move)
    return None


def _dispatch(state: RunState, flow: FlowView, moves: list[tuple[CallState, Move]]) -> Action | None:
    """The first call that may be dispatched: in order, beside its siblings only where the tools say so."""
    if any(isinstance(move, Unknown) for _, move in moves):
        return None
    in_order = _in_order(state, flow)
    for call, move in moves:
        terms = terms_of(flow, call)
        if not isinstance(move, Dispatch) or terms is None or call.id not in in_order:
            continue
        if _beside_unknown(state, call) or _over_limit(state, flow, call):
            continue
        record = wants_record(terms.contract) or _limits(state, flow).calls is not None
        new_terms = None if terms == call.terms else terms
        return ForCall(call, move, attempt=len(call.attempts) + 1, terms=new_terms, record=record)
    return None


def _beside_unknown(state: RunState, call: CallState) -> bool:
    """With one call unknown nothing new is dispatched; the unknown one itself may be, once it is licensed again."""
    others = (other for other in state.calls if other.unknown is not None)
    return call.unknown is None and any(other.outcome is None and other.open_attempts for other in others)


def _over_limit(state: RunState, flow: FlowView, call: CallState) -> bool:
    """A limit counts calls, not attempts: a call that was counted already is not stopped by its own count."""
    return not call.attempts and reached_before_dispatch(_limits(state, flow), state.spent) is not None


def _limits(state: RunState, flow: FlowView) -> Limits:
    return flow.limits or state.limits


def _in_order(state: RunState, flow: FlowView) -> set[str]:
    """Return the calls of which every earlier one of the turn is settled, or may run beside them."""
    unsettled = [call for call in state.calls if call.outcome is None]
    beside_each_other = takewhile(lambda call: _parallel(flow, call), unsettled)
    return {call.id for call in (*unsettled[:1], *beside_each_other)}


def _parallel(flow: FlowView, call: CallState) -> bool:
    tool = flow.tools.get(call.planned.tool)
    return tool is not None and tool.parallel


def _await(moves: list[tuple[CallState, Move]], in_flight: InFlight) -> Action | None:
    if not in_flight.anything:
        return None
    return Await(_earliest(moves), Rule.IN_FLIGHT)


def _stand_still(
    state: RunState,
    moves: list[tuple[CallState, Move]],
    flow: FlowView,
    stop: Rule | None,
    ownership: Ownership,
) -> Action | None:
    """Nothing is under way. Unknown shows before blocked, blocked before waiting; no run ends with a call open."""
    waits = _earliest(moves)
    unknown = [(call, move) for call, move in moves if isinstance(move, Unknown)]
    if waits is None and unknown:
        call, move = unknown[0]
        return Pause(Status.UNKNOWN, Rule.UNKNOWN, note=f"call {call.id}: {move.because}")
    if ownership.draining and not _finished(state):
        return Pause(Status.WAITING, Rule.INTERRUPTED)
    if waits is not None:
        return None
    changed = [call for call, move in moves if isinstance(move, Hold) and move.because is Rule.FLOW_CHANGED]
    if stop in (Rule.CANCEL, Rule.ABANDONED) and not any(call.open_attempts for call in changed):
        return _end(state, stop)
    if changed or stop is Rule.FLOW_CHANGED:
        return Pause(Status.BLOCKED, Rule.FLOW_CHANGED)
    if any(isinstance(move, Dispatch) for _, move in moves):
        return Pause(Status.BLOCKED, Rule.LIMIT, note=reached_before_dispatch(_limits(state, flow), state.spent) or "")
    return None


def _end(state: RunState, stop: Rule) -> Finish:
    if stop is Rule.CANCEL:
        return Finish(Status.CANCELLED, because=Rule.CANCEL)
    message = f"a person gave up call {', '.join(state.abandoned)}"
    return Finish(Status.FAILED, Failure(kind="Abandoned", message=message), Rule.ABANDONED)


def _sleep(moves: list[tuple[CallState, Move]]) -> Action | None:
    waits = [move for _, move in moves if isinstance(move, Wait)]
    if not waits:
        return None
    first = min(waits, key=lambda wait: wait.until)
    return Await(first.until, first.because)


def _go_on(state: RunState, flow: FlowView, now: datetime) -> Action:
    """Every call of the turn is settled."""
    if state.asking:
        return _ask_again(state, now)
    if _finished(state):
        return Finish(Status.COMPLETED)
    reached = reached_before_ask(_limits(state, flow), state.spent)
    if reached is not None:
        return Pause(Status.BLOCKED, Rule.LIMIT, note=reached)
    return AskModel(state.turn + 1, 1, Rule.NEXT_TURN)


def _finished(state: RunState) -> bool:
    return bool(state.turn) and not state.asking and not state.calls


def _ask_again(state: RunState, now: datetime) -> Action:
    """The turn is open: the answer was lost with its process, or the model's provider gave none."""
    failed = state.ask_failure
    if failed is None:
        return AskModel(state.turn, state.asks + 1, Rule.ASK_AGAIN)
    note = f"{failed.failure.kind}: {failed.failure.message}"
    if not failed.retryable:
        return Pause(Status.BLOCKED, Rule.MODEL_REFUSED, note=note)
    if failed.retry_at is None:
        return Pause(Status.WAITING, Rule.MODEL_UNAVAILABLE, note=note)
    if now < failed.retry_at:
        return Await(failed.retry_at, Rule.BACKOFF)
    return AskModel(state.turn, state.asks + 1, Rule.ASK_AGAIN)


def _earliest(moves: list[tuple[CallState, Move]]) -> datetime | None:
    return min((move.until for _, move in moves if isinstance(move, Wait)), default=None)
