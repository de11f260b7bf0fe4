"""Tasks with synthetic histories, for tests that need neither TVM nor a device."""

from __future__ import annotations

from typing import Any

from tvmtune.tuning.clock import Clock
from tvmtune.tuning.state import ImplementationState, TaskState
from tvmtune.types import Implementation, Task, Trial

INF = float("inf")


class StoppedClock(Clock):
    """Always at the same time."""

    def __init__(self, elapsed: float) -> None:
        super().__init__()
        self._elapsed = elapsed

    @property
    def elapsed(self) -> float:
        return self._elapsed


class Sized:
    """A space of which only the size is used."""

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
    made = TaskState(task, [ImplementationState(i) for i in implementations])
    for impl, history in zip(made.implementations, histories, strict=True):
        for seconds in history:
            add(made, impl, seconds)
    return made


def add(
    made: TaskState,
    impl: ImplementationState,
    seconds: float,
    *,
    tuner: str = "",
    stage: str = "build",
) -> Trial:
    """One more trial; infinite seconds are a failure."""
    failed = seconds == INF
    trial = Trial(
        task=made.task.key,
        implementation=impl.implementation.name,
        workload=impl.implementation.workload_key,
        candidate=str(len(impl.trials)),
        trace=[],
        seconds=[] if failed else [seconds],
        error={"stage": stage, "message": f"no {stage}"} if failed else None,
        tuner=tuner,
    )
    made.add(impl, trial)
    return trial
