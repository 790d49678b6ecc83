"""What DESIGN sections 3 and 4 say about one call, written down a second time from their text.

It reads the words of a case and calls nothing of the code. Where this and `recovery` differ, one of the two is wrong.
"""

from __future__ import annotations

from typing import NamedTuple

from counterfoil.core.rules import Rule
from tests.core.space import BACKOFF_UNTIL, BLIND_FOR, LIVING_FOR, NOW, OPEN_WINDOWS, PROOF_WITHIN, TICK, Case


class Verdict(NamedTuple):
    """A move's kind, its rule, and until when, if it waits."""

    move: str
    because: Rule
    until: object = None


def expected(case: Case) -> Verdict:
    """Return the one right move."""
    if case.answer in ("found", "several"):
        # Section 4: found is a receipt, several an incident that the oldest settles. After a noticed restore a call of
        # which the journal knows no dispatch is settled only by what matches its exact request.
        if case.open or case.verify == "no" or case.matches:
            return Verdict("settle", Rule.FOUND if case.answer == "found" else Rule.SEVERAL)
        return Verdict("unknown", Rule.MISMATCH)
    return _sent(case) if case.open else _unsent(case)


def _unsent(case: Case) -> Verdict:
    if case.refused:  # every attempt is definitely not applied: rejected, and the model told
        return Verdict("reject", Rule.DEFINITE_NO)
    if case.sent_before and case.repeats_left == 0:  # bounds on repeats; and it is certain that nothing happened
        return Verdict("reject", Rule.REPEATS_USED_UP)
    if case.stopped:  # a stop forbids dispatch
        return Verdict("hold", Rule.STOPPED)
    if case.verify == "no":  # decision saved, call not dispatched: dispatch with the saved key
        return _paced(case, "dispatch", Rule.NEVER_SENT)
    if not case.can_look or not case.same_scope:  # a planned call without a usable lookup is unknown
        return Verdict("unknown", Rule.UNVERIFIABLE)
    if case.verify.startswith("restored") and not (_declares_lookup(case) or case.contract == "transactional"):
        # No settle time is declared, so no absence would count: the lookup may find, but it is no usable one.
        if case.asks_left and not case.answer.startswith("absent"):
            return _paced(case, "ask", Rule.LAST_LOOK)
        return Verdict("unknown", Rule.UNVERIFIABLE)
    if case.verify == "restored: settling":  # a lost dispatch may still become visible
        return Verdict("wait", Rule.SETTLING, NOW + TICK)
    if case.answer.startswith("absent"):
        return Verdict("dispatch", Rule.VERIFIED_ABSENT)
    if case.asks_left:
        return _paced(case, "ask", Rule.VERIFY_FIRST)
    return Verdict("unknown", Rule.CANNOT_TELL)


def _sent(case: Case) -> Verdict:
    if case.contract == "read":  # run again; a stop forbids that, and a read counts as settled
        return Verdict("hold", Rule.STOPPED) if case.stopped else _paced(case, "dispatch", Rule.READ_AGAIN)
    if case.contract == "one shot":
        return Verdict("unknown", Rule.NO_EVIDENCE)
    if not case.same_scope:  # another scope at resume means that the key proves nothing
        return Verdict("unknown", Rule.SCOPE_CHANGED)
    if case.contract == "transactional":
        return _transactional(case)
    if case.contract == "lookup":
        return _by_lookup(case)
    if case.contract.startswith("client id") and case.exists:  # on conflict fetch, and check that it is ours
        if not case.can_look:
            return Verdict("unknown", Rule.LOOKUP_MISSING)
        return _paced(case, "ask", Rule.CHECK_OURS) if case.asks_left else Verdict("unknown", Rule.NOT_OURS)
    if case.stopped:  # no repeat; the lookup goes on
        return _next_line(case, Rule.STOPPED_OPEN)
    if case.contract.startswith("keyed"):
        return _keyed(case)
    if case.contract.startswith("client id"):
        return _client_id(case)
    return _repeatable(case)


def _keyed(case: Case) -> Verdict:
    if case.window not in OPEN_WINDOWS:
        return _next_line(case, Rule.WINDOW_OVER)
    curious = case.exists or "lookup first" in case.contract  # a conflict may be our own first try
    if curious and case.can_look and case.answer == "none" and case.asks_left:
        return _paced(case, "ask", Rule.CHECK_OURS if case.exists else Rule.LOOKUP_FIRST)
    if case.repeats_left:  # the provider fences the repeat, so no proof about the sender is needed
        return _paced(case, "dispatch", Rule.REPEAT_KEYED)
    return _next_line(case, Rule.REPEATS_USED_UP)


