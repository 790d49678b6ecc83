"""Owner files: the kernel's own word on whether a worker incarnation still lives.

Each incarnation holds a `flock` on a file of its own for as long as any process has it open. A lock that is free
proves death, but only on the very file that the lease names. A pid proves nothing, and nothing here asks for one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Literal

from msgspec import Struct

try:
    import fcntl
except ImportError:  # Windows: leases work, and nothing proves a death.
    LOCKS = False
else:
    LOCKS = True

# A file system that knows no such locks: as on Windows, nothing proves a death there.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)

Sight = Literal["held", "free", "unclear"]


class OwnerFile(Struct, frozen=True, kw_only=True):
    """Which file an incarnation locks. All of it stands in the lease row, and all of it must agree.

    Args:
        path: empty where the platform has no such locks.
        device: of the file.
        inode: of the file.
        token: random, and the file's content.
        fd: open in the process that holds the lock, -1 elsewhere.
    """

    path: str
    device: int
    inode: int
    token: str
    fd: int = -1


def hold(folder: Path, incarnation: str) -> OwnerFile:
    """Make the incarnation's file and lock it until the last process that has it open is gone.

    The descriptor is not inherited by programs that this process starts, unless it is passed on by name. Whoever may
    read the database may look at the file too.

    Raises:
        OSError: the folder cannot be written.
    """
    token = secrets.token_hex(16)
    if not LOCKS:
        return OwnerFile(path="", device=0, inode=0, token=token)
    folder.mkdir(exist_ok=True)
    path = folder / incarnation
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, token.encode())
        seen = os.fstat(fd)
    except OSError as error:
        os.close(fd)
        path.unlink(missing_ok=True)
        if error.errno in _NO_LOCKS:
            return OwnerFile(path="", device=0, inode=0, token=token)
        raise
    return OwnerFile(path=str(path), device=seen.st_dev, inode=seen.st_ino, token=token, fd=fd)


def probe(expected: OwnerFile) -> Sight:
    """Look whether the lock is held.

    The look takes a *shared* lock, so that two that look at the same time do not take each other for the owner.
    """
    if not LOCKS or not expected.path:
        return "unclear"
    try:
        fd = os.open(expected.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return "unclear"
    try:
        if not _same(fd, expected):
            return "unclear"
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError:
        return "unclear"
    else:
        return "free"
    finally:
        os.close(fd)


def let_go(owner_file: OwnerFile, *, remove: bool) -> None:
    """Close this process's copy, after taking the file away if it is no longer needed."""
    if remove and owner_file.path:
        with contextlib.suppress(OSError):
            Path(owner_file.path).unlink()
    if owner_file.fd >= 0:
        with contextlib.suppress(OSError):
            os.close(owner_file.fd)


def _same(fd: int, expected: OwnerFile) -> bool:
    seen = os.fstat(fd)
    if (seen.st_dev, seen.st_ino) != (expected.device, expected.inode):
        return False
    return os.read(fd, 2 * len(expected.token)) == expected.token.encode()
