"""Splits become slices in the kernels that read their parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from kernels import this_machine
from tvmtune.passes import pipeline


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def module(make: Any, *shapes: tuple[int, ...]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{n}", relax.TensorType(s, "float32")) for n, s in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, *inputs))
        builder.emit_func_output(result)
    return builder.get()


def kernels(mod: tvm.IRModule) -> list[str]:
    return [str(v.name_hint) for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("parts", [3, [2, 5]])
def test_parts_are_read_by_one_kernel(parts: Any, axis: int):
    def gated(emit: Any, x: Any) -> Any:
        made = emit(relax.op.split(x, parts, axis))
        first, second = emit(made[0]), emit(made[len(made.ty.fields) - 1])
        first = emit(relax.op.sum(first, axis, keepdims=True))
        return emit(relax.op.multiply(emit(relax.op.sigmoid(second)), first))

    shape = (2, 9, 4)
    graph = module(gated, shape)
    legalized = pipeline.legalize(graph, this_machine())
    assert not any("split" in name for name in kernels(legalized))
    (x,) = arrays(shape)
    assert np.allclose(run(legalized, x), run(graph, x), atol=1e-6)


def test_a_split_into_one_part():
    def whole(emit: Any, x: Any) -> Any:
        return emit(relax.op.negative(emit(relax.op.split(x, 1, 1))))

    graph = module(whole, (2, 9, 4))
    (x,) = arrays((2, 9, 4))
    assert np.allclose(run(pipeline.legalize(graph, this_machine()), x), -x)


@pytest.mark.slow
def test_a_kernel_that_reads_parts_of_several_splits():
    """TVM's fusion dropped an operand of it in some of its runs."""

    def step(emit: Any, *inputs: Any) -> Any:
        *states, first, second, last = inputs
        rows, columns = (emit(relax.op.split(x, 4, 1)) for x in (first, second))
        gates = [emit(relax.op.add(emit(rows[n]), emit(columns[n]))) for n in range(4)]
        state = emit(relax.op.multiply(emit(relax.op.sigmoid(gates[0])), last))
        for gate in gates[1:]:
            state = emit(relax.op.add(state, emit(relax.op.tanh(gate))))
        return emit(relax.op.concat([*states, state], 0))

    shapes = [(1, 8)] * 20 + [(1, 32)] * 2 + [(1, 8)]
    graph = module(step, *shapes)
    legalized = pipeline.legalize(graph, this_machine())
    assert len(kernels(legalized)) == 1
    given = arrays(*shapes)
    assert np.allclose(run(legalized, *given), run(graph, *given), atol=1e-6)
