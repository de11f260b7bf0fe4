"""Winograd's algorithms equal the direct convolution, and apply only where they can."""

from __future__ import annotations

import re
import warnings

import numpy as np
import onnx
import pytest
import tvm
from tvm import te, topi

import kernels
from kernels import (
    agrees_with_reference,
    convolution_of,
    error,
    one_conv,
    prefetches,
    prepared,
    random_args,
    run_kernel,
    sample_modules,
    this_machine,
)
from tvmtune import api, host
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators import prefetch, winograd, winograd_fused, winograd_rows
from tvmtune.operators.winograd_calls import Convolution, fitting
from tvmtune.operators.winograd_transforms import (
    F2,
    F4,
    F4_INTEGERS,
    TILES,
    Transforms,
)
from tvmtune.passes.packed_products import Window
from tvmtune.passes.workload_keys import workload_key
from tvmtune.spaces.rule_space import RuleSpace
from tvmtune.tasks.extract import extract_tasks

TRANSFORMS = (F2, F4, F4_INTEGERS)
NAMES = ("2x2", "4x4", "4x4-integers")
SHAPES = [
    # data (n, h, w, in), out, pads (top, left, bottom, right)
    ((1, 7, 7, 16), 16, (1, 1, 1, 1)),
    ((1, 14, 14, 32), 48, (1, 1, 1, 1)),
    ((1, 13, 9, 16), 32, (0, 0, 0, 0)),
    ((2, 8, 8, 32), 16, (1, 1, 1, 1)),
    ((2, 7, 5, 16), 16, (0, 0, 0, 0)),
    ((1, 9, 13, 16), 16, (0, 1, 2, 0)),
    ((1, 6, 6, 16), 16, (2, 0, 0, 3)),
    ((1, 3, 3, 16), 16, (0, 0, 0, 0)),
    ((1, 1, 1, 16), 16, (1, 1, 1, 1)),
    ((1, 6, 74, 32), 16, (1, 1, 1, 1)),
    ((1, 9, 9, 24), 48, (1, 1, 1, 1)),
]
PROGRAMS = pytest.mark.parametrize(
    "compute",
    [winograd.convolution, winograd_rows.convolution, winograd_fused.convolution],
    ids=["whole", "rows", "fused"],
)


def direct(
    data: np.ndarray, weight: np.ndarray, pads: tuple[int, ...], dilation: tuple[int, int] = (1, 1)
) -> np.ndarray:
    """The convolution of NHWC data with HWIO weights, in float64."""
    (top, left, bottom, right), (down, across) = pads, dilation
    padded = np.pad(data.astype("float64"), ((0, 0), (top, bottom), (left, right), (0, 0)))
    extents = [(k - 1) * apart + 1 for k, apart in zip(weight.shape, dilation, strict=False)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=(1, 2))
    windows = windows[..., ::down, ::across]
    return np.einsum("nyxikl,klio->nyxo", windows, weight.astype("float64"))


