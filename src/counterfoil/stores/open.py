"""From a URL or a path to an open store.

It must not guess: what it does not know is refused with the forms that it does.
"""

from __future__ import annotations

import os
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from counterfoil.errors import UnsafeStore
from counterfoil.stores.clock import Clock
from counterfoil.stores.protocol import Store

DEFAULT = "counterfoil.db"
VARIABLE = "COUNTERFOIL_STORE"


def open_store(
    place: str | os.PathLike[str] | None = None,
    *,
    lease: timedelta = timedelta(seconds=30),
    namespace: bytes | str | None = None,
    clock: Clock | None = None,
) -> Store:
    """Open the store at a place, and make it if it is not there.

    Args:
        place: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or a plain path. None: what ``COUNTERFOIL_STORE``
            says, else ``counterfoil.db`` in the working folder.
        lease: how long this worker may be silent before its runs may be taken.
        namespace: under which keys are minted; it must be the one the store was made with. Left out, it is random.
        clock: for tests.

    Raises:
        UnsafeStore: the place is no place for a store.
        FormatTooNew, JournalDamaged, StoreUnavailable: it cannot be opened, and nothing was written.
    """
    if place is None:
        place = os.environ.get(VARIABLE) or DEFAULT
    path = place if not isinstance(place, str) else path_of(place)
    from counterfoil.stores.sqlite import SqliteStore  # noqa: PLC0415 - 20 ms, paid when a store is opened

    return SqliteStore(path, lease=lease, namespace=namespace, clock=clock)


def path_of(place: str) -> str:
    """Return the file that a URL or plain path names.

    Raises:
        UnsafeStore: it names none.
    """
    scheme, separator, _ = place.partition("://")
    if not separator:
        if place in ("", ":memory:"):
            raise UnsafeStore("a store in memory would forget what it is for", remedy="Name a file.")
        return place
    if scheme in ("postgresql", "postgres"):
        raise UnsafeStore(
            "the PostgreSQL store comes in a later release",
            remedy="Use sqlite:///path for now; it serves any number of processes on one machine.",
        )
    url = urlsplit(place)
    path = unquote(url.path)[1:]
    if scheme != "sqlite" or url.netloc or not path or path == ":memory:":
        raise UnsafeStore(
            f"{scheme}: is no place for a store that can be opened",
            remedy="Write sqlite:///relative.db, sqlite:////absolute.db, or a plain path.",
        )
    return path
