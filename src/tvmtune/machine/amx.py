"""Whether this process may use Intel's AMX, which takes more than a CPU that has it."""

from __future__ import annotations

import ctypes
import platform
import sys

ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP = 158, 0x1021
XFEATURE_XTILEDATA = 18


def is_usable() -> bool:
    """Whether the kernel keeps tiles for processes that ask. Not an old one, nor some sandboxes.

    See the Linux kernel's documentation, ``arch/x86/xstate.rst``.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    supported = ctypes.c_uint64(0)
    failed = ctypes.CDLL(None).syscall(
        *(ctypes.c_long(ARCH_PRCTL), ctypes.c_long(_ARCH_GET_XCOMP_SUPP)), ctypes.byref(supported)
    )
    return not failed and bool(supported.value >> XFEATURE_XTILEDATA & 1)
