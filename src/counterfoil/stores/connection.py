"""One SQLite connection, set up the only way that keeps the promises, and what its errors mean.

It must not run a statement of the store's: it opens, translates and closes.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

from counterfoil.errors import CounterfoilError, JournalDamaged, StoreBusy, StoreUnavailable, UnsafeStore
from counterfoil.stores.clock import Clock

OLDEST_SQLITE = (3, 24, 0)

_INDEX_BYTES = 65536  # Of the log's index, with some room.

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CONTRADICTS = (  # What our own transactions cannot bring about.
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
)


def connect(path: Path, clock: Clock, busy_timeout: timedelta) -> sqlite3.Connection:
    """Open the database for reading and writing; the caller's thread owns the connection.

    Raises:
        UnsafeStore: SQLite is too old, or the settings that make a commit durable do not take.
        sqlite3.Error: anything else.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise UnsafeStore(
            f"SQLite {sqlite3.sqlite_version} is too old; 3.24 or newer is needed",
            remedy="Use a Python that was built with a newer SQLite.",
        )
    connection = sqlite3.connect(path, timeout=busy_timeout.total_seconds(), isolation_level=None)
    try:
        _set_up(connection, path)
        connection.create_function("boottime_us", 0, clock.boottime_us)
    except BaseException:
        close(connection)
        raise
    return connection


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone does not reach the platter. Elsewhere nothing.
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    level = connection.execute("PRAGMA synchronous").fetchone()[0]
    if mode != "wal" or level < 2:  # noqa: PLR2004 - 2 is FULL
        raise UnsafeStore(
            f"{path}: journal mode {mode!r} and synchronous level {level} instead of WAL and FULL",
            remedy="Put the store where SQLite can keep a write-ahead log: a local disk that this process may write.",
        )


def close(connection: sqlite3.Connection) -> None:
    """Close it, whatever state it is in."""
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def roll_back(connection: sqlite3.Connection) -> None:
    """Give a transaction up, if SQLite has not done so itself."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def busy(error: sqlite3.Error) -> bool:
    """Tell whether another process only held the lock for too long."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _BUSY


def _full(path: Path) -> bool:
    """Whether there is no room for the smallest file that SQLite needs: it calls that an I/O error."""
    try:
        return shutil.disk_usage(path.parent).free < _INDEX_BYTES
    except OSError:
        return False


def translate(error: sqlite3.Error, path: Path) -> CounterfoilError:
    """Return what an error of SQLite means to a person."""
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if code in _BUSY:
        return StoreBusy(f"{path}: another process holds the write lock ({error})")
    if code in _DAMAGED:
        return JournalDamaged(f"{path}: {error}")
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _full(path)):
        return StoreUnavailable(f"{path}: the disk is full; nothing of this write was kept")
    if getattr(error, "sqlite_errorcode", 0) in _CONTRADICTS:
        return JournalDamaged(f"{path}: what is stored contradicts itself ({error})")
    return StoreUnavailable(f"{path}: {error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})")
