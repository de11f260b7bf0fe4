"""Transpositions move through a network until they cancel, and the outputs stay the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmtune import api
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.zoo.graph_builder import GraphBuilder
from tvmtune.passes import transposes
from tvmtune.passes.bindings import bindings

TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
SHAPE = (1, 4, 6, 8)
"""NHWC."""


def program(make: Callable[..., Any], *shapes: Sequence[int]) -> tvm.IRModule:
    """A module of ``make(builder, *inputs)``."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{n}", relax.TensorType(shape, "float32")) for n, shape in enumerate(shapes)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(make(builder, *inputs)))
        builder.emit_func_output(result)
    return builder.get()


def run(mod: tvm.IRModule, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    inputs = [
        tvm.runtime.tensor(rng.normal(size=[int(n) for n in p.ty.shape]).astype("float32"))
        for p in mod["main"].params
    ]
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*inputs).numpy()


def permutations(mod: tvm.IRModule) -> list[list[int]]:
    found = (transposes._permutation(b.value) for b in bindings(mod))
    return [axes for axes in found if axes]


def assert_removed(mod: tvm.IRModule, left: int = 0) -> tvm.IRModule:
    made = transposes.remove(mod)
    assert len(permutations(made)) == left, made.script()
    np.testing.assert_allclose(run(made), run(mod), rtol=1e-5, atol=1e-5)
    return made


def nchw(builder: Any, x: Any) -> Any:
    return builder.emit(relax.op.permute_dims(x, TO_NCHW))


def nhwc(x: Any) -> Any:
    return relax.op.permute_dims(x, TO_NHWC)


CONSTANT = np.random.default_rng(1).normal(size=(8, 1, 6)).astype("float32")
STEP = relax.const(0.02, "float32"), relax.const(100, "uint8")
"""Scale and zero point."""
INSIDE = {
    "clip": lambda b, x: relax.op.clip(x, -1, 1),
    "several": lambda b, x: relax.op.multiply(b.emit(relax.op.nn.relu(x)), b.emit(relax.op.exp(x))),
    "scalar": lambda b, x: relax.op.divide(x, relax.const(3.0, "float32")),
    "constant": lambda b, x: relax.op.add(x, relax.const(CONSTANT)),
    "where": lambda b, x: relax.op.where(
        b.emit(relax.op.greater(x, relax.const(0.0, "float32"))), x, b.emit(relax.op.negative(x))
    ),
    "mean": lambda b, x: relax.op.multiply(x, b.emit(relax.op.mean(x, [2, -1], keepdims=True))),
    "concat": lambda b, x: relax.op.concat([x, b.emit(relax.op.tanh(x))], axis=1),
    "split": lambda b, x: b.emit(relax.op.split(x, [3], axis=1))[1],
    "pad": lambda b, x: relax.op.nn.pad(x, [0, 0, 1, 2, 3, 0, 0, 1], pad_value=2.0),
    "max_pool": lambda b, x: relax.op.nn.max_pool2d(x, [2, 3], [1, 2], [1, 0, 0, 1]),
    "avg_pool": lambda b, x: relax.op.nn.avg_pool2d(
        x, [2, 2], padding=[1, 1, 1, 1], count_include_pad=True
    ),
    "bilinear resize": lambda b, x: relax.op.image.resize2d(x, (9, 8)),
    "cubic resize": lambda b, x: relax.op.image.resize2d(
        x, (4, 5), method="cubic", coordinate_transformation_mode="align_corners", cubic_alpha=-0.5
    ),
    "nearest resize": lambda b, x: relax.op.image.resize2d(
        x,
        (13, 16),
        method="nearest_neighbor",
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    ),
    "quantize": lambda b, x: relax.op.dequantize(
        b.emit(relax.op.quantize(x, *STEP, axis=1, out_dtype="uint8")), *STEP, axis=1
    ),
    "nothing": lambda b, x: relax.op.permute_dims(x, [0, 1, 2, 3]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("inside", INSIDE.values(), ids=INSIDE)
def test_transpositions_around_operators_cancel(inside):
    def make(builder, x):
        return nhwc(builder.emit(inside(builder, nchw(builder, x))))

    assert_removed(program(make, SHAPE))


def test_what_is_gained_before_a_resize_that_enlarges_is_kept():
    """Behind it, there would be more to transpose than all that cancels."""

    def make(builder, x, small):
        y = nhwc(builder.emit(relax.op.nn.relu(nchw(builder, x))))
        enlarged = builder.emit(relax.op.image.resize2d(nchw(builder, small), (48, 64)))
        return relax.Tuple([builder.emit(y), enlarged])

    made = transposes.remove(program(make, SHAPE, SHAPE))
    assert len(permutations(made)) == 1


def test_a_reduction_that_drops_axes_needs_no_transposition():
    def make(builder, x):
        return relax.op.sum(nchw(builder, x), [2, 3])

    assert_removed(program(make, SHAPE))


def test_a_small_operand_is_transposed_in_place_of_a_large_one():
    """Squeeze-and-excitation: a gate per channel."""

    def make(builder, x, gate):
        return nhwc(builder.emit(relax.op.multiply(nchw(builder, x), gate)))

    made = assert_removed(program(make, SHAPE, (1, 8, 1, 1)), left=1)
    (call,) = [b.value for b in bindings(made) if transposes._permutation(b.value)]
    assert [int(n) for n in call.ty.shape] == [1, 1, 1, 8]


def test_channel_shuffles_stay_in_the_layout_of_their_neighbors():
    """ShuffleNet's, which groups, transposes and flattens channels in NCHW."""

    def make(builder, x):
        y = builder.emit(relax.op.reshape(nchw(builder, x), (1, 2, 4, 4, 6)))
        y = builder.emit(relax.op.permute_dims(y, [0, 2, 1, 3, 4]))
        y = builder.emit(relax.op.reshape(y, (1, 8, 4, 6)))
        return nhwc(builder.emit(relax.op.nn.relu(y)))

    made = assert_removed(program(make, SHAPE), left=1)
    assert permutations(made) == [[0, 1, 2, 4, 3]]


def test_transpositions_that_are_needed_stay():
    """Heads of attention: nothing cancels, and no reshape may bring in another transposition."""

    def make(builder, x):
        y = builder.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
        return relax.op.reshape(y, (1, 6, 32))

    mod = program(make, SHAPE)
    assert transposes.remove(mod).same_as(mod)


def test_an_operand_in_another_layout_stops_a_transposition():
    def make(builder, x, y):
        return relax.op.add(nchw(builder, x), y)

    mod = program(make, SHAPE, (1, 8, 4, 6))
    assert transposes.remove(mod).same_as(mod)


@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ((1, 8, 6), (1, 2, 4, 6), [([0], [0]), ([1], [1, 2]), ([2], [3])]),
        ((2, 4, 6), (8, 6), [([0, 1], [0]), ([2], [1])]),
        ((4, 6), (3, 8), [([0, 1], [0, 1])]),
        ((1, 4, 1), (4,), [([0], []), ([1], [0]), ([2], [])]),
        ((4,), (1, 4, 1), [([], [0]), ([0], [1]), ([], [2])]),
        ((1, 1), (1,), [([0], [0]), ([1], [])]),
    ],
)
def test_a_reshape_is_cut_into_parts(old, new, groups):
    assert transposes._groups(old, new) == groups


