"""The judge: what was promised, held against what the world shows and how often the model was asked.

It is pure, and it must not believe the journal: that is compared with the world, never the other way round.
"""

from __future__ import annotations

import itertools
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from counterfoil.testing.crash.server import Nature
from counterfoil.testing.crash.witness import Asked, AskRaised, Handed, Left, Life, Opened, Seen

_LATE_COMER = {"LeaseLost", "RunOwned"}
_NO_STORE = {"StoreBusy", "StoreUnavailable"}


class Shape(Struct, frozen=True, kw_only=True):
    """What one call does in an undisturbed run.

    Args:
        tool: its tool.
        effects: what it left in the world.
    """

    tool: str
    effects: tuple[Seen, ...] = ()


class Expected(Struct, frozen=True, kw_only=True):
    """What an undisturbed run of the flow does: the measure for every other.

    Args:
        calls: by name.
        natures: of the tools.
        told: what the model was told of calls that ended in an error.
    """

    calls: dict[str, Shape]
    natures: dict[str, Nature]
    told: dict[str, str] = {}

    def nature(self, tool: str) -> Nature:
        """Return what is declared of a tool."""
        return self.natures.get(tool) or Nature(contract="OneShot", effect=True)


class Broken(Struct, frozen=True, kw_only=True):
    """A promise that did not hold.

    Args:
        promise: in a word.
        text: what was seen, for people.
    """

    promise: str
    text: str


def judge(
    expected: Expected, lives: Sequence[Life], effects: Sequence[Seen], *, naive: bool = False
) -> tuple[Broken, ...]:
    """Return every promise that a case broke.

    Args:
        expected: the undisturbed run.
        lives: the processes of the case, in the order in which they began.
        effects: all that the world shows of the case.
        naive: the guard was off, so there is no journal and no status to look at.
    """
    found = [*_endings(lives), *_effects(expected, lives, effects), *_asks(lives)]
    if not naive:
        found += [
            *_told(expected, lives, effects),
            *_keys(lives),
            *_records(expected, lives),
            *_statuses(expected, lives),
            *_evidence(lives),
        ]
    return tuple(dict.fromkeys(found))


class Attribution(Struct, frozen=True):
    """Whose effects are whose: by call, and those that no call accounts for."""

    of_call: dict[str, list[Seen]]
    strays: list[Seen]


def attribute(expected: Expected, lives: Iterable[Life], effects: Iterable[Seen]) -> Attribution:
    """Say which call each effect is of: by its key wherever it stands in it, else by what the call does undisturbed."""
    keys = {key: call for call, known in keys_of(lives).items() for key in known}
    tools = {handed.call: handed for life in lives for handed in life.all(Handed)}
    of_call: dict[str, list[Seen]] = defaultdict(list)
    strays = []
    for seen in effects:
        call = _by_key(seen, keys) or _by_likeness(seen, expected, tools, of_call)
        if call:
            of_call[call].append(seen)
        else:
            strays.append(seen)
    return Attribution(of_call, strays)


def keys_of(lives: Iterable[Life]) -> dict[str, set[str]]:
    """Return every key that a tool was handed or that stands in a journal, by call."""
    keys: dict[str, set[str]] = defaultdict(set)
    for life in lives:
        for handed in life.all(Handed):
            keys[handed.call].add(handed.key)
        for call, key in (life.began.keys if life.began else {}).items():
            keys[call].add(key)
    return keys


def _by_key(seen: Seen, keys: dict[str, str]) -> str:
    if seen.key in keys:
        return keys[seen.key]
    text = f"{seen.slot} {seen.arguments}"
    return next((call for key, call in keys.items() if key and key in text), "")


def _by_likeness(seen: Seen, expected: Expected, handed: dict[str, Handed], of_call: dict[str, list[Seen]]) -> str:
    """Of the calls that work on this endpoint: one that leaves this very mark, or was handed what stands in it."""
    alike = [
        call for call, shape in expected.calls.items() if any(one.endpoint == seen.endpoint for one in shape.effects)
    ]
    same = [call for call in alike if any(one.mark == seen.mark for one in expected.calls[call].effects)]
    candidates = same or [call for call in alike if call in handed and _holds(seen, handed[call])] or alike
    return min(candidates, key=lambda call: len(of_call[call]), default="")


def _holds(seen: Seen, handed: Handed) -> bool:
    values = handed.arguments.strip("{}").replace('":', '",').split('","')
    return any(value.strip('"') in seen.arguments for value in values[1::2])


