"""Products of tiles (AMX): exact calls for every shape, and plain loops where no function fits."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import sym, te

from tvmtune.dot_instructions import BFLOAT16, BYTES, TILES
from tvmtune.machine import cpu_features
from tvmtune.operators import cpu_pipeline, tile_functions, tile_prefetches, tile_products
from tvmtune.operators.tile_functions import TileShape
from tvmtune.passes import packed_products, quantized_kernels
from tvmtune.passes.packed_products import Storage, Window
from tvmtune.spaces.rule_space import RuleSpace, tune_context

TARGET = {"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2}
"""It has AMX; this machine need not."""
CALL = re.compile(r"tvmtune_tiles_[a-z0-9]+_\d+x\d+_\d+_\d+_\d+")
VNNI, BITS = BYTES[0], next(each for each in BFLOAT16 if each.data == "uint16")
CONVOLUTIONS = {
    "3x3": ((8, 8, 64, 32), 3, (1, 1), 1),
    "strided": ((12, 12, 32, 64), 3, (2, 2), 1),
    "dilated": ((9, 9, 64, 16), 3, (1, 1), 2),
    "rows that 16 does not divide": ((10, 30, 128, 48), 1, (1, 1), 1),
    "terms that 64 does not divide": ((7, 7, 48, 80), 1, (1, 1), 1),
    "7x7": ((9, 9, 16, 32), 7, (1, 1), 1),
    "7x7, of an image": ((16, 16, 4, 32), 7, (2, 2), 1),
}


def convolution(
    size: tuple[int, ...], kernel: int, strides: tuple[int, int], dilation: int, groups: int = 1
) -> tuple[tvm.IRModule, list[np.ndarray], np.ndarray]:
    """A padded convolution of bytes, with arguments and the sums that it should compute."""
    height, width, ins, outs = size
    pad, zero = dilation * (kernel // 2), 7
    x = te.placeholder((1, height, width, ins), "uint8", "x")
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (outs, kernel, kernel, ins // groups)).astype("int8")
    packed = packed_products.blocked_weights(weights, VNNI)
    w = te.placeholder(packed.shape, "int8", "w")
    extent = dilation * (kernel - 1) + 1
    rows, columns = ((n + 2 * pad - extent) // strides[0] + 1 for n in (height, width))
    window = Window(strides, (pad,) * 4, (dilation, dilation))
    output = (1, rows, columns, outs)
    sums = quantized_kernels.convolution(x, w, window, zero, output, VNNI, groups)
    y = te.compute(output, lambda *at: sums(*at) + 1, name="epilogue")
    data = rng.integers(0, 256, (1, height, width, ins)).astype("uint8")
    whole = np.full((height + 2 * pad, width + 2 * pad, ins), zero, "int64")
    whole[pad : pad + height, pad : pad + width] = data[0]
    expected = np.ones(output, "int64")
    for ky in range(kernel):
        for kx in range(kernel):
            top, left = ky * dilation, kx * dilation
            part = whole[top :: strides[0], left :: strides[1]][:rows, :columns]
            for data_of, weights_of, sums_of in zip(
                np.split(part, groups, 2),
                np.split(weights[:, ky, kx].astype("int64"), groups),
                np.split(expected[0], groups, 2),
                strict=True,
            ):
                sums_of += data_of @ weights_of.T
    return module(x, w, y), [data, packed], expected


def product(
    rows: int,
    terms: int,
    columns: int,
    meaning: str = "bfloat16",
    *,
    epilogue: bool = True,
    read: tuple[int, int] | None = None,
) -> tuple[tvm.IRModule, list[np.ndarray], np.ndarray]:
    """A product of bfloat16, or of uint16 as they are, which are small integers: float32 sums them
    exactly."""
    rng = np.random.default_rng(0)
    data, weights = (rng.integers(0, 8, shape) for shape in ((rows, terms), (columns, terms)))
    storage = Storage(tvm.tirx.const(0, "uint16"))
    if meaning == "bfloat16":
        data, weights = data - 4, weights - 4
        storage = Storage(storage.nothing, value=lambda bits: tvm.tirx.reinterpret(meaning, bits))
    stored = [
        (each.astype("float32").view("uint32") >> 16 if meaning == "bfloat16" else each).astype(
            "uint16"
        )
        for each in (data, weights)
    ]
    packed = packed_products.blocked_weights(stored[1][:, None, None], BITS)
    x, w = te.placeholder((rows, terms), "uint16", "x"), te.placeholder(packed.shape, "uint16", "w")
    sums = packed_products.product(x, w, (rows, columns), "float32", storage)
    expected = (data @ weights.T).astype("float32")
    if not epilogue:
        return module(x, w, sums), [stored[0], packed], expected
    y = te.compute(read or (rows, columns), lambda *at: sums(*at) + 1, name="epilogue")
    return module(x, w, y), [stored[0], packed], expected + 1


def module(*tensors: te.Tensor) -> tvm.IRModule:
    func = te.create_prim_func([*tensors])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def check(sch: tvm.s_tir.Schedule, arrays: list[np.ndarray], expected: np.ndarray) -> str:
    """Compile a schedule, run it if this CPU can, and return the names of what it calls."""
    lowered = cpu_pipeline.rewrite_loops(sch.mod)
    library = tvm.compile(
        sch.mod, tvm.target.Target(TARGET), tir_pipeline=cpu_pipeline.pipeline_for(TARGET)
    )
    assembly = library.mod.inspect_source("asm")
    called = " ".join(sorted(set(CALL.findall(str(lowered)))))
    assert bool(called) == ("tdp" in assembly)
    if cpu_features.can_run(TARGET, ""):
        dtype = "float32" if expected.dtype == np.float32 else "int32"
        result = tvm.runtime.tensor(np.zeros(expected.shape, dtype))
        library["main"](*map(tvm.runtime.tensor, arrays), result)
        np.testing.assert_array_equal(result.numpy(), expected)
    return called


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_of_bytes_by_default_schedules(case):
    mod, arrays, expected = convolution(*CONVOLUTIONS[case])
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected).startswith("tvmtune_tiles_u8s8_")


@pytest.mark.parametrize("size", [(16, 64, 64), (30, 96, 16), (197, 64, 48), (5, 32, 80)])
def test_products_of_bfloat16_by_default_schedules(size):
    mod, arrays, expected = product(*size)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected).startswith("tvmtune_tiles_bf16_")


@pytest.mark.sweep
@pytest.mark.parametrize("case", ["3x3", "strided"])
def test_candidates_of_the_search(case):
    """Whatever is sampled: all are right, and none computes the products without tiles."""
    mod, arrays, expected = convolution(*CONVOLUTIONS[case])
    found = 0
    for seed in range(1, 13):
        context = tune_context(
            mod, tvm.target.Target(TARGET), RuleSpace(TARGET).generator(), seed=seed
        )
        (design,) = context.generate_design_space()
        sch = tvm.s_tir.Schedule(mod, seed=seed, error_render_level="none")
        design.trace.apply_to_schedule(sch, remove_postproc=True)
        sch.enter_postproc()
        if all(step.apply(sch) for step in context.space_generator.postprocs):
            found += 1
            assert check(sch, arrays, expected)
    assert found >= 3


@pytest.mark.parametrize("size", [(1, 64, 64), (3, 64, 64)], ids=["a single row", "three rows"])
def test_products_that_hardly_fill_a_tile_use_other_instructions(size):
    mod, arrays, expected = product(*size)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected) == ""


@pytest.mark.parametrize("terms", [34, 2], ids=["a prime number of groups", "one group"])
def test_terms_that_do_not_form_tiles_use_other_instructions(terms):
    mod, arrays, expected = product(16, terms, 64)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected) == ""


def test_sums_without_an_epilogue_use_other_instructions():
    """TVM would make one loop of the strips and their rows."""
    mod, arrays, expected = product(16, 64, 64, epilogue=False)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected) == ""


def test_rows_of_the_kernel_form_tiles_where_an_image_has_few_channels():
    mod, arrays, expected = convolution(*CONVOLUTIONS["7x7, of an image"])
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected).endswith("_7_0")


def test_small_kernels_of_images_use_other_instructions():
    """Three elements of four channels would fill less than a fifth of a tile."""
    mod, arrays, expected = convolution((16, 16, 4, 32), 3, (1, 1), 1)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected) == ""


def test_groups_use_other_instructions():
    """Their data differ from one group of columns to the next."""
    mod, arrays, expected = convolution((8, 8, 128, 64), 3, (1, 1), 1, groups=2)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected) == ""
    assert VNNI.function in str(sch.mod)


def marked(
    columns: int, *, rows: int = 16, other: bool = False, meaning: str = "bfloat16"
) -> tvm.s_tir.Schedule:
    """A product whose loops are marked as they should be for strips of so many rows, but for the number
    of columns next to each other, and, with ``other``, for the order of the last two loops."""
    mod, _, _ = product(16, 64, 128, meaning)
    sch = tvm.s_tir.Schedule(mod)
    block = sch.get_sblock("packed_matmul")
    row, column, quads, terms = sch.get_loops(block)
    strips, row = sch.split(row, [None, rows])
    outer, wide, lanes = sch.split(column, [None, columns // 16, 16])
    whole, quads = sch.split(quads, [None, 16])
    inner = (terms, quads) if other else (quads, terms)
    sch.reorder(strips, outer, row, wide, lanes, whole, *inner)
    sch.annotate(row, tile_products.MARK, 1)
    sch.decompose_reduction(block, whole)
    return sch


@pytest.mark.parametrize(("columns", "fits"), [(64, True), (128, False)])
def test_loops_for_which_the_registers_do_not_suffice_stay_loops(columns, fits):
    _, arrays, expected = product(16, 64, 128)
    assert bool(check(marked(columns), arrays, expected)) == fits


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_strips_may_have_any_number_of_rows(rows):
    _, arrays, expected = product(16, 64, 128)
    assert f"_{rows}x1_4_" in check(marked(64, rows=rows), arrays, expected)


def test_strips_of_short_lines_of_an_image_have_several():
    mod, arrays, expected = convolution(*CONVOLUTIONS["3x3"])
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert "_8x2_2_" in check(sch, arrays, expected)


def test_loops_in_another_order_stay_loops():
    _, arrays, expected = product(16, 64, 128)
    assert check(marked(64, other=True), arrays, expected) == ""


def test_products_of_other_values_in_the_same_types_stay_loops():
    _, arrays, expected = product(16, 64, 128, "uint16")
    assert check(marked(64, meaning="uint16"), arrays, expected) == ""


@pytest.mark.parametrize("read", [(8, 8), (5, 16), (1, 1)], ids=str)
def test_the_buffer_of_the_sums_has_room_for_those_that_nothing_reads(read):
    """TVM shrinks buffers to what it sees used of them."""
    mod, arrays, expected = product(8, 64, 16, read=read)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected[: read[0], : read[1]])
    target = tvm.target.Target(TARGET)
    library = tvm.compile(sch.mod, target, tir_pipeline=cpu_pipeline.pipeline_for(TARGET))
    sizes = re.findall(
        r"packed_matmul\w* = alloca \[(\d+) x float\]", library.mod.inspect_source("ll")
    )
    assert sizes == ["128"]


def test_each_thread_sets_up_the_registers_once():
    mod, arrays, expected = product(256, 64, 128)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    assert check(sch, arrays, expected)
    lines = str(cpu_pipeline.rewrite_loops(sch.mod)).splitlines()
    setup, release = (
        [line for line in lines if f"{end}" in line] for end in ("_start", tile_functions.END)
    )
    (threads,) = [line for line in lines if "T.parallel" in line and "pad" not in line]
    assert len(setup) == len(release) == 1
    assert lines.index(setup[0]) < lines.index(threads) < lines.index(release[0])
    depths = {len(line) - len(line.lstrip()) for line in (setup[0], threads, release[0])}
    assert len(depths) == 1


def test_modules_without_marked_loops_are_left_alone():
    mod, _, _ = product(16, 64, 64)
    assert cpu_pipeline.rewrite_loops(mod).same_as(mod)


@pytest.mark.parametrize("kind", TILES, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("rows", "columns", "shape"),
    [
        (56, 64, TileShape(14, 1, 4, 16)),
        (56, 32, TileShape(14, 2, 2, 16)),
        (64, 16, TileShape(16, 4, 1, 16)),
        (48, 16, TileShape(16, 3, 1, 16)),
        (7, 48, TileShape(7, 1, 3, 16)),
    ],
)
def test_no_two_tiles_share_a_register_while_both_are_needed(kind, rows, columns, shape):
    """In the order of a function's instructions, each product reads what was loaded for it."""
    assert TileShape.of(rows, columns, 16) == shape
    texts = tile_functions.definitions([shape.name(kind)])
    (text,) = [t for t in texts if f"@{shape.name(kind)}(" in t.splitlines()[0]]
    held: dict[int, str] = {}
    products = set()
    for line in text.splitlines():
        if load := re.search(r"tileloadd64\(i8 (\d), ptr (%\w+)", line):
            held[int(load[1])] = load[2]
        elif call := re.search(rf"{re.escape(kind.intrinsic)}\(i8 (\d), i8 (\d), i8 (\d)\)", line):
            sums, data, weights = map(int, call.groups())
            assert sums not in held
            assert held[data].startswith("%x")
            assert held[weights].startswith("%w")
            products.add((sums, held[data], held[weights]))
    assert len(products) == len({sums for sums, _, _ in products}) == shape.high * shape.wide


