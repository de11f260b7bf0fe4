"""Tiles that CPUs' kernels get without measurements."""

from __future__ import annotations

import math
import re

import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule

from kernels import points_of
from tvmtune.cpu_features import AVX, AVX512, NEON, NEON32, SSE, ZEN_4, vector_unit
from tvmtune.passes.workload_keys import structure
from tvmtune.spaces import traces
from tvmtune.spaces.cpu_tiles import (
    BLOCK_ROWS,
    column_group,
    decisions,
    register_tiles,
    small_tiles,
    tensor_decisions,
    window,
)
from tvmtune.spaces.rule_space import RuleSpace


@pytest.mark.parametrize(
    ("attributes", "unit"),
    [
        ({"mcpu": "skylake-avx512"}, AVX512),
        ({"mcpu": "znver5"}, AVX512),
        ({"mcpu": "znver4"}, ZEN_4),
        ({"mcpu": "znver4", "mattr": ["-avx512f"]}, AVX),
        ({"mcpu": "haswell"}, AVX),
        ({"mcpu": "x86-64-v2"}, SSE),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, NEON),
        ({"mtriple": "armv7l-linux-gnueabihf", "mcpu": "cortex-a9"}, NEON32),
    ],
)
def test_the_vector_unit_follows_from_the_target(attributes, unit):
    attributes = {"mtriple": "x86_64-linux-gnu", **attributes}
    assert vector_unit({"kind": "llvm", **attributes}) == unit


@pytest.mark.parametrize("unit", [AVX512, AVX, SSE, NEON, NEON32])
@pytest.mark.parametrize(
    ("rows", "columns"), [(14, 112), (7, 192), (128, 3072), (56, 24), (1, 1000), (197, 58), (1, 1)]
)
def test_sums_of_a_register_tile_fit_in_registers(rows, columns, unit):
    tiles = register_tiles(rows, columns, unit)
    assert tiles
    for height, width in tiles:
        assert rows % height == columns % width == 0
        assert width & (width - 1) == 0, "a power of two"
        vectors = max(1, width // unit.lanes)
        assert height * vectors <= unit.sums
        if height > 1:
            assert height * vectors + vectors < unit.registers


def test_register_tiles_prefer_whole_vectors_and_leave_room_for_operands():
    assert register_tiles(14, 112, AVX512)[0] == (14, 16)
    assert register_tiles(128, 3072, AVX512)[0] == (4, 64)
    assert register_tiles(7, 512, AVX512)[0] == (7, 32)
    assert register_tiles(128, 3072, AVX)[0] == (4, 16)


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [
        (14, 416, (7, 16)),
        (28, 208, (7, 16)),
        (8, 448, (4, 16)),
        (17, 160, (17, 16)),
        (64, 24, (16, 8)),
        (1, 1024, (1, 64)),
    ],
)
def test_products_get_few_sums_where_instructions_take_two_cycles(rows, columns, tile):
    assert small_tiles(rows, columns, 512, ZEN_4)[0] == tile
    (found, *_) = decisions([1, rows, rows, columns], [1, 1, 512], ZEN_4)
    assert (found.spatial[2][-1], found.spatial[3][-1]) == tile


@pytest.mark.parametrize(
    ("terms", "height"), [(768, 13), (512, 13), (1024, 1), (3072, 1), (1000, 13)]
)
def test_rows_that_conflict_in_the_first_level_cache_are_not_tiled_together(terms, height):
    assert small_tiles(13, 512, terms, ZEN_4)[0][0] == height


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize(("rows", "columns"), [(196, 30), (37, 7), (1, 1), (100, 65)])
def test_small_tiles_fit_in_registers(rows, columns, lanes):
    for height, width in small_tiles(rows, columns, 512, ZEN_4, lanes):
        assert rows % height == columns % width == 0
        assert height * ZEN_4.vectors(width * lanes) <= ZEN_4.sums


@pytest.mark.parametrize(
    ("reduction", "group", "in_blocks"),
    [([3, 3, 64], None, False), ([1, 1, 512], 32, False), ([1, 1, 512], None, True)],
    ids=["kernel", "groups", "blocks"],
)
def test_other_kernels_keep_tiles_that_share_loads_there(reduction, group, in_blocks):
    loops = [1, 14, 14, 512], reduction
    kept, usual = (
        decisions(*loops, unit, group=group, in_blocks=in_blocks)[0].spatial
        for unit in (ZEN_4, AVX512)
    )
    assert kept == usual


