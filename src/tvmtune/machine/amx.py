"""Whether this process may use Intel's AMX, which takes more than a CPU that has it."""

from __future__ import annotations

import ctypes
import platform
import sys

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
"""The system call by which a process asks Linux for AMX: see the kernel's documentation,
``arch/x86/xstate.rst``."""


def is_usable() -> bool:
    """Ask Linux for AMX, for this process and its children. Old kernels and some sandboxes refuse, as
    does any kernel if a thread's signal stack is too small for the larger state."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    asked = (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return not ctypes.CDLL(None).syscall(*map(ctypes.c_long, asked))
