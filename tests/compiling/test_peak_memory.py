"""Peak memory of compiling a network of half a gigabyte."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import tool

from tvmtune import networks

WEIGHTS = {"vgg-11": 4 * 132_863_336, "vgg-16": 4 * 138_357_544}
"""Bytes of the networks' weights, most of which both have in the same layer."""


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        pytest.param("zoo", "vgg-16", marks=pytest.mark.soak),
        pytest.param("file", "vgg-16", marks=pytest.mark.soak),
        pytest.param("file", "vgg-11", marks=pytest.mark.slow),
    ],
)
def test_compiling_vgg_needs_at_most_four_times_its_weights(tmp_path, kind, network):
    name = network
    if kind == "file":
        name = str(tmp_path / f"{network}.onnx")
        content = networks.load(network).to_onnx()
        assert content is not None
        Path(name).write_bytes(content)
        del content
    library = tmp_path / "lib.so"
    _, _, peak = tool("compile", "--network", name, "-o", str(library))
    weights = WEIGHTS[network]
    assert library.stat().st_size > weights
    assert weights < peak <= 4 * weights, f"{peak / 1e6:.0f} MB"