def _effects(expected: Expected, lives: Sequence[Life], effects: Sequence[Seen]) -> Iterator[Broken]:
    """At most as many as undisturbed, always; just as many once the run is completed."""
    whose = attribute(expected, lives, effects)
    frozen = any(life.fired and life.fired.how == "freeze" for life in lives)
    moved_s = max((life.moved_s for life in lives), default=0.0)
    handed = {one.call: one.tool for life in lives for one in life.all(Handed)}
    completed = bool(lives) and lives[-1].ended is not None and lives[-1].ended.status == "completed"
    for call in sorted(expected.calls.keys() | whose.of_call.keys()):
        shape = expected.calls.get(call) or Shape(tool=handed.get(call, ""))
        nature = expected.nature(shape.tool)
        found, most = whose.of_call.get(call, []), len(shape.effects) if call in expected.calls else 1
        name = f"{shape.tool} {call} ({nature.contract})"
        forgotten = frozen and nature.remembered_s is not None and moved_s >= nature.remembered_s
        if len(found) > most and not (nature.repeatable or forgotten):
            under = f" under {keys} keys" if (keys := len({seen.key for seen in found})) > 1 else ""
            yield Broken(
                promise="one effect",
                text=f"{name} had {_count(len(found), 'effect')}{under}; at most {most} is promised",
            )
        if len(found) < most and completed and call in expected.calls:
            yield Broken(
                promise="no effect lost",
                text=f"{shape.tool} {call} had {_count(len(found), 'effect')} of {most}, and the run says completed",
            )
        if nature.repeatable and len({(seen.slot, seen.arguments) for seen in found}) > max(most, 1):
            yield Broken(promise="same request", text=f"{shape.tool} {call} was repeated with another request")
    if not frozen:
        yield from _end_state(expected, whose)
    for seen in whose.strays:
        yield Broken(promise="one effect", text=f"there is an effect that no call accounts for: {seen.mark} {seen.key}")


def _end_state(expected: Expected, whose: Attribution) -> Iterator[Broken]:
    """What was set last undisturbed must be what was set last here."""
    for call, shape in expected.calls.items():
        found = whose.of_call.get(call, [])
        if not expected.nature(shape.tool).repeatable or not found:
            continue
        slot, last = found[-1].slot, found[-1]
        later = [
            other for other, others in whose.of_call.items() if others and others[-1].slot == slot and other > call
        ]
        order = [seen for every_seen in whose.of_call.values() for seen in every_seen if seen.slot == slot]
        if later and order[-1] is last:
            yield Broken(promise="end state", text=f"{shape.tool} {call} overwrote what {later[-1]} had set")


def _asks(lives: Sequence[Life]) -> Iterator[Broken]:
    """A turn is asked once, and once more for each life that ended while its answer was not saved."""
    asked = Counter(record.turn for life in lives for record in life.all(Asked))
    for turn, times in sorted(asked.items()):
        allowed, saved = 1 + sum(record.turn == turn for life in lives for record in life.all(AskRaised)), False
        for life in lives:
            saved = saved or f"decided {turn}" in life.acknowledged
            if life.fired is not None and not saved and _was_open(life, turn):
                allowed += 1
        if times > allowed:
            yield Broken(
                promise="one decision",
                text=f"the model was asked {times} times for turn {turn}; {_count(allowed, 'ask')} would do",
            )


def _was_open(life: Life, turn: int) -> bool:
    """Whether a life had asked for a turn when it ended; a frozen one may ask after it woke, if it had opened it."""
    kinds = (Asked, Opened) if life.fired and life.fired.how == "freeze" else (Asked,)
    return any(isinstance(record, kinds) and record.turn == turn for record in life.before_the_end)


def _told(expected: Expected, lives: Sequence[Life], effects: Sequence[Seen]) -> Iterator[Broken]:
    """The model is told no story about an effect that is there."""
    whose = attribute(expected, lives, effects)
    for life in lives:
        for asked in life.all(Asked):
            for call, error in asked.told.items():
                if call not in expected.told and whose.of_call.get(call):
                    tool = expected.calls[call].tool if call in expected.calls else ""
                    yield Broken(
                        promise="no story", text=f"{tool} {call} had its effect, and the model was told: {error}"
                    )


def _keys(lives: Sequence[Life]) -> Iterator[Broken]:
    for call, keys in sorted(keys_of(lives).items()):
        if len(keys) > 1:
            yield Broken(promise="one key", text=f"call {call} was given {len(keys)} keys over its lives")


def _endings(lives: Sequence[Life]) -> Iterator[Broken]:
    """A kill that was reported must have killed, and nothing else may end a life in disorder."""
    for place, life in enumerate(lives):
        fired = life.fired
        if fired is not None and fired.how == "kill":
            if life.code != -signal.SIGKILL:
                ending = "is still running" if life.code is None else f"ended with code {life.code}"
                text = f"the kill at window {fired.number}, {fired.window}, did not fire: the process {ending}"
                yield Broken(promise="the kill fires", text=text)
            continue
        raised = life.raised
        if raised is not None and fired is not None and raised.error in _LATE_COMER | _NO_STORE:
            continue  # It woke up, and somebody else has the run.
        if raised is not None and life.beside and raised.error in _NO_STORE and _mid_write(lives[:place]):
            continue  # It could not take over: the frozen process holds the store's write lock.
        if raised is not None:
            yield Broken(promise="orderly end", text=f"life {life.number} raised {raised.error}: {raised.message}")
        elif life.ended is None:
            last = life.output.strip().splitlines()[-1:] or ["it said nothing"]
            yield Broken(
                promise="orderly end", text=f"life {life.number} ended by itself with code {life.code}: {last[0]}"
            )