def random_arrays(shape, out: int, kernel=(3, 3)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(0)
    data = rng.standard_normal(shape).astype("float32")
    return data, rng.standard_normal((*kernel, shape[-1], out)).astype("float32")


def extents(model: onnx.ModelProto) -> Convolution:
    return Convolution.of(convolution_of(prepared(model)))


def stored_weight(compute, transforms: Transforms, weight: np.ndarray) -> np.ndarray:
    """The weights as a library holds them for the program."""
    if compute is winograd_fused.convolution:
        return winograd_fused.pack(weight, transforms.kernel)
    return winograd.transform_weight(transforms, weight)


def program(
    transforms: Transforms,
    shape,
    out: int,
    pads: tuple[int, ...],
    compute=winograd.convolution,
    dilation: tuple[int, ...] = (1, 1),
    strides: tuple[int, ...] = (1, 1),
    frames: int = 1,
) -> tvm.IRModule:
    data = te.placeholder(shape, "float32", name="data")
    weights = np.zeros((frames, *transforms.kernel, shape[-1], out), "float32")
    stored = stored_weight(compute, transforms, weights)
    weight = te.placeholder(stored.shape, "float32", name="weight")
    result = compute(transforms, data, weight, Window(strides, pads, dilation))
    func = te.create_prim_func([data, weight, result])
    # A reduction reads them in a network, too.
    if compute is not winograd_fused.convolution:
        func = func.with_attr("layout_free_buffers", [1])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


@pytest.mark.sweep
@PROGRAMS
@pytest.mark.parametrize("transforms", TRANSFORMS[:2], ids=NAMES[:2])
@pytest.mark.parametrize(("shape", "out", "pads"), SHAPES)
def test_it_equals_the_direct_convolution(shape, out, pads, transforms, compute):
    data, weight = random_arrays(shape, out)
    mod = by_default(program(transforms, shape, out, pads, compute))
    computed = run_kernel(mod, [data, stored_weight(compute, transforms, weight)])
    assert error(computed, direct(data, weight, pads)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "out", "pads"), SHAPES[:3])
def test_transforms_with_integers_equal_the_direct_convolution(shape, out, pads):
    """Those of the records of older logs."""
    data, weight = random_arrays(shape, out)
    mod = by_default(program(F4_INTEGERS, shape, out, pads))
    computed = run_kernel(mod, [data, winograd.transform_weight(F4_INTEGERS, weight)])
    assert error(computed, direct(data, weight, pads)) < 1e-4


@pytest.mark.sweep
@pytest.mark.parametrize("compute", [winograd.convolution, winograd_rows.convolution])
@pytest.mark.parametrize(("channels", "out"), [(24, 40), (12, 36)])
def test_vectors_may_be_short(channels, out, compute):
    shape, pads = (1, 10, 30, channels), (1, 1, 1, 1)
    data, weight = random_arrays(shape, out)
    mod = by_default(program(F4, shape, out, pads, compute))
    computed = run_kernel(mod, [data, stored_weight(compute, F4, weight)])
    assert error(computed, direct(data, weight, pads)) < 1e-5


def by_default(mod: tvm.IRModule) -> tvm.IRModule:
    """With its default schedule, by the rules of these programs, not by others in their place."""
    device = this_machine()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)  # not those of files that others left open
        scheduled = RuleSpace(device.target).default(mod, tvm.target.Target(device.target)).mod
    assert not [str(each.message) for each in caught if each.category is UserWarning]
    assert "T.parallel(" in scheduled.script()
    return scheduled


@pytest.mark.sweep
@PROGRAMS
@pytest.mark.parametrize(
    ("shape", "out", "pads", "dilation"),
    [
        ((1, 17, 17, 16), 16, (2, 2, 2, 2), (2, 2)),
        ((2, 13, 20, 32), 16, (4, 4, 4, 4), (4, 4)),
        ((1, 9, 30, 16), 32, (0, 5, 3, 1), (1, 3)),
        ((1, 5, 3, 16), 16, (7, 7, 6, 8), (7, 7)),
    ],
    ids=["2", "4", "across", "larger than the image"],
)
def test_interleaved_images_equal_the_dilated_convolution(shape, out, pads, dilation, compute):
    data, weight = random_arrays(shape, out)
    transformed = stored_weight(compute, F4, weight)
    wanted = direct(data, weight, pads, dilation)
    mod = by_default(program(F4, shape, out, pads, compute, dilation))
    assert error(run_kernel(mod, [data, transformed]), wanted) < 1e-5


OTHER_KERNELS = pytest.mark.parametrize(
    "transforms",
    [each for each in TILES if each.kernel != (3, 3) and each.parts == 1],
    ids=lambda each: "{}x{} of {}x{}".format(*each.tile, *each.kernel),
)


