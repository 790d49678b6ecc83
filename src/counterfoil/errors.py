"""Every error that counterfoil raises on purpose: one base, a few leaves, each with a code and a next step.

Outcomes that a program must handle (unknown, waiting, blocked) are values, not errors: nothing in here stands for them.

    CounterfoilError
    ├── DefinitionError        a tool, contract or flow cannot be used as written
    ├── NoSuchRun              no run with that id in this store
    ├── InputMismatch          the run id is known, with another input
    ├── VerdictRefused         a person's verdict does not fit what the journal says now
    ├── RunOwned               another live worker advances this run
    ├── LeaseLost              this worker may write no more for this run
    ├── JournalDamaged         an event is missing, changed or torn
    ├── FormatTooNew           written by a newer counterfoil; nothing was touched
    ├── StoreUnavailable       the store could not be read or written
    │   └── StoreBusy          another process holds its write lock; trying again may help
    └── UnsafeStore            the store's place cannot keep the promises (network file system, wrong settings)

    ModelError                 raised BY a model's adapter: no decision was given; asking again may help or not
    NotApplied                 raised BY a tool: this attempt certainly changed nothing
    AlreadyExists              raised BY a tool: the provider holds an object with our id; it may be our own
    DispatchRefused            raised INTO a tool (a BaseException): it may not send now
"""

from __future__ import annotations


class CounterfoilError(Exception):
    """Base of the errors above.

    Attributes:
        code: stable word for programs.
        exit_code: what the command line exits with.
        remedy: the next step, one sentence.
    """

    code = "error"
    exit_code = 1
    remedy = "Read the message; nothing was changed."

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if remedy is not None:
            self.remedy = remedy
        self.add_note(f"next: {self.remedy}")  # A traceback shows it: a script has no command line that would.

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.remedy))


def _rebuild(kind: type[CounterfoilError], message: str, remedy: str) -> CounterfoilError:
    return kind(message, remedy=remedy)


class DefinitionError(CounterfoilError, ValueError):
    """A tool, contract or flow cannot be used as written.

    A ValueError as well, so that a stored contract that says nonsense is a decoding error like any other.
    """

    code = "definition"
    exit_code = 2
    remedy = "Change the definition; nothing was run."


class NoSuchRun(CounterfoilError):
    """No run with that id in this store."""

    code = "no_such_run"
    exit_code = 2
    remedy = "List the runs with `counterfoil runs`, or check --store."


class InputMismatch(CounterfoilError):
    """The run id is known, with another input; the run was not touched."""

    code = "input_mismatch"
    exit_code = 2
    remedy = "Use a new run id for a new input, or `counterfoil resume` to continue the old one."


class VerdictRefused(CounterfoilError):
    """A verdict does not fit what the journal says now; nothing was recorded."""

    code = "verdict_refused"
    exit_code = 2
    remedy = "Look at the call again with `counterfoil show`."


class RunOwned(CounterfoilError):
    """Another live worker advances this run."""

    code = "run_owned"
    exit_code = 75
    remedy = "Let that worker finish, or stop it; a dead worker's run is taken over at once."


class LeaseLost(CounterfoilError):
    """This worker may write no more for this run: its lease or fence is gone."""

    code = "lease_lost"
    exit_code = 75
    remedy = "Resume the run again; whatever this worker still learned was kept as evidence."


class JournalDamaged(CounterfoilError):
    """An event is missing, changed or torn; the run is not resumed."""

    code = "journal_damaged"
    exit_code = 65
    remedy = "Run `counterfoil verify`; restore the store from a backup and tell `counterfoil doctor --restored`."


class FormatTooNew(CounterfoilError):
    """The store was written by a newer counterfoil; nothing was written."""

    code = "format_too_new"
    exit_code = 65
    remedy = "Use the counterfoil version that wrote it, or a newer one."


class StoreUnavailable(CounterfoilError):
    """The store could not be read or written."""

    code = "store_unavailable"
    exit_code = 74
    remedy = "Free the disk, or end what holds the store, then resume the run; it goes on from the last saved event."


class StoreBusy(StoreUnavailable):
    """Another process holds the store's write lock; trying again may help."""

    code = "store_busy"


class UnsafeStore(CounterfoilError):
    """The store's place or settings cannot keep the promises; nothing was written."""

    code = "unsafe_store"
    exit_code = 74
    remedy = "Put the store on a local disk of this machine; a store for several machines comes in a later release."


class ModelError(Exception):
    """Raise it from a model's adapter when the provider gave no decision.

    Args:
        message: what the provider said.
        retryable: whether asking again may help (overload, timeout), or not (bad request, no access).
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_model_error, (type(self), *self.args, self.retryable))


def _rebuild_model_error(kind: type[ModelError], message: str, retryable: bool) -> ModelError:  # noqa: FBT001 - from pickle
    return kind(message, retryable=retryable)


class NotApplied(Exception):
    """Raise it from a tool when this attempt certainly changed nothing (refused before processing).

    It closes this attempt only. An earlier attempt of the same call that timed out is still open.
    """


class AlreadyExists(Exception):
    """Raise it from a tool when the provider already holds an object under our id or key.

    It may be the work of our own earlier attempt, so it is looked up, never reported as a failure.
    """


class DispatchRefused(BaseException):
    """Raised into a tool that asks to send when it no longer may (lease, deadline, window, cancel).

    A BaseException, so that a tool's own ``except Exception`` cannot turn it into an outcome.
    """