def _mid_write(lives: Sequence[Life]) -> bool:
    """Whether a frozen life had begun a write, beside what it was frozen at, that it had not heard the end of."""
    for life in lives:
        crossed = [record.window for record in life.before_the_end if hasattr(record, "window")]
        writes = Counter(window.rpartition(" ")[0] for window in crossed if window.endswith(" before"))
        writes.subtract(window.rpartition(" ")[0] for window in crossed if window.endswith(" after"))
        if any(left > 0 and name.startswith(("append", "claim", "post")) for name, left in writes.items()):
            return True
    return False


def _records(expected: Expected, lives: Sequence[Life]) -> Iterator[Broken]:
    """What the world was asked for when a life ended stood in the journal by then: decision and dispatch."""
    for life, following in itertools.pairwise(lives):
        began = following.began
        if life.fired is None or began is None:
            continue
        if began.damage:
            yield Broken(promise="sound journal", text=f"after life {life.number}: {began.damage}")
            continue
        for call, seen in attribute(expected, lives, life.requests).of_call.items():
            shape = expected.calls.get(call)
            nature = expected.nature(shape.tool) if shape else None
            if not seen or nature is None or not nature.effect or call in began.dispatched:
                continue
            name = f"{shape.tool if shape else ''} {call}"
            if call not in began.keys:
                yield Broken(
                    promise="decision first", text=f"the world was asked for {name}, and its decision is not saved"
                )
            elif nature.late:
                yield Broken(
                    promise="mark first", text=f'{name} is dispatch="late" and sent before its mark was durable'
                )
            else:
                yield Broken(
                    promise="intent first", text=f"the world was asked for {name}, and its dispatch is not saved"
                )


def _statuses(expected: Expected, lives: Sequence[Life]) -> Iterator[Broken]:
    """A status claims neither more nor less than what is so, after every life."""
    for place, life in enumerate(lives):
        ended = life.ended
        if ended is None:
            continue
        why = "; ".join(part for part in (ended.because, ended.note) if part)
        if life.act == "person":
            if ended.note:
                yield Broken(promise="a verdict counts", text=f"life {life.number}: {ended.note}")
            continue
        if ended.status not in ("completed", "waiting", "unknown") or (
            life is lives[-1] and ended.status != "completed"
        ):
            yield Broken(promise="it ends", text=f"life {life.number} left the run {ended.status} ({why})")
        if ended.status == "completed":
            yield from _effects(expected, lives[: place + 1], life.effects)
        if ended.incident:
            yield Broken(
                promise="sound status", text=f"life {life.number} raised an incident, and the world shows none"
            )
        for call in ended.unknown:
            yield from _doubt(expected, call, lives, place)


def _doubt(expected: Expected, call: str, lives: Sequence[Life], place: int) -> Iterator[Broken]:
    """Unknown is for calls that nothing can tell about, and whose dispatch was saved when a life ended."""
    tool = next((one.tool for life in lives for one in life.all(Handed) if one.call == call), "")
    tool = tool or (expected.calls[call].tool if call in expected.calls else "")
    nature, cut = expected.nature(tool), False
    frozen = any(life.fired and life.fired.how == "freeze" for life in lives)
    saved: set[str] = set()
    for life in lives[: place + 1]:
        saved |= life.acknowledged
        settled = saved & {f"receipt {call}", f"rejected {call}"}
        cut = cut or (life.fired is not None and f"dispatched {call}" in saved and not settled)
    may_be = nature.doubt_when_frozen if frozen else nature.doubt_when_killed
    if not may_be:
        yield Broken(
            promise="no needless doubt", text=f"{tool} {call} ({nature.contract}) ended unknown; its contract can tell"
        )
    elif not cut:
        text = f"{tool} {call} ended unknown, and no life ended between its dispatch and its receipt"
        yield Broken(promise="no needless doubt", text=text)


def _evidence(lives: Sequence[Life]) -> Iterator[Broken]:
    """What a frozen worker learned after it woke is kept: nobody has to ask a person about it."""
    for place, life in enumerate(lives):
        if life.fired is None or life.fired.how != "freeze":
            continue
        answered = {left.call for left in life.all(Left) if not left.error}
        for later in lives[place + 1 :]:
            if later.beside or later.ended is None or later.act == "person":
                continue
            for call in answered.intersection(later.ended.unknown):
                yield Broken(
                    promise="evidence kept", text=f"call {call} was answered to a worker that woke, and is unknown"
                )


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
