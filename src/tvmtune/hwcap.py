"""Instruction set extensions of 64-bit ARM, as the kernel tells each process.

It is what a process may use: an emulator, or a container without ``/proc``, changes nothing about it.
Bits and names are those of Linux (``arch/arm64/include/uapi/asm/hwcap.h``, ``cpuinfo.c``).
"""

from __future__ import annotations

import ctypes
import platform
import sys

_AT_HWCAP, _AT_HWCAP2 = 16, 26
_FIRST = (
    *("fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp"),
    *("asimdhp", "cpuid", "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4"),
    *("asimddp", "sha512", "sve", "asimdfhm"),
)
"""From bit 0 on; those behind are of no interest to kernels."""
_SECOND = {1: "sve2", 13: "i8mm", 14: "bf16", 23: "sme"}


def names() -> list[str]:
    """Those that this process may use, under their names in /proc/cpuinfo, sorted; none on other
    machines."""
    if sys.platform != "linux" or platform.machine() not in ("aarch64", "arm64"):
        return []
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    return of(ask(_AT_HWCAP), ask(_AT_HWCAP2))


def of(first: int, second: int) -> list[str]:
    """The names behind the bits of ``AT_HWCAP`` and ``AT_HWCAP2``, sorted."""
    found = [name for bit, name in enumerate(_FIRST) if first >> bit & 1]
    return sorted([*found, *(name for bit, name in _SECOND.items() if second >> bit & 1)])