@pytest.mark.sweep
@PROGRAMS
@OTHER_KERNELS
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)], ids=["", "dilated"])
def test_other_kernels_equal_the_direct_convolution(dilation, transforms, compute):
    shape, out, pads = (2, 13, 20, 16), 32, (3, 2, 4, 3)
    data, weight = random_arrays(shape, out, transforms.kernel)
    transformed = stored_weight(compute, transforms, weight)
    wanted = direct(data, weight, pads, dilation)
    mod = by_default(program(transforms, shape, out, pads, compute, dilation))
    assert error(run_kernel(mod, [data, transformed]), wanted) < 1e-5


@pytest.mark.sweep
@PROGRAMS
@pytest.mark.parametrize(
    "transforms",
    [each for each in TILES if each.kernel[0] == 1 and each.parts == 1],
    ids=lambda each: f"{each.tile[1]} of {each.kernel[1]}",
)
@pytest.mark.parametrize(
    ("shape", "padding", "dilation"), [((2, 45, 32), (2, 3), 1), ((1, 33, 16), (0, 4), 3)]
)
def test_signals_equal_the_direct_convolution(shape, padding, dilation, transforms, compute):
    (before, after), (n, samples, channels) = padding, shape
    data, weight = random_arrays((n, 1, samples, channels), 16, transforms.kernel)
    pads = (0, before, 0, after)
    wanted = direct(data, weight, pads, (1, dilation))[:, 0]
    stored = stored_weight(compute, transforms, weight[0])
    mod = by_default(program(transforms, shape, 16, pads, compute, (1, dilation)))
    assert error(run_kernel(mod, [data[:, 0], stored]), wanted) < 1e-5


@pytest.mark.sweep
@pytest.mark.parametrize(
    "transforms", [each for each in TILES if each.parts > 1], ids=lambda each: f"{each.columns}"
)
@pytest.mark.parametrize(
    ("padding", "dilation"), [((5, 5), 1), ((0, 2), 1), ((12, 15), 3), ((70, 70), 10)]
)
def test_kernels_of_several_parts_equal_the_direct_convolution(padding, dilation, transforms):
    before, after = padding
    data, weight = random_arrays((1, 1, 61, 32), 24, transforms.kernel)
    wanted = direct(data, weight, (0, before, 0, after), (1, dilation))[:, 0]
    stored = winograd.transform_weight(transforms, weight[0])
    pads = (0, before, 0, after)
    mod = by_default(program(transforms, (1, 61, 32), 24, pads, dilation=(1, dilation)))
    assert error(run_kernel(mod, [data[:, 0], stored]), wanted) < 1e-5


@pytest.mark.sweep
@PROGRAMS
@pytest.mark.parametrize(
    ("shape", "out", "frames", "stride", "pads"),
    [
        ((1, 4, 9, 14, 16), 16, 3, 1, (1, 1, 1, 1, 1, 1)),
        ((2, 3, 8, 8, 32), 16, 1, 1, (0, 1, 1, 0, 1, 1)),
        ((2, 7, 6, 5, 16), 32, 3, 2, (1, 0, 1, 0, 2, 0)),
        ((1, 5, 7, 7, 16), 16, 2, 1, (0, 1, 1, 0, 1, 1)),
        ((1, 2, 7, 7, 16), 16, 5, 3, (2, 1, 1, 2, 1, 1)),
    ],
    ids=["3", "1", "3 with a stride", "2 without padding", "mostly padding"],
)
def test_frames_equal_the_three_dimensional_convolution(shape, out, frames, stride, pads, compute):
    rng = np.random.RandomState(0)
    data = rng.standard_normal(shape).astype("float32")
    weight = rng.standard_normal((frames, 3, 3, shape[4], out)).astype("float32")
    transformed = stored_weight(compute, F4, weight)
    mod = program(F4, shape, out, pads, compute, (1, 1, 1), (stride, 1, 1), frames)
    computed = run_kernel(by_default(mod), [data, transformed])
    around = [(0, 0), *zip(pads[:3], pads[3:], strict=True), (0, 0)]
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(data.astype("float64"), around), (frames, 3, 3), axis=(1, 2, 3)
    )
    wanted = np.einsum("ndyxiakl,aklio->ndyxo", windows[:, ::stride], weight.astype("float64"))
    assert computed.shape == wanted.shape
    assert error(computed, wanted) < 1e-4


