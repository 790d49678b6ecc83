"""What a tool's author declares about recovering its effect, and how two declarations combine.

It must not decide anything: the decision is `recovery.recover`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import NoReturn, assert_never

from msgspec import Struct

from counterfoil.core.keys import KeyStyle
from counterfoil.errors import DefinitionError

FOREVER = timedelta(days=36_500)
"""For `Keyed(remembered_for=FOREVER)`: the provider documents that it never forgets a key."""


def _check_spans(owner: object, **spans: timedelta | None) -> None:
    """Refuse what no clock can be asked: adding it to a moment would be nonsense, or overflow."""
    for name, span in spans.items():
        if span is not None and span < timedelta(0):
            raise DefinitionError(f"{type(owner).__name__}({name}={span}) is negative")
        if span is not None and span > FOREVER:
            raise DefinitionError(f"{type(owner).__name__}({name}={span}) is longer than FOREVER, {FOREVER}")


class _Line(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One declaration. ``first | second``: the second serves when the first is no longer usable."""

    def __or__(self, other: Contract) -> Combined:
        if not isinstance(other, Lookup) or not isinstance(self, (Repeatable, Keyed, ClientId)):
            raise DefinitionError(
                f"{type(self).__name__} | {type(other).__name__} means nothing: "
                "only Keyed, ClientId or Repeatable can be followed by a Lookup"
            )
        return Combined(first=self, then=other)


class Read(_Line, frozen=True, kw_only=True, tag="read"):
    """No effect. After a crash it simply runs again; it never pauses a run."""


class Repeatable(_Line, frozen=True, kw_only=True, tag="repeatable"):
    """Repeating gives the same end state (PUT, set, delete by id). A repeat can overwrite somebody's newer write."""


class Keyed(_Line, frozen=True, kw_only=True, omit_defaults=True, tag="keyed"):
    """The provider applies one effect per key, for as long as it remembers the key.

    Args:
        remembered_for: how long the provider documents to remember a key; None (unknown) is treated as already over.
            Counted from the journaled first dispatch.
        margin: safety margin taken off that window.
        lookup_first: look the effect up before repeating, although a fresh repeat would be harmless.
        key: the form and place in which the provider wants the key.
    """

    remembered_for: timedelta | None = None
    margin: timedelta = timedelta(seconds=30)
    lookup_first: bool = False
    key: KeyStyle = KeyStyle()

    def __post_init__(self) -> None:
        _check_spans(self, remembered_for=self.remembered_for, margin=self.margin)


class Lookup(_Line, frozen=True, kw_only=True, omit_defaults=True, tag="lookup"):
    """The effect can be found by our key or a client reference.

    Args:
        settles_in: how long after its sender has ended a request may still become visible. "Not found" proves
            nothing before that.
        key: the form of the reference that the tool leaves at the provider.
    """

    settles_in: timedelta
    key: KeyStyle = KeyStyle(channel="none")

    def __post_init__(self) -> None:
        _check_spans(self, settles_in=self.settles_in)


class ClientId(_Line, frozen=True, kw_only=True, omit_defaults=True, tag="client_id"):
    """We choose the object's id, and creating it twice conflicts: repeat; on conflict fetch, and check that it is ours.

    The tool raises `AlreadyExists` on the conflict; its lookup fetches the object and compares our mark.
    """

    lookup_first: bool = False
    key: KeyStyle = KeyStyle(format="uuid", channel="none")


class Transactional(_Line, frozen=True, kw_only=True, omit_defaults=True, tag="transactional"):
    """Effect and receipt row commit in one database transaction; the row is unique on the key and inserted first.

    The tool's lookup reads that row on the primary.

    Args:
        settles_in: how long after its sender has ended a commit that has left may still land. A repeat needs no such
            wait, because the row is unique; only the statement that nothing happened does.
    """

    settles_in: timedelta = timedelta(minutes=1)

    def __post_init__(self) -> None:
        _check_spans(self, settles_in=self.settles_in)


class OneShot(_Line, frozen=True, kw_only=True, tag="one_shot"):
    """Neither key nor lookup: a lost reply is unknown and waits for a person. The default."""


class Combined(Struct, frozen=True, kw_only=True, tag="combined"):
    """Two lines: `then` serves when `first` is no longer usable."""

    first: Repeatable | Keyed | ClientId
    then: Lookup

    def __or__(self, other: object) -> NoReturn:
        raise DefinitionError(f"a third line means nothing: {type(self.first).__name__} | Lookup is complete")


Line = Read | Repeatable | Keyed | Lookup | ClientId | Transactional | OneShot
Contract = Line | Combined


class Bounds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long and how often a call is tried before it is unknown.

    Args:
        timeout: one attempt; when it is over the attempt is unsure, not failed.
        repeats: attempts after the first, in all lives together.
        lookups: lookups for one question, in one life.
        proof_within: how long to wait for proof that an earlier sender has ended, where a dispatch needs it.
    """

    timeout: timedelta = timedelta(seconds=60)
    repeats: int = 8
    lookups: int = 8
    proof_within: timedelta = timedelta(minutes=2)

    def __post_init__(self) -> None:
        _check_spans(self, timeout=self.timeout, proof_within=self.proof_within)
        if self.repeats < 0 or self.lookups < 1:
            raise DefinitionError(
                f"repeats={self.repeats}, lookups={self.lookups}: repeats must be >= 0 and lookups >= 1"
            )


class Terms(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a call is sent under. Journaled with its first dispatch and from then on only read back.

    Args:
        contract: as declared.
        bounds: as declared.
        scope: the account, region, endpoint or credential in which the key means anything.
        verify_first: look up even before the first dispatch.
        children: the tool starts processes that do not hold our owner lock, so our death proves nothing about them.
    """

    contract: Contract
    bounds: Bounds = Bounds()
    scope: str = ""
    verify_first: bool = False
    children: bool = False


def lines(contract: Contract) -> tuple[Line, Lookup | None]:
    """Return the first line and the lookup that stands behind it, if any."""
    if isinstance(contract, Combined):
        return contract.first, contract.then
    return contract, contract if isinstance(contract, Lookup) else None


def key_style(contract: Contract) -> KeyStyle | None:
    """Return how the contract wants the key rendered, or None where it carries none."""
    first, _ = lines(contract)
    match first:
        case Keyed(key=style) | ClientId(key=style) | Lookup(key=style):
            return style
        case Transactional() | Repeatable():
            return KeyStyle(channel="none")
        case Read() | OneShot():
            return None
        case _:
            assert_never(first)


def needs_lookup(contract: Contract) -> bool:
    """Tell whether a tool under this contract must define a lookup."""
    first, then = lines(contract)
    return then is not None or isinstance(first, Transactional)


def settle_time(contract: Contract) -> timedelta | None:
    """Return how long after its sender's end a request may still show, or None where nobody declared it."""
    first, then = lines(contract)
    return first.settles_in if isinstance(first, Transactional) else then.settles_in if then else None


def wants_record(contract: Contract) -> bool:
    """Tell whether a dispatch under this contract must be durable before the tool is entered."""
    return not isinstance(contract, Read)
