"""Extensions of 64-bit ARM from the bits that the kernel reports."""

from __future__ import annotations

import platform

from tvmtune.machine import cpu_features, hwcap


def test_the_bits_of_a_cortex_a72():
    """Those of a Raspberry Pi 4."""
    assert hwcap.decode(0x887, 0) == ["asimd", "cpuid", "crc32", "evtstrm", "fp"]


def test_the_bits_of_extensions_that_kernels_use():
    first = 1 << 1 | 1 << 10 | 1 << 20 | 1 << 22
    assert hwcap.decode(first, 1 << 1 | 1 << 13) == [
        *("asimd", "asimddp", "asimdhp", "i8mm", "sve", "sve2")
    ]


def test_other_machines_have_no_bits():
    if platform.machine() not in ("aarch64", "arm64"):
        assert hwcap.names() == []
        assert cpu_features.available(), "read from /proc/cpuinfo"
    else:
        assert "asimd" in hwcap.names()
