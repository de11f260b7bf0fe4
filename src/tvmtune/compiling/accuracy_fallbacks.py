"""Fall back to more accurate kernels while a network's output is off by more than is allowed.

Each kernel passes its own check. But an algorithm such as Winograd's rounds more than the direct one,
and over the layers of a deep network the errors add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from tvmtune.compiling.compile import choose_records, default_trial
from tvmtune.records.log import Log
from tvmtune.types import Device, Task, Trial

STEPS = (1 / 8, 1 / 2, 1)
"""Parts of the tasks that fall back, one after the other. Of what inception_v3's error, squared, gains
by Winograd's algorithms, nine tenths are due to the first eighth of these tasks, three."""


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

    A fallback replaces a kernel that rounds more than the direct algorithm. Tasks without a record fall
    back first, in steps of :data:`STEPS`, in the order of the network: later layers amplify the errors
    of early ones. With records, the first of these steps is the same; then those follow that lose least
    per call, however often they are called: each call rounds. Each attempt then has one more fallback
    than the one before, or half as many more; the last has them all. ``shipped`` is that of
    :func:`choose_records`.
    """
    best = choose_records(logs, tasks, device, shipped=shipped)
    inexact = [task for task in tasks if task.key in best and _rounds_more(task, best[task.key])]
    keys = {task.key for task in inexact}
    exact = choose_records(logs, tasks, device, shipped=shipped, exact=keys)

    def loss(task: Task) -> float:
        """Seconds that a call takes longer with the accurate kernel."""
        fallback = exact.get(task.key)
        return fallback.latency - best[task.key].latency if fallback else inf

    untuned = [task for task in tasks if task.key not in best and not task.untuned.exact]
    for each in (untuned, inexact):
        each.sort(key=lambda task: task.sites)
    attempts = [Attempt(best)]
    for share in STEPS:
        count = ceil(share * len(untuned))
        if count > attempts[-1].fallbacks:
            kept = {task.key: default_trial(task.key, task.untuned) for task in untuned[count:]}
            attempts.append(Attempt(best | kept, count))
    early = ceil(STEPS[0] * len(inexact))
    inexact[early:] = sorted(inexact[early:], key=loss)
    count = 0
    while count < len(inexact):
        count = min(len(inexact), max(count + 1, 3 * count // 2)) if count else early
        replaced = {task.key for task in inexact[:count]}
        kept = {key: trial for key, trial in best.items() if key not in replaced}
        fallbacks = {key: trial for key, trial in exact.items() if key in replaced}
        attempts.append(Attempt(kept | fallbacks, len(untuned) + count))
    return attempts


def _rounds_more(task: Task, trial: Trial) -> bool:
    """Also if the implementation is superseded: the task does not have it any more."""
    return not any(i.name == trial.implementation and i.exact for i in task.implementations)
