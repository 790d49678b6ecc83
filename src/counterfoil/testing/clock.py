"""A clock that only a test moves.

It must not look at the machine's.
"""

from __future__ import annotations

from datetime import timedelta

_MICROSECOND = timedelta(microseconds=1)
_START_US = 1_790_000_000_000_000  # Some day in 2026.


class ManualClock:
    """A wall clock and a boot-time clock, moved by hand; several stores may share one.

    Args:
        boot_id: what names the boot; empty stands for a platform that names none.
    """

    def __init__(self, boot_id: str = "a boot") -> None:
        self._wall_us = _START_US
        self._boot_us = 1_000_000_000
        self._boot_id = boot_id

    def now_us(self) -> int:
        """Return microseconds since 1970 UTC."""
        return self._wall_us

    def boottime_us(self) -> int:
        """Return microseconds since boot."""
        return self._boot_us

    def boot_id(self) -> str:
        """Return the name of the boot."""
        return self._boot_id

    def advance(self, span: timedelta) -> None:
        """Let time pass on both clocks."""
        self._wall_us += span // _MICROSECOND
        self._boot_us += span // _MICROSECOND

    def set_wall_back(self, span: timedelta) -> None:
        """Turn the wall clock back, as a time server may; the boot-time clock goes on."""
        self._wall_us -= span // _MICROSECOND

    def reboot(self, boot_id: str) -> None:
        """Begin a new boot: the boot-time clock starts again."""
        self._boot_us = 1_000_000
        self._boot_id = boot_id
