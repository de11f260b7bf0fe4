"""What the kernel says of a 64-bit ARM processor."""

from __future__ import annotations

import platform

from tvmtune import hwcap
from tvmtune.farm import describe


def test_the_bits_of_a_cortex_a72():
    """As a Raspberry Pi 4 has them."""
    assert hwcap.of(0x887, 0) == ["asimd", "cpuid", "crc32", "evtstrm", "fp"]


def test_the_bits_of_what_kernels_ask_for():
    first = 1 << 1 | 1 << 10 | 1 << 20 | 1 << 22
    assert hwcap.of(first, 1 << 1 | 1 << 13) == [
        *("asimd", "asimddp", "asimdhp", "i8mm", "sve", "sve2")
    ]


def test_another_machine_has_none():
    if platform.machine() not in ("aarch64", "arm64"):
        assert hwcap.names() == []
        assert describe.features(), "they are read from /proc/cpuinfo"
    else:
        assert "asimd" in hwcap.names()
