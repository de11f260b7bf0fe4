"""The code of a real record, one that comes with tvmtune."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvmtune.records import shipped
from tvmtune.records.log import read_log
from tvmtune.report import code
from tvmtune.report.summary import sections


@pytest.fixture(scope="module")
def section():
    return sections(read_log(min(shipped.FOLDER.glob("x86*.json.xz"))))[0]


def test_trace_tir_and_assembly(section):
    task = min(section.tasks, key=lambda t: t.row["gflop"] or 1e9)
    (made,) = code.of_tasks(section, [task])
    assert made.problem == ""
    assert "sch." in made.trace
    assert "@T.prim_func" in made.tir
    assert made.language == "assembly"
    assert ".globl" in made.generated and ".cfi_" not in made.generated


def test_what_cannot_be_made_says_why(section):
    task = section.tasks[0]
    spoiled = replace(task, shipped=task.shipped.evolve(trace=[[["Nonsense", [], [], []]], []]))
    (made,) = code.of_tasks(section, [spoiled])
    assert made.problem and not made.tir
    (bare,) = code.of_tasks(section, [replace(task, line={})])
    assert bare.problem == "the log does not hold the workload"
    (none,) = code.of_tasks(section, [replace(task, shipped=None)])
    assert none == code.Code()
