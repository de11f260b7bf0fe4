"""From a network to fused kernels: layouts agree, and constants are folded."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from kernels import error, one_conv, prepared, run_network, this_machine
from models import tiny_cnn, tiny_encoder
from tvmtune.errors import UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.passes import pipeline
from tvmtune.passes.call_sites import as_workload, call_sites


def outputs_of(program) -> list:
    import tvm

    mod = pipeline.legalize(program.graph, program.device)
    executable = tvm.compile(mod, target=tvm.target.Target(program.device.target))
    return run_network(executable, program.network, random_inputs(program.network.inputs))


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "nhwc"])
@pytest.mark.parametrize("make", [tiny_cnn, tiny_encoder])
def test_every_layout_equals_the_reference(make, layout):
    program = prepared(make(), layout)
    assert program.layout == layout.upper()
    expected = program.network.reference(random_inputs(program.network.inputs))
    for y, ref in zip(outputs_of(program), expected, strict=True):
        assert error(y, ref) < 1e-5


def test_the_default_layout_is_nhwc():
    assert pipeline.prepare(prepared(one_conv()).network, this_machine()).layout == "NHWC"


@pytest.mark.parametrize(("layout", "near"), [("NHCW", "NHWC"), ("nchw16c", "NCHW")])
def test_an_unknown_layout_suggests_the_nearest(layout, near):
    with pytest.raises(UsageError, match=f"layout '{layout}' is not known.*{near}"):
        prepared(one_conv(), layout)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_batch_norm_is_folded_into_weights_and_bias(layout):
    program = prepared(tiny_cnn(), layout)
    assert "batch_norm" not in program.graph.script()
    convolutions = [
        s
        for s in call_sites(pipeline.legalize(program.graph, program.device))
        if "conv2d" in s.name
    ]
    assert len(convolutions) == 4
    for site in convolutions:
        blocks = as_workload(site.func).script()
        assert "sqrt" not in blocks
        assert "subtract" not in blocks
        assert "divide" not in blocks
        # data, weight, bias and output; the residual block adds its own input
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
        ({}, ("norm", "sum")),  # the convolution's own result is used, too
    ],
)
@pytest.mark.slow
def test_folding_batch_norm_keeps_the_result(options, tail, layout):
    program = prepared(one_conv((2, 16, 7, 9), tail=tail, **options), layout)
    (expected,) = program.network.reference(random_inputs(program.network.inputs))
    assert error(outputs_of(program)[0], expected) < 1e-5


@pytest.mark.sweep
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
def test_every_kind_of_convolution_equals_the_reference(options, layout):
    program = prepared(one_conv(**options), layout)
    inputs = random_inputs(program.network.inputs)
    assert error(outputs_of(program)[0], program.network.reference(inputs)[0]) < 1e-5


@pytest.mark.filterwarnings("error")
def test_axes_to_squeeze_may_count_from_the_end():
    """torchvision's attention squeezes axis -2; TVM's conversion of layouts fails on it."""
    model = one_conv(tail=("bias",))
    last = model.graph.output[0].name
    model.graph.node.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    axes = numpy_helper.from_array(np.array([-2, -1]), "axes")
    model.graph.initializer.append(axes)
    model.graph.node.append(helper.make_node("Squeeze", ["pooled", "axes"], ["z"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 16)))
    program = prepared(model)
    assert "NHWC" in program.graph.script()
    (expected,) = program.network.reference(random_inputs(program.network.inputs))
    assert error(outputs_of(program)[0], expected) < 1e-5


@pytest.mark.parametrize(
    ("shape", "width"),
    [
        ((8, 64), (0, 3, 0, 0)),
        ((1, 64), (0, 3, 0, 0)),
        ((1, 64), (2, 0, 0, 0)),
        ((1, 8, 8, 64), (0, 0, 0, 2, 0, 3, 0, 0)),
        ((1, 8, 1, 64), (0, 0, 0, 0, 0, 3, 0, 0)),
    ],
    ids=["product", "a row", "before a row", "convolution", "of one column"],
)
def test_padding_does_not_join_the_kernel_before_it(shape, width):
    """There it would be computed for the outputs of that kernel only."""
    weight = np.random.RandomState(0).standard_normal((64, 48)).astype("float32")
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            if len(shape) == 2:
                sums = relax.op.matmul(x, relax.const(weight))
            else:
                kernel = relax.const(weight[None, None])
                layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
                sums = relax.op.nn.conv2d(x, kernel, **layouts)
            padded = relax.op.nn.pad(builder.emit(sums), width)
            output = builder.emit_output(padded)
        builder.emit_func_output(output)
    program = pipeline.legalize(builder.get(), this_machine())
    assert len(call_sites(program)) == 2


@pytest.mark.parametrize(
    ("method", "kernels"), [("linear", 3), ("cubic", 3), ("nearest_neighbor", 1)]
)
def test_interpolation_does_not_compute_anew_what_comes_before_it(method, kernels):
    """Each result reads several elements."""
    x = relax.Var("x", relax.TensorType((1, 6, 6, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit(relax.op.sigmoid(x))
            for size in (12, 24):
                larger = relax.op.image.resize2d(result, (size, size), layout="NHWC", method=method)
                result = builder.emit(larger)
            output = builder.emit_output(relax.op.nn.relu(result))
        builder.emit_func_output(output)
    program = pipeline.legalize(builder.get(), this_machine())
    assert len(call_sites(program)) == kernels


def test_interpolation_of_what_exists_is_part_of_the_kernel_after_it():
    x, other = (
        relax.Var(name, relax.TensorType((1, n, n, 8), "float32"))
        for name, n in {"x": 6, "other": 12}.items()
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, other]):
        with builder.dataflow():
            larger = builder.emit(relax.op.image.resize2d(x, (12, 12), layout="NHWC"))
            output = builder.emit_output(relax.op.concat([larger, other], axis=3))
        builder.emit_func_output(output)
    assert len(call_sites(pipeline.legalize(builder.get(), this_machine()))) == 1
