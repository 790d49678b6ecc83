"""For each rule of `recovery.py` one small wrong replacement, as a tired person writes it; and some elsewhere.

The enumeration and the world of `tests/property` must each notice every fault in `recovery.py`, the world the others
as well. If one does not, it is asleep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

from counterfoil.core import evidence, mail, plan, recovery, state
from counterfoil.core.rules import Rule


class Fault(NamedTuple):
    """A wrong line: what it gets wrong, the text it replaces, and the world that shows it soonest.

    Args:
        module: where the line stands.
        wrong: what it gets wrong.
        old: the right text.
        new: the wrong text.
        kind: the kind of tool; empty for all kinds.
        rule: the rule that it breaks, in `recovery.py`.
        restores: whether the store loses events.
        given: what happens in that world, where it is not left to chance.
    """

    module: ModuleType
    wrong: str
    old: str
    new: str
    kind: str
    rule: Rule | None = None
    restores: bool = False
    given: Mapping[str, object] = MappingProxyType({})


FAULTS = (
    Fault(
        recovery,
        "any answer settles",
        "    if facts.found and (facts.open",
        "    if facts.answer is not None and (facts.open",
        "lookup",
        rule=Rule.FOUND,
    ),
    Fault(
        recovery,
        "several settle nothing",
        "Settle(Rule.SEVERAL if facts.answer is Answer.SEVERAL else Rule.FOUND)",
        "Settle(Rule.FOUND) if facts.answer is Answer.FOUND else Unknown(Rule.SEVERAL)",
        "keyed | lookup",
        rule=Rule.SEVERAL,
    ),
    Fault(
        recovery,
        "what another decision did is taken for ours",
        "return Unknown(Rule.MISMATCH)",
        "return Settle(Rule.FOUND)",
        "lookup",
        rule=Rule.MISMATCH,
        restores=True,
    ),
    Fault(
        recovery,
        "a refused second try speaks for the first",
        "    if not facts.open:\n        return _not_sent",
        "    if not facts.open or facts.refused:\n        return _not_sent",
        "keyed",
        rule=Rule.DEFINITE_NO,
    ),
    Fault(
        recovery,
        "repeats without bound",
        "    if facts.repeats_left:\n        return _when_due(facts, now, Dispatch(Rule.REPEAT_SAME_ID))",
        "    if facts.open:\n        return _when_due(facts, now, Dispatch(Rule.REPEAT_SAME_ID))",
        "client id, blind",
        rule=Rule.REPEATS_USED_UP,
    ),
    Fault(
        recovery,
        "a stop makes an unknown of what never left",
        "    if facts.stopped:\n        return Hold(Rule.STOPPED)\n    if facts.verify_first",
        "    if facts.stopped:\n        return Unknown(Rule.STOPPED_OPEN)\n    if facts.verify_first",
        "one shot",
        rule=Rule.STOPPED,
    ),
    Fault(
        recovery,
        "a planned call is unknown",
        "    return _when_due(facts, now, Dispatch(Rule.NEVER_SENT))",
        "    return Unknown(Rule.NO_EVIDENCE)",
        "one shot",
        rule=Rule.NEVER_SENT,
    ),
    Fault(
        recovery,
        "nobody looks before the first dispatch",
        "    if facts.verify_first:\n        return _verify",
        "    if facts.matches:\n        return _verify",
        "lookup",
        rule=Rule.VERIFY_FIRST,
        restores=True,
    ),
    Fault(
        recovery,
        "what cannot be looked up is taken for never sent",
        "return Unknown(Rule.UNVERIFIABLE)",
        "return Dispatch(Rule.NEVER_SENT)",
        "one shot",
        rule=Rule.UNVERIFIABLE,
        restores=True,
    ),
    Fault(
        recovery,
        "a look that failed found nothing",
        "    if facts.answer is Answer.ABSENT:\n        return Dispatch(Rule.VERIFIED_ABSENT)",
        "    if facts.answer is not None:\n        return Dispatch(Rule.VERIFIED_ABSENT)",
        "lookup",
        rule=Rule.VERIFIED_ABSENT,
        restores=True,
    ),
    Fault(
        recovery,
        "a read pauses the run",
        "_when_due(facts, now, Dispatch(Rule.READ_AGAIN))",
        "Unknown(Rule.NO_EVIDENCE)",
        "read",
        rule=Rule.READ_AGAIN,
    ),
    Fault(
        recovery,
        "a one-shot is repeated",
        "        case OneShot():\n            return Unknown(Rule.NO_EVIDENCE)",
        "        case OneShot():\n            return Dispatch(Rule.NO_EVIDENCE)",
        "one shot",
        rule=Rule.NO_EVIDENCE,
    ),
    Fault(
        recovery,
        "the scope is ignored",
        "case _ if not facts.same_scope:",
        "case _ if facts.refused and not facts.same_scope:",
        "keyed",
        rule=Rule.SCOPE_CHANGED,
    ),
    Fault(
        recovery,
        "a stop ends the run over an open call",
        "return _second_line(lookup, terms, facts, now, Rule.STOPPED_OPEN)",
        "return Hold(Rule.STOPPED)",
        "keyed",
        rule=Rule.STOPPED_OPEN,
    ),
    Fault(
        recovery,
        "a fresh key is not used",
        "_when_due(facts, now, Dispatch(Rule.REPEAT_KEYED))",
        "Unknown(Rule.WINDOW_OVER)",
        "keyed",
        rule=Rule.REPEAT_KEYED,
    ),
    Fault(
        recovery,
        "the window is not checked",
        "    if not remembers(line, terms, facts, now):\n",
        "    if line.remembered_for is None:\n",
        "keyed",
        rule=Rule.WINDOW_OVER,
    ),
    Fault(
        recovery,
        "a conflict is a refusal",
        "    return _when_due(facts, now, Ask(Rule.CHECK_OURS)) if facts.asks_left else",
        "    return Reject(Rule.DEFINITE_NO) if facts.asks_left else",
        "client id",
        rule=Rule.CHECK_OURS,
    ),
    Fault(
        recovery,
        "what holds our id is ours",
        "Unknown(Rule.NOT_OURS)",
        "Settle(Rule.FOUND)",
        "client id",
        rule=Rule.NOT_OURS,
    ),
    Fault(
        recovery,
        "the author's wish for a look is ignored",
        "    if (line.lookup_first or facts.exists) and _may",
        "    if facts.exists and _may",
        "keyed, lookup first",
        rule=Rule.LOOKUP_FIRST,
    ),
    Fault(
        recovery,
        "our own id is not used",
        "_when_due(facts, now, Dispatch(Rule.REPEAT_SAME_ID))",
        "Unknown(Rule.NOT_OURS)",
        "client id, blind",
        rule=Rule.REPEAT_SAME_ID,
    ),
    Fault(
        recovery,
        "an earlier sender may still write the old state",
        "    if facts.ended and facts.repeats_left:\n",
        "    if facts.repeats_left:\n",
        "repeatable",
        rule=Rule.REPEAT_SAME_STATE,
    ),
    Fault(
        recovery,
        "an unread row is an absent row",
        "_when_due(facts, now, Ask(Rule.READ_ROW))",
        "Reject(Rule.ABSENT_PROVEN)",
        "transactional",
        rule=Rule.READ_ROW,
    ),
    Fault(
        recovery,
        "an absent row is not used",
        "        return Dispatch(Rule.ROW_ABSENT)",
        "        return Unknown(Rule.NO_EVIDENCE)",
        "transactional",
        rule=Rule.ROW_ABSENT,
    ),
    Fault(
        recovery,
        "a lookup is asked that the flow does not have",
        '    """The lookup line: absence is proof only once nothing can land any more."""\n    if not facts.can_look:',
        '    """The lookup line: absence is proof only once nothing can land any more."""\n    if facts.asks_left < 0:',
        "lookup",
        rule=Rule.LOOKUP_MISSING,
    ),
    Fault(
        recovery,
        "a sender that nobody looked at has ended",
        "    if facts.sender is None:\n        return Observe(Rule.LOOK_AT_SENDER)\n    if not facts.ended:",
        "    if facts.sender is None:\n        return Dispatch(Rule.ABSENT_PROVEN)\n    if not facts.ended:",
        "lookup",
        rule=Rule.LOOK_AT_SENDER,
    ),
    Fault(
        recovery,
        "an early absence counts",
        "facts.answer is Answer.ABSENT and _moment(facts.asked_at) >= settled:",
        "facts.answer is Answer.ABSENT and _moment(facts.asked_at) >= _moment(facts.sender_since):",
        "lookup",
        rule=Rule.LOOK_EARLY,
    ),
    Fault(
        recovery,
        "nothing lands after its sender's death",
        "settled = _settled(facts, line.settles_in)",
        "settled = _settled(facts, timedelta(0))",
        "lookup",
        rule=Rule.SETTLING,
    ),
    Fault(
        recovery,
        "a proven absence is not used",
        "    return Dispatch(Rule.ABSENT_PROVEN)",
        "    return Unknown(Rule.CANNOT_TELL)",
        "lookup",
        rule=Rule.ABSENT_PROVEN,
    ),
    Fault(
        recovery,
        "the look that counts is not taken",
        "        return _when_due(facts, now, Ask(Rule.LOOK_AGAIN))",
        "        return Unknown(Rule.CANNOT_TELL)",
        "lookup",
        rule=Rule.LOOK_AGAIN,
    ),
    Fault(
        recovery,
        "not knowing is knowing that nothing happened",
        "Ask(Rule.LOOK_AGAIN))\n    return Unknown(Rule.CANNOT_TELL)",
        "Ask(Rule.LOOK_AGAIN))\n    return Reject(Rule.ABSENT_PROVEN)",
        "lookup",
        rule=Rule.CANNOT_TELL,
    ),
    Fault(
        recovery,
        "nobody waits for a living sender's end",
        "    return _moment(facts.sender_since) + terms.bounds.proof_within",
        "    return _moment(facts.sender_since)",
        "lookup",
        rule=Rule.AWAIT_PROOF,
    ),
    Fault(
        recovery,
        "a living sender does not wake",
        "    if not facts.ended:\n        return _look_while_unproven(terms, facts, now)\n",
        "",
        "lookup",
        rule=Rule.SENDER_MAY_WAKE,
    ),
    Fault(
        recovery,
        "the last look is not taken",
        "    return _when_due(facts, now, Ask(Rule.LAST_LOOK))",
        "    return otherwise",
        "lookup",
        rule=Rule.LAST_LOOK,
    ),
    Fault(
        recovery,
        "what is due still waits",
        "    if facts.not_before is not None and now < facts.not_before:",
        "    if facts.not_before is not None:",
        "keyed",
        rule=Rule.BACKOFF,
    ),
)


QUIET: Mapping[str, object] = {"flow": "right", "cancel": False, "drain": False, "scope": "eu", "faults": 5}
SENDS: Mapping[str, object] = {**QUIET, "attempt": "sends", "provider": "takes it"}
FREEZES: Mapping[str, object] = {**SENDS, "fault": "freeze", "last check": "was passed"}

OTHER_FAULTS = (
    Fault(
        evidence,
        "the newest sender governs, not the weakest",
        "_weakest_sender(call.open_attempts, children",
        "_weakest_sender(call.open_attempts[-1:], children",
        "keyed | lookup",
    ),
    Fault(
        evidence,
        "a parent's death proves its children's",
        "    if children and not alive:",
        "    if children and not attempts:",
        "lookup",
    ),
    Fault(
        evidence,
        "the window counts from the last dispatch",
        "first_sent_at=call.attempts[0].at",
        "first_sent_at=call.attempts[-1].at",
        "keyed",
        given={**SENDS, "gap": 60, "reply": "lost"},
    ),
    Fault(
        state,
        "the settle time counts from when a sender was first seen alive",
        "first = attempt.since is None or event.proof in ENDED",
        "first = attempt.since is None",
        "lookup",
        given={**FREEZES, "late reply": "is lost with it", "provable": True},
    ),
    Fault(
        state,
        "an exception is proof that nothing happened",
        "closed = event.ending in (Ending.NOT_APPLIED, Ending.NOT_SENT)",
        "closed = event.ending is not Ending.EXISTS",
        "one shot",
    ),
    Fault(
        state,
        "a thread that outlived its deadline has ended",
        "proof = SenderProof.ALIVE if event.running else SenderProof.RELEASED",
        "proof = SenderProof.RELEASED",
        "lookup",
    ),
    Fault(
        state,
        "a call sent again in another scope is recovered in the first",
        "terms=event.terms or call.terms",
        "terms=call.terms or event.terms",
        "keyed",
        given={"flow": "right", "cancel": False, "drain": False, "faults": 5},
    ),
    Fault(
        plan,
        "a cancel ends the run over an open call of a missing tool",
        " and not any(call.open_attempts for call in changed):",
        ":",
        "keyed",
    ),
    Fault(
        plan,
        "an unknown call does not hold up its siblings",
        "    if any(isinstance(move, Unknown) for _, move in moves):\n        return None\n",
        "",
        "",
        restores=True,
    ),
    Fault(
        plan,
        "what is under way here is recovered",
        "if call.outcome is None and call.id not in busy",
        "if call.outcome is None",
        "keyed",
    ),
    Fault(
        plan,
        "calls overtake each other",
        "for call in (*unsettled[:1], *beside_each_other)}",
        "for call in unsettled}",
        "one shot",
    ),
    Fault(
        plan,
        "a worker that drains goes on dispatching",
        "may_start = stop is None and not ownership.draining",
        "may_start = stop is None",
        "one shot",
    ),
    Fault(
        mail,
        "a late reply is thrown away",
        "        if _is_of(call, item):\n            return taken, fact",
        "        if _is_of(call, item):\n            return (taken,)",
        "one shot",
        given={**FREEZES, "frozen": "wakes", "late reply": "comes"},
    ),
    Fault(
        mail,
        "a reply to a decision that the store has lost settles the one in its place",
        "        if _is_of(call, item):",
        "        if taken:",
        "one shot",
        restores=True,
    ),
    Fault(
        mail,
        "a second effect is nobody's business",
        "    if contradiction is None:",
        "    if taken:",
        "keyed",
        given={**FREEZES, "frozen": "stays", "late reply": "comes", "long after": 130, "reply": "reply"},
    ),
)


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Run with the fault in place: the code of every function that it changes, wherever that was imported to."""
    source = Path(fault.module.__file__ or "").read_text(encoding="utf-8")
    found = source.count(fault.old)
    assert found == 1, f"({fault.wrong}): its line stands {found} times in {fault.module.__name__}; mend the table"
    wrong: dict[str, Any] = {"__name__": fault.module.__name__}
    exec(compile(source.replace(fault.old, fault.new), fault.module.__file__ or "", "exec"), wrong)
    functions = {
        name: value
        for name, value in vars(fault.module).items()
        if isinstance(value, FunctionType) and value.__module__ == fault.module.__name__
    }
    right = {name: function.__code__ for name, function in functions.items()}
    try:
        for name, function in functions.items():
            function.__code__ = wrong[name].__code__
        yield
    finally:
        for name, function in functions.items():
            function.__code__ = right[name]
