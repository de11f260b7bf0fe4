"""How much of the rounding of quick algorithms a network bears.

Each kernel is right by itself before it is used. But an algorithm such as Winograd's rounds more than
the direct one, and over the layers of a deep network that adds up to more than the whole may be off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from tvmtune.deploy.compile import choose_records
from tvmtune.records.log import Log
from tvmtune.types import Device, Task, Trial


@dataclass(frozen=True)
class Attempt:
    """Records to compile a network with."""

    records: dict[str, Trial]
    """By the keys of tasks."""
    given_up: int = 0
    """Tasks that could have had a quicker kernel, which rounds more."""


def milder_and_milder(
    logs: Sequence[Log], tasks: Sequence[Task], device: Device
) -> Iterator[Attempt]:
    """What :func:`tvmtune.deploy.compile.choose_records` finds; then, for as long as the whole is
    wrong, with fewer and fewer kernels that round more than the direct algorithm. Those that gain
    least go first, by themselves and not by how often they are called: each call rounds. At every
    step it is one more, or half as many more, until none is left.
    """
    best = choose_records(logs, tasks, device)
    yield Attempt(best)
    rough = [task for task in tasks if task.key in best and _rounds_more(task, best[task.key])]
    exact = choose_records(logs, tasks, device, exact={task.key for task in rough})

    def lost(task: Task) -> float:
        """Seconds that a call takes longer without the quick kernel."""
        instead = exact.get(task.key)
        return instead.latency - best[task.key].latency if instead else inf

    rough.sort(key=lost)
    count = 0
    while count < len(rough):
        count = min(len(rough), max(count + 1, 3 * count // 2))
        given_up = {task.key for task in rough[:count]}
        kept = {key: trial for key, trial in best.items() if key not in given_up}
        instead = {key: trial for key, trial in exact.items() if key in given_up}
        yield Attempt(kept | instead, count)


def _rounds_more(task: Task, trial: Trial) -> bool:
    return any(i.name == trial.implementation and not i.exact for i in task.implementations)
