"""Sums of dequantized bytes are computed in steps of their result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmtune.passes import quantized_sums, rounding
from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.passes.constants import constant_value

SCALES = (0.05, 0.03, 0.07)
"""Of the terms and of the result."""
SHAPE = (2, 6, 5)


def residual(
    zero: int, *, relu: bool, dtype: str = "uint8", scales: Any = SCALES, read: bool = False
) -> tvm.IRModule:
    """Two inputs of bytes, whose sum is quantized; with ``read`` it is an output, too."""
    names = ("x", "y")
    inputs = [relax.Var(name, relax.TensorType(SHAPE, dtype)) for name in names]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            terms = [
                builder.emit(
                    relax.op.dequantize(
                        each, relax.const(np.float32(scale)), relax.const(point, "int32"), axis=0
                    )
                )
                for each, scale, point in zip(inputs, scales, (7, 3), strict=False)
            ]
            total = builder.emit(relax.op.add(*terms))
            limited = builder.emit(relax.op.nn.relu(total)) if relu else total
            result = relax.op.quantize(
                limited,
                relax.const(np.float32(scales[2])),
                relax.const(zero, "int32"),
                axis=0,
                out_dtype=dtype,
            )
            outputs = [builder.emit_output(result)]
            if read:
                outputs.append(builder.emit_output(relax.op.negative(total)))
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get()


def operators(mod: tvm.IRModule) -> list[str]:
    return [operator_of(b.value) for b in bindings(mod) if operator_of(b.value)]


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    mod = relax.transform.LegalizeOps(rounding.LEGALIZERS)(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs))[0].numpy()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 9), ("int8", -128)])
def test_the_result_is_that_of_the_definition(dtype, zero, relu):
    rng = np.random.RandomState(0)
    limits = np.iinfo(dtype)
    x, y = (rng.randint(limits.min, limits.max + 1, SHAPE).astype(dtype) for _ in range(2))
    mod = quantized_sums.fold_scales(residual(zero, relu=relu, dtype=dtype))
    total = SCALES[0] * (x - 7.0) + SCALES[1] * (y - 3.0)
    total = np.maximum(total, 0) if relu else total
    wanted = np.clip(np.rint(total / SCALES[2]) + zero, limits.min, limits.max)
    np.testing.assert_array_equal(run(mod, x, y), wanted)


def test_no_element_is_divided_or_multiplied_by_the_scale_of_the_result():
    mod = quantized_sums.fold_scales(residual(0, relu=False))
    (last,) = [b.value for b in bindings(mod) if operator_of(b.value) == "quantize"]
    assert constant_value(last.args[1]) == 1
    kernels = relax.transform.LegalizeOps(rounding.LEGALIZERS)(mod)
    (quantize,) = [f for name, f in kernels.functions.items() if name.name_hint == "quantize"]
    assert len(quantize.params) == 3, "data, zero point, output"


@pytest.mark.parametrize(("zero", "has_relu"), [(0, False), (9, True)])
def test_a_relu_goes_where_the_limits_of_the_bytes_do_the_same(zero, has_relu):
    mod = quantized_sums.fold_scales(residual(zero, relu=True))
    assert ("nn.relu" in operators(mod)) == has_relu


@pytest.mark.parametrize(
    "options",
    [{"read": True}, {"scales": (1e30, 1e30, 1e-30)}, {"scales": (1e-30, 1e-30, 1e30)}],
    ids=["read elsewhere", "too large", "too small"],
)
def test_other_sums_stay_as_they_are(options):
    mod = residual(0, relu=False, **options)
    assert quantized_sums.fold_scales(mod) is mod
