"""Peak memory of compiling a network of half a gigabyte."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tvmtune import networks

WEIGHTS = 4 * 138_357_544
"""Bytes of VGG-16's weights."""


def benchmark():
    """The benchmark that measures it for ``benchmarks/README.md``."""
    path = Path(__file__).parents[2] / "benchmarks" / "zoo.py"
    spec = importlib.util.spec_from_file_location("zoo_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("zoo", marks=pytest.mark.soak), "file"])
def test_compiling_vgg_16_needs_at_most_four_times_its_weights(tmp_path, kind):
    name = "vgg-16"
    if kind == "file":
        name = str(tmp_path / "vgg-16.onnx")
        content = networks.load("vgg-16").to_onnx()
        assert content is not None
        Path(name).write_bytes(content)
        del content
    library = tmp_path / "lib.so"
    _, _, peak = benchmark().tool("compile", "--network", name, "-o", str(library))
    assert library.stat().st_size > WEIGHTS
    assert WEIGHTS < peak <= 4 * WEIGHTS, f"{peak / 1e6:.0f} MB"
