"""CumProd of ONNX, compared with onnx's evaluator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from kernels import agrees_with_reference
from networks.onnx_operators import assert_matches_evaluator, floats, operator
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork

OPSET = 26
"""The first that has the operator."""
pytestmark = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < OPSET, reason="needs an onnx package that knows CumProd"
)


def inputs_of(axis: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    x = floats(3, 4, 5) * 2
    return {"x": (np.abs(x) if dtype.startswith("u") else x).astype(dtype), "axis": np.array(axis)}


@pytest.mark.sweep
@pytest.mark.parametrize("exclusive", [1, 0])
@pytest.mark.parametrize("reverse", [1, 0])
@pytest.mark.parametrize("axis", [-2, 0, 2])
def test_products_in_both_directions(axis: int, reverse: int, exclusive: int):
    options = {"reverse": reverse, "exclusive": exclusive}
    assert_matches_evaluator("CumProd", inputs_of(axis), constant=["axis"], opset=OPSET, **options)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("int64", 0.0), ("float16", 5e-3), ("float64", 1e-12), ("int32", 0.0), ("uint64", 0.0)],
)
def test_dtypes(dtype: str, tolerance: float):
    inputs = inputs_of(1, dtype)
    options = {"opset": OPSET, "exclusive": 1, "tolerance": tolerance}
    assert_matches_evaluator("CumProd", inputs, constant=["axis"], **options)


@pytest.mark.slow
def test_in_a_library(tmp_path: Path):
    text = f"""<ir_version: 10, opset_import: ["" : {OPSET}]>
    net (float[2,6] x) => (float[2,6] y)
    <int64 last = {{-1}}>
    {{
      shown = Sigmoid (x)
      product = CumProd <exclusive = 1, reverse = 1> (shown, last)
      y = Mul (product, shown)
    }}"""
    agrees_with_reference(onnx.parser.parse_model(text), tmp_path)


def test_an_axis_that_is_not_constant_is_refused():
    model = operator("CumProd", inputs_of(1), opset=OPSET)
    info = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 4, 5))
    model.graph.output[0].CopyFrom(info)
    with pytest.raises(TvmtuneError, match="node 'the_node' .*its axis must be constant"):
        OnnxNetwork(model, name="net").to_relax()
