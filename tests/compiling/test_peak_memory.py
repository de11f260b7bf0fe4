"""Peak memory of compiling a network of half a gigabyte."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import tool

from tvmtune import networks

WEIGHTS = 4 * 138_357_544
"""Bytes of VGG-16's weights."""


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
    _, _, peak = tool("compile", "--network", name, "-o", str(library))
    assert library.stat().st_size > WEIGHTS
    assert WEIGHTS < peak <= 4 * WEIGHTS, f"{peak / 1e6:.0f} MB"