@pytest.mark.parametrize(
    ("options", "applies"),
    [
        ({}, True),
        ({"pads": (0, 1, 1, 0, 1, 1)}, True),
        ({"dilation": 2}, False),
        ({"stride": 2}, False),
    ],
)
def test_it_applies_to_frames_without_dilation(options, applies):
    model = one_conv((1, 16, 5, 14, 14), **{"pads": (1,) * 6, **options})
    assert (fitting(TILES, convolution_of(prepared(model))) is not None) == applies


@pytest.mark.slow
@pytest.mark.parametrize("pads", [(1,) * 6, (0, 1, 1, 0, 1, 1)], ids=["3 frames", "no padding"])
def test_a_network_of_frames_computes_them_by_winograd(pads, tmp_path):
    model = one_conv((1, 32, 6, 30, 30), 32, pads=pads)
    plan = api.plan(OnnxNetwork(model, name="frames"), attrs={"threads": 2})
    task = max(plan.tasks, key=lambda each: each.flop)
    assert task.untuned.name.startswith("winograd") and task.untuned.name.endswith("-3d")
    agrees_with_reference(model, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "compute", [winograd.convolution, winograd_fused.convolution], ids=["whole", "fused"]
)
def test_f2_rounds_no_more_than_the_direct_algorithm_and_f4_less_than_with_integer_points(compute):
    shape, out, pads = (1, 14, 14, 128), 32, (1, 1, 1, 1)
    data, weight = random_arrays(shape, out)
    wanted = direct(data, weight, pads)
    mods = [program(t, shape, out, pads, compute) for t in TRANSFORMS]
    f2, f4, integers = (
        error(run_kernel(mod, [data, stored_weight(compute, t, weight)]), wanted)
        for t, mod in zip(TRANSFORMS, mods, strict=True)
    )
    plain = te.placeholder(shape, name="data"), te.placeholder(weight.shape, name="weight")
    func = te.create_prim_func([*plain, topi.nn.conv2d_nhwc(*plain, 1, 1, 1)])
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    assert f2 <= error(run_kernel(mod, [data, weight]), wanted)
    assert f2 < f4 < integers / 2


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(2, 16, 7, 9), (1, 32, 14, 14)])
def test_a_fused_kernel_equals_the_direct_one(shape):
    network = prepared(one_conv(shape, 16, tail=("bias", "relu")))
    (task,) = [t for t in extract_tasks(network, network.device) if len(t.implementations) > 1]
    plain, other = task.implementations
    data, weight, bias = random_args(plain.mod)
    expected = run_kernel(plain.mod, [data, weight, bias])
    transformed = winograd.transform_weight(F4_INTEGERS, weight)
    computed = run_kernel(other.mod, [data, transformed, bias])
    assert error(computed, expected) < 1e-4


def test_weights_are_transformed_by_the_published_formula():
    _, weight = random_arrays((1, 1, 1, 16), 32)
    # G g transposed(G) for every pair of channels; Lavin and Gray, section 4.3
    g = np.array(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ]
    )
    computed = winograd.transform_weight(F4_INTEGERS, weight)
    assert computed.shape == (6, 6, 16, 32)
    assert computed.dtype == np.float32
    for i, o in ((0, 0), (3, 17), (15, 31)):
        wanted = g @ weight[:, :, i, o].astype("float64") @ g.T
        # only float32's rounding of a float64 result
        np.testing.assert_allclose(computed[:, :, i, o], wanted, rtol=2**-23, atol=1e-15)