def test_a_convolution_of_few_channels_is_tiled_as_a_product():
    (found, *_) = decisions([1, 112, 112, 64], [7, 7, 3], ZEN_4)
    assert [parts[-1] for parts in found.spatial] == [1, 1, 7, 16]


def test_tiles_of_columns_are_shared_equally_if_possible():
    """With 10 of them, two abreast would leave three groups to one of two cores."""
    (found, *_) = decisions([1, 7, 7, 160], [1, 1, 960], ZEN_4, 2)
    assert found.spatial[-1] == [10, 1, 1, 16]


@pytest.mark.parametrize(
    ("spatial", "reduction", "terms"),
    [
        ([1, 7, 7, 512], [1, 1, 1024], 32),
        ([1, 14, 14, 512], [1, 1, 1024], 128),
        ([64, 3072], [768], 32),
        ([128, 3072], [768], 64),
        ([1, 1000], [1024], 128),
    ],
    ids=["few-rows", "many-rows", "few-rows-wide", "many-rows-wide", "one-row"],
)
def test_weights_stay_in_the_first_level_cache_and_data_too_if_there_are_few_rows(
    spatial, reduction, terms
):
    assert decisions(spatial, reduction, AVX512)[0].reduction[-1][-1] == terms


@pytest.mark.parametrize("unit", [AVX512, ZEN_4, AVX, NEON])
@pytest.mark.parametrize(
    ("spatial", "reduction"),
    [
        ([1, 56, 56, 64], [3, 3, 64]),
        ([1, 7, 7, 512], [3, 3, 512]),
        ([8, 28, 28, 512], [3, 3, 512]),
        ([1, 17, 17, 192], [7, 1, 128]),
        ([1, 112, 112, 64], [7, 7, 3]),
        ([128, 768], [3072]),
        ([12, 197, 64], [197]),
        ([1000], [2048]),
        ([5], []),
        ([], [100]),
    ],
)
def test_the_parts_of_a_loop_multiply_to_its_extent(spatial, reduction, unit):
    for chosen in decisions(spatial, reduction, unit, cores=4):
        assert [math.prod(parts) for parts in chosen.spatial] == spatial
        assert [math.prod(parts) for parts in chosen.reduction] == reduction
        assert all(len(parts) == 4 for parts in chosen.spatial)
        assert all(len(parts) == 2 for parts in chosen.reduction)


def test_large_weights_are_read_once_and_small_ones_stay_in_the_cache():
    large = decisions([1, 7, 7, 512], [3, 3, 512], AVX512)[0]
    assert large.spatial[1] == [1, 1, 7, 1], "all rows share a group of weights"
    small = decisions([1, 56, 56, 64], [3, 3, 64], AVX512)[0]
    assert small.spatial[1] == [56, 1, 1, 1], "threads share the rows"


def test_several_tiles_of_columns_share_each_pass_over_large_data():
    assert decisions([198, 768], [3072], AVX512)[0].spatial[1] == [4, 1, 3, 64]
    assert decisions([198, 768], [768], AVX512)[0].spatial[1] == [12, 1, 1, 64]
    cores = 16
    assert decisions([198, 768], [3072], AVX512, cores)[0].spatial[1] == [12, 1, 1, 64]


def test_a_block_of_rows_is_bounded_and_leaves_work_for_all_cores():
    rows = decisions([1, 56, 56, 512], [3, 3, 512], AVX512)[0].spatial
    assert math.prod(parts[2] * parts[3] for parts in rows[:-1]) <= BLOCK_ROWS
    for cores in (1, 2, 16, 64):
        parts = decisions([1, 28, 28, 512], [3, 3, 512], AVX512, cores)[0].spatial
        assert math.prod(part[0] * part[1] for part in parts) >= 2 * cores


def test_the_channels_of_an_image_are_summed_with_the_columns_of_the_kernel():
    assert decisions([1, 112, 112, 64], [7, 7, 3], AVX512)[0].reduction == [[7, 1], [1, 7], [1, 3]]


