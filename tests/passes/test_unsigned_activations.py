"""Signed activations of quantized networks become unsigned, without another result."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmtune.passes.bindings import bindings
from tvmtune.passes.unsigned_activations import shift


def program(build: Any) -> tvm.IRModule:
    """``build(emit, x)`` returns the result for floats ``x``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(build(builder.emit, x))
        builder.emit_func_output(output)
    return builder.get()


def run(mod: tvm.IRModule) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    x = np.random.RandomState(0).standard_normal((4, 8)).astype("float32")
    return machine["main"](tvm.runtime.tensor(x)).numpy()


SCALE, ZERO = relax.const(0.01, "float32"), relax.const(-7, "int8")


def quantized(x: Any) -> Any:
    return relax.op.quantize(x, SCALE, ZERO, axis=0, out_dtype="int8")


def dequantized(x: Any) -> Any:
    return relax.op.dequantize(x, SCALE, ZERO, axis=0)


def test_what_is_read_by_dequantize_alone_becomes_unsigned():
    def build(emit: Any, x: Any) -> Any:
        q = emit(quantized(x))
        return emit(relax.op.add(emit(dequantized(q)), emit(dequantized(q))))

    mod = program(build)
    shifted = shift(mod)
    text = shifted.script(show_meta=False)
    assert '"int8"' not in text
    assert '"uint8"' in text
    np.testing.assert_array_equal(run(shifted), run(mod))


def test_what_others_read_stays():
    def build(emit: Any, x: Any) -> Any:
        q = emit(quantized(x))
        moved = emit(relax.op.reshape(q, [32]))
        return emit(relax.op.reshape(emit(dequantized(moved)), [4, 8]))

    mod = program(build)
    assert shift(mod).script(show_meta=False) == mod.script(show_meta=False)


def test_outputs_stay():
    mod = program(lambda emit, x: emit(quantized(x)))
    assert shift(mod).script(show_meta=False) == mod.script(show_meta=False)


def test_what_another_block_reads_stays_readable():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            q = builder.emit_output(quantized(x))
        with builder.dataflow():
            output = builder.emit_output(dequantized(q))
        builder.emit_func_output(output)
    mod = builder.get()
    shifted = shift(mod)
    assert [type(each.var) for each in bindings(shifted)] == [relax.Var, relax.Var]
    assert '"uint8"' in shifted.script(show_meta=False)
    np.testing.assert_array_equal(run(shifted), run(mod))
