"""Col2Im: images as sums of overlapping blocks, compared with onnx's evaluator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from kernels import agrees_with_reference
from networks.onnx_operators import assert_matches_evaluator, operator
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.converters import windows
from tvmtune.networks.onnx.network import OnnxNetwork


def columns_of(
    image: list[int], block: list[int], dtype: str = "float32", channels: int = 2, **attributes: Any
) -> dict[str, np.ndarray]:
    """Inputs of the operator, with a batch of 2."""
    rank = len(image)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    shape = (2, channels * math.prod(block), math.prod(counts))
    values = np.random.default_rng(0).uniform(-9, 9, shape)
    return {
        "x": (np.abs(values) if dtype.startswith("u") else values).astype(dtype),
        "image": np.array(image, "int64"),
        "block": np.array(block, "int64"),
    }


CASES: list[tuple[list[int], list[int], dict[str, list[int]]]] = [
    ([5, 6], [3, 2], {"strides": [2, 1], "pads": [1, 0, 1, 2]}),
    ([4, 5], [2, 3], {}),
    ([7, 8], [2, 2], {"strides": [3, 3]}),
    ([6, 7], [3, 3], {"dilations": [2, 1], "pads": [2, 1, 2, 1]}),
    ([7, 7], [1, 1], {"strides": [2, 3]}),
    ([9], [3], {"strides": [2], "dilations": [2], "pads": [1, 0]}),
    ([9], [4], {"strides": [4], "dilations": [6], "pads": [9, 9]}),
    ([9], [4], {"strides": [6], "dilations": [4], "pads": [9, 8]}),
    ([11], [4], {"strides": [3], "dilations": [2], "pads": [3, 5]}),
    ([4, 5, 6], [2, 3, 2], {}),
    (
        [4, 5, 6],
        [2, 3, 2],
        {"strides": [1, 2, 3], "pads": [1, 0, 1, 0, 2, 1], "dilations": [2, 1, 3]},
    ),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("image", "block", "attributes"), CASES, ids=str)
def test_every_block_is_added_where_it_belongs(
    image: list[int], block: list[int], attributes: dict[str, Any]
):
    inputs = columns_of(image, block, **attributes)
    assert_matches_evaluator("Col2Im", inputs, constant=["image", "block"], **attributes)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("int32", 0.0), ("float16", 2e-3), ("float64", 1e-12), ("uint8", 0.0), ("int64", 0.0)],
)
def test_dtypes(dtype: str, tolerance: float):
    attributes = {"strides": [2, 1], "pads": [1, 0, 1, 1]}
    inputs = columns_of([5, 6], [3, 3], dtype, **attributes)
    options: dict[str, Any] = {"constant": ["image", "block"], "tolerance": tolerance}
    assert_matches_evaluator("Col2Im", inputs, **options, **attributes)


@pytest.mark.sweep
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-2)])
def test_sums_of_many_blocks_are_loops(dtype: str, tolerance: float):
    assert windows.MOST_TERMS < 9 * 8
    inputs = columns_of([10, 9], [9, 8], dtype, channels=1)
    options: dict[str, Any] = {"constant": ["image", "block"], "tolerance": tolerance}
    assert_matches_evaluator("Col2Im", inputs, **options)


def test_what_comes_before_and_after_it(tmp_path: Path):
    """As the outlook attention of VOLO, whose blocks are the columns of a product."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[1,16,36] x) => (float[1,8,8,4] y)
    <int64[2] image = {8, 8}, int64[2] block = {3, 3}>
    {
      shown = Relu (x)
      columns = Transpose <perm = [0, 2, 1]> (shown)
      sums = Col2Im <strides = [2, 2], pads = [1, 1, 1, 1]> (columns, image, block)
      last = Transpose <perm = [0, 2, 3, 1]> (sums)
      y = Add (last, last)
    }"""
    agrees_with_reference(onnx.parser.parse_model(text), tmp_path)


GIVEN = columns_of([5, 6], [3, 2])


@pytest.mark.parametrize(
    ("changed", "constant", "attributes", "cause"),
    [
        ({}, ["image"], {}, "its block_shape must be constant"),
        ({"x": GIVEN["x"] > 0}, ["image", "block"], {}, "its dtype bool is not supported"),
        ({}, ["image", "block"], {"strides": [2, 1]}, r"has the shape \(2, 12, 15\), not \(N, a"),
        ({}, ["image", "block"], {"dilations": [9, 9]}, "a block is larger than the padded image"),
        ({}, ["image", "block"], {"strides": [0, 1]}, "and dilations must be positive"),
    ],
    ids=str,
)
def test_others_are_refused(
    changed: dict[str, Any], constant: list[str], attributes: dict[str, Any], cause: str
):
    model = operator("Col2Im", GIVEN | changed, constant=constant, **attributes)
    kind = onnx.helper.np_dtype_to_tensor_dtype((GIVEN | changed)["x"].dtype)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", kind, (2, 2, 5, 6)))
    with pytest.raises(TvmtuneError, match=f"node 'the_node' .*{cause}"):
        OnnxNetwork(model, name="net").to_relax()