@pytest.mark.parametrize(("rows", "columns", "prefetches"), [(320, 1024, True), (320, 256, False)])
def test_strips_prefetch_the_next_weights_if_these_are_many(rows, columns, prefetches):
    terms = 1024
    mod, arrays, expected = product(rows, terms, columns)
    sch = RuleSpace(TARGET).default(mod, tvm.target.Target(TARGET))
    called = check(sch, arrays, expected).split()[-1]
    height, high, wide, _, lines = map(int, re.findall(r"(?<=[x_])\d+", called))
    assert (lines > 0) == prefetches
    if prefetches:
        (call,) = re.findall(rf'"{called}".*', str(cpu_pipeline.rewrite_loops(sch.mod)))
        blocks, *numbers = map(int, re.findall(r"T.int64\((\d+)\)", call)[-17:])
        strips = rows // (height * high * blocks)
        steps = blocks * numbers[7] * numbers[10] * numbers[13]
        needed = wide * 16 * terms * 2
        assert needed <= strips * steps * lines * 64 < 1.5 * needed


def test_together_the_strips_prefetch_all_of_the_next_weights():
    """Each for its part, whether its place comes from a loop of its own or from a quotient."""
    steps, length, strips = 10, 4096, 8
    weights = tvm.tirx.decl_buffer((1 << 20,), "uint16")
    own, shared = (tvm.tirx.Var(name, "int64") for name in ("own", "shared"))
    body = tvm.tirx.Evaluate(0)
    kinds = tvm.tirx.ForKind
    rows = tvm.tirx.For(own, 0, strips, kinds.SERIAL, body)
    columns = tvm.tirx.For(shared, 0, 16, kinds.PARALLEL, body)
    fused = tvm.tirx.For(shared, 0, 16 * strips, kinds.PARALLEL, body)
    cases = [
        (shared * length, [columns, rows], lambda row: {shared: 3, own: row}),
        (shared // strips * length, [fused], lambda row: {shared: 3 * strips + row}),
    ]
    for start, loops, place in cases:
        found = tile_prefetches.ahead(weights, start, length, steps, loops)
        part = found.lines * steps * 32
        prefetched = set()
        for row in range(strips):
            analyzer = sym.Analyzer()
            for variable, value in place(row).items():
                analyzer.bind(variable, tvm.tirx.const(value, "int64"))
            first = int(analyzer.simplify(found.start))
            prefetched |= set(range(first, first + part))
        assert prefetched >= set(range(4 * length, 5 * length))
