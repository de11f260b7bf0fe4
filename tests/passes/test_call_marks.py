"""Marks on kernels: read and removed, and without effect on what a kernel computes."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, topi

from tvmtune.passes import call_marks
from tvmtune.passes.call_sites import as_workload, call_sites
from tvmtune.passes.workload_keys import workload_key


def program(*marks: int | None) -> tvm.IRModule:
    """A product of matrices for each mark, one after another."""
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for each in marks:
                call = builder.call_te(topi.nn.matmul, y, y)
                y = builder.emit(call if each is None else call_marks.mark(builder, call, each))
            output = builder.emit_output(y)
        builder.emit_func_output(output)
    return builder.get()


def test_calls_of_one_kernel_get_marks_of_their_own():
    sites = call_sites(program(7, None, 3))
    assert [call_marks.read(site.func) for site in sites] == [7, None, 3]


def test_a_kernel_without_its_mark_is_the_one_before():
    marked, plain = (site.func for site in call_sites(program(0, None)))
    keys = [workload_key(as_workload(f)) for f in (marked, plain, call_marks.remove(marked))]
    assert keys[0] != keys[1] == keys[2]
    assert call_marks.read(call_marks.remove(marked)) is None


@pytest.mark.parametrize("make", [lambda x: x, lambda x: relax.op.add(x, x)], ids=["value", "add"])
def test_other_expressions_stay(make):
    expression = make(relax.Var("x", relax.TensorType((4, 4), "float32")))
    assert call_marks.mark(relax.BlockBuilder(), expression, 1) is expression
