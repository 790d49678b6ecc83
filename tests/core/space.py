"""The whole finite space that `recover` sees, in words: every contract, proof, answer, bound and time relation.

A case says "the sender is dead and the settle time is over", never a date; `build` puts it into moments, with every
boundary met exactly. The oracle and the laws read the words only, so they share no arithmetic with the code.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from counterfoil.core.contracts import (
    FOREVER,
    Bounds,
    ClientId,
    Contract,
    Keyed,
    Lookup,
    OneShot,
    Read,
    Repeatable,
    Terms,
    Transactional,
)
from counterfoil.core.events import Answer, SenderProof
from counterfoil.core.evidence import Facts

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
SETTLES_IN = 5 * SECOND
PROOF_WITHIN = 120 * SECOND
TIMEOUT, MARGIN, REMEMBERED = 60 * SECOND, 30 * SECOND, 3600 * SECOND
BACKOFF_UNTIL = NOW + 3 * SECOND

BOUNDS = Bounds(timeout=TIMEOUT, proof_within=PROOF_WITHIN)
LOOKUP = Lookup(settles_in=SETTLES_IN)


class Case(Struct, kw_only=True):
    """One situation of one call, in words. The defaults are a call whose only attempt was lost with its process."""

    contract: str
    open: bool = True
    sender: str = "dead: settled"
    window: str = "fresh"
    answer: str = "none"
    exists: bool = False
    refused: bool = False
    asks_left: int = 2
    repeats_left: int = 1
    backoff: str = "none"
    same_scope: bool = True
    can_look: bool = True
    stopped: bool = False
    verify: str = "no"
    matches: bool = False
    sent_before: bool = True


# ---- words to moments

WINDOWS: dict[str, tuple[timedelta | None, datetime]] = {
    # how long the key is remembered, and when the first dispatch was
    "undeclared": (None, NOW - SECOND),
    "first dispatch in the future": (REMEMBERED, NOW + TICK),
    "first dispatch now": (REMEMBERED, NOW),
    "fresh": (REMEMBERED, NOW - 600 * SECOND),
    "forever": (FOREVER, NOW - 365 * 86_400 * SECOND),
    "last moment": (REMEMBERED, NOW + TIMEOUT + MARGIN - REMEMBERED + TICK),
    "just over": (REMEMBERED, NOW + TIMEOUT + MARGIN - REMEMBERED),
    "long over": (REMEMBERED, NOW - 10 * REMEMBERED),
    "set back": (REMEMBERED, NOW - 600 * SECOND),
    "set back a little": (REMEMBERED, NOW - 600 * SECOND),
}
LATEST = {
    # The latest event in the journal, where the clock was set back since: it is that late at least.
    "set back": NOW - 600 * SECOND + REMEMBERED - TIMEOUT - MARGIN,
    "set back a little": NOW - 600 * SECOND + REMEMBERED - TIMEOUT - MARGIN - TICK,
}
OPEN_WINDOWS = ("first dispatch now", "fresh", "forever", "last moment", "set back a little")

ENDED_FOR = {"settling": SETTLES_IN - TICK, "settled now": SETTLES_IN, "settled": SETTLES_IN + 10 * SECOND}
LIVING_FOR: dict[str, tuple[timedelta, timedelta, timedelta | None]] = {
    # seen first and last so long ago, and in how long it is looked at again: None is now
    "just seen": (SECOND / 10, SECOND / 10, SECOND / 10),
    "seen once": (SECOND / 5, SECOND / 5, None),
    "fresh": (10 * SECOND, SECOND, 8 * SECOND),
    "to be looked at": (10 * SECOND, 5 * SECOND, None),
    "nearly over": (PROOF_WITHIN - SECOND, SECOND, SECOND),
    "over now": (PROOF_WITHIN, 3 * SECOND, None),
    "over": (PROOF_WITHIN + 10 * SECOND, 3 * SECOND, None),
}
BLIND_FOR = {"waiting": 10 * SECOND, "over now": PROOF_WITHIN}

SENDERS: dict[str, dict[str, object]] = {
    "nobody looked": {},
    **{
        f"{proof}: {word}": {"sender": SenderProof(proof), "sender_since": NOW - span}
        for proof, (word, span) in itertools.product(("released", "dead"), ENDED_FOR.items())
    },
    **{
        f"{proof}: {word}": {
            "sender": SenderProof(proof),
            "sender_since": NOW - since,
            "sender_seen_at": NOW - seen,
        }
        for proof, (word, (since, seen, _)) in itertools.product(("alive", "expired"), LIVING_FOR.items())
    },
    # A tool with children of its own: its process ended, and nobody can look at them.
    **{
        f"children: {word}": {"sender": SenderProof.EXPIRED, "sender_since": NOW - span}
        for word, span in BLIND_FOR.items()
    },
}


VERIFIES: dict[str, tuple[bool, datetime | None]] = {
    "no": (False, None),
    "declared": (True, None),
    "restored: settling": (True, NOW - SETTLES_IN + TICK),
    "restored: settled now": (True, NOW - SETTLES_IN),
    "restored: settled": (True, NOW - 10 * SETTLES_IN),
}


def threshold(sender: str, verify: str) -> datetime:
    """From when on a question counts for more than a finding: the settle time, or the end of the wait for proof."""
    since, restored = SENDERS[sender].get("sender_since"), VERIFIES[verify][1]
    if not isinstance(since, datetime):
        return NOW
    if sender.startswith(("released", "dead")):
        return max(since, restored or since) + SETTLES_IN
    return since + PROOF_WITHIN


QUESTIONS = ("before", "at", "after")
PLAIN_ANSWERS = ("none", "found", "several")
SHY_ANSWERS = ("absent", "cannot tell", "failed")


def asked_at(sender: str, verify: str, when: str) -> datetime:
    """Return when a question left."""
    counts = threshold(sender, verify)
    return {"before": min(counts - TICK, NOW), "at": counts, "after": counts + TICK, "": NOW - SECOND}[when]


def answers(sender: str, verify: str) -> list[str]:
    """Every answer, asked before, at and after the moment from which it counts, as far as that is past."""
    whens = [when for when in QUESTIONS if asked_at(sender, verify, when) <= NOW]
    return [*PLAIN_ANSWERS, *(f"{answer}, asked {when}" for answer in SHY_ANSWERS for when in whens)]


BACKOFFS = {"none": None, "over now": NOW, "not yet": BACKOFF_UNTIL}

CONTRACTS = (
    "read",
    "repeatable",
    "repeatable | lookup",
    "keyed",
    "keyed | lookup",
    "keyed, lookup first",
    "keyed, lookup first | lookup",
    "lookup",
    "client id",
    "client id | lookup",
    "client id, lookup first",
    "client id, lookup first | lookup",
    "transactional",
    "one shot",
)


def contract_of(word: str, remembered: timedelta | None = REMEMBERED) -> Contract:
    """Return the contract that a word stands for."""
    first, _, then = word.partition(" | ")
    name, _, lookup_first = first.partition(", ")
    match name:
        case "read":
            return Read()
        case "lookup":
            return LOOKUP
        case "transactional":
            return Transactional(settles_in=SETTLES_IN)
        case "one shot":
            return OneShot()
        case "repeatable":
            line: Repeatable | Keyed | ClientId = Repeatable()
        case "keyed":
            line = Keyed(remembered_for=remembered, margin=MARGIN, lookup_first=bool(lookup_first))
        case _:
            line = ClientId(lookup_first=bool(lookup_first))
    return line | LOOKUP if then else line


TERMS = {
    (word, window): Terms(contract=contract_of(word, remembered), bounds=BOUNDS)
    for word, (window, (remembered, _)) in itertools.product(CONTRACTS, WINDOWS.items())
}


def build(case: Case) -> tuple[Terms, Facts, datetime]:
    """Return what `recover` is called with."""
    verify_first, verify_since = VERIFIES[case.verify]
    answer, _, when = case.answer.partition(", asked ")
    return (
        TERMS[case.contract, case.window],
        Facts(
            open=case.open,
            refused=case.refused,
            first_sent_at=WINDOWS[case.window][1] if case.open or case.sent_before else None,
            latest=LATEST.get(case.window),
            exists=case.exists,
            answer=None if answer == "none" else Answer(answer.replace(" ", "_")),
            asked_at=None if answer == "none" else asked_at(case.sender, case.verify, when),
            matches=case.matches,
            asks_left=case.asks_left,
            repeats_left=case.repeats_left,
            not_before=BACKOFFS[case.backoff],
            same_scope=case.same_scope,
            can_look=case.can_look,
            stopped=case.stopped,
            verify_first=verify_first,
            verify_since=verify_since,
            **(SENDERS[case.sender] if case.open else {}),  # type: ignore[arg-type]  # a table of keyword arguments
        ),
        NOW,
    )


# ---- the space

BOTH = (False, True)


def cases(contract: str) -> Iterator[Case]:
    """Every situation of one contract. What cannot matter to it is not multiplied out but turned over along the way."""
    yield from _not_sent(contract)
    if (contract.endswith("lookup") and " | " in contract) or contract in ("lookup", "transactional", "repeatable"):
        yield from _asked_or_awaited(contract)
    if not contract.startswith(("lookup", "transactional", "repeatable")):
        yield from _repeated(contract)


def _not_sent(contract: str) -> Iterator[Case]:
    """Nothing is open: never dispatched, or every dispatch closed."""
    full = contract in ("lookup", "keyed | lookup", "one shot")
    words = (*PLAIN_ANSWERS, *(f"{answer}, asked before" for answer in SHY_ANSWERS))
    turn = itertools.count()
    for refused, sent, stopped, look, scope, answer, asks, repeats, verify in itertools.product(
        BOTH, BOTH, BOTH, BOTH, BOTH, words, (0, 1, 2), (0, 1), VERIFIES
    ):
        turned = [next(turn)] if not full else range(2 * len(BACKOFFS))
        for i in turned:
            yield Case(
                contract=contract,
                open=False,
                refused=refused and sent,
                sent_before=sent,
                sender="nobody looked",
                answer=answer,
                asks_left=asks,
                repeats_left=repeats,
                backoff=tuple(BACKOFFS)[i % 3],
                matches=i // 3 % 2 == 1,
                stopped=stopped,
                can_look=look,
                same_scope=scope,
                verify=verify,
            )


def _asked_or_awaited(contract: str) -> Iterator[Case]:
    """A lookup or the sender's end decides: every sender with every answer at every time."""
    windows = ("fresh", "just over") if contract.startswith("keyed") else ("fresh",)
    exists = BOTH if contract.startswith("client id") else (False,)
    turn = itertools.count()
    full = ("released", "dead") if contract == "lookup" else ("dead",)
    for n, sender in enumerate(SENDERS):
        for verify in VERIFIES if sender.startswith(full) else ("no", tuple(VERIFIES)[n % 4 + 1]):
            yield from _asked_of(contract, sender, verify, windows, exists, turn)


