"""Convolutions and products with weights by tiles of all rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tvm

from kernels import (
    assert_every_schedule_is_right,
    convolution_of,
    error,
    one_conv,
    one_product,
    prepared,
    random_args,
    run_kernel,
    sample_modules,
    this_machine,
)
from tvmtune import api
from tvmtune.cpu_features import AVX, AVX512, ZEN_4, has
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.operators import cpu_gemm
from tvmtune.operators.cpu_gemm import Extents, Matrix
from tvmtune.runtime.library import Library
from tvmtune.spaces import cpu_tiles
from tvmtune.spaces.rule_space import RuleSpace

NAME = "implicit-gemm"
ATTRS = {"mcpu": "haswell"}

CASES = {
    "1x1, 49 pixels in tiles of 5": {"shape": (1, 32, 7, 7), "kernel": 1, "pads": (0, 0, 0, 0)},
    "1x1, stride 2": {"shape": (1, 16, 14, 14), "kernel": 1, "stride": 2, "pads": (0, 0, 0, 0)},
    "two images": {"shape": (2, 24, 7, 7), "kernel": 1, "pads": (0, 0, 0, 0)},
    "a residual sum": {
        "shape": (1, 32, 17, 17),
        "kernel": 1,
        "pads": (0,) * 4,
        "tail": ("relu", "sum"),
    },
    "nothing follows": {"shape": (1, 32, 14, 14), "kernel": 1, "pads": (0, 0, 0, 0), "tail": ()},
    "3x3, stride 2, padding on two sides": {
        "shape": (1, 16, 15, 15),
        "stride": 2,
        "pads": (0, 1, 1, 0),
    },
    "dilation": {"shape": (2, 16, 17, 17), "dilation": 2, "pads": (2, 2, 2, 2)},
    "groups": {"shape": (1, 64, 14, 14), "groups": 2, "stride": 2},
    "three vectors": {"shape": (1, 16, 14, 14), "out": 24},
    "five vectors, 49 pixels": {
        "shape": (1, 32, 7, 7),
        "out": 40,
        "kernel": 1,
        "pads": (0,) * 4,
        "tail": ("bias", "swish"),
    },
    "seven vectors and one of zeros": {"shape": (2, 16, 9, 9), "out": 56, "stride": 2},
    "two vectors and two channels": {"shape": (1, 18, 14, 14), "out": 18},
    "three vectors and seven channels, pixels of two lines": {
        "shape": (2, 16, 9, 9),
        "out": 31,
        "tail": ("bias", "sum"),
    },
    "one vector and one channel": {"shape": (1, 32, 7, 7), "out": 9, "tail": ("bias", "swish")},
}
OTHER_DIMENSIONS = {
    "one dimension, 37 pixels": {"shape": (1, 32, 73), "stride": 2, "pads": (1, 1)},
    "one dimension, groups": {"shape": (2, 64, 53), "groups": 2, "pads": (0, 2)},
    "three dimensions, two images": {"shape": (2, 16, 3, 7, 7), "out": 24, "pads": (1,) * 6},
    "three dimensions, stride 2": {
        "shape": (1, 16, 5, 9, 13),
        "stride": 2,
        "pads": (0, 1, 1, 1, 0, 1),
    },
    "three dimensions, two vectors and four channels": {
        "shape": (1, 16, 5, 7, 7),
        "out": 20,
        "pads": (1,) * 6,
    },
    "three dimensions, dilation": {"shape": (1, 16, 5, 9, 9), "dilation": 2, "pads": (2,) * 6},
}
PRODUCTS = {
    "windows of 49 rows": ((4, 49, 32), (32, 48)),
    "an image": ((1, 14, 14, 32), (32, 32)),
    "one window, padded rows": ((1, 1, 49, 24), (24, 32)),
    "two axes of rows, padded": ((2, 29, 16), (16, 64)),
    "vectors, rows and columns padded": ((53, 24), (24, 136)),
    "rows and columns that fill no tile": ((50, 24), (24, 1003)),
    "windows, columns that fill no vector": ((4, 49, 32), (32, 37)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_equals_the_convolution_in_its_default_and_in_sampled_schedules(case, tmp_path: Path):
    network = OnnxNetwork(one_conv(**{"out": 32, **case}), name="conv")
    assert_every_schedule_is_right(network, NAME, tmp_path, ATTRS)


@pytest.mark.sweep
@pytest.mark.parametrize("case", OTHER_DIMENSIONS.values(), ids=OTHER_DIMENSIONS)
def test_it_equals_convolutions_of_one_and_three_dimensions(case, tmp_path: Path):
    network = OnnxNetwork(one_conv(**{"out": 32, **case}), name="conv")
    assert_every_schedule_is_right(network, f"{NAME}-{len(case['shape']) - 2}d", tmp_path, ATTRS)


ODD = {
    "frames of 45 channels": {"shape": (1, 16, 3, 9, 9), "out": 45, "pads": (1,) * 6},
    "a prime number of samples": {"shape": (1, 32, 211), "out": 32, "pads": (1, 1)},
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", ODD.values(), ids=ODD)
def test_frames_and_signals_get_such_tiles_with_avx512_too(case, tmp_path: Path):
    network = OnnxNetwork(one_conv(**case), name="conv")
    name = f"{NAME}-{len(case['shape']) - 2}d"
    plan = api.plan(network, attrs={"mcpu": "skylake-avx512"})
    assert name in [task.untuned.name for task in plan.tasks]
    if has(this_machine().target, "avx2"):
        assert_every_schedule_is_right(network, name, tmp_path, {})


@pytest.mark.sweep
@pytest.mark.parametrize(("left", "right"), PRODUCTS.values(), ids=PRODUCTS)
def test_it_equals_the_product_in_its_default_and_in_sampled_schedules(left, right, tmp_path: Path):
    network = one_product(left, right, constant=True)
    assert_every_schedule_is_right(network, "flattened", tmp_path, ATTRS)


IN_VECTORS = {
    "an image, one row of padding": ((1, 3, 53, 32), (32, 32)),
    "windows of 53 rows": ((4, 53, 32), (32, 48)),
    "one window, padded rows": ((1, 1, 53, 24), (24, 32)),
    "two axes of rows, padded": ((2, 29, 16), (16, 64)),
    "rows and columns that fill no tile": ((50, 24), (24, 1003)),
    "windows, columns that do not fill three vectors": ((4, 49, 32), (32, 37)),
    "half a vector": ((64, 48), (48, 360)),
    "short tiles": ((196, 32), (32, 64)),
}


@pytest.mark.sweep
@pytest.mark.parametrize(("left", "right"), IN_VECTORS.values(), ids=IN_VECTORS)
def test_it_equals_the_product_in_vectors_of_avx512(left, right, tmp_path: Path):
    if not has(this_machine().target, "avx512f"):
        pytest.skip("this CPU lacks AVX-512")
    network = one_product(left, right, constant=True)
    assert_every_schedule_is_right(network, "flattened", tmp_path, {"mcpu": "skylake-avx512"})


@pytest.mark.parametrize(
    ("rows", "columns", "padded", "tile"),
    [
        (196, 768, (196, 768), (4, 4)),
        (197, 768, (198, 768), (6, 3)),
        (4096, 360, (4096, 384), (4, 4)),
        (64, 1000, (64, 1008), (4, 3)),
        (784, 72, (786, 80), (3, 5)),
        (49, 17, (49, 32), (7, 2)),
    ],
)
def test_products_have_short_tiles_and_little_padding_with_many_registers(
    rows, columns, padded, tile
):
    matrix = cpu_tiles.product_matrix(rows, columns, 1, AVX512)
    assert (matrix.rows, matrix.columns, matrix.lanes) == (*padded, 16)
    tiles = cpu_tiles.vector_tiles(matrix.rows, matrix.columns // 16, AVX512, of_product=True)
    assert tiles[0] == tile


@pytest.mark.parametrize(
    ("line", "rows", "columns", "suits"),
    [
        (128, 128, 768, False),
        (128, 128, 30522, True),
        (196, 196, 768, True),
        (197, 197, 768, True),
        (197, 4 * 197, 768, True),
        (49, 64 * 49, 384, False),
        (64, 64, 16, False),
    ],
)
def test_products_keep_their_loops_where_these_have_as_good_tiles(line, rows, columns, suits):
    assert cpu_tiles.suits_vectors(Extents(line, rows, 64, columns, 1), AVX512) == suits


def test_a_cpu_that_adds_halves_of_vectors_keeps_those():
    assert cpu_tiles.suits_vectors(Extents(128, 128, 64, 40, 1), AVX512)
    assert not cpu_tiles.suits_vectors(Extents(128, 128, 64, 40, 1), ZEN_4)


@pytest.mark.slow
def test_it_equals_the_direct_algorithm_where_it_reads_a_part_of_the_image():
    atrous = one_conv((1, 256, 14, 14), 64, dilation=12, pads=(12,) * 4)
    plan = api.plan(OnnxNetwork(atrous, name="conv"), attrs=ATTRS)
    by_gemm = [task for task in plan.tasks if task.untuned.name == NAME]
    assert len(by_gemm) == 5  # the center and the edges of the kernel; corners read too few pixels
    for task in by_gemm:
        args = random_args(task.untuned.mod)
        want = run_kernel(task.implementations[0].mod, args)
        (sampled,) = sample_modules(task.untuned.mod, RuleSpace(plan.device.target), 1)
        assert error(run_kernel(sampled, args), want) < 1e-5


SWISH = OnnxNetwork(one_conv((1, 32, 7, 7), 32, 1, pads=(0,) * 4, tail=["swish"]), name="swish")
GELU, RESIDUAL = (
    one_product((4, 49, 32), (32, 48), constant=True, tail=tail) for tail in ("gelu", "residual")
)


@pytest.mark.parametrize(
    "network", [SWISH, GELU, RESIDUAL], ids=["swish", "gelu", "a residual that is reshaped"]
)
@pytest.mark.filterwarnings("error:schedule rule")
def test_all_that_follows_the_sums_is_computed_with_each_tile(network, tmp_path: Path):
    plan = api.plan(network, attrs=ATTRS)
    (task,) = [t for t in plan.tasks if t.untuned.name in (NAME, "flattened")]
    schedule = task.untuned.space.default(task.untuned.mod, tvm.target.Target(plan.device.target))
    blocks = map(schedule.get, schedule.get_child_blocks(schedule.get_sblock("root")))
    computed = [b for b in blocks if "meta_schedule.layout_rewrite_preproc" not in b.annotations]
    assert len(computed) == 3, "zeros of the sums, sums, and one epilogue"
    inputs = random_inputs(network.inputs, 3)
    (got,) = Library.open(api.compile(plan, tmp_path / "lib.so").path).run(inputs)
    (want,) = network.reference(inputs)
    assert error(got, want) < 1e-5


@pytest.mark.parametrize(
    "case",
    [
        {"out": 5},
        {"out": 8},
        {"shape": (1, 64, 14, 14), "groups": 4},
        {"shape": (1, 64, 14, 14), "out": 96, "groups": 4},
        {"constant": False},
        {"shape": (1, 3, 14, 14)},
        {"shape": (1, 16, 3, 5)},
        {"shape": (1, 3, 53), "pads": (1, 1)},
        {"shape": (1, 16, 5, 7, 7), "out": 5, "pads": (1,) * 6},
    ],
    ids=[
        "less than a vector",
        "one vector",
        "half a tile per group",
        "three vectors per group",
        "weights are data",
        "few channels",
        "few pixels",
        "one dimension, few channels",
        "three dimensions, less than a vector",
    ],
)
def test_other_convolutions_are_left_to_other_implementations(case):
    call = convolution_of(prepared(one_conv(**{"out": 32, **case})))
    assert not cpu_gemm.applies_to_convolution(partial(cpu_tiles.padded_matrix, unit=AVX), call)


@pytest.mark.parametrize(
    ("pixels", "most"), [(49, 50), (64, 66), (196, 198), (289, 294), (3136, 3138)]
)
def test_pixels_are_rounded_up_to_the_tiles_that_load_least(pixels, most):
    matrix = cpu_tiles.padded_matrix(pixels, 64, 1, AVX)
    assert (matrix.rows, matrix.columns, matrix.lanes) == (most, 64, 1)
    height, width = cpu_tiles.register_tiles(most, 64, AVX)[0]
    assert (height, width) == (5 if pixels == 49 else 6, 16)


@pytest.mark.parametrize(
    ("columns", "padded", "tile"),
    [
        (24, 24, (4, 3)),
        (40, 40, (2, 5)),
        (56, 64, (6, 2)),
        (72, 72, (4, 3)),
        (88, 96, (4, 3)),
        (136, 144, (4, 3)),
        (232, 240, (4, 3)),
    ],
)
def test_other_channels_are_computed_as_vectors_in_tiles_of_as_many_sums_as_fit(
    columns, padded, tile
):
    matrix = cpu_tiles.padded_matrix(784, columns, 1, AVX)
    assert (matrix.columns, matrix.lanes) == (padded, 8)
    assert matrix.rows % tile[0] == 0
    assert cpu_tiles.vector_tiles(matrix.rows, padded // 8, AVX)[0] == tile


@pytest.mark.parametrize(
    ("line", "rows", "saves"), [(7, 49, True), (17, 289, True), (60, 3600, False), (48, 48, False)]
)
def test_it_is_preferred_where_tiles_of_a_line_load_more(line, rows, saves):
    assert cpu_tiles.saves_loads(Extents(line, rows, 64, 64, 1), AVX) == saves


@pytest.mark.parametrize(("lanes", "columns"), [(4, 12), (4, 20), (8, 24)])
def test_tiles_of_other_numbers_of_vectors_are_offered_and_preferred_where_they_were_measured(
    lanes, columns
):
    unit = replace(AVX, lanes=lanes)
    matrix = cpu_tiles.padded_matrix(49, columns, 1, unit)
    assert (matrix.columns, matrix.lanes) == (columns, lanes)
    assert cpu_tiles.saves_loads(Extents(7, 49, 64, columns, 1), unit) == (lanes == 8)


@pytest.mark.parametrize(("line", "saves"), [(14, True), (28, False)])
def test_with_groups_it_is_preferred_where_it_saves_more(line, saves):
    assert cpu_tiles.saves_loads(Extents(line, line * line, 64, 16, 4), AVX) == saves
    assert cpu_tiles.saves_loads(Extents(line, line * line, 64, 16, 1), AVX)


@pytest.mark.parametrize(
    ("line", "columns", "waits"),
    [
        *((73, 80, True), (35, 48, True)),
        *((73, 8, False), (129, 16, False)),  # no tiles of several vectors
        *((56, 80, False), (35, 64, False), (17, 192, False), (7, 200, False)),
    ],
)
def test_with_many_registers_it_is_preferred_for_lines_without_tiles(line, columns, waits):
    assert cpu_tiles.waits(Extents(line, line * line, 64, columns, 1), AVX512) == waits
    assert not cpu_tiles.waits(Extents(line, line * line, 64, columns, 2), AVX512)


@pytest.mark.parametrize(
    ("line", "terms", "columns", "waits"),
    [
        (17, 1024, 384, True),
        (17, 1024, 128, True),
        (13, 1024, 256, True),
        (19, 2048, 256, True),
        (17, 768, 192, False),
        (14, 1024, 256, False),
        (7, 2048, 512, False),
    ],
)
def test_on_a_zen_4_lines_that_conflict_in_the_first_level_cache_wait(line, terms, columns, waits):
    """Unless they have a divisor of few rows, as 14 and 7 have."""
    extents = Extents(line, line * line, terms, columns, 1)
    assert cpu_tiles.waits(extents, ZEN_4) == waits
    assert not cpu_tiles.waits(extents, AVX512)


@pytest.mark.parametrize(
    ("rows", "padded"), [(289, 290), (169, 170), (361, 364), (64, 64), (49, 49), (81, 84)]
)
def test_on_a_zen_4_rows_are_padded_for_small_tiles(rows, padded):
    assert cpu_tiles.padded_matrix(rows, 256, 1, ZEN_4) == Matrix(padded, 256)
