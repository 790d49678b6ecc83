"""The decision about one call: DESIGN's two tables row by row, then the whole space against an independent oracle."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from itertools import islice

import pytest

from counterfoil.core import recovery
from counterfoil.core.recovery import Move, Wait, recover
from counterfoil.core.rules import Rule
from tests.core.faults import FAULTS, Fault, planted
from tests.core.oracle import Verdict, expected
from tests.core.space import (
    CONTRACTS,
    NOW,
    OPEN_WINDOWS,
    SENDERS,
    SHY_ANSWERS,
    VERIFIES,
    WINDOWS,
    Case,
    build,
    cases,
)


def said(move: Move) -> Verdict:
    return Verdict(type(move).__name__.lower(), move.because, getattr(move, "until", None))


# ---- the tables of DESIGN sections 3 and 4, to be read

ROWS = """
# The crash windows: dispatched or not, refused or not.
one shot | never sent                                       -> dispatch  never-sent
one shot | nothing open                                     -> dispatch  never-sent
one shot | nothing open, refused                            -> reject    definite-no
keyed    | refused                                          -> dispatch  repeat-keyed
one shot | refused                                          -> unknown   no-evidence
one shot | nothing open, no repeats left                    -> reject    repeats-used-up

# Read, Repeatable: run again; a repeat waits for proof of its sender's end, up to a stated bound.
read       | sender expired: over                           -> dispatch  read-again
repeatable | sender dead: settling                          -> dispatch  repeat-same-state
repeatable | sender released: settling                      -> dispatch  repeat-same-state
repeatable | sender nobody looked                           -> observe   look-at-sender
repeatable | sender expired: fresh                          -> wait      await-proof
repeatable | sender alive: to be looked at                  -> observe   await-proof
repeatable | sender alive: over now, no lookup              -> unknown   sender-may-wake
repeatable | sender expired: over, no lookup                -> unknown   sender-may-wake

# Keyed: repeat while the provider remembers; whatever the sender, for the provider fences the repeat.
keyed | sender dead: settling                               -> dispatch  repeat-keyed
keyed | sender released: settling                           -> dispatch  repeat-keyed
keyed | sender alive: fresh                                 -> dispatch  repeat-keyed
keyed | sender expired: fresh                               -> dispatch  repeat-keyed
keyed | sender nobody looked                                -> dispatch  repeat-keyed
keyed | backing off                                         -> wait      backoff
keyed | window last moment                                  -> dispatch  repeat-keyed
keyed | window just over, no lookup                         -> unknown   window-over
keyed | window undeclared, no lookup                        -> unknown   window-over
keyed | window first dispatch in the future, no lookup      -> unknown   window-over
keyed | window set back, no lookup                          -> unknown   window-over
keyed | window set back a little                            -> dispatch  repeat-keyed
keyed | window just over                                    -> ask       last-look
keyed | no repeats left, no lookup                          -> unknown   repeats-used-up
keyed | other scope                                         -> unknown   scope-changed

# Keyed | Lookup: past the window the second line serves.
keyed | lookup | window just over                           -> ask       look-again
keyed | lookup | window just over, sender dead: settling    -> ask       look-early
keyed | lookup | window just over, sender alive: fresh      -> ask       look-early
keyed | lookup | window just over, no lookup                -> unknown   lookup-missing
keyed | lookup | window just over, found                    -> settle    found
keyed | lookup | window just over, several                  -> settle    several
keyed | lookup | window just over, absent at                -> dispatch  absent-proven
keyed | lookup | window just over, absent before            -> ask       look-again
keyed | lookup | window just over, cannot tell at           -> ask       look-again
keyed | lookup | window just over, failed at                -> ask       look-again
keyed | lookup | window just over, cannot tell at, no asks  -> unknown   cannot-tell
keyed | lookup | window just over, failed after, no asks    -> unknown   cannot-tell
keyed | lookup | exists                                     -> ask       check-ours
keyed | lookup | no repeats left, absent at                 -> reject    absent-proven
keyed, lookup first | lookup |                              -> ask       lookup-first
keyed, lookup first | lookup | absent before                -> dispatch  repeat-keyed