def _asked_of(
    contract: str,
    sender: str,
    verify: str,
    windows: tuple[str, ...],
    exists: tuple[bool, ...],
    turn: Iterator[int],
) -> Iterator[Case]:
    """One sender and what the store lost, with every answer and bound. Elsewhere and blind is thinned out."""
    for answer, asks, repeats, stopped, refused, there, window, backoff, scope, look in itertools.product(
        answers(sender, verify), (0, 1, 2), (0, 1), BOTH, BOTH, exists, windows, BACKOFFS, BOTH, BOTH
    ):
        i = next(turn)
        first_line = len(windows) > 1 and window == "fresh" and repeats and not stopped
        if (first_line or not (scope and look) or answer in PLAIN_ANSWERS[1:]) and i % 7:
            continue
        if backoff == "over now" and i % 5:
            continue
        if "lookup first" in contract and i % 3:
            continue
        yield Case(
            contract=contract,
            sender=sender,
            window=window,
            answer=answer,
            exists=there,
            refused=refused,
            asks_left=asks,
            repeats_left=repeats,
            backoff=backoff,
            same_scope=scope,
            can_look=look,
            stopped=stopped,
            verify=verify,
            matches=i % 2 == 0,
        )


def _repeated(contract: str) -> Iterator[Case]:
    """A harmless repeat decides: every window, conflict and bound, while the senders take turns."""
    windows = tuple(WINDOWS) if contract.startswith("keyed") else ("fresh",)
    senders = tuple(SENDERS)
    turn = itertools.count()
    for window, there, asks, repeats, backoff, scope, look, stopped, refused in itertools.product(
        windows, BOTH, (0, 1, 2), (0, 1), BACKOFFS, BOTH, BOTH, BOTH, BOTH
    ):
        for answer in (*PLAIN_ANSWERS, *SHY_ANSWERS):
            i = next(turn)
            sender, verify = senders[i % len(senders)], tuple(VERIFIES)[i % 5]
            known = [word for word in answers(sender, verify) if word.startswith(answer)]
            yield Case(
                contract=contract,
                sender=sender,
                window=window,
                answer=known[i // 5 % len(known)],
                exists=there,
                refused=refused,
                asks_left=asks,
                repeats_left=repeats,
                backoff=backoff,
                same_scope=scope,
                can_look=look,
                stopped=stopped,
                verify=verify,
                matches=i % 2 == 0,
            )
