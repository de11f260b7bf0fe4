"""The ONNX standard's own tests of operators: results are the standard's, or the node is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from networks.in_tvm import run_in_tvm
from networks.onnx_operators import floats, operator
from tvmtune.errors import TvmtuneError
from tvmtune.networks.onnx.network import OnnxNetwork

EXCEPTIONS = {
    # Shifts of signed integers by as many bits as they have, or by fewer than 0.
    *(f"test_bitshift_{where}_int32_shift_ge_width" for where in ("left", "right")),
    *(f"test_bitshift_{where}_int32_negative_shift" for where in ("left", "right")),
    # The standard takes corners of a size that is no integer; ONNX Runtime rounds it, as we do.
    *(f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("linear", "cubic")),
    # Inputs without elements; integers that TVM does not sort, which compile says.
    *(f"test_split_zero_size_splits_opset{version}" for version in (13, 18)),
    *("test_triu_zero", "test_top_k_uint64"),
    # A finite number modulo infinity.
    *(f"test_mod_float_edge_cases_fmod_0_float{bits}" for bits in (16, 32, 64)),
}
"""Wrong or not compiled, and in no network that we know."""

FEWEST_RIGHT = 700
"""Of the cases that are tried, at least: an importer that refuses all would pass otherwise."""


@pytest.mark.soak
def test_every_operator_is_computed_as_the_standard_says_or_refused():
    """With the inputs but the first as weights, as in most networks, and as data."""
    right, wrong = set(), {}
    for case in _cases():
        (inputs, outputs), *_ = case.data_sets
        for data in (1, len(inputs)):
            try:
                model = _with_weights(case.model, inputs, data)
                network = OnnxNetwork(model, name="case")
                names = [info.name for info in case.model.graph.input]
                given = dict(zip(names, inputs, strict=True))
                found = run_in_tvm(network, {s.name: given[s.name] for s in network.inputs})
                if complaint := _difference(found, outputs):
                    wrong[case.name] = complaint
                else:
                    right.add(case.name)
            except TvmtuneError:
                pass
            except Exception as error:
                wrong[case.name] = f"{type(error).__name__}: {error}"[-200:]
    assert wrong.keys() - EXCEPTIONS == set(), wrong
    assert len(right) >= FEWEST_RIGHT


def _cases() -> Iterator[Any]:
    """Without definitions of operators by others, random numbers, and what NumPy cannot hold."""
    from onnx.backend.test.case.node import collect_testcases

    for case in sorted(collect_testcases(None), key=lambda each: each.name):
        inputs, outputs = case.data_sets[0]
        arrays = [*inputs, *outputs]
        if "_expanded" in case.name or not all(
            isinstance(a, (np.ndarray, np.generic)) for a in arrays
        ):
            continue
        if all(np.asarray(a).dtype.kind in "fiub" for a in arrays):
            yield case


def _with_weights(model: onnx.ModelProto, inputs: list[Any], data: int) -> onnx.ModelProto:
    """The model whose inputs after the first ``data`` ones are weights."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    infos = list(result.graph.input)
    del result.graph.input[data:]
    for info, value in list(zip(infos, inputs, strict=True))[data:]:
        result.graph.initializer.append(numpy_helper.from_array(np.asarray(value), info.name))
    return result


def _difference(found: list[np.ndarray], wanted: list[Any]) -> str:
    """Empty if results agree in shape and dtype, and in value as far as the standard's tests ask."""
    for y, ref in zip(found, map(np.asarray, wanted), strict=True):
        if (y.shape, y.dtype) != (ref.shape, ref.dtype):
            return f"{y.shape} {y.dtype} for {ref.shape} {ref.dtype}"
        tolerance = 1e-2 if ref.dtype == np.float16 else 1e-3
        if not np.allclose(y, ref, rtol=tolerance, atol=tolerance / 100, equal_nan=True):
            return f"{y.ravel()[:4]} for {ref.ravel()[:4]}"
    return ""


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_puts_positions_or_channels_first(mode: str):
    x, version = floats(1, 2, 4, 6), onnx.defs.get_schema("SpaceToDepth").since_version
    model = operator("SpaceToDepth", {"x": x}, opset=version, blocksize=2, mode=mode)
    blocks = x.reshape(1, 2, 2, 2, 3, 2)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    (found,) = run_in_tvm(OnnxNetwork(model, name="net"), {"x": x})
    np.testing.assert_array_equal(found, blocks.transpose(order).reshape(1, 8, 2, 3))
