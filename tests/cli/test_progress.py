"""Lines and tables about a tuning session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tvmtune.cli import progress


def state(name: str, **values: Any) -> Any:
    known = {"count": 8, "best": 1e-3, "gflops": 50.0, "trials": [], "incumbent": None}
    task = SimpleNamespace(name=name, index=0, weight=1)
    return SimpleNamespace(task=task, implementations=[], **known | values)


def session(*states: Any, **values: Any) -> Any:
    device = SimpleNamespace(model="a CPU", threads=2)
    known = {"total": 8, "elapsed": 5.0, "peak": 100.0, "resumed": 0, "speed_spread": 0.0}
    known |= {"slow_trials": 0, "estimate": lambda: 2e-3, "device": device}
    return SimpleNamespace(states=states, **known | values)


DIRECT: Any = SimpleNamespace(implementation=SimpleNamespace(name="direct"))


def test_a_line_repeats_neither_trials_nor_estimate(capsys: pytest.CaptureFixture[str]):
    lines = progress.PlainLines(verbose=False)
    lines.session = session(total=1)
    lines.proposing(state("dense", count=1), DIRECT)
    lines.proposing(state("transpose", gflops=0.0), DIRECT)  # before the first was measured
    lines.session = session(total=9)
    lines.proposing(state("dense", count=9), DIRECT)
    assert capsys.readouterr().err.splitlines() == [
        "[0:05] 1 trial, estimate 2.000 ms; next: dense (direct), 1 trial, best 1.000 ms, 50 GFLOPS",
        "[0:05] next: transpose (direct), 8 trials, best 1.000 ms",
        "[0:05] 9 trials, estimate 2.000 ms; next: dense (direct), 9 trials, best 1.000 ms, 50 GFLOPS",
    ]


def test_a_kernel_without_operations_has_no_rate():
    table = progress.task_table(session(state("dense"), state("copy", gflops=0.0)), width=160)
    shown = {column.header: list(column.cells) for column in table.columns}
    assert shown["GFLOPS"] == ["50", "-"]
    assert shown["of peak"] == ["50%", "-"]


def test_a_steady_speed_is_not_mentioned():
    assert progress._speed_notes(session(speed_spread=0.004)) == []
    (line,) = progress._speed_notes(session(speed_spread=0.006))
    assert line == "the machine's speed varied by 1%"
