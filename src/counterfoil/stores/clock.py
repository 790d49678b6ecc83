"""What time it is and who asks: the wall clock, a clock that counts suspended time, and this process.

It must not be imported for a module-level value: everything is read when it is asked for.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = Path("/proc/self/ns/time")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_TIME_NAMESPACE = "time:[4026531834]"  # The kernel's own number for the one that every machine begins with.


class Clock(Protocol):
    """The clocks that a store reads. Tests bring their own."""

    def now_us(self) -> int:
        """Return microseconds since 1970 UTC: for people and windows, never for order or leases."""
        ...

    def boottime_us(self) -> int:
        """Return microseconds on a clock that never goes back and counts suspended time."""
        ...

    def boot_id(self) -> str:
        """Return what names the boot, so that two boot-time readings can be compared; empty where nothing does."""
        ...


class SystemClock:
    """The machine's clocks.

    Without a clock that counts suspended time (macOS has one under another name, Windows none) the monotonic clock
    serves, and without a boot id nothing proves a death.
    """

    def __init__(self) -> None:
        self._source: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        self._boot_id = _read_boot_id()

    def now_us(self) -> int:
        """Return microseconds since 1970 UTC."""
        return time.time_ns() // 1000

    def boottime_us(self) -> int:
        """Return microseconds since boot, suspended time included where the platform can tell."""
        if self._source is None:
            return time.monotonic_ns() // 1000
        return time.clock_gettime_ns(self._source) // 1000

    def boot_id(self) -> str:
        """Return the kernel's boot id; in a container with a boot-time clock of its own, that container's."""
        return self._boot_id


def host() -> str:
    """Return this machine's name, for people."""
    return socket.gethostname()


def pid_namespace() -> str:
    """Return the name of the pid namespace, outside of which a pid means nothing; empty where there is none."""
    return _link(_PID_NAMESPACE)


def _read_boot_id() -> str:
    try:
        boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
    namespace = _link(_TIME_NAMESPACE)
    return boot_id if namespace in ("", _FIRST_TIME_NAMESPACE) else f"{boot_id} {namespace}"


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - the name of a namespace is no path
    except OSError:
        return ""
