"""Which file system a store lies on, and whether SQLite's shared memory and locks can be trusted there.

It must not write, and where the platform says nothing it makes no claim.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from counterfoil.errors import UnsafeStore

MOUNTS = Path("/proc/self/mountinfo")

# Seen by more than one kernel, so neither a lock nor a shared-memory index means the same to all who have it open.
REMOTE = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fakeowner", "fuse", "gfs2",
        "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3",
        "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    }
)  # fmt: skip

_OCTAL = re.compile(r"\\([0-7]{3})")
_MOUNT_POINT = 4  # The field's place in a line; the type is the first one behind the dash.


class Mount(Struct, frozen=True, kw_only=True):
    """Where a file system is mounted, and its type."""

    point: str
    type: str

    @property
    def remote(self) -> bool:
        """Whether several kernels may see it, or a program stands in for one."""
        return self.type in REMOTE or self.type.startswith("fuse.")


def mount_of(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the mount that an absolute path without links lies on, or None where the platform does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    best: Mount | None = None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        parts = fields.split(" ")
        if len(parts) <= _MOUNT_POINT or not rest:
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), parts[_MOUNT_POINT])
        # Of two on the same point the later hides the earlier.
        if path.is_relative_to(point) and (best is None or len(point) >= len(best.point)):
            best = Mount(point=point, type=rest.split(" ", 1)[0])
    return best


def refuse_remote(path: Path, mounts: Path = MOUNTS) -> None:
    """Refuse a store on a network or shared file system.

    Raises:
        UnsafeStore: naming the mount point and its type.
    """
    mount = mount_of(path, mounts)
    if mount is not None and mount.remote:
        raise UnsafeStore(
            f"{path} lies on {mount.point}, a file system of type {mount.type}: more than one kernel may see it, and "
            "SQLite's write-ahead log would be damaged there"
        )
