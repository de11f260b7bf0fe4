"""From a network to fused kernels: the layouts agree, and what is constant is folded."""

from __future__ import annotations

import pytest

from graph.kernels import error, one_conv, prepared, run_network, this_machine
from models import tiny_cnn, tiny_encoder
from tvmtune.errors import UsageError
from tvmtune.graph import pipeline
from tvmtune.graph.sites import as_workload, call_sites
from tvmtune.networks.inputs import random_inputs


def outputs_of(found) -> list:
    import tvm

    mod = pipeline.legalize(found.graph, found.device)
    executable = tvm.compile(mod, target=tvm.target.Target(found.device.target))
    return run_network(executable, found.network, random_inputs(found.network.inputs))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "nhwc"])
@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder])
def test_every_layout_computes_what_the_reference_computes(make, layout):
    found = prepared(make(), layout)
    assert found.layout == layout.upper()
    expected = found.network.reference(random_inputs(found.network.inputs))
    for y, ref in zip(outputs_of(found), expected, strict=True):
        assert error(y, ref) < 1e-5


def test_nhwc_is_the_layout_unless_one_is_chosen():
    assert pipeline.prepare(prepared(one_conv()).network, this_machine()).layout == "NHWC"


@pytest.mark.parametrize(("layout", "near"), [("NHCW", "NHWC"), ("nchw16c", "NCHW")])
def test_an_unknown_layout_is_told_the_nearest(layout, near):
    with pytest.raises(UsageError, match=f"layout '{layout}' is not known.*{near}"):
        prepared(one_conv(), layout)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_batch_norm_leaves_nothing_but_a_bias(layout):
    found = prepared(tiny_cnn(), layout)
    assert "batch_norm" not in found.graph.script()
    convolutions = [
        s for s in call_sites(pipeline.legalize(found.graph, found.device)) if "conv2d" in s.name
    ]
    assert len(convolutions) == 4
    for site in convolutions:
        blocks = as_workload(site.func).script()
        assert "sqrt" not in blocks
        assert "subtract" not in blocks
        assert "divide" not in blocks
        # data, weight, bias and output; what the residual block adds is its own data
        assert len(site.func.params) == 4


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("options", "tail"),
    [
        ({}, ("norm", "relu")),
        ({}, ("bias", "norm")),
        ({"groups": 16}, ("norm",)),
        ({}, ("norm", "norm")),
        ({}, ("relu", "norm")),
        ({}, ("norm", "sum")),  # the convolution's own result is wanted, too
    ],
)
@pytest.mark.slow
def test_folding_batch_norm_keeps_the_result(options, tail, layout):
    found = prepared(one_conv((2, 16, 7, 9), tail=tail, **options), layout)
    (expected,) = found.network.reference(random_inputs(found.network.inputs))
    assert error(outputs_of(found)[0], expected) < 1e-5


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    "options",
    [
        {"pads": (0, 1, 2, 0)},
        {"stride": 2, "pads": (0, 0, 1, 1)},
        {"dilation": 2},
        {"groups": 4},
        {"shape": (3, 5, 1, 13), "out": 7},
        {"constant": False},
    ],
)
def test_every_convolution_comes_through(options, layout):
    found = prepared(one_conv(**options), layout)
    inputs = random_inputs(found.network.inputs)
    assert error(outputs_of(found)[0], found.network.reference(inputs)[0]) < 1e-5
