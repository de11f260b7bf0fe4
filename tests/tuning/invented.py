"""Tasks with invented histories: what is decided from them needs neither TVM nor a device."""

from __future__ import annotations

from typing import Any

from tvmtune.tuning.state import Arm, TaskState
from tvmtune.types import Implementation, Task, Trial

INF = float("inf")


class Sized:
    """Stands for a space; nobody asks it for more than its size."""

    def __init__(self, size: int | None) -> None:
        self.size = size


def state(
    index: int,
    *histories: list[float],
    weight: int = 1,
    flop: float = 1e6,
    size: int | None = None,
) -> TaskState:
    """A task with an implementation per history, each a list of seconds, infinity for failures."""
    nothing: Any = None
    space: Any = Sized(size)
    implementations = [
        Implementation(f"way{n}", f"w{index}.{n}", nothing, space) for n in range(len(histories))
    ]
    task = Task(index, f"task{index}", f"k{index}", "", weight, flop, (), implementations)
    made = TaskState(task, [Arm(i) for i in implementations])
    for arm, history in zip(made.arms, histories, strict=True):
        for seconds in history:
            add(made, arm, seconds)
    return made


def add(
    made: TaskState, arm: Arm, seconds: float, *, tuner: str = "", stage: str = "build"
) -> Trial:
    """One more trial; infinite seconds are a failure."""
    failed = seconds == INF
    trial = Trial(
        task=made.task.key,
        implementation=arm.implementation.name,
        workload=arm.implementation.workload_key,
        candidate=str(len(arm.trials)),
        trace=[],
        seconds=[] if failed else [seconds],
        error={"stage": stage, "message": f"no {stage}"} if failed else None,
        tuner=tuner,
    )
    made.add(arm, trial)
    return trial
