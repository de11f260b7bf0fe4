"""Header and task lines, and the trials that a later run can reuse."""

from __future__ import annotations

from pathlib import Path

from tvmtune import api
from tvmtune.records import header
from tvmtune.records.log import LogWriter, read_log
from tvmtune.types import DEFAULT, Trial

KERNEL = """
import numpy as np
from tvm import te
import tvmtune


@tvmtune.operator
def double(n: int = 64):
    x = te.placeholder((n,), name="x")
    return [x, te.compute((n,), lambda i: x[i] * 2.0, name="y")]


@double.reference
def reference(x):
    return x * 2


@double.template("cpu")
def template(sch):
    (i,) = sch.get_loops(sch.get_sblock("y"))
    outer, inner = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=16))
    sch.CHOSEN
"""


def planned(folder: Path, chosen: str) -> api.Plan:
    folder.mkdir(exist_ok=True)
    path = folder / "kernel.py"
    path.write_text(KERNEL.replace("CHOSEN", chosen))
    return api.plan(api.load(str(path)), "cpu", attrs={"threads": 1})


def begun(plan: api.Plan, path: Path) -> None:
    history = read_log(path) if path.exists() else None
    with LogWriter(path) as writer:
        header.begin(writer, plan.prepared, plan.tasks, history, None)


def measured(plan: api.Plan, path: Path) -> None:
    (task,) = plan.tasks
    with LogWriter(path) as writer:
        for number, each in enumerate(task.implementations):
            writer.trial(
                Trial(
                    task.key,
                    each.name,
                    each.workload_key,
                    candidate=str(number),
                    trace=[[], []],
                    seconds=[1.0],
                    tuner=DEFAULT,
                )
            )


def test_trials_of_a_changed_template_are_dropped(tmp_path):
    path = tmp_path / "log.json"
    before = planned(tmp_path / "a", "vectorize(inner)")
    begun(before, path)
    measured(before, path)
    same, changed = header.usable(read_log(path), before.tasks)
    assert [t.implementation for t in same] == ["direct", "template"]
    assert changed == []
    after = planned(tmp_path / "a", "unroll(inner)")
    kept, changed = header.usable(read_log(path), after.tasks)
    assert [t.implementation for t in kept] == ["direct"]
    assert changed == [after.tasks[0].name]


def test_a_task_is_written_again_only_if_it_has_changed(tmp_path):
    path = tmp_path / "log.json"
    before = planned(tmp_path / "a", "vectorize(inner)")
    begun(before, path)
    begun(before, path)
    described = [line for line in path.read_text().splitlines() if '"type":"task"' in line]
    assert len(described) == 1
    begun(planned(tmp_path / "a", "unroll(inner)"), path)
    described = [line for line in path.read_text().splitlines() if '"type":"task"' in line]
    assert len(described) == 2


def test_a_log_whose_header_was_cut_short_is_begun_anew(tmp_path):
    plan, path = planned(tmp_path, "vectorize(inner)"), tmp_path / "log.json"
    begun(plan, path)
    path.write_bytes(path.read_bytes()[:100])
    with LogWriter(path) as writer:
        history = header.earlier(path, plan.prepared)
        assert history is None
        header.begin(writer, plan.prepared, plan.tasks, history, None)
    assert len(read_log(path).headers) == 1
