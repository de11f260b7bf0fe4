"""The printed computation of a task."""

from __future__ import annotations

from kernels import one_conv, prepared, this_machine
from tvmtune.tasks.dag import stages
from tvmtune.tasks.extract import extract_tasks


def conv_task():
    tasks = extract_tasks(prepared(one_conv()), this_machine())
    return next(t for t in tasks if "conv2d" in t.name)


def test_each_stage_has_its_own_line():
    lines = stages(conv_task().implementations[0].mod)
    heads = [line.split(" ")[0].split("[")[0] for line in lines]
    assert heads[:3] == ["lv", "param_0", "param_1"]
    assert heads[3].startswith("pad_temp")
    assert "conv2d" in heads[4]
    assert len(lines) == 7


def test_a_reduction_prints_its_axes_and_its_result():
    line = next(x for x in stages(conv_task().implementations[0].mod) if "conv2d" in x)
    assert " += pad_temp[" in line
    assert "(over ry < 3, rx < 3, rc < 16)" in line
    assert line.endswith("[1, 14, 14, 16] float32")


def test_no_parser_syntax_remains():
    text = "\n".join(stages(conv_task().implementations[0].mod))
    assert "T." not in text
    assert "v_" not in text
    assert "lv = PLACEHOLDER [1, 14, 14, 16] float32" in text