@pytest.mark.parametrize("unit", [False, True], ids=["", "with unit weights"])
@pytest.mark.parametrize("transforms", [*(t for t in TILES if t.parts == 1), F4_INTEGERS])
def test_the_transforms_compute_a_convolution(transforms, unit):
    if unit:
        transforms = transforms.with_unit_weights()
    rng = np.random.RandomState(0)
    alpha = transforms.alpha
    tile, weight = rng.standard_normal(alpha), rng.standard_normal(transforms.kernel)
    axes = (transforms.down, transforms.across)
    inputs, weights, outputs = (
        [np.array(getattr(axis, of)) for axis in axes] for of in ("input", "weight", "output")
    )
    products = _both(weights, weight) * _both(inputs, tile)
    kernel = (*transforms.kernel, 1, 1)
    wanted = direct(tile.reshape(1, *alpha, 1), weight.reshape(kernel), (0, 0, 0, 0))
    np.testing.assert_allclose(_both(outputs, products), wanted[0, :, :, 0], atol=1e-12)


def _both(matrices: list[np.ndarray], values: np.ndarray) -> np.ndarray:
    """The values, transformed down and across."""
    down, across = matrices
    return down @ values @ across.T


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pads": (0, 0, 0, 0)},
        {"pads": (0, 1, 2, 0)},
        {"dilation": 2},
        {"shape": (1, 24, 14, 14), "out": 40},
    ],
)
def test_it_applies_to_3x3_convolutions_of_stride_1(options):
    assert fitting(TILES, convolution_of(prepared(one_conv(**options)))) is F2


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2},
        {"groups": 16},
        {"stride": 2},
        {"dilation": 6, "pads": (6, 6, 6, 6)},
        {"kernel": 1, "pads": (0, 0, 0, 0)},
        {"kernel": 7},
        {"constant": False},
    ],
)
def test_it_does_not_apply_to_other_convolutions(options):
    assert fitting(TILES, convolution_of(prepared(one_conv(**options)))) is None


@pytest.mark.parametrize(
    ("kernel", "tiles"),
    [
        ((1, 3), [(1, 2), (1, 4)]),
        ((7, 1), [(4, 1)]),
        ((1, 5), [(1, 4)]),
        ((5, 5), [(4, 4)]),
        ((3, 5), []),
        ((7, 7), []),
        ((1, 9), []),
        ((1, 1), []),
        ((4, 4), []),
    ],
)
def test_there_are_tiles_for_kernels_of_up_to_7_weights_along_one_axis(kernel, tiles):
    (high, wide) = kernel
    model = one_conv(kernel=kernel, pads=(high // 2, wide // 2, high // 2, wide // 2))
    call = convolution_of(prepared(model))
    fit = [each for each in TILES if fitting([each], call) is each]
    assert [each.tile for each in fit] == tiles


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "shape", "pads", "name"),
    [
        ((1, 7), (1, 64, 17, 17), (0, 3, 0, 3), "winograd-4"),
        ((5, 5), (1, 48, 35, 35), (2, 2, 2, 2), "winograd-4x4-rows"),
        (5, (1, 64, 160), (2, 2), "winograd-4-1d"),
        (11, (1, 64, 400), (5, 5), "winograd-4-1d"),
        ((3, 1, 7), (1, 32, 4, 17, 17), (1, 0, 3, 1, 0, 3), "winograd-4-3d"),
    ],
    ids=["row", "5x5", "signal", "parts", "frames"],
)
def test_a_network_computes_other_kernels_by_winograd(kernel, shape, pads, name, tmp_path):
    model = one_conv(shape, 64, kernel, pads=pads)
    plan = api.plan(OnnxNetwork(model, name="one"), attrs={"threads": 2})
    task = max(plan.tasks, key=lambda each: each.flop)
    assert task.untuned.name == name
    agrees_with_reference(model, tmp_path)


