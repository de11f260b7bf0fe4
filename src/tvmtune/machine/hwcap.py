"""SIMD extensions of 64-bit ARM, as the kernel reports them to each process.

These are the extensions that the process may use, even under an emulator or in a container without
``/proc``. Bits and names are those of Linux (``arch/arm64/include/uapi/asm/hwcap.h``, ``cpuinfo.c``).
"""

from __future__ import annotations

import ctypes
import platform
import sys

_AT_HWCAP, _AT_HWCAP2 = 16, 26
_HWCAP = (
    *("fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp"),
    *("asimdhp", "cpuid", "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4"),
    *("asimddp", "sha512", "sve", "asimdfhm"),
)
"""From bit 0 on; kernels do not use the higher ones."""
_HWCAP2 = {1: "sve2", 13: "i8mm", 14: "bf16", 23: "sme"}


def names() -> list[str]:
    """Extensions that this process may use, named as in /proc/cpuinfo, sorted; empty elsewhere."""
    if sys.platform != "linux" or platform.machine() not in ("aarch64", "arm64"):
        return []
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return decode(getauxval(_AT_HWCAP), getauxval(_AT_HWCAP2))


def decode(hwcap: int, hwcap2: int) -> list[str]:
    """The names of the bits in ``AT_HWCAP`` and ``AT_HWCAP2``, sorted."""
    found = [name for bit, name in enumerate(_HWCAP) if hwcap >> bit & 1]
    return sorted([*found, *(name for bit, name in _HWCAP2.items() if hwcap2 >> bit & 1)])
