"""Weights that were quantized to 4 or 8 bits stay so in products of few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernels import error, scheduled_library
from tvmtune import api
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import low_bit_weights
from tvmtune.runtime.library import Library

AVX2 = {"mcpu": "haswell"}
OWN: dict[str, str] = {}
"""This machine's vectors, which may be of 512 bits."""
RNG = np.random.default_rng(0)


def quantized(
    terms: int, columns: int, block: int, bits: int, zero: Any = None, seed: int = 0
) -> np.ndarray:
    """Weights (terms, columns) on steps of their own in each block of a column."""
    rng = np.random.default_rng(seed)
    blocks = terms // block
    numbers = rng.integers(0, 1 << bits, (blocks, block, columns))
    scales = (rng.uniform(0.5, 2, (blocks, 1, columns)) / 100).astype("float32")
    zeros = rng.integers(0, 1 << bits, (blocks, 1, columns)) if zero is None else zero
    return ((numbers - zeros).astype("float32") * scales).reshape(terms, columns)


def network(weight: np.ndarray, *rows: int, activation: bool = False) -> OnnxNetwork:
    """The product of a matrix with ``weight``, or ``x * sigmoid(x) + residual`` of it."""
    shape, result = (*rows, len(weight)), (*rows, weight.shape[1])
    nodes = [helper.make_node("MatMul", ["a", "w"], ["x" if activation else "y"])]
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, shape)]
    if activation:
        inputs.append(helper.make_tensor_value_info("residual", TensorProto.FLOAT, result))
        nodes += [
            helper.make_node("Sigmoid", ["x"], ["s"]),
            helper.make_node("Mul", ["x", "s"], ["silu"]),
            helper.make_node("Add", ["silu", "residual"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "product",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return OnnxNetwork(helper.make_model(graph, opset_imports=opsets, ir_version=8), name="product")


def kernels(made: Any, attrs: dict[str, str] = AVX2) -> list[str]:
    return [task.name for task in api.plan(made, attrs=attrs).tasks]


CASES: dict[str, dict[str, Any]] = {
    "4 bits": {"block": 32, "bits": 4},
    "4 bits, zero in the middle": {"block": 128, "bits": 4, "zero": 8},
    "4 bits, zeros that are no step": {"block": 64, "bits": 4, "zero": 7.4},
    "4 bits, small blocks": {"block": 16, "bits": 4},
    "4 bits, a scale for each column": {"block": 256, "bits": 4, "zero": 8},
    "8 bits, a scale for each column": {"block": 256, "bits": 8, "zero": 128},
    "8 bits in blocks": {"block": 64, "bits": 8},
    "2 bits": {"block": 32, "bits": 2},
}
QUICK = ("4 bits", "8 bits, a scale for each column")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n not in QUICK)]
)
def test_steps_are_found_again(name: str):
    options = CASES[name]
    weight = quantized(256, 320, **options)
    found = low_bit_weights.levels(weight)
    assert found is not None
    assert found.bits == max(options["bits"], 4)
    assert found.block >= options["block"]
    by_block = found.numbers.reshape(320, -1, found.block).astype("float64")
    again = (by_block - found.zeros[..., None]) * found.scales[..., None]
    np.testing.assert_allclose(again.reshape(320, 256).T, weight, atol=1e-6 * np.abs(weight).max())


@pytest.mark.parametrize("rows", [(1, 1), pytest.param((3,), marks=pytest.mark.slow), (2, 4)])
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n not in QUICK)]
)
@pytest.mark.parametrize("attrs", [AVX2, OWN], ids=["AVX2", "this machine"])
def test_the_product_equals_that_of_the_weights(
    name: str, rows: tuple[int, ...], attrs: dict[str, str], tmp_path: Path
):
    made = network(quantized(256, 320, **CASES[name]), *rows, activation=True)
    (kernel,) = kernels(made, attrs)
    assert "low_bit_product" in kernel
    library = scheduled_library(made, tmp_path / "product.so", attrs)
    inputs = library.random_inputs(0)
    assert error(library.run(inputs)[0], made.reference(inputs)[0]) < 1e-5


def test_the_library_is_as_small_as_the_weights(tmp_path: Path):
    made = network(quantized(1024, 1024, 64, 4), 1)
    api.compile_untuned(api.plan(made), tmp_path / "product.so")
    weights = 1024 * 1024 // 2 + 5 * 1024 * 1024 // 64
    assert weights < (tmp_path / "product.so").stat().st_size < weights + 100_000


def diagonal() -> np.ndarray:
    """Small floats that large ones would hide."""
    return np.eye(256, 320, dtype="float32") * 1e6 + RNG.standard_normal((256, 320), "float32") / 10


def spoiled(value: float) -> np.ndarray:
    """Weights of which one is off its step, in the last column."""
    weight = quantized(256, 320, 32, 4)
    weight[-1, -1] += np.float32(value)
    return weight


@pytest.mark.parametrize(
    ("weight", "rows", "attrs"),
    [
        pytest.param(RNG.standard_normal((256, 320), "float32"), 1, AVX2, id="floats"),
        pytest.param(diagonal(), 1, AVX2, id="floats beside large ones"),
        pytest.param(spoiled(1e-4), 1, AVX2, id="a weight off its step"),
        pytest.param(spoiled(np.nan), 1, AVX2, id="a weight that is no number"),
        pytest.param(spoiled(np.inf), 1, AVX2, id="an infinite weight"),
        pytest.param(quantized(256, 320, 32, 4), 9, AVX2, id="many rows"),
        pytest.param(quantized(64, 320, 32, 4), 1, AVX2, id="few weights"),
        pytest.param(quantized(256, 321, 32, 4), 1, AVX2, id="columns that fill no vector"),
        pytest.param(quantized(256, 320, 32, 4), 1, {"mcpu": "nehalem"}, id="SSE"),
    ],
)
def test_other_products_keep_their_weights(weight: np.ndarray, rows: int, attrs: dict[str, str]):
    assert not any("low_bit" in name for name in kernels(network(weight, rows), attrs))


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(np.zeros((256, 320), "float32"), id="zeros"),
        pytest.param(np.full((256, 320), -0.3, "float32"), id="one value"),
        pytest.param(np.where(RNG.random((256, 320)) < 0.5, -1, 1).astype("float32"), id="signs"),
    ],
)
def test_weights_of_few_values(weight: np.ndarray, tmp_path: Path):
    made = network(weight, 2)
    assert any("low_bit" in name for name in kernels(made, OWN))
    api.compile_untuned(api.plan(made), tmp_path / "product.so")
    library = Library.open(tmp_path / "product.so")
    inputs = library.random_inputs(0)
    got, want = library.run(inputs)[0], made.reference(inputs)[0]
    np.testing.assert_allclose(got, want, atol=1e-4)
