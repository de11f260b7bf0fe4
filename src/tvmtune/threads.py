"""TVM's CPU thread pool, set so that it really has the threads that were asked for.

What was found out about ``runtime.config_threadpool(mode, threads[, cpus])`` in TVM 0.27:

- A pool belongs to the thread that calls into TVM and is made by its first parallel kernel. Its
  size never grows afterwards. Without a word from us it has half of the CPUs on x86.
- ``(mode, threads)`` alone changes nothing about that size; yet it binds the calling thread to one
  CPU, and every thread that this one starts later (a peer's pool) inherits the binding.
- A list of CPUs, as strings, sets the size. Mode -3 lets all threads roam over the listed CPUs, so
  the whole affinity of the process in the list leaves the calling thread as it was. Mode -2 binds
  each worker to one of them, but lets the calling thread roam.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from tvmtune.errors import TvmtuneError, UsageError

_ONE_CPU_EACH = -2
_SHARE_CPUS = -3


def allowed_cpus() -> list[int]:
    """The logical CPUs that this process may be scheduled on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def quick_cpus() -> list[int]:
    """Those of :func:`allowed_cpus` that are of the quickest kind: the big cores of ARM's big.LITTLE
    systems, elsewhere all of them."""
    from tvmtune.farm.describe import clusters

    allowed = allowed_cpus()
    # On x86 the largest frequency differs between cores of one kind, too.
    if not platform.machine().lower().startswith(("arm", "aarch64")):
        return allowed
    quickest: list[int] = clusters(allowed)[0]["cpus"]
    return quickest


def choose(threads: int | None, tuned: int) -> int:
    """The number of threads to run with: what was asked for, or what the library was tuned for.

    The latter is brought down to the CPUs that there are; to ask for more raises UsageError.
    """
    there = len(allowed_cpus())
    if threads is None:
        return max(1, min(tuned, there))
    if not 1 <= threads <= there:
        raise UsageError(
            f"the number of threads must be from 1 to {there}, "
            f"the CPUs that this process may use, not {threads}"
        )
    return threads


def parse(given: Any, *, here: bool) -> int:
    """``threads=`` as a user gave it. Raises :class:`UsageError` for what is no number or too few;
    ``here``, on this machine, also for more than there are CPUs."""
    try:
        count = int(given)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"threads={given} is not a number.") from None
    if here:
        return choose(count, count)
    if count < 1:
        raise UsageError(f"threads={given}: at least one is needed.")
    return count


def share(threads: int) -> None:
    """Have TVM compute with ``threads`` threads in the calling thread's parallel kernels.

    All of them may run on any CPU of the process, or where there are enough of them, on any of the
    quickest kind. Raises UsageError if there are not so many CPUs, and TvmtuneError if the pool exists
    already and is too small: then something ran a parallel kernel before.
    """
    _configure(_SHARE_CPUS, choose(threads, threads), _cpus_for(threads))


def settle(threads: int) -> None:
    """As :func:`share`, but for measuring: each thread on a CPU of its own, the caller's included.

    On a small machine a caller that roams often sits on a worker's CPU for the first tens of
    milliseconds, and a kernel takes exactly twice its time (2.1 ms against 1.05 ms on two cores).
    Bound, the first measurement is as good as the hundredth. Where only a part of the CPUs is used
    nothing is bound, so that two processes do not meet on the same ones.
    """
    cpus = _cpus_for(threads)
    if not 1 < threads == len(cpus) or not hasattr(os, "sched_setaffinity"):
        share(threads)
        return
    _configure(_ONE_CPU_EACH, threads, cpus)
    os.sched_setaffinity(0, {cpus[0]})  # TVM gives the others to its workers, in this order


def _cpus_for(threads: int) -> list[int]:
    quickest = quick_cpus()
    return quickest if threads <= len(quickest) else allowed_cpus()


def _configure(mode: int, threads: int, cpus: list[int]) -> None:
    import tvm

    tvm.get_global_func("runtime.config_threadpool")(mode, threads, [str(cpu) for cpu in cpus])
    found = int(tvm.get_global_func("runtime.NumThreads")())
    if found != threads:
        raise TvmtuneError(
            f"TVM's thread pool has {found} threads instead of {threads}: another kernel ran "
            f"before in this process. Set TVM_NUM_THREADS={threads} before it starts"
        )