@pytest.mark.parametrize(
    ("channels", "most"), [(32, 16), (48, 16), (24, 8), (36, 4), (18, 2), (7, 1)]
)
def test_it_applies_to_channels_that_are_whole_vectors(channels, most):
    call = convolution_of(prepared(one_conv((1, channels, 14, 14), 64)))
    fit = [lanes for lanes in (1, 2, 4, 8, 16) if fitting(TILES, call, lanes) is not None]
    assert max(fit) == most
    assert fit == [lanes for lanes in (1, 2, 4, 8, 16) if lanes <= most]


@pytest.mark.parametrize(
    ("frames", "channels", "applies"), [(1, 24, True), (2, 24, False), (2, 32, True)]
)
def test_vectors_of_channels_do_not_cross_frames(frames, channels, applies):
    kernel, pads = (frames, 3, 3), (0, 1, 1, 0, 1, 1)
    model = one_conv((1, channels, 4, 14, 14), 24, kernel, pads=pads)
    assert (fitting(TILES, convolution_of(prepared(model)), 8) is not None) == applies


def test_parts_are_for_single_rows_without_frames():
    signal = one_conv((1, 16, 100), 16, 11, pads=(5, 5))
    parts = fitting(TILES, convolution_of(prepared(signal)))
    assert (parts.tile, parts.parts) == ((1, 4), 3)
    for shape, kernel, pads in (
        ((2, 16, 100), 11, (5, 5)),
        ((1, 16, 2, 100), (1, 11), (0, 5, 0, 5)),
        ((1, 16, 1, 1, 100), (1, 1, 11), (0, 0, 5, 0, 0, 5)),
        ((1, 16, 3, 1, 100), (3, 1, 11), (0, 0, 5, 0, 0, 5)),
    ):
        model = one_conv(shape, 16, kernel, pads=pads)
        assert fitting(TILES, convolution_of(prepared(model))) is None


@pytest.mark.parametrize(
    ("shape", "kernel", "pads"),
    [
        ((1, 32, 20, 20), 3, (1, 1, 1, 1)),
        ((1, 32, 20, 20), 5, (2, 2, 2, 2)),
        ((1, 32, 20, 20), (1, 7), (0, 3, 0, 3)),
        ((1, 32, 200), 3, (1, 1)),
        ((1, 32, 200), 11, (5, 5)),
        ((1, 32, 3, 20, 20), 3, (1,) * 6),
    ],
)
def test_what_is_tuned_is_what_is_compiled(shape, kernel, pads):
    """Tasks are extracted without the values of weights."""
    network = prepared(one_conv(shape, 32, kernel, pads=pads))
    offered = host.backend("cpu").implementations(network.device)
    tasks = extract_tasks(network, network.device, implementations=offered)
    task = max(tasks, key=lambda each: each.flop)
    found = [i for i in task.implementations if i.name.startswith("winograd")]
    assert found
    for each in found:
        (algorithm,) = (a for a in offered if a.name == each.name)
        assert workload_key(kernels.kernel(network, algorithm)) == each.workload_key


@pytest.mark.parametrize(
    ("mcpu", "channels", "applies"),
    [
        *(("znver4", 36, True), ("znver4", 18, False)),
        *(("znver3", 72, True), ("znver3", 36, False)),
        *(("znver5", 48, True), ("znver5", 72, False)),
    ],
)
def test_channels_are_vectors_of_the_cpu_or_shorter_ones_if_these_take_less_time(
    mcpu, channels, applies
):
    model = one_conv((1, channels, 28, 28), channels)
    tasks = api.plan(OnnxNetwork(model, name="one"), attrs={"mcpu": mcpu, "threads": 2}).tasks
    task = max(tasks, key=lambda each: each.flop)
    assert any(i.name.startswith("winograd") for i in task.implementations) == applies


def test_it_does_not_apply_to_other_layouts():
    assert fitting(TILES, convolution_of(prepared(one_conv(), "NCHW"))) is None