@pytest.mark.parametrize(
    ("unit", "kernel", "parts"),
    [
        (AVX, [3, 3, 128], [[3, 1], [1, 3], [1, 128]]),
        (AVX, [3, 3, 3, 64], [[3, 1], [3, 1], [1, 3], [1, 64]]),
        (AVX, [3, 512], [[1, 3], [1, 512]]),
        (AVX, [3, 3, 4], [[1, 3], [1, 3], [1, 4]]),
        (AVX, [1, 1, 256], [[1, 1], [1, 1], [4, 64]]),
        (SSE, [3, 3, 128], [[3, 1], [1, 3], [8, 16]]),
        (AVX512, [3, 3, 128], [[1, 3], [1, 3], [16, 8]]),
    ],
)
def test_with_avx2_all_channels_of_a_line_of_the_kernel_are_added(unit, kernel, parts):
    pixels = [14] * (len(kernel) - 1)
    assert decisions([1, *pixels, 64], kernel, unit)[0].reduction == parts


@pytest.mark.parametrize(
    ("unit", "group", "terms"),
    [(AVX, None, 16), (AVX512, None, 64), (AVX, 1, 128), (SSE, None, 16), (NEON, None, 128)],
)
def test_with_few_registers_few_terms_are_added_for_tiles_whose_additions_wait(unit, group, terms):
    """37 is a prime, so that a tile has one row."""
    best = decisions([1, 37, 37, 256], [256], unit, group=group)[0]
    assert best.spatial[2][-1] == 1
    assert best.reduction[-1][-1] == terms


@pytest.mark.parametrize(
    ("columns", "rows", "tile"),
    [
        (4, 56, (4, 4)),
        (2, 56, (2, 8)),
        (8, 7, (2, 7)),
        (1, 17, (1, 17)),
        (64, 1, (4, 1)),
        (1, 1, (1, 1)),
    ],
)
def test_tiles_of_dot_product_instructions_use_each_operand_several_times(columns, rows, tile):
    best, *others = tensor_decisions(
        [1, columns, 56, rows, 1], [3, 3, 4, 4], [False, True, False, False, False], AVX512
    )
    assert (best.spatial[1][-1], best.spatial[3][-1]) == tile
    for each in (best, *others):
        assert [math.prod(parts) for parts in each.spatial] == [1, columns, 56, rows, 1]
        assert [math.prod(parts) for parts in each.reduction] == [3, 3, 4, 4]


def test_tiles_of_plain_layouts_add_all_terms_before_what_follows():
    best = tensor_decisions([1, 56, 56, 8], [3, 3, 4, 4], [False, False, False, True], AVX512)[0]
    assert [parts[2:] for parts in best.spatial] == [[1, 1], [1, 1], [4, 1], [4, 1]]
    assert best.reduction == [[3, 1], [3, 1], [4, 1], [4, 1]]


@pytest.mark.parametrize(
    ("unit", "terms", "of_bytes", "tile"),
    [
        (ZEN_4, 64, True, (4, 2)),
        (ZEN_4, 256, True, (4, 4)),
        (ZEN_4, 64, False, (4, 4)),
        (AVX512, 16, True, (4, 2)),
        (AVX512, 64, True, (4, 4)),
        (AVX512, 16, False, (4, 4)),
    ],
)
def test_tiles_of_bytes_are_small_where_sums_are_short(unit, terms, of_bytes, tile):
    """The epilogue of one tile overlaps with the products of the next."""
    columns = [False, False, False, True]
    best = tensor_decisions([1, 56, 56, 8], [1, 1, terms], columns, unit, of_bytes=of_bytes)[0]
    assert (best.spatial[2][2], best.spatial[3][2]) == tile


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "outermost"),
    [(3136, 4, 16, [784, 1]), (3136, 128, 4096, [1, 32]), (1, 64, 128, [1, 16])],
)
def test_threads_share_columns_if_weights_are_large_or_rows_few(rows, columns, terms, outermost):
    best = tensor_decisions([rows, columns], [terms, 1], [False, True], AVX512)[0]
    assert [parts[0] for parts in best.spatial] == outermost


def test_a_tile_stays_within_a_group_of_channels():
    """Lanes of one vector would otherwise gather the values of several groups."""
    assert column_group(convolution(groups=1)) is None
    assert column_group(convolution(groups=26)) == 8
    assert {width for _, width in register_tiles(14, 208, AVX512, group=8)} == {8, 4, 2, 1}


def test_a_tile_of_a_depthwise_convolution_is_one_vector_wide_and_many_rows_high():
    """Each product loads data of its own; only the weights are shared, by rows."""
    assert column_group(convolution(groups=208)) == 1
    assert register_tiles(14, 208, AVX512, group=1)[0] == (14, 16)
    assert register_tiles(112, 96, AVX512, group=1)[0] == (14, 16)
    assert register_tiles(14, 208, AVX, group=1)[0] == (7, 8)


