"""Libraries of one network in several dtypes, side by side."""

from __future__ import annotations

import onnx
import pytest

from models import tiny_cnn
from tvmtune import api
from tvmtune.bench.dtypes import SAMPLES, compare

pytestmark = pytest.mark.slow


def test_libraries_with_narrower_inputs_are_given_the_same_values(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "tiny.onnx")
    plans = {
        dtype: api.plan(api.load(str(tmp_path / "tiny.onnx"), dtype=dtype))
        for dtype in ("float32", "float16")
    }
    libraries = {
        dtype: api.compile(plan, tmp_path / f"{dtype}.so").path for dtype, plan in plans.items()
    }
    assert [spec.dtype for spec in plans["float16"].network.inputs] == ["float16"]
    base = plans["float32"]
    comparison = compare(base.network, libraries, base.device)
    assert [each.dtype for each in comparison.results] == ["float32", "float16"]
    single, half = comparison.results
    assert single.error <= 1e-4 < half.error < 1e-2
    assert (comparison.samples, comparison.random) == (SAMPLES, True)
    assert comparison.fastest in comparison.results
