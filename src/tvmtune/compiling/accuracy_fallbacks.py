"""Fall back to more accurate kernels while a network's output is off by more than is allowed.

Each kernel passes its own check. But an algorithm such as Winograd's rounds more than the direct one,
and over the layers of a deep network the errors add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tvmtune.compiling.compile import choose_records
from tvmtune.records.log import Log
from tvmtune.types import Device, Task, Trial


@dataclass(frozen=True)
class Attempt:
    """Records to compile a network with."""

    records: dict[str, Trial]
    """By task key."""
    fallbacks: int = 0
    """Tasks that get a more accurate kernel than their fastest."""

    @property
    def exact_defaults(self) -> bool:
        """Whether tasks without a record get only exact implementations."""
        return self.fallbacks > 0


def accuracy_fallbacks(
    logs: Sequence[Log], tasks: Sequence[Task], device: Device, shipped: Log | None = None
) -> list[Attempt]:
    """What to compile, most promising first: the best records, then ever more accurate ones.

    A fallback replaces a kernel that rounds more than the direct algorithm. Tasks that lose least per
    call go first, however often they are called: each call rounds. Each attempt has one more fallback
    than the one before, or half as many more; the last has them all. Tasks without a record fall back
    together, in the first of these attempts. ``shipped`` is that of :func:`choose_records`.
    """
    best = choose_records(logs, tasks, device, shipped=shipped)
    inexact = [task for task in tasks if task.key in best and _rounds_more(task, best[task.key])]
    keys = {task.key for task in inexact}
    exact = choose_records(logs, tasks, device, shipped=shipped, exact=keys)

    def loss(task: Task) -> float:
        """Seconds that a call takes longer with the accurate kernel."""
        fallback = exact.get(task.key)
        return fallback.latency - best[task.key].latency if fallback else inf

    inexact.sort(key=loss)
    untuned = sum(task.key not in best and not task.untuned.exact for task in tasks)
    attempts = [Attempt(best)]
    if untuned:
        attempts.append(Attempt(best, untuned))
    count = 0
    while count < len(inexact):
        count = min(len(inexact), max(count + 1, 3 * count // 2))
        replaced = {task.key for task in inexact[:count]}
        kept = {key: trial for key, trial in best.items() if key not in replaced}
        fallbacks = {key: trial for key, trial in exact.items() if key in replaced}
        attempts.append(Attempt(kept | fallbacks, untuned + count))
    return attempts


def _rounds_more(task: Task, trial: Trial) -> bool:
    """Also if the implementation is superseded: the task does not have it any more."""
    return not any(i.name == trial.implementation and i.exact for i in task.implementations)
