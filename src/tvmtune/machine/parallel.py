"""Call a function on many items in threads, one per core.

TVM releases Python's lock while it runs, and LLVM may compile in several threads at once, so threads
do what processes would without starting TVM again: 63 kernels take 5.8 s in one thread and 2.9 s in
two. A function that is called here must not run kernels, and whatever it registers with TVM must be
registered before: TVM's tables are not locked.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tvmtune import phases
from tvmtune.machine.cpu_count import count_cpus
from tvmtune.machine.threads import allowed_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")

CPUS = allowed_cpus()
"""The CPUs that this process may use. TVM may later bind the calling thread to one of them, which its
new threads inherit."""


def cores() -> int:
    """How many threads :func:`each` uses by default."""
    return count_cpus(set(CPUS)).usable


def groups(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """The items in at most ``most`` groups of about the same size, neighbors in different ones."""
    count = min(most, len(items))
    return [items[start::count] for start in range(count)]


def each(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    phase: str,
    *,
    threads: int | None = None,
    size: Callable[[Item], int] = lambda item: 1,
) -> list[Result]:
    """The results of ``function(item)``, in order. The phase's progress is reported; an item counts as
    ``size(item)``.

    Runs in ``threads`` threads, by default one per core, with the caller's context variables and TVM's
    current PassContext. If a call raises, or Ctrl-C is pressed, calls that have not begun are dropped
    and the exception is raised once those that have begun are done.
    """
    if not items:
        return []
    total = sum(map(size, items))
    done = 0
    results: list[Result] = []

    def finished(item: Item, result: Result) -> None:
        nonlocal done
        results.append(result)
        done += size(item)
        phases.report(phase, done, total)

    phases.report(phase, 0, total)
    count = min(threads or cores(), len(items))
    if count == 1:
        for item in items:
            finished(item, function(item))
        return results
    passes = _passes()

    def call(item: Item) -> Result:
        with passes:
            return function(item)

    executor = ThreadPoolExecutor(count, initializer=_use_all_cpus)
    try:
        futures = [executor.submit(contextvars.copy_context().run, call, i) for i in items]
        for item, future in zip(items, futures, strict=True):
            finished(item, future.result())
    finally:
        executor.shutdown(cancel_futures=True)
    return results


def _passes() -> Any:
    """TVM's PassContext belongs to a thread."""
    import tvm

    return tvm.transform.PassContext.current()


def _use_all_cpus() -> None:
    # Some may have been taken from the process since.
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setaffinity(0, CPUS)
