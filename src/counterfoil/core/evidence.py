"""What is known about one call when its recovery is decided: a handful of plain facts, read off the fold.

It must not decide: it only looks, and where two facts compete it hands on the weaker one.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from counterfoil.core.contracts import Read, Terms, lines
from counterfoil.core.events import Answer, SenderProof
from counterfoil.core.state import ENDED, Attempt, CallState

_WEAKEST = (SenderProof.EXPIRED, SenderProof.ALIVE, SenderProof.DEAD, SenderProof.RELEASED)


class Facts(Struct, frozen=True, kw_only=True):
    """All that `recovery.recover` may know of a call.

    Args:
        open: an attempt may have had its effect.
        refused: an attempt got a definite no.
        first_sent_at: store time of the first dispatch.
        latest: the latest store time in the journal; it is that late at least, whatever the clock says.
        sender: the weakest of what is known of the senders of open attempts; None while nobody has looked at one.
        sender_since: since when that holds.
        sender_seen_at: when it was last looked at; None where looking again can tell no more.
        exists: the provider said that an object with our id exists.
        answer: the last lookup's answer.
        asked_at: when that question left.
        matches: what it found was shown to be made by this very request.
        asks_left: lookups still permitted.
        repeats_left: attempts still permitted.
        not_before: earliest moment of another try.
        same_scope: the account or region at hand is the one the key was sent in.
        can_look: the flow at hand has the lookup.
        stopped: no dispatch is permitted (cancel, limit, changed flow).
        verify_first: look up even before the first dispatch.
        verify_since: when the store was noticed to have lost events, if it was.
    """

    open: bool
    refused: bool = False
    first_sent_at: datetime | None = None
    latest: datetime | None = None
    sender: SenderProof | None = None
    sender_since: datetime | None = None
    sender_seen_at: datetime | None = None
    exists: bool = False
    answer: Answer | None = None
    asked_at: datetime | None = None
    matches: bool = False
    asks_left: int = 1
    repeats_left: int = 1
    not_before: datetime | None = None
    same_scope: bool = True
    can_look: bool = True
    stopped: bool = False
    verify_first: bool = False
    verify_since: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether no earlier attempt can still send."""
        return self.sender in ENDED

    @property
    def found(self) -> bool:
        """Whether a lookup found our effect."""
        return self.answer in (Answer.FOUND, Answer.SEVERAL)


def facts_of(
    call: CallState,
    terms: Terms,
    *,
    scope: str,
    can_look: bool,
    stopped: bool,
    verify_since: datetime | None,
    latest: datetime | None = None,
) -> Facts:
    """Read the facts of a call off the fold.

    Args:
        call: the call.
        terms: what it was, or would be, sent under.
        scope: the scope at hand.
        can_look: whether the flow at hand has its lookup.
        stopped: whether the run may dispatch nothing.
        verify_since: when the store was noticed to have lost events, if it was.
        latest: the latest store time in the journal.
    """
    read = isinstance(lines(terms.contract)[0], Read)
    sender, since, seen_at = _weakest_sender(call.open_attempts, children=terms.children)
    return Facts(
        open=bool(call.open_attempts),
        refused=call.refused is not None,
        first_sent_at=call.attempts[0].at if call.attempts else None,
        latest=latest,
        sender=sender,
        sender_since=since,
        sender_seen_at=seen_at,
        exists=call.exists,
        answer=call.answer,
        asked_at=call.asked_at,
        matches=call.matches,
        asks_left=max(0, terms.bounds.lookups - call.asks),
        repeats_left=max(0, terms.bounds.repeats + 1 - (len(call.attempts) - call.forgiven)),
        not_before=call.retry_at,
        same_scope=terms.scope == scope,
        can_look=can_look,
        stopped=stopped,
        verify_first=not read and not call.cleared and (verify_since is not None or terms.verify_first),
        verify_since=verify_since,
    )


def _weakest_sender(
    attempts: tuple[Attempt, ...], *, children: bool
) -> tuple[SenderProof | None, datetime | None, datetime | None]:
    """Return (proof, since, seen at) of the weakest sender: one that nobody has looked at, else the least certain.

    A parent that ended proves nothing about children that do not hold its lock, and nobody can look at those.
    """
    if not attempts or any(attempt.proof is None for attempt in attempts):
        return None, None, None
    alive = [attempt for attempt in attempts if attempt.proof not in ENDED]
    governing = alive or attempts
    since = max(attempt.since for attempt in governing if attempt.since)
    seen_at = min((attempt.seen_at for attempt in alive if attempt.seen_at), default=None)
    if children and not alive:
        return SenderProof.EXPIRED, since, None
    weakest = min((attempt.proof for attempt in governing if attempt.proof), key=_WEAKEST.index)
    return weakest, since, seen_at
