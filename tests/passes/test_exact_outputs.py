"""Which outputs of a network must be equal to the reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax, te
from tvm.relax import op

from tvmtune.passes.exact_outputs import Kind, kinds_of_outputs


def program(make: Callable[..., Any]) -> tvm.IRModule:
    """Its outputs are computed from floats ``x`` and integers ``n``, both (4, 5)."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var("x", relax.TensorType((4, 5), "float32")),
        relax.Var("n", relax.TensorType((4, 5), "int32")),
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(make(builder, *inputs))
        builder.emit_func_output(output)
    return builder.finalize()


def exact(make: Callable[..., Any]) -> list[bool]:
    return exact_in(program(make))


def exact_in(mod: tvm.IRModule) -> list[bool]:
    return [kind is not Kind.ROUNDED for kind in kinds_of_outputs(mod)]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda b, x, n: op.add(n, n), True),
        (lambda b, x, n: op.argmax(op.nn.softmax(x), 1), True),
        (lambda b, x, n: op.argmax(b.emit(op.astype(x, "int32")), 1), True),
        (lambda b, x, n: b.emit(op.topk(x, k=2, axis=1))[1], True),
        (lambda b, x, n: op.greater(x, op.exp(x)), True),
        (lambda b, x, n: op.where(op.greater(x, op.exp(x)), n, op.add(n, n)), True),
        (lambda b, x, n: op.astype(x, "int32"), False),
        (lambda b, x, n: op.add(n, b.emit(op.astype(op.exp(x), "int32"))), False),
        (lambda b, x, n: op.astype(n, "float32"), False),
        (lambda b, x, n: x, False),
        (lambda b, x, n: n, True),
    ],
)
def test_integers_are_exact_unless_rounded_from_floats(make, expected):
    assert exact(make) == [expected]


def test_each_output_for_itself():
    def three(b: Any, x: Any, n: Any) -> Any:
        return relax.Tuple([b.emit(op.exp(x)), b.emit(op.argmin(x, 1)), n])

    assert exact(three) == [False, True, True]


@pytest.mark.parametrize("factor", [2, 2.5])
def test_an_operator_is_exact_if_its_kernel_is(factor):
    x = te.placeholder((4,), "int32", name="x")
    kernel = te.compute((4,), lambda i: (x[i] * tvm.tirx.const(factor)).astype("int32"), name="y")
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType((4,), "int32"))
    with builder.function("main", [given]):
        with builder.dataflow():
            func = te.create_prim_func([x, kernel]).with_attr("global_symbol", "scale")
            function = builder.add_func(func, "scale")
            call = relax.call_tir(function, [given], relax.TensorType((4,), "int32"))
            output = builder.emit_output(builder.emit(call))
        builder.emit_func_output(output)
    assert exact_in(builder.finalize()) == [factor == 2]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda b, x, n: op.argmax(n, 1), Kind.EXACT),
        (lambda b, x, n: op.greater(n, op.add(n, n)), Kind.EXACT),
        (lambda b, x, n: op.argmax(x, 1), Kind.CHOSEN),
        (lambda b, x, n: op.argmax(b.emit(op.astype(x, "int8")), 1), Kind.CHOSEN),
        (lambda b, x, n: op.astype(b.emit(op.argmax(x, 1)), "uint8"), Kind.CHOSEN),
        (lambda b, x, n: op.where(op.greater(x, op.exp(x)), n, op.add(n, n)), Kind.CHOSEN),
        (lambda b, x, n: op.astype(x, "int32"), Kind.ROUNDED),
    ],
)
def test_what_floats_decide_is_told_from_what_depends_on_none(make, expected):
    assert kinds_of_outputs(program(make)) == [expected]
