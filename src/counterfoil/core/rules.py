"""The word for every reason that a decision can have. The same word stands in the event, `show`, the docs and the test.

It must not decide: `recovery` and `plan` do. A rule without its sentence here is an error at import.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Rule(StrEnum):
    """Why the library does what it does. The value is the word that people see."""

    __doc__: str
    says: str

    def __new__(cls, word: str, says: str) -> Self:
        """Make a rule of its word and the sentence that explains it."""
        rule = str.__new__(cls, word)
        rule._value_ = word
        rule.says = says
        return rule

    # Nothing has left yet.
    NEVER_SENT = (
        "never-sent",
        "No attempt of this call can have left, so it is dispatched with its saved key.",
    )
    DEFINITE_NO = (
        "definite-no",
        "Every attempt was certainly not applied, so the call is rejected and the model is told.",
    )
    INVALID_CALL = "invalid-call", "Unknown tool, or arguments that fail its schema: nothing is dispatched."
    VERIFY_FIRST = "verify-first", "The effect is looked up even before the first dispatch."
    VERIFIED_ABSENT = "verified-absent", "Looked up before the first dispatch, and not there."
    MISMATCH = (
        "mismatch",
        "An effect stands under a key that this journal never sent, and was not shown to be of this very request.",
    )
    STOPPED = "stopped", "The run may dispatch nothing now; nothing of this call has left."
    UNVERIFIABLE = (
        "unverifiable",
        "The effect must be looked up before the first dispatch, and no lookup can.",
    )

    # Evidence that settles.
    RESPONSE = "response", "The tool returned."
    FOUND = "found", "The lookup found our effect."
    SEVERAL = (
        "several",
        "The lookup found more than one: the oldest settles the call, and the rest is an incident.",
    )
    OPERATOR = "operator", "A person settled it."
    ABSENT_PROVEN = (
        "absent-proven",
        "Not there, asked after the last sender had ended and the provider's settle time was over: nothing happened.",
    )
    ROW_ABSENT = "row-absent", "The receipt row is not there; it is unique, so only one dispatch can commit."

    # Repeats that something makes harmless.
    READ_FAILED = "read-failed", "A read that fails changed nothing; the model is told its error."
    READ_AGAIN = "read-again", "A read has no effect."
    REPEAT_KEYED = "repeat-keyed", "The provider still remembers the key, so a repeat adds nothing."
    REPEAT_SAME_ID = "repeat-same-id", "We chose the id: creating it twice conflicts."
    REPEAT_SAME_STATE = (
        "repeat-same-state",
        "Repeating gives the same end state, and no earlier sender is left.",
    )

    # Asking.
    LOOKUP_FIRST = "lookup-first", "The author wants a look before a repeat."
    LOOK_EARLY = "look-early", "A first look: only a found effect counts yet."
    LOOK_AGAIN = "look-again", "Nothing can land any more, so the answer counts."
    LAST_LOOK = "last-look", "A look before it is unknown: only a found effect counts."
    CHECK_OURS = "check-ours", "The provider says that it exists already: it may be our own first try."
    READ_ROW = "read-row", "The receipt row on the primary says whether the transaction committed."

    # Waiting.
    AWAIT_PROOF = (
        "await-proof",
        "An earlier sender may still be alive; its end must be seen before a dispatch.",
    )
    SETTLING = "settling", "What was sent may still become visible."
    BACKOFF = "backoff", "The last try was a moment ago."
    LOOK_AT_SENDER = "look-at-sender", "Nobody has looked yet whether the earlier sender still lives."

    # Unknown.
    NO_EVIDENCE = "no-evidence", "Neither key nor lookup: nothing can tell whether it happened."
    WINDOW_OVER = "window-over", "The provider may have forgotten the key, and there is no lookup."
    SCOPE_CHANGED = "scope-changed", "The key means nothing in the account or region at hand."
    SENDER_MAY_WAKE = (
        "sender-may-wake",
        "An earlier sender may still wake, and nothing at the provider would stop it.",
    )
    LOOKUP_MISSING = "lookup-missing", "The contract names a lookup that the flow at hand does not have."
    CANNOT_TELL = "cannot-tell", "The lookups were used up without an answer that counts."
    NOT_OURS = "not-ours", "Something holds our id and could not be shown to be ours."
    REPEATS_USED_UP = "repeats-used-up", "The permitted attempts were used up without a receipt."
    STOPPED_OPEN = "stopped-open", "The run was stopped: a repeat is forbidden, and nothing else can tell."

    # Why a run stands still.
    CANCEL = "cancel", "A cancel was requested."
    FLOW_CHANGED = "flow-changed", "The flow at hand cannot interpret this journal."
    REQUEST_CHANGED = "request-changed", "The host asks for a decided slot with another request."
    LIMIT = "limit", "A limit is reached."
    UNKNOWN = "unknown", "A call is unknown; a person settles it."
    ABANDONED = "abandoned", "A person gave a call up."
    LEASE_LOST = "lease-lost", "Another worker may own the run now."
    INTERRUPTED = "interrupted", "The worker was asked to stop; the run can be resumed."
    MODEL_UNAVAILABLE = "model-unavailable", "The model could not be asked; asking again may help."
    MODEL_REFUSED = "model-refused", "The model's provider refuses the request; asking again will not help."

    # What the loop does in the ordinary course.
    NEXT_TURN = "next-turn", "All calls of the turn are settled."
    ASK_AGAIN = "ask-again", "The model was asked and no decision was saved."
    SEQUENCE = "sequence", "An earlier call of the turn comes first."
    IN_FLIGHT = "in-flight", "Something is under way in this process."
    FINISHED = "finished", "The decision has no more calls."
