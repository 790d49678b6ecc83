"""Look at a database before touching it, and bring its tables up to date: forward only, under the write lock.

It must not change anything that a newer counterfoil wrote.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from counterfoil.core.events import FORMAT
from counterfoil.errors import FormatTooNew, JournalDamaged, UnsafeStore
from counterfoil.stores import sql
from counterfoil.stores.clock import Clock
from counterfoil.stores.connection import busy, close, connect, roll_back
from counterfoil.stores.log import refuse_damage

APPLICATION_ID = 0x43465F31  # "CF_1": tells `file` and us whose database it is.
NAMESPACE_BYTES = 32

_MIGRATIONS = sql.migrations("sqlite")
SCHEMA = max(_MIGRATIONS)
"""Number of the newest migration."""


def prepare(path: Path, clock: Clock, busy_timeout: timedelta, namespace: bytes | None) -> bytes:
    """Look at a database, then make or migrate its tables; return its namespace.

    Raises:
        FormatTooNew, UnsafeStore, JournalDamaged: see `look` and `bring_up_to_date`.
        sqlite3.Error: it cannot be opened or written.
    """
    look(path)
    until = time.monotonic() + busy_timeout.total_seconds()
    while True:
        connection = None
        try:
            connection = connect(path, clock, busy_timeout)
            return bring_up_to_date(connection, path, clock, namespace)
        except sqlite3.OperationalError as error:
            if not busy(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)  # SQLite does not wait for the lock when several make the same database at once.
        finally:
            if connection is not None:
                close(connection)


def look(path: Path) -> None:
    """Refuse what is not ours, is too new or is damaged, without writing a byte or leaving a file.

    Raises:
        FormatTooNew: a newer counterfoil wrote it.
        UnsafeStore: it is another program's database.
        JournalDamaged: it is no database, or its log is damaged where SQLite would not say so.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    refuse_damage(path)
    try:
        check(_glance(path), path)
    except sqlite3.DatabaseError as error:
        raise JournalDamaged(f"{path}: {error}") from error


def check(found: dict[str, int] | None, path: Path) -> None:
    """Refuse numbers that are newer than ours; None stands for another program's tables."""
    if found is None:
        raise UnsafeStore(f"{path} is another program's database", remedy="Name another file for counterfoil's store.")
    for name, known in (("format", FORMAT), ("schema", SCHEMA)):
        if found.get(name, 0) > known:
            raise FormatTooNew(
                f"{path}: journal {name} {found[name]} is newer than {known}, the newest that this counterfoil knows"
            )


def _glance(path: Path) -> dict[str, int] | None:
    """Read the version numbers.

    A log that is not empty must be read, so the file is opened with it, by its existing index where there is one.
    Without a log the file stands for itself, and "immutable" keeps SQLite from making a log and an index for one look.
    """
    name = quote(str(path))
    log, index = Path(f"{path}-wal"), Path(f"{path}-shm")
    if not log.exists() or log.stat().st_size == 0:
        with contextlib.suppress(sqlite3.DatabaseError):  # Someone may have written meanwhile: look properly then.
            return _versions(f"file:{name}?immutable=1")
    if index.exists():
        with contextlib.suppress(sqlite3.OperationalError):  # The index may have to be made anew.
            return _versions(f"file:{name}?mode=ro&readonly_shm=1")
    return _versions(f"file:{name}?mode=ro")


def _versions(uri: str) -> dict[str, int] | None:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        return versions(connection)
    finally:
        connection.close()


def versions(connection: sqlite3.Connection) -> dict[str, int] | None:
    """Return the numbers in a database: empty for an empty one, None for another program's."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return {}
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    if "meta" not in tables or application_id != APPLICATION_ID:
        return None
    rows = connection.execute("SELECT name, value FROM meta WHERE name IN ('format', 'schema')")
    return {name: int(value) for name, value in rows}


def bring_up_to_date(connection: sqlite3.Connection, path: Path, clock: Clock, namespace: bytes | None) -> bytes:
    """Make or migrate the tables in one transaction and return the store's namespace.

    Raises:
        FormatTooNew, UnsafeStore: as `look`, for what changed since; or the namespace is not the store's.
    """
    found = versions(connection)
    check(found, path)
    if found is None or found.get("schema") != SCHEMA or found.get("format") != FORMAT:
        _migrate(connection, path, clock, namespace)
    kept = connection.execute("SELECT value FROM meta WHERE name = 'namespace'").fetchone()
    if kept is None:
        raise JournalDamaged(f"{path}: its namespace is missing, so no key can be minted")
    if namespace is not None and bytes(kept[0]) != namespace:
        raise UnsafeStore(
            f"{path} mints its keys under another namespace than the one given",
            remedy="Leave the namespace out, or name the one that the store was made with.",
        )
    return bytes(kept[0])


def _migrate(connection: sqlite3.Connection, path: Path, clock: Clock, namespace: bytes | None) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = versions(connection)  # Another process may have been here since.
        check(found, path)
        done = (found or {}).get("schema", 0)
        for number, script in _MIGRATIONS.items():
            if number > done:
                for statement in sql.split(script):
                    connection.execute(statement)
        if done == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            first = namespace if namespace is not None else secrets.token_bytes(NAMESPACE_BYTES)
            _note(connection, namespace=first, epoch=0, made_us=clock.now_us())
        _note(connection, schema=SCHEMA, format=FORMAT)
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def _note(connection: sqlite3.Connection, **facts: int | bytes) -> None:
    for name, value in facts.items():
        connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))
