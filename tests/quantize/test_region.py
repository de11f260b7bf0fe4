"""The layers found between start and stop, and what is folded into them."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import this_machine
from quantize import cnn
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.passes import pipeline
from tvmtune.quantize import region
from tvmtune.quantize.graph import with_unique_names


def find(
    network: OnnxNetwork, start: str | None = None, stop: str | None = None
) -> region.QuantizedRegion:
    graph = pipeline.prepare(network, this_machine(), "NCHW").graph
    return region.find_region(graph, start, stop, name="cnn")


def test_convolutions_and_sums_between_the_first_pooling_and_the_last():
    layers = find(cnn.residual()).layers
    assert [layer.kind for layer in layers] == [
        *("convolution", "convolution", "sum"),
        *("convolution", "convolution", "convolution", "sum"),
    ]
    assert layers[0].out_shape == (1, 16, 8, 8)
    assert layers[3].strides == (2, 2)
    assert layers[-1].low == 0.0


def test_an_activation_fuses_into_the_layer_before_it():
    first, second, total = find(cnn.residual()).layers[:3]
    assert (first.low, first.high) == (0.0, None)
    assert (second.low, second.high) == (None, None)
    assert (total.low, total.high) == (0.0, None)
    clipped = find(cnn.mixed()).layers[0]
    assert (clipped.low, clipped.high) == (0.0, 6.0)


def test_layers_are_connected_by_variable_names():
    layers = find(cnn.residual()).layers
    assert layers[1].inputs == (layers[0].output,)
    assert set(layers[2].inputs) == {layers[1].output, layers[0].inputs[0]}


def test_per_channel_scales_and_biases_are_folded():
    """Run as a float layer, the folded parameters give what the network's own operators give."""
    import tvm
    from tvm import relax

    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 3, 3, 3)).astype("float32")
    steps = {
        name: rng.random((1, 4, 1, 1)).astype("float32") + 0.5
        for name in ("multiply", "add", "divide", "subtract")
    }
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 5, 5), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            start = builder.emit(relax.op.nn.relu(x))
            value = builder.emit(relax.op.nn.conv2d(start, relax.const(weights)))
            for name, array in steps.items():
                value = builder.emit(getattr(relax.op, name)(value, relax.const(array)))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    (layer,) = region.find_region(builder.get(), "relu", None).layers
    folded, bias = layer.parameters()
    data = rng.standard_normal((1, 3, 5, 5)).astype("float32")
    machine = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    wanted = machine["main"](tvm.runtime.tensor(data)).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(np.maximum(data, 0), (3, 3), axis=(2, 3))
    got = np.einsum("nihwyx,oiyx->nohw", windows, folded) + bias[:, None, None]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_other_operators_are_listed():
    others = {op for _, op in find(cnn.mixed()).others}
    assert others == {"concat", "max_pool2d"}


def test_start_and_stop_can_be_chosen():
    everything = find(cnn.residual(), "conv2d", "matmul").layers
    assert len(everything) == len(find(cnn.residual()).layers)
    (first,) = find(cnn.residual(), None, "relu").layers
    assert first.output != everything[0].output  # its activation lies after the stop


def test_duplicate_variable_names_become_unique():
    """Passes that restart their numbering leave such names."""
    import tvm
    from tvm import relax

    kind = relax.TensorType((1, 3, 6, 6), "float32")
    x = relax.Var("x", kind)
    weights = [
        relax.const(np.random.default_rng(n).random((3, 3, 1, 1)).astype("float32")) for n in (0, 1)
    ]
    builder = relax.BlockBuilder()
    names = [relax.DataflowVar("lv", kind) for _ in range(4)]
    calls = [
        relax.op.nn.max_pool2d(x, (1, 1)),
        relax.op.nn.conv2d(names[0], weights[0]),
        relax.op.nn.relu(names[1]),
        relax.op.nn.conv2d(names[2], weights[1]),
    ]
    last = relax.Var("gv", kind)
    bindings = [
        relax.VarBinding(var, builder.normalize(call))
        for var, call in zip(names, calls, strict=True)
    ]
    bindings.append(relax.VarBinding(last, builder.normalize(relax.op.nn.relu(names[3]))))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], last)
    graph = tvm.IRModule({"main": relax.Function([x], body, kind)})
    data = np.random.default_rng(2).standard_normal((1, 3, 6, 6)).astype("float32")

    def output(mod: tvm.IRModule) -> np.ndarray:
        machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
        return machine["main"](tvm.runtime.tensor(data)).numpy()

    renamed = with_unique_names(graph)
    first, second = region.find_region(renamed).layers
    assert second.inputs == (first.output,)
    assert first.output != first.inputs[0]
    assert np.array_equal(output(renamed), output(graph))
    assert with_unique_names(renamed).same_as(renamed)


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        ("max_pool", None, "no operator 'max_pool' for start-op. Did you mean max_pool2d"),
        (None, "softmax", "no operator 'softmax' for stop-op after its start"),
    ],
)
def test_an_unknown_bound_is_refused(start, stop, message):
    with pytest.raises(UsageError) as raised:
        find(cnn.residual(), start, stop)
    assert message in str(raised.value)


def test_a_region_without_layers_is_refused():
    with pytest.raises(TvmtuneError, match="no convolution between mean and matmul"):
        find(cnn.residual(), "mean", "matmul")
