"""The machine's clocks, and machines that lack one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from counterfoil.stores import clock as clocks
from counterfoil.stores.clock import SystemClock, host, pid_namespace


def test_the_clocks_are_those_of_the_machine() -> None:
    clock = SystemClock()
    assert abs(clock.now_us() - time.time_ns() // 1000) < 60_000_000
    first = clock.boottime_us()
    assert clock.boottime_us() >= first > 0
    assert clock.boot_id() == SystemClock().boot_id()
    assert host()


@pytest.mark.skipif(not Path("/proc/self/ns").exists(), reason="this platform has no /proc")
def test_the_boot_and_the_pid_namespace_have_names() -> None:
    assert len(SystemClock().boot_id()) >= 36
    assert pid_namespace().startswith("pid:[")


def test_suspended_time_counts_where_the_platform_can_tell() -> None:
    source = getattr(time, "CLOCK_BOOTTIME", None)
    if source is None:
        pytest.skip("this platform has no clock that counts suspended time")
    before = time.clock_gettime_ns(source) // 1000
    assert before <= SystemClock().boottime_us() <= time.clock_gettime_ns(source) // 1000


def test_a_platform_without_boot_names_or_boot_time_still_has_a_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    for name in ("_BOOT_ID", "_TIME_NAMESPACE", "_PID_NAMESPACE"):
        monkeypatch.setattr(clocks, name, tmp_path / "nothing")
    clock = SystemClock()
    assert clock.boot_id() == ""
    assert pid_namespace() == ""
    assert abs(clock.boottime_us() - time.monotonic_ns() // 1000) < 60_000_000


def test_a_container_with_a_boot_time_of_its_own_has_a_boot_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "boot_id").write_text("a-boot\n")
    (tmp_path / "time").symlink_to("time:[4026531999]")
    monkeypatch.setattr(clocks, "_BOOT_ID", tmp_path / "boot_id")
    monkeypatch.setattr(clocks, "_TIME_NAMESPACE", tmp_path / "time")
    assert SystemClock().boot_id() == "a-boot time:[4026531999]"
    monkeypatch.setattr(clocks, "_TIME_NAMESPACE", tmp_path / "nothing")
    assert SystemClock().boot_id() == "a-boot"