# Lookup: absence is proof only when nothing can still land.
lookup | sender nobody looked                               -> observe   look-at-sender
lookup | sender dead: settling                              -> ask       look-early
lookup | sender dead: settling, absent before               -> wait      settling
lookup | sender dead: settling, asks 1                      -> wait      settling
lookup | sender dead: settled now                           -> ask       look-again
lookup | sender released: settled now                       -> ask       look-again
lookup | found                                              -> settle    found
lookup | several                                            -> settle    several
lookup | absent before                                      -> ask       look-again
lookup | absent at                                          -> dispatch  absent-proven
lookup | absent after                                       -> dispatch  absent-proven
lookup | absent at, refused                                 -> reject    definite-no
lookup | absent at, no repeats left                         -> reject    absent-proven
lookup | failed at                                          -> ask       look-again
lookup | failed at, backing off                             -> wait      backoff
lookup | cannot tell at, no asks                            -> unknown   cannot-tell
lookup | sender expired: fresh                              -> ask       look-early
lookup | sender expired: fresh, absent before               -> wait      await-proof
lookup | sender alive: to be looked at, absent before       -> observe   await-proof
lookup | sender alive: over now, absent before              -> ask       last-look
lookup | sender alive: over now, failed at                  -> ask       last-look
lookup | sender alive: over now, absent at                  -> unknown   sender-may-wake
lookup | sender expired: over, no asks                      -> unknown   sender-may-wake
lookup | sender children: waiting, absent before            -> wait      await-proof
lookup | no lookup                                          -> unknown   lookup-missing
lookup | other scope                                        -> unknown   scope-changed

# ClientId: repeat; on conflict fetch, and check that it is ours.
client id | sender alive: fresh                             -> dispatch  repeat-same-id
client id | exists                                          -> ask       check-ours
client id | exists, found                                   -> settle    found
client id | exists, absent at, no asks                      -> unknown   not-ours
client id | exists, no lookup                               -> unknown   lookup-missing
client id, lookup first |                                   -> ask       lookup-first

# Transactional: read the receipt row; absent: dispatch, for a twin that wakes fails.
transactional | sender alive: fresh                         -> ask       read-row
transactional | found                                       -> settle    found
transactional | sender alive: fresh, absent before          -> dispatch  row-absent
transactional | failed at, no asks                          -> unknown   cannot-tell
transactional | no lookup                                   -> unknown   lookup-missing

# OneShot.
one shot | sender dead: settled                             -> unknown   no-evidence

# A stop never settles: it forbids dispatch, repeats included, and the lookup goes on.
keyed          | nothing open, stopped                      -> hold      stopped
read           | stopped                                    -> hold      stopped
one shot       | stopped                                    -> unknown   no-evidence
keyed          | stopped, no lookup                         -> unknown   stopped-open
client id      | stopped, no lookup                         -> unknown   stopped-open
client id      | stopped, exists                            -> ask       check-ours
repeatable     | stopped, no lookup                         -> unknown   stopped-open
keyed | lookup | stopped                                    -> ask       look-again
lookup         | stopped, absent at                         -> reject    absent-proven
lookup         | stopped, sender dead: settling, absent before  -> wait  settling
transactional  | stopped, sender alive: fresh, absent before -> wait     await-proof
transactional  | stopped, absent at                         -> reject    absent-proven