def random_program(seed: int) -> tvm.IRModule:
    """A chain of operators and transpositions that are drawn at random."""
    rng = random.Random(seed)

    def make(builder: Any, x: Any) -> Any:
        kept = [x]
        for _ in range(12):
            x = rng.choice(kept[-3:])
            shape = [int(n) for n in x.ty.shape]
            rank = len(shape)
            axis = rng.randrange(rank)
            order = rng.sample(range(rank), rank)
            choices = [
                lambda x=x, o=order: relax.op.permute_dims(x, o),
                lambda x=x, o=order: relax.op.permute_dims(x, o),
                lambda x=x: relax.op.tanh(x),
                lambda x=x, s=shape, a=axis: relax.op.add(
                    x,
                    relax.const(
                        np.linspace(0, 1, s[a], dtype="float32").reshape(
                            [s[a] if d == a else 1 for d in range(len(s))]
                        )
                    ),
                ),
                lambda x=x, a=axis: relax.op.mean(x, [a], keepdims=True),
                lambda x=x: relax.op.add(x, builder.emit(relax.op.sigmoid(x))),
                lambda x=x, a=axis: relax.op.concat([x, builder.emit(relax.op.sin(x))], a),
                lambda x=x, r=rank: relax.op.nn.pad(x, [rng.randrange(2) for _ in range(2 * r)]),
            ]
            if shape[axis] % 2 == 0:
                choices += [
                    lambda x=x, a=axis: builder.emit(relax.op.split(x, 2, a))[1],
                    lambda x=x, s=shape, a=axis: relax.op.reshape(
                        x, [*s[:a], 2, s[a] // 2, *s[a + 1 :]]
                    ),
                ]
            if rank > 2:
                choices.append(lambda x=x, s=shape: relax.op.reshape(x, [s[0] * s[1], *s[2:]]))
            kept.append(builder.emit(rng.choice(choices)()))
        flat = [builder.emit(relax.op.sum(each)) for each in kept[-4:]]
        last = builder.emit(relax.op.reshape(kept[-1], [-1]))
        return relax.op.multiply(last, builder.emit(relax.op.add(flat[0], flat[1])))

    return program(make, SHAPE)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.soak) for s in range(6, 12))]
)
def test_random_programs_keep_their_results(seed):
    mod = random_program(seed)
    expected = run(mod)
    for merges in (False, True):
        made = transposes._moved(mod, through_merges=merges)
        np.testing.assert_allclose(run(made), expected, rtol=1e-4, atol=1e-5)


def test_blocks_of_convnext_have_no_transpositions():
    """A depthwise convolution in NCHW, a layer normalization and products in NHWC, a residual sum."""
    g = GraphBuilder("block", seed=0)
    x = g.conv_bn(g.input("data", (1, 8, 6, 6)), "stem", 16, 1)
    for number in range(2):
        y = g.conv_bn(x, f"depthwise{number}", 16, 3, pad=1, groups=16)
        y = replace(y, name=g.node("Transpose", f"nhwc{number}", [y.name], perm=(0, 2, 3, 1)))
        y = g.relu(y)
        y = replace(y, name=g.node("Transpose", f"nchw{number}", [y.name], perm=(0, 3, 1, 2)))
        x = g.add(x, y, f"sum{number}")
    plan = api.plan(OnnxNetwork(g.model(g.flatten(x, "flat")), name="block"))
    assert len(permutations(plan.prepared.graph)) == 2, "of the input and the output"


@pytest.mark.parametrize("activation", ["HardSwish", "HardSigmoid", "LeakyRelu", "Softplus"])
def test_activations_fuse_with_convolutions(activation):
    g = GraphBuilder("activations", seed=0)
    x = g.conv_bn(g.input("data", (1, 8, 6, 6)), "first", 16, 3, pad=1)
    x = replace(x, name=g.node(activation, "activation", [x.name]))
    x = g.conv_bn(x, "second", 16, 3, pad=1)
    plan = api.plan(OnnxNetwork(g.model(g.flatten(x, "flat")), name="activations"))
    names = [task.name for task in plan.tasks]
    assert sum("transpose" in name for name in names) == 2, names
    assert len(names) == 4, names
