"""One clock for all processes of a case, which the kit can move on: nobody waits for a lease, a settle time or a proof.

It must not stand still: it is the machine's clock plus what it was moved on by.
"""

from __future__ import annotations

import mmap
from datetime import timedelta
from pathlib import Path

from counterfoil.stores.clock import SystemClock

_BYTES = 8
_MICROSECOND = timedelta(microseconds=1)


class SharedClock:
    """The machine's clocks, moved on by what stands in a file that every process of a case maps.

    A lease that is let lapse costs no real time, and neither does a provider's settle time. Both clocks move together,
    as they do while a machine is suspended.

    Args:
        path: of the file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._machine = SystemClock()
        if not path.exists():
            path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._moved = mmap.mmap(file.fileno(), _BYTES)

    def now_us(self) -> int:
        """Return microseconds since 1970 UTC."""
        return self._machine.now_us() + self.moved_us

    def boottime_us(self) -> int:
        """Return microseconds since boot."""
        return self._machine.boottime_us() + self.moved_us

    def boot_id(self) -> str:
        """Return the kernel's boot id."""
        return self._machine.boot_id()

    @property
    def moved_us(self) -> int:
        """By how many microseconds it was moved on."""
        return int.from_bytes(self._moved[:], "little")

    def advance(self, span: timedelta) -> None:
        """Let time pass, for every process of the case at once."""
        self._moved[:] = (self.moved_us + span // _MICROSECOND).to_bytes(_BYTES, "little")

    def close(self) -> None:
        """Let go of the file."""
        self._moved.close()