# A noticed restore: no planned call is believed never to have been sent.
one shot  | never sent, restored: settled, no lookup        -> unknown   unverifiable
lookup    | never sent, restored: settling                  -> wait      settling
lookup    | never sent, restored: settled now               -> ask       verify-first
lookup    | never sent, declared                            -> ask       verify-first
lookup    | never sent, restored: settled, absent at        -> dispatch  verified-absent
lookup    | never sent, restored: settled, failed at, no asks -> unknown cannot-tell
lookup    | never sent, restored: settled, found, matches   -> settle    found
lookup    | never sent, restored: settled, found            -> unknown   mismatch
lookup    | restored: settling, absent before               -> wait      settling
client id | never sent, restored: settled                   -> ask       last-look
client id | never sent, restored: settled, absent at        -> unknown   unverifiable
"""

WORDS: dict[str, dict[str, object]] = {
    "never sent": {"open": False, "sent_before": False},
    "nothing open": {"open": False},
    "refused": {"refused": True},
    "exists": {"exists": True},
    "stopped": {"stopped": True},
    "no lookup": {"can_look": False},
    "other scope": {"same_scope": False},
    "no repeats left": {"repeats_left": 0},
    "no asks": {"asks_left": 0},
    "asks 1": {"asks_left": 1},
    "backing off": {"backoff": "not yet"},
    "matches": {"matches": True},
    "found": {"answer": "found"},
    "several": {"answer": "several"},
    **{f"sender {sender}": {"sender": sender} for sender in SENDERS},
    **{f"window {window}": {"window": window} for window in WINDOWS},
    **{verify: {"verify": verify} for verify in VERIFIES if verify != "no"},
    **{
        f"{answer} {when}": {"answer": f"{answer}, asked {when}"}
        for answer in SHY_ANSWERS
        for when in ("before", "at", "after")
    },
}


def row(line: str) -> tuple[Case, str, str]:
    """Read a line of the table: contract, situation, move and rule."""
    left, _, right = line.partition("->")
    contract, _, situation = left.rpartition(" | ")
    move, because = right.split()
    facts: dict[str, object] = {}
    for word in filter(None, (word.strip() for word in situation.split(", "))):
        facts |= WORDS[word]
    return Case(contract=contract.strip(), **facts), move, because  # type: ignore[arg-type]  # WORDS are its fields


LINES = [line for line in ROWS.splitlines() if "->" in line]


@pytest.mark.parametrize("line", LINES, ids=[" ".join(line.split()) for line in LINES])
def test_the_tables_of_the_design(line: str) -> None:
    case, move, because = row(line)
    assert said(recover(*build(case)))[:2] == (move, because)


# ---- the whole space


def broken_law(case: Case, move: Move) -> str | None:
    """Safety and liveness in pairs, read off DESIGN and not off the oracle; None: all hold."""
    kind, ended = type(move).__name__, case.sender.startswith(("released", "dead"))
    looks = case.contract == "lookup" or case.contract.endswith("| lookup")
    conflict = case.contract.startswith("client id") and case.exists  # it is there, whatever a lookup says
    counted = case.answer.partition(", asked ")[2] in ("at", "after")
    waiting = (case.sender.endswith("settling") and ended) or case.verify == "restored: settling"
    proven = case.can_look and ended and not waiting and case.answer.startswith("absent") and counted
    absent_row = case.contract == "transactional" and case.can_look and case.answer.startswith("absent")
    licensed = case.contract == "read" or (
        case.same_scope
        and case.repeats_left > 0
        and (
            (case.contract.startswith("keyed") and case.window in OPEN_WINDOWS)
            or (case.contract.startswith("client id") and not conflict)
            or (case.contract.startswith("repeatable") and ended)
            or (looks and proven and not conflict)
            or absent_row
        )
    )
    if kind == "Wait" and getattr(move, "until", NOW) <= NOW:
        return "waits for what is past"
    if kind == "Dispatch" and case.stopped:
        return "dispatches although stopped"
    if kind == "Settle" and case.answer not in ("found", "several"):
        return "settles without a finding"
    if kind == "Ask" and not (case.can_look and case.asks_left):
        return "asks what cannot be asked any more"
    if not case.open:
        return None
    if kind == "Dispatch" and not licensed:
        return "repeats without a licence"
    if kind == "Reject" and not (proven and (looks or case.contract == "transactional") and case.same_scope):
        return "rejects what may have happened"
    if kind == "Unknown" and licensed and not case.stopped:
        return "unknown, although a repeat is licensed"
    if kind == "Unknown" and case.answer in ("found", "several"):
        return "unknown, although it was found"
    if kind == "Unknown" and looks and proven and case.same_scope and not conflict:
        return "unknown, although its absence is proven"
    return None


def check(contract: str) -> Counter[Rule]:
    """Hold every case of a contract against the oracle and the laws; return how often each rule was reached."""
    reached: Counter[Rule] = Counter()
    for case in cases(contract):
        move = recover(*build(case))
        assert said(move) == expected(case), case
        assert (law := broken_law(case, move)) is None, f"{law}: {case}"
        reached[move.because] += 1
    return reached


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_case_is_decided_as_the_design_says(contract: str) -> None:
    reached = check(contract)
    assert reached.total() > 9_000


def rules_in(module: object) -> set[Rule]:
    """The rules that a module's text names."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]  # a module
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {Rule[node.attr] for node in named if isinstance(node.value, ast.Name) and node.value.id == "Rule"}


def test_every_rule_of_recovery_is_reached_by_a_row_and_by_the_enumeration() -> None:
    assert {row(line)[2] for line in LINES} == rules_in(recovery)
    some = (case for contract in CONTRACTS for case in islice(cases(contract), 0, None, 13))
    assert {recover(*build(case)).because for case in some} == rules_in(recovery)


def test_what_waits_is_told_the_moment_and_not_a_later_one() -> None:
    """A wait ends at the first boundary that matters: one tick before it nothing changes, at it something does."""
    for contract in ("lookup", "repeatable", "keyed"):
        for case in islice(cases(contract), 0, None, 5):
            terms, facts, now = build(case)
            move = recover(terms, facts, now)
            if isinstance(move, Wait):
                assert recover(terms, facts, move.until) != move, case


# ---- planted faults


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.rule}: {fault.wrong}")
def test_the_enumeration_notices(fault: Fault) -> None:
    contract = {"client id, blind": "client id", "keyed, lookup first": "keyed, lookup first | lookup"}
    with planted(fault):
        assert any(differs(case) for case in cases(contract.get(fault.kind, fault.kind))), fault.wrong


def differs(case: Case) -> bool:
    try:
        move = recover(*build(case))
    except AssertionError:
        return True
    return said(move) != expected(case)


def test_a_fault_is_planted_for_every_rule() -> None:
    assert {fault.rule for fault in FAULTS} == rules_in(recovery)
