"""Sums of dequantized bytes are computed in steps of their result."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmtune import arrays
from tvmtune.passes import quantized_sums, rounding
from tvmtune.passes.bindings import bindings, operator_of
from tvmtune.passes.constants import constant_value

SCALES = (0.05, 0.03, 0.07)
"""Of the terms and of the result."""
SHAPE = (2, 6, 5)


def residual(
    zero: int,
    *,
    relu: bool,
    dtype: str = "uint8",
    scales: Any = SCALES,
    points: Any = (7, 3),
    shapes: Any = (SHAPE, SHAPE),
    computed: str = "float32",
    outputs: str = "",
) -> tvm.IRModule:
    """Two inputs of bytes, whose sum is quantized; ``outputs`` may name the sum or the first term."""
    inputs = [
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape in zip(("x", "y"), shapes, strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            terms = [
                builder.emit(
                    relax.op.dequantize(
                        each,
                        relax.const(np.float32(scale)),
                        relax.const(point, "int32"),
                        axis=0,
                        out_dtype=computed,
                    )
                )
                for each, scale, point in zip(inputs, scales, points, strict=False)
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
            results = [builder.emit_output(result)]
            others = {"sum": total, "term": terms[0]}
            if outputs:
                results.append(builder.emit_output(relax.op.negative(others[outputs])))
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def operators(mod: tvm.IRModule) -> list[str]:
    return [operator_of(b.value) for b in bindings(mod) if operator_of(b.value)]


def run(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    mod = relax.transform.LegalizeOps(rounding.LEGALIZERS)(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs))[0].numpy()


@pytest.mark.sweep
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 9), ("int8", -128)])
@pytest.mark.parametrize(
    "options",
    [{}, {"shapes": (SHAPE, (1, 6, 1))}, {"outputs": "term"}],
    ids=["equal shapes", "broadcast", "a term that is read elsewhere"],
)
def test_the_result_is_that_of_the_definition(options, dtype, zero, relu):
    rng = np.random.RandomState(0)
    limits = np.iinfo(dtype)
    shapes = options.get("shapes", (SHAPE, SHAPE))
    x, y = (rng.randint(limits.min, limits.max + 1, shape).astype(dtype) for shape in shapes)
    mod = quantized_sums.fold_scales(residual(zero, relu=relu, dtype=dtype, **options))
    (last,) = [b.value for b in bindings(mod) if operator_of(b.value) == "quantize"]
    assert constant_value(last.args[1]) == 1, "in steps of the result"
    total = SCALES[0] * (x - 7.0) + SCALES[1] * (y - 3.0)
    total = np.maximum(total, 0) if relu else total
    wanted = np.clip(np.rint(total / SCALES[2]) + zero, limits.min, limits.max)
    np.testing.assert_array_equal(run(mod, x, y), wanted)


def test_no_element_is_divided():
    divided = relax.transform.LegalizeOps(rounding.LEGALIZERS)(residual(0, relu=False))
    assert "/" in divided.script()
    folded = quantized_sums.fold_scales(residual(0, relu=False))
    assert "/" not in relax.transform.LegalizeOps(rounding.LEGALIZERS)(folded).script()


@pytest.mark.parametrize(("zero", "has_relu"), [(0, False), (9, True)])
def test_a_relu_goes_where_the_limits_of_the_bytes_do_the_same(zero, has_relu):
    mod = quantized_sums.fold_scales(residual(zero, relu=True))
    assert ("nn.relu" in operators(mod)) == has_relu


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": "sum"},
        {"scales": (1e30, 1e30, 1e-30)},
        {"scales": (1e-30, 1e-30, 1e30)},
        {"scales": (-0.05, -0.05, -0.05)},
        {"scales": (0.05, 0.03, 0.0)},
        {"points": ([0, 1], 3)},
        {"computed": "float16"},
    ],
    ids=[
        "read elsewhere",
        "large",
        "small",
        "negative",
        "zero",
        "several points",
        "half precision",
    ],
)
def test_other_sums_stay_as_they_are(options):
    mod = residual(0, relu=False, **options)
    assert quantized_sums.fold_scales(mod) is mod


def test_constant_terms_are_not_kept():
    array = arrays.aligned(np.zeros((300, 300), "int8"))
    kept = weakref.ref(array)
    mod = sum_with_constant(array)
    assert quantized_sums.fold_scales(mod) is not mod
    del array, mod
    gc.collect()
    assert kept() is None


def sum_with_constant(array: np.ndarray) -> tvm.IRModule:
    scale, half, zero = (relax.const(n) for n in (np.float32(0.5), np.float32(0.25), np.int32(3)))
    x = relax.Var("x", relax.TensorType(array.shape, "int8"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            terms = [
                builder.emit(relax.op.dequantize(each, scale, zero, axis=0))
                for each in (x, relax.const(tvm.runtime.from_dlpack(array)))
            ]
            total = builder.emit(relax.op.add(*terms))
            result = relax.op.quantize(total, half, zero, axis=0, out_dtype="int8")
            output = builder.emit_output(result)
        builder.emit_func_output(output)
    return builder.get()