@pytest.mark.parametrize(
    ("shape", "out", "transforms"),
    [
        ((1, 64, 56, 56), 64, F4),
        ((1, 256, 14, 14), 256, F2),
        ((1, 192, 8, 8), 192, F2),
        ((1, 512, 7, 7), 512, None),
        ((1, 512, 3, 3), 512, None),
        ((1, 72, 28, 28), 72, F4),
        ((1, 24, 56, 56), 24, F4),
        ((1, 4, 56, 56), 4, None),
    ],
    ids=[
        *("large-images", "large-weights", "small-images", "larger-weights", "tiny-images"),
        *("vectors of 8", "few vectors of 8", "few channels"),
    ],
)
def test_the_fastest_depends_on_what_there_is_to_transform_and_to_load(shape, out, transforms):
    """The multiplications saved must make up for transforms, and for weights that come from memory."""
    assert extents(one_conv(shape, out)).fastest() is transforms


@pytest.mark.parametrize(
    ("shape", "out", "transforms", "by_rows"),
    [
        ((1, 32, 147, 147), 64, F4, True),
        ((1, 256, 56, 56), 256, F4, True),
        ((1, 256, 28, 28), 256, F4, False),
        ((1, 256, 28, 28), 256, F2, True),
        ((1, 32, 28, 28), 32, F4, True),
        ((1, 32, 24, 24), 32, F4, False),
        ((1, 128, 45, 45), 128, F4, True),
        ((1, 128, 44, 44), 128, F4, False),
        ((1, 64, 28, 28), 112, F4, True),
        ((1, 80, 28, 28), 96, F4, False),
    ],
    ids=[
        *("large", "large weights", "short rows", "twice as long", "small weights", "too short"),
        *("12 tiles", "11 tiles", "1008 KiB of weights", "1080 KiB of weights"),
    ],
)
def test_rows_of_tiles_are_long_enough_for_their_weights(shape, out, transforms, by_rows):
    assert winograd_rows.applies(transforms, extents(one_conv(shape, out))) == by_rows


def test_rows_are_preferred_if_there_are_enough_for_all_cores():
    one = one_conv((1, 64, 56, 56), 64)
    assert winograd_rows.is_parallel(F4, 7, extents(one))
    assert not winograd_rows.is_parallel(F4, 8, extents(one))
    five = extents(one_conv((1, 64, 20, 56), 64))
    assert winograd_rows.is_parallel(F4, 1, five)
    assert not winograd_rows.is_parallel(F4, 2, five)
    attrs = {"mcpu": "znver4", "threads": 1}
    tasks = api.plan(OnnxNetwork(one, name="one"), attrs=attrs).tasks
    task = max(tasks, key=lambda each: each.flop)
    assert task.untuned.name == "winograd-4x4-rows"
    assert task.untuned_exact.name == "winograd-2x2-rows"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("shape", "out", "attrs", "fastest", "exact"),
    [
        ((1, 512, 7, 7), 512, {}, "winograd-4x4-fused", "winograd-2x2-fused"),
        ((1, 512, 7, 7), 512, {"mcpu": "znver3"}, "winograd-4x4-fused", "winograd-2x2-fused"),
        ((1, 512, 7, 7), 512, {"mcpu": "nehalem"}, "implicit-gemm", "implicit-gemm"),
        ((1, 256, 14, 14), 256, {}, "winograd-2x2", "winograd-2x2"),
        ((1, 256, 20, 20), 256, {}, "winograd-4x4-fused", "winograd-2x2"),
        ((1, 256, 28, 28), 256, {}, "winograd-4x4", "winograd-2x2-rows"),
        ((1, 512, 3, 3), 512, {}, "direct", "direct"),
        ((1, 64, 11, 11), 64, {}, "winograd-4x4-fused", "direct"),
    ],
    ids=[
        *("7x7", "with AVX2", "with short vectors", "14x14", "20x20", "28x28", "3x3"),
        "small weights",
    ],
)
def test_weights_that_take_longer_to_load_than_to_multiply_are_transformed_at_run_time(
    shape, out, attrs, fastest, exact
):
    attrs = {"mcpu": "znver4", "threads": 2, **attrs}
    tasks = api.plan(OnnxNetwork(one_conv(shape, out), name="one"), attrs=attrs).tasks
    task = max(tasks, key=lambda each: each.flop)
    assert (task.untuned.name, task.untuned_exact.name) == (fastest, exact)


