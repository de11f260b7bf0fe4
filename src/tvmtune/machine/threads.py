"""Configure TVM's CPU thread pool to really have the requested number of threads.

Observed behavior of ``runtime.config_threadpool(mode, threads[, cpus])`` in TVM 0.27:

- A pool belongs to the thread that calls into TVM; its first parallel kernel creates it. Its size
  never grows afterwards. By default it is half of the CPUs on x86.
- ``(mode, threads)`` alone does not change that size, but it binds the calling thread to one CPU, and
  every thread that this one starts later (a peer's pool) inherits the binding.
- A list of CPUs, as strings, sets the size. Mode -3 lets all threads run on any listed CPU, so a list
  of the process's whole affinity mask leaves the calling thread unbound. Mode -2 binds each worker to
  one of them, but not the calling thread.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from tvmtune import checks
from tvmtune.errors import TvmtuneError, UsageError

_ONE_CPU_EACH = -2
_SHARE_CPUS = -3


def allowed_cpus() -> list[int]:
    """The logical CPUs that this process may be scheduled on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def fast_cpus() -> list[int]:
    """The fastest kind of :func:`allowed_cpus`: the big cores of ARM's big.LITTLE systems, all CPUs of
    other systems."""
    from tvmtune.machine.describe import clusters

    allowed = allowed_cpus()
    # On x86 the maximum frequency also differs between cores of one kind.
    if not platform.machine().lower().startswith(("arm", "aarch64")):
        return allowed
    fastest: list[int] = clusters(allowed)[0]["cpus"]
    return fastest


def choose(threads: int | None, tuned: int) -> int:
    """The number of threads to run with: ``threads``, or by default the number tuned for.

    The default is limited to the available CPUs. Raises UsageError if ``threads`` exceeds them.
    """
    available = len(allowed_cpus())
    if threads is None:
        return max(1, min(tuned, available))
    if not 1 <= threads <= available:
        raise UsageError(
            f"the number of threads must be from 1 to {available}, "
            f"the CPUs that this process may use, not {threads}"
        )
    return threads


def parse(given: Any, *, here: bool) -> int:
    """Parse the attribute ``threads=``. Raises :class:`UsageError` unless it is a number of at least 1
    and, if it is for this machine (``here``), at most the available CPUs."""
    try:
        count = int(given)
    except (ValueError, TypeError, OverflowError):
        raise UsageError(f"threads={given} is not a number") from None
    if here:
        return choose(count, count)
    checks.at_least("threads", count, 1)
    return count


def share(threads: int) -> None:
    """Have TVM run the calling thread's parallel kernels with ``threads`` threads.

    They may run on any CPU of the process, or on any of the fastest kind if these suffice. Raises
    UsageError if there are fewer CPUs, and TvmtuneError if the pool already exists and is too small
    because an earlier parallel kernel created it.
    """
    _configure(_SHARE_CPUS, choose(threads, threads), _cpus_for(threads))


def bind_pool(threads: int) -> None:
    """As :func:`share`, but for measuring: bind each thread to its own CPU, the caller included.

    On a small machine an unbound caller often shares a worker's CPU for the first tens of milliseconds,
    and a kernel takes exactly twice its time (2.1 ms instead of 1.05 ms on two cores). With bound
    threads the first measurement is as good as the hundredth. If only some of the CPUs are used,
    nothing is bound, so that two processes do not use the same ones.
    """
    cpus = _cpus_for(threads)
    if not 1 < threads == len(cpus) or not hasattr(os, "sched_setaffinity"):
        share(threads)
        return
    _configure(_ONE_CPU_EACH, threads, cpus)
    os.sched_setaffinity(0, {cpus[0]})  # TVM binds its workers to the others, in this order


def _cpus_for(threads: int) -> list[int]:
    fastest = fast_cpus()
    return fastest if threads <= len(fastest) else allowed_cpus()


def _configure(mode: int, threads: int, cpus: list[int]) -> None:
    import tvm

    tvm.get_global_func("runtime.config_threadpool")(mode, threads, [str(cpu) for cpu in cpus])
    actual = int(tvm.get_global_func("runtime.NumThreads")())
    if actual != threads:
        raise TvmtuneError(
            f"TVM's thread pool has {actual} threads instead of {threads}: an earlier kernel in this "
            f"process created it. Set TVM_NUM_THREADS={threads} before the process starts."
        )