def _client_id(case: Case) -> Verdict:
    if "lookup first" in case.contract and case.can_look and case.answer == "none" and case.asks_left:
        return _paced(case, "ask", Rule.LOOKUP_FIRST)
    if case.repeats_left:
        return _paced(case, "dispatch", Rule.REPEAT_SAME_ID)
    return _next_line(case, Rule.REPEATS_USED_UP)


def _repeatable(case: Case) -> Verdict:
    proof, _, word = case.sender.partition(": ")
    if not word:
        return Verdict("observe", Rule.LOOK_AT_SENDER)
    if proof in ("released", "dead"):  # these license a dispatch
        if case.repeats_left:
            return _paced(case, "dispatch", Rule.REPEAT_SAME_STATE)
        return _next_line(case, Rule.REPEATS_USED_UP)
    if not word.startswith("over"):  # waits for proof up to a stated bound …
        return _for_proof(case)
    return _next_line(case, Rule.SENDER_MAY_WAKE)  # … then unknown


def _transactional(case: Case) -> Verdict:
    if not case.can_look:
        return Verdict("unknown", Rule.LOOKUP_MISSING)
    if not case.answer.startswith("absent"):  # read the receipt on the primary
        return _paced(case, "ask", Rule.READ_ROW) if case.asks_left else Verdict("unknown", Rule.CANNOT_TELL)
    if case.repeats_left and not case.stopped:  # the row is unique, so a frozen twin fails
        return Verdict("dispatch", Rule.ROW_ABSENT)
    return _by_lookup(case)  # that nothing happened can be said only as by any lookup


def _by_lookup(case: Case) -> Verdict:
    """Absence is proof only when nothing can still land, and it counts only if it was asked then."""
    if not case.can_look:
        return Verdict("unknown", Rule.LOOKUP_MISSING)
    proof, _, word = case.sender.partition(": ")
    if not word:
        return Verdict("observe", Rule.LOOK_AT_SENDER)
    first_look = case.answer == "none" and case.asks_left >= 2
    asked = case.answer.partition(", asked ")[2]
    if proof in ("released", "dead"):
        if word == "settling" or case.verify == "restored: settling":  # what the store lost counts as well
            return Verdict("ask", Rule.LOOK_EARLY) if first_look else Verdict("wait", Rule.SETTLING, NOW + TICK)
        if case.answer.startswith("absent") and asked in ("at", "after"):
            if case.refused:
                return Verdict("reject", Rule.DEFINITE_NO)
            if case.stopped or not case.repeats_left:
                return Verdict("reject", Rule.ABSENT_PROVEN)
            return Verdict("dispatch", Rule.ABSENT_PROVEN)
        if case.asks_left:
            return _paced(case, "ask", Rule.LOOK_AGAIN)
        return Verdict("unknown", Rule.CANNOT_TELL)
    if not word.startswith("over"):
        return Verdict("ask", Rule.LOOK_EARLY) if first_look else _for_proof(case)
    looked_last = case.answer.startswith("absent") and asked in ("at", "after")
    if case.asks_left and not looked_last:
        return _paced(case, "ask", Rule.LAST_LOOK)
    return Verdict("unknown", Rule.SENDER_MAY_WAKE)


def _next_line(case: Case, otherwise: Rule) -> Verdict:
    """The second line serves when the first is no longer usable; with none, what can be found is still looked for."""
    if _declares_lookup(case):
        return _by_lookup(case)
    if case.can_look and case.asks_left and not case.answer.startswith("absent"):
        return _paced(case, "ask", Rule.LAST_LOOK)
    return Verdict("unknown", otherwise)


def _declares_lookup(case: Case) -> bool:
    return case.contract == "lookup" or case.contract.endswith("| lookup")


def _for_proof(case: Case) -> Verdict:
    proof, _, word = case.sender.partition(": ")
    if proof == "children":  # nobody can look at them: the bound is all there is
        return Verdict("wait", Rule.AWAIT_PROOF, NOW + PROOF_WITHIN - BLIND_FOR[word])
    again = LIVING_FOR[word][2]
    return Verdict("observe", Rule.AWAIT_PROOF) if again is None else Verdict("wait", Rule.AWAIT_PROOF, NOW + again)


def _paced(case: Case, move: str, because: Rule) -> Verdict:
    return Verdict("wait", Rule.BACKOFF, BACKOFF_UNTIL) if case.backoff == "not yet" else Verdict(move, because)