@pytest.mark.parametrize(("cores", "preferred"), [(1, True), (2, True), (4, True), (6, False)])
def test_weights_of_64_channels_are_four_blocks_for_cores_to_share(cores, preferred):
    conv = extents(one_conv((1, 64, 11, 11), 64))
    assert winograd_fused.prefers(F4, cores, conv) == preferred


@pytest.mark.parametrize(("size", "few"), [(24, True), (25, False)])
def test_weights_are_transformed_at_run_time_for_at_most_36_tiles(size, few):
    assert winograd_fused.applies(F4, extents(one_conv((1, 16, size, size)))) == few
    batch = extents(one_conv((4, 16, 12, 12)))
    assert winograd_fused.applies(F4, batch)
    assert not winograd_fused.applies(F2, batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "pads", "suffix"),
    [((1, 64, 7, 7), (1,) * 4, ""), ((1, 64, 2, 7, 7), (1,) * 6, "-3d")],
    ids=["an image", "frames"],
)
def test_a_network_transforms_its_weights_at_run_time(shape, pads, suffix, tmp_path):
    model = one_conv(shape, 256, pads=pads)
    plan = api.plan(OnnxNetwork(model, name="one"), attrs={"threads": 1})
    task = max(plan.tasks, key=lambda each: each.flop)
    assert task.untuned.name == f"winograd-4x4-fused{suffix}"
    agrees_with_reference(model, tmp_path)


@pytest.mark.slow
def test_weights_are_transformed_for_a_few_channels_at_a_time_and_prefetched():
    compute = winograd_fused.convolution
    mod = by_default(program(F4, (1, 7, 7, 64), 512, (1, 1, 1, 1), compute))
    (channels,) = re.findall(rf"serial\((\d+), .*{prefetch.READ_ONCE}", mod.script())
    assert int(channels) == 8
    assert prefetches(mod) > 0


@pytest.mark.parametrize(
    ("channels", "dilation", "held"), [(256, 2, True), (512, 4, False), (512, 1, True)]
)
def test_rows_of_interleaved_images_are_preferred_while_a_thread_can_hold_them(
    channels, dilation, held
):
    model = one_conv((1, channels, 65, 65), channels, dilation=dilation, pads=(dilation,) * 4)
    assert winograd_rows.fits(F4, extents(model)) == held


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "transforms", "compute", "size"),
    [
        ("winograd-4x4-rows", F4, winograd_rows.convolution, 74),
        ("winograd-2x2-rows", F2, winograd_rows.convolution, 74),
        ("winograd-4x4-fused", F4, winograd_fused.convolution, 14),
        ("winograd-2x2-fused", F2, winograd_fused.convolution, 10),
    ],
)
@pytest.mark.filterwarnings("error:schedule rule")
def test_sampled_schedules_equal_the_direct_convolution(name, transforms, compute, size):
    """Whatever tiles the search samples for their products."""
    model = one_conv((1, 32, size, size), 48, tail=("bias", "relu"))
    plan = api.plan(OnnxNetwork(model, name="one"))
    task = max(plan.tasks, key=lambda each: each.flop)
    plain = task.implementations[0].mod
    data, weight, bias = random_args(plain)
    wanted = run_kernel(plain, [data, weight, bias])
    stored = stored_weight(compute, transforms, weight)
    mod = task.implementation(name).mod
    sampled = sample_modules(mod, RuleSpace(plan.device.target), 6)
    assert len(sampled) >= 4
    for each in sampled:
        assert error(run_kernel(each, [data, stored, bias]), wanted) < 1e-4