def test_rows_of_a_blocked_layout_are_those_before_its_block_of_items():
    spatial = decisions([1, 6, 56, 56, 1, 16], [3, 3], AVX512, group=1)[0].spatial
    assert [parts[-1] for parts in spatial] == [1, 1, 1, 14, 1, 16]


def test_padding_is_part_of_depthwise_products_and_copied_per_tile_for_others():
    assert padding(convolution(groups=208), "skylake-avx512") is None
    assert padding(convolution(groups=1, channels=3), "skylake-avx512") is None
    assert padding(convolution(groups=1), "skylake-avx512") == "per tile"


@pytest.mark.parametrize(
    ("mcpu", "kernel", "place"),
    [("haswell", 3, None), ("haswell", 7, "before"), ("skylake-avx512", 7, None)],
)
def test_with_few_registers_images_are_padded_before_products_with_large_kernels(
    mcpu, kernel, place
):
    assert padding(convolution(groups=1, channels=3, kernel=kernel), mcpu) == place


def test_channels_of_a_group_are_not_taken_for_positions_of_the_kernel():
    assert window(convolution(groups=4, channels=16, kernel=7)) == 49


def test_channels_before_the_kernel_are_not_taken_for_its_positions():
    nchw = convolution(groups=1, channels=64, layout="NCHW")
    assert window(nchw) == 1
    assert window(convolution(groups=1, channels=64)) == 9
    assert padding(nchw, "haswell") == padding(nchw, "skylake-avx512")


@pytest.mark.parametrize(("mcpu", "size"), [("znver4", 64), ("haswell", 64), ("haswell", 112)])
def test_a_vector_has_one_pixel_where_padding_is_part_of_the_products(mcpu, size):
    """Else some of its lanes are padding and others are not."""
    script = scheduled(convolution(groups=1, channels=3, size=size, out=16), mcpu).mod.script()
    assert "T.if_then_else" in script
    assert vectors(script) == {16}


@pytest.mark.parametrize("mcpu", ["znver4", "haswell"])
def test_a_vector_may_have_several_pixels_without_padding(mcpu):
    mod = convolution(groups=1, channels=3, kernel=1, size=64, out=16)
    assert max(vectors(scheduled(mod, mcpu).mod.script())) > 16


@pytest.mark.parametrize("groups", [1, 16])
def test_the_search_finds_the_default_schedule_of_a_product_with_padding(groups):
    mod = convolution(groups=groups, channels=16 if groups > 1 else 3, size=64, out=16)
    points = points_of(mod, RuleSpace(for_cpu("znver4")))
    default = scheduled(mod, "znver4")
    point = points.recall(traces.to_json(default))
    assert point is not None
    again, _ = points.instantiate(point, 1)
    assert structure(again.mod) == structure(default.mod)


def vectors(script: str) -> set[int]:
    """The lengths of the vectors in a script."""
    return {int(n) for n in re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", script)}


def padding(mod: tvm.IRModule, mcpu: str) -> str | None:
    """Where the default schedule computes the padding: before the threads' loop over products, in it,
    or as part of the products."""
    script = scheduled(mod, mcpu).mod.script()
    place, products = script.find('sblock("pad_temp")'), script.rfind("T.parallel")
    return None if place < 0 else "before" if place < products else "per tile"


def scheduled(mod: tvm.IRModule, mcpu: str) -> Schedule:
    """The module's default schedule for this CPU."""
    target = for_cpu(mcpu)
    return RuleSpace(target).choose(mod, tvm.target.Target(target))


def for_cpu(mcpu: str) -> dict[str, object]:
    return {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu, "num-cores": 2}


def convolution(
    groups: int,
    channels: int = 208,
    kernel: int = 3,
    layout: str = "NHWC",
    *,
    size: int = 14,
    out: int = 208,
) -> tvm.IRModule:
    image, taps = (1, size, size, channels), (kernel, kernel, channels // groups, out)
    weights = "HWIO"
    if layout == "NCHW":
        image, taps, weights = (
            (1, channels, size, size),
            (out, channels // groups, kernel, kernel),
            "OIHW",
        )
    data, weight = te.placeholder(image, name="data"), te.placeholder(taps, name="weight")
    edge = kernel // 2
    output = topi.nn.conv(data, weight, 1, edge, 1, groups, layout, weights, "float32")
    return tvm.IRModule({"main": te.create_prim_func([data, weight, output])})
