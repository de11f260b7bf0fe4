"""Where fusion begins a kernel at chains of clamps."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from kernels import this_machine
from tvmtune.passes import pipeline


def chain(length: int) -> tvm.IRModule:
    """Values that are quantized, dequantized and moved ``length`` times."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 16), "float32"))
    scale, zero = relax.const(0.02, "float32"), relax.const(3, "int8")
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(length):
                value = builder.emit(relax.op.add(value, relax.const(0.3, "float32")))
                value = builder.emit(relax.op.quantize(value, scale, zero))
                value = builder.emit(relax.op.dequantize(value, scale, zero))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.sweep
@pytest.mark.parametrize(("length", "kernels"), [(1, 1), (6, 1), (7, 2), (20, 4)])
def test_long_chains_of_clamps_are_cut(length: int, kernels: int):
    """TVM's simplifier takes four times as long for each: of 20, it would not return."""
    made = pipeline.legalize(chain(length), this_machine())
    found = [each for _, each in made.functions_items() if isinstance(each, tvm.tirx.PrimFunc)]
    calls = [b for block in made["main"].body.blocks for b in block.bindings]
    assert len(calls) == kernels
    assert len(found) <= kernels
    x = np.linspace(-3, 3, 64, dtype="float32").reshape(4, 16)
    machine = relax.VirtualMachine(tvm.compile(made, "llvm"), tvm.cpu())
    want = x
    for _ in range(length):
        steps = np.rint((want + np.float32(0.3)) / np.float32(0.02)) + 3
        want = ((np.clip(steps, -128, 127) - 3) * np.float32(0.02)).astype("float32")
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert np.abs(got - want).max() <= 0.0201
    assert (got == want).mean() > 0.9


def test_what_is_broadcast_is_not_quantized_again_for_each_result():
    """As the statistics of a quantized instance normalization."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 8, 16), "float32"))
    few = relax.Var("few", relax.TensorType((1, 1, 1, 16), "float32"))
    scale, zero = relax.const(0.02, "float32"), relax.const(3, "int8")
    with builder.function("main", [x, few]):
        with builder.dataflow():
            steps = builder.emit(relax.op.quantize(few, scale, zero))
            value = builder.emit(relax.op.dequantize(steps, scale, zero))
            result = builder.emit_output(builder.emit(relax.op.multiply(x, value)))
        builder.emit_func_output(result)
    made = pipeline.legalize(builder.get(), this_machine())
    calls = [b.value for block in made["main"].body.blocks for b in block.bindings]
    assert len(calls) == 2
    assert [list(map(int, call.ty.shape)) for call in calls] == [[1, 1, 1, 16], [1, 8, 8, 16]]


def test_shortcuts_of_many_blocks_are_no_chain():
    """Each is stored, because a convolution reads it, too."""
    builder = relax.BlockBuilder()
    value = x = relax.Var("x", relax.TensorType((1, 8, 8, 16), "float32"))
    weight = relax.const(np.ones((3, 3, 16, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            for _ in range(10):
                made = relax.op.nn.conv2d(
                    value, weight, padding=1, data_layout="NHWC", kernel_layout="HWIO"
                )
                made = builder.emit(relax.op.add(builder.emit(made), value))
                value = builder.emit(relax.op.nn.relu(made))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    made = pipeline.legalize(builder.get(), this_machine())
    assert len([b for block in made["main"].body.blocks for b in block.bindings]) == 10
