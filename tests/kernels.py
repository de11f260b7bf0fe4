"""Shared helpers: small networks cut into kernels, and kernels run on this machine."""

from __future__ import annotations

import itertools
import random
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtune import api, host
from tvmtune.accuracy import relative_error
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators import cpu_pipeline
from tvmtune.operators.implementations import AlgorithmSelection
from tvmtune.passes import pipeline
from tvmtune.passes.call_sites import as_workload, call_sites
from tvmtune.passes.workload_keys import workload_key
from tvmtune.runtime.library import Library
from tvmtune.spaces.rule_space import RuleSpace
from tvmtune.tuning.space_points import PointSpace
from tvmtune.types import Algorithm, Device, Implementation, Network, Prepared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import tvm


def this_machine() -> Device:
    return host.backend("cpu").make_target({}, None)


def scheduled_library(network: Network, path: Path, attrs: Mapping[str, str]) -> Library:
    """An untuned library for this machine, all of whose kernels have a schedule."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a kernel without one
        api.compile_untuned(api.plan(network, attrs=dict(attrs)), path)
    return Library.open(path)


def prepared(model: onnx.ModelProto, layout: str = "NHWC") -> Prepared:
    return pipeline.prepare(OnnxNetwork(model, name="test"), this_machine(), layout)


def one_conv(
    shape: Sequence[int] = (1, 16, 14, 14),
    out: int = 16,
    kernel: int | Sequence[int] = 3,
    *,
    pads: Sequence[int] = (1, 1, 1, 1),
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    constant: bool = True,
    tail: Sequence[str] = ("bias", "relu"),
) -> onnx.ModelProto:
    """``x`` (N, C, H, W) -> one convolution and then, in the order of ``tail``, a per-channel
    bias, a ReLU, a swish, a batch norm, or the sum with the plain convolution -> ``y``.

    ``kernel``: its extents, or one for all axes. ``pads``: top, left, bottom, right. With ``constant``
    False the weights are an input, ``w``. A ``shape`` with another number of axes gives a convolution
    of so many dimensions.
    """
    rng = np.random.RandomState(0)
    dims = len(shape) - 2
    extents = [kernel] * dims if isinstance(kernel, int) else kernel
    weight = rng.standard_normal((out, shape[1] // groups, *extents)).astype("float32")
    weight /= np.sqrt(weight[0].size)
    nodes = [
        helper.make_node(
            "Conv",
            ["x", "w"],
            ["conv"],
            name="conv",
            pads=list(pads),
            strides=[stride] * dims,
            dilations=[dilation] * dims,
            group=groups,
        )
    ]
    weights = [numpy_helper.from_array(weight, "w")] if constant else []
    last = "conv"
    for number, step in enumerate(tail):
        name = f"{step}{number}"
        if step == "bias":
            array = rng.standard_normal((1, out, *[1] * dims)).astype("float32")
            weights.append(numpy_helper.from_array(array, f"{name}.b"))
            nodes.append(helper.make_node("Add", [last, f"{name}.b"], [name], name=name))
        elif step == "relu":
            nodes.append(helper.make_node("Relu", [last], [name], name=name))
        elif step == "swish":
            nodes.append(helper.make_node("Sigmoid", [last], [f"{name}.gate"]))
            nodes.append(helper.make_node("Mul", [last, f"{name}.gate"], [name], name=name))
        elif step == "sum":
            nodes.append(helper.make_node("Add", [last, "conv"], [name], name=name))
        elif step == "norm":
            for part in ("gamma", "beta", "mean", "var"):
                array = (rng.rand(out) + 0.5).astype("float32")
                weights.append(numpy_helper.from_array(array, f"{name}.{part}"))
            parts = [f"{name}.{part}" for part in ("gamma", "beta", "mean", "var")]
            nodes.append(helper.make_node("BatchNormalization", [last, *parts], [name], name=name))
        last = name
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weight.shape))
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "one-conv", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def one_product(
    left: Sequence[int],
    right: Sequence[int],
    *,
    constant: bool,
    tail: str = "erf",
) -> OnnxNetwork:
    """``x`` times ``w``, and then a bias and Gelu's erf, the Gelu with tanh, or the sum with ``r``, an
    input with one axis more; nothing if ``tail`` is empty."""
    rng = np.random.RandomState(0)
    weight = rng.standard_normal(right).astype("float32")
    bias = rng.standard_normal(right[-1:]).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"])]
    last = "product"
    if tail:
        nodes += [helper.make_node("Add", ["product", "b"], ["sum"])]
        if tail == "residual":
            nodes += [
                helper.make_node("Squeeze", ["r", "first"], ["moved"]),
                helper.make_node("Add", ["sum", "moved"], ["y"]),
            ]
        elif tail == "gelu":
            nodes += [
                helper.make_node(operator, words.split(), [result])
                for operator, words, result in [
                    ("Mul", "sum half", "halved"),
                    ("Mul", "sum sum", "square"),
                    ("Mul", "square sum", "cube"),
                    ("Mul", "cube small", "bent"),
                    ("Add", "sum bent", "inner"),
                    ("Tanh", "inner", "gate"),
                    ("Add", "gate one", "opened"),
                    ("Mul", "halved opened", "y"),
                ]
            ]
        else:
            nodes += [helper.make_node("Erf", ["sum"], ["y"])]
        last = "y"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, left)]
    weights = [numpy_helper.from_array(bias, "b")] if tail else []
    if tail == "gelu":
        for name, value in (("half", 0.5), ("small", 0.044715), ("one", 1.0)):
            weights.append(numpy_helper.from_array(np.float32(value), name))
    if tail == "residual":
        weights.append(numpy_helper.from_array(np.zeros(1, "int64"), "first"))
        extents = [1, *left[:-1], right[-1]]
        inputs.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, extents))
    if constant:
        weights.append(numpy_helper.from_array(weight, "w"))
    else:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, right))
    output = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "product", inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    return OnnxNetwork(model, name="product")


def kernel(network: Prepared, algorithm: Algorithm | None = None) -> tvm.IRModule:
    """The unscheduled kernel of the network's one convolution."""
    custom = AlgorithmSelection([algorithm]).legalizers() if algorithm else None
    program = pipeline.legalize(network.graph, network.device, custom)
    (site,) = [s for s in call_sites(program) if "conv" in s.name]
    return as_workload(site.func)


