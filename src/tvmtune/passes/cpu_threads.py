"""How many threads the hand-written loops of a kernel for CPUs start."""

from __future__ import annotations

_SMALL = 1 << 14
"""Elements that one thread handles in the time that it takes to start others."""


def cpu_threads(elements: int) -> int:
    """The cores of the current target; 1 for few elements, or if the target does not say."""
    import tvm

    target = tvm.target.Target.current()
    cores = target.attrs.get("num-cores") if target else None
    return int(cores or 1) if elements > _SMALL else 1
