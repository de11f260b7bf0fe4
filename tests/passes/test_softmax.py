"""Softmax on CPUs: exact where it matters, and never a denormal number."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from tvmtune import api
from tvmtune.cpu_features import AVX512
from tvmtune.passes import softmax
from tvmtune.passes.pipeline import graph_of, legalize
from tvmtune.spaces import cpu_rows

NORMAL = np.finfo(np.float32).tiny


def run(x: np.ndarray, axis: int) -> np.ndarray:
    data = te.placeholder(x.shape, str(x.dtype))
    function = te.create_prim_func([data, softmax.softmax(data, axis)])
    library = tvm.compile(tvm.IRModule({"main": function}), "llvm")
    result = tvm.runtime.empty(x.shape, str(x.dtype))
    library["main"](tvm.runtime.tensor(x), result)
    return result.numpy()


def reference(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x.astype("float64") - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 49), -1), ((2, 3, 197), 2), ((2, 5, 7), 1), ((2, 3, 4), 0), ((9,), 0)]
)
def test_it_is_softmax_along_any_axis(shape, axis):
    x = np.random.default_rng(0).normal(0, 5, shape).astype("float32")
    np.testing.assert_allclose(run(x, axis), reference(x, axis), rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("extent", [2, 49, 4096])
def test_no_result_is_denormal_and_none_is_off_by_more_than_that(extent):
    x = -np.linspace(0, 110, 2 * extent, dtype="float32").reshape(2, extent)
    y = run(x, -1)
    assert not ((y > 0) & (y < NORMAL)).any()
    assert np.abs(y - reference(x, -1)).max() <= 2e-6
    wrong = (y == 0) & (reference(x, -1) > 1.01 * extent * NORMAL)
    assert not wrong.any()


@pytest.mark.parametrize("extent", [3, 37])
def test_nan_and_infinity_have_the_results_of_the_definition(extent):
    x = np.zeros((4, extent), "float32")
    x[0, 1:], x[1, 2], x[2] = -np.inf, np.nan, -np.inf
    y = run(x, -1)
    np.testing.assert_array_equal(y[0], [1, *[0] * (extent - 1)])
    assert np.isnan(y[1]).all()
    assert np.isnan(y[2]).all()
    np.testing.assert_allclose(y[3], 1 / extent, rtol=1e-6)


def test_rows_of_any_length_are_computed_by_whole_vectors_and_at_once():
    data = te.placeholder((12, 197, 197))
    mod = tvm.IRModule({"main": te.create_prim_func([data, softmax.softmax(data, -1)])})
    scheduled = cpu_rows.schedule(mod, AVX512, cores=2).mod.script()
    assert scheduled.count("T.parallel") == 1
    assert "T.where" not in scheduled, "no vector is computed in part"


def test_float16_keeps_its_denormal_results():
    x = np.array([[0, -12]], "float16")
    assert 0 < run(x, -1)[0, 1] < np.finfo("float16").tiny


@pytest.mark.slow
def test_only_cpus_get_it():
    """Records of other devices stay valid."""
    from models import tiny_encoder
    from tvmtune.networks.onnx.network import OnnxNetwork

    network = OnnxNetwork(tiny_encoder(), name="encoder")
    for target, expected in (("cpu", True), ("mali", False)):
        plan = api.plan(network, target)
        lowered = legalize(graph_of(plan.prepared), plan.device)
        kernels = {str(v.name_hint): f.script() for v, f in lowered.functions_items()}
        (kernel,) = (script for name, script in kernels.items() if "softmax" in name)
        assert ("T.Select" in kernel) is expected, target
