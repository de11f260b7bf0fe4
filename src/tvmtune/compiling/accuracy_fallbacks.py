"""Fall back to more accurate kernels while a network's output is off by more than is allowed.

Each kernel passes its own check. But an algorithm such as Winograd's rounds more than the direct one,
and over the layers of a deep network the errors add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from tvmtune.compiling.compile import choose_records
from tvmtune.records.log import Log
from tvmtune.types import DEFAULT, Device, Task, Trial

EARLY = 1 / 8
"""Part of the tasks. Of what inception_v3's error, squared, gains by Winograd's algorithms, nine tenths
are due to the first three of 19."""


@dataclass(frozen=True)
class Attempt:
    """Records to compile a network with."""

    records: dict[str, Trial]
    """By task key; also the defaults of tasks without a record that keep one that is not exact."""
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

    A fallback replaces a kernel that rounds more than the direct algorithm. The first :data:`EARLY` of
    the network fall back together: later layers amplify their errors. Then those without a record do,
    in the order of the network, half of them at a time. Last are those with records, first those that
    lose least per call, however often they are called: each call rounds. Each attempt then has one more
    fallback than the one before, or half as many more; the last has them all. ``shipped`` is that of
    :func:`choose_records`.
    """
    best = choose_records(logs, tasks, device, shipped=shipped)
    inexact = [task for task in tasks if _rounds_more(task, best.get(task.key))]
    inexact.sort(key=lambda task: task.sites)
    keys = {task.key for task in inexact}
    exact = choose_records(logs, tasks, device, shipped=shipped, exact=keys)

    def loss(task: Task) -> float:
        """Seconds that a call takes longer with the accurate kernel."""
        fallback = exact.get(task.key)
        return fallback.latency - best[task.key].latency if fallback else inf

    early = ceil(EARLY * len(inexact))
    untuned = [task for task in inexact[early:] if task.key not in best]
    tuned = sorted((task for task in inexact[early:] if task.key in best), key=loss)
    order = [*inexact[:early], *untuned, *tuned]
    others = early + len(untuned)
    counts, fallen = [0, early, early + ceil(len(untuned) / 2), others], 0
    while fallen < len(tuned):
        fallen = min(len(tuned), max(fallen + 1, 3 * fallen // 2))
        counts.append(others + fallen)
    attempts = []
    for count in dict.fromkeys(counts):
        replaced = {task.key for task in order[:count]}
        records = {key: trial for key, trial in best.items() if key not in replaced}
        records |= {key: trial for key, trial in exact.items() if key in replaced}
        if count:
            kept = [task for task in order[count:] if task.key not in best]
            records |= {task.key: _untuned_trial(task) for task in kept}
        attempts.append(Attempt(records, count))
    return attempts


def _untuned_trial(task: Task) -> Trial:
    """Stands for what compile takes without a record."""
    name, workload = task.untuned.name, task.untuned.workload_key
    return Trial(task.key, name, workload, candidate="", trace=None, tuner=DEFAULT)


def _rounds_more(task: Task, trial: Trial | None) -> bool:
    """Whether the trial, or without one the default, rounds more than the direct algorithm; also if the
    implementation is superseded: the task does not have it any more."""
    if trial is None:
        return not task.untuned.exact
    return not any(i.name == trial.implementation and i.exact for i in task.implementations)