def relax_conv(
    layout: str, height: Any = 8, *, dilation: int = 1, dtype: str = "float16"
) -> tuple[tvm.IRModule, np.ndarray]:
    """One 3x3 convolution of 16 channels, and its kernel; ``height`` may be a variable."""
    from tvm import relax

    data, kernel = {
        "NHWC": ((1, height, 8, 16), (3, 3, 16, 16)),
        "NCHW": ((1, 16, height, 8), (16, 16, 3, 3)),
    }[layout]
    weight = (np.arange(np.prod(kernel)) % 1000).astype(dtype).reshape(kernel)
    x = relax.Var("x", relax.TensorType(data, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            conv = relax.op.nn.conv2d(
                *(x, relax.const(weight)),
                padding=dilation,
                dilation=dilation,
                data_layout=layout,
                kernel_layout="HWIO" if layout == "NHWC" else "OIHW",
                out_layout=layout,
            )
            output = builder.emit_output(conv)
        builder.emit_func_output(output)
    return builder.get(), weight


def convolution_of(network: Prepared) -> Any:
    """The first call of a convolution in the network's graph."""
    from tvm import relax

    calls = []
    names = [f"relax.nn.conv{dims}d" for dims in (1, 2, 3)]

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and getattr(node.op, "name", "") in names:
            calls.append(node)

    relax.analysis.post_order_visit(network.graph["main"], visit)
    return calls[0]


def sample_modules(mod: tvm.IRModule, space: RuleSpace, count: int) -> list[tvm.IRModule]:
    """The modules of up to ``count`` schedules that a search would sample."""
    points = points_of(mod, space)
    rng = random.Random(1)
    tried = (points.instantiate(points.draw(rng), seed) for seed in range(1, 100))
    return [*itertools.islice((sampled[0].mod for sampled in tried if sampled is not None), count)]


def points_of(mod: tvm.IRModule, space: RuleSpace) -> PointSpace:
    """What a search of the space draws from."""
    import tvm

    each = Implementation("drawn", workload_key(mod), mod, space)
    return PointSpace(each, tvm.target.Target(space.target), seed=1, threads=1)


def build_for_cpu(mod: tvm.IRModule) -> Any:
    """The module, compiled for this machine as libraries are."""
    import tvm

    target = this_machine().target
    pipeline = cpu_pipeline.pipeline_for(target)
    return tvm.compile(mod, tvm.target.Target(target), tir_pipeline=pipeline)


def prefetches(mod: tvm.IRModule) -> int:
    """How many instructions for prefetches the module has in machine code."""
    code = build_for_cpu(mod).mod.inspect_source("asm")
    return len(re.findall(r"^\s+(?:prefetch\w+|prfm)\s", code, re.M))


def agrees_with_reference(model: onnx.ModelProto, folder: Path) -> None:
    """Fails unless the model's library, without records, has the outputs of the network's reference."""
    network = OnnxNetwork(model, name="one")
    plan = api.plan(network, attrs={"threads": 1})
    path = folder / "one.so"
    api.compile_untuned(plan, path)
    library = Library.open(path)
    inputs = library.random_inputs(0)
    (output,) = library.run(inputs)
    # By ONNX Runtime: onnx's evaluator copies images element by element.
    (wanted,) = network.reference(inputs)
    assert relative_error(output, wanted) < 1e-5


def run_network(
    executable: Any, network: OnnxNetwork, inputs: Mapping[str, np.ndarray], runtime: str = "cpu"
) -> list[np.ndarray]:
    """The outputs of a compiled network, in order, from TVM's device of this name."""
    import tvm
    from tvm import relax

    device = tvm.device(runtime)
    machine = relax.VirtualMachine(executable, device)
    args = [tvm.runtime.tensor(inputs[spec.name], device) for spec in network.inputs]
    result = machine["main"](*args)
    return [t.numpy() for t in (result if len(network.outputs) > 1 else [result])]


def run_kernel(mod: tvm.IRModule, args: Sequence[np.ndarray]) -> np.ndarray:
    """The last argument after ``main``, compiled as libraries are, has run; ``args`` are the others."""
    import tvm

    function = build_for_cpu(mod)["main"]
    output = mod["main"].params[-1]
    blank = np.zeros([int(d) for d in output.shape], str(output.dtype))
    blank[...] = np.nan if blank.dtype.kind == "f" else 111  # unwritten elements are wrong
    result = tvm.runtime.tensor(blank)
    function(*[tvm.runtime.tensor(a) for a in args], result)
    return result.numpy()


def random_args(mod: tvm.IRModule) -> list[np.ndarray]:
    """Normal floats and integers of 0 and 1 for every argument of ``main`` but the last."""
    rng = np.random.RandomState(0)
    args = []
    for param in list(mod["main"].params)[:-1]:
        shape, dtype = [int(d) for d in param.shape], np.dtype(str(param.dtype))
        floating = dtype.kind == "f"
        values = rng.standard_normal(shape) if floating else rng.randint(0, 2, shape)
        args.append(np.asarray(values).astype(dtype))
    return args


def error(computed: np.ndarray, expected: np.ndarray) -> float:
    """max|computed - expected| / max|expected|; ``expected`` must not be all 0."""
    assert computed.shape == expected.shape
    assert np.isfinite(expected).all()
    assert expected.any()
    difference = np.abs(computed.astype("float64") - expected.astype("float64")).max()
    return float(difference / np.abs(expected.astype("float64")).max())


def assert_every_schedule_is_right(
    network: OnnxNetwork, name: str, folder: Path, attrs: dict[str, str]
) -> None:
    """Of its one task that may be computed by the implementation ``name``, which is the default: its
    default and two sampled schedules."""
    plan = api.plan(network, attrs=attrs)
    (task,) = [t for t in plan.tasks if name in [i.name for i in t.implementations]]
    assert task.untuned.name == name
    inputs = random_inputs(network.inputs, 3)
    (got,) = Library.open(api.compile(plan, folder / "lib.so").path).run(inputs)
    (want,) = network.reference(inputs)
    assert error(got, want) < 1e-5
    space = RuleSpace(plan.device.target)
    assert_they_equal(task.untuned.mod, sample_modules(task.untuned.mod, space, 2))


def assert_they_equal(mod: tvm.IRModule, scheduled: Sequence[tvm.IRModule]) -> None:
    """Each scheduled program and the one that it was made of, on the same arguments."""
    args = random_args(mod)
    plain = run_kernel(mod, args)
    for each in scheduled:
        assert error(run_kernel(each, args), plain) < 1e-5
