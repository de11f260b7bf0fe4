"""Kernels ask for the chunks of their operands that they need next, and only for these."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from kernels import build_for_cpu, prefetches
from tvmtune.operators import prefetch

LINE = 16
"""float32 values in a cache line."""


def matmul(
    rows: int,
    terms: int,
    columns: int,
    tile: int,
    chunk: int,
    share: str = "columns",
    *,
    copy: bool = False,
) -> tvm.IRModule:
    """Products with weights that are packed in panels of 32 columns, ``chunk`` terms for all rows at a
    time, ``tile`` rows in registers. Threads share the columns or the rows; with ``copy`` each copies
    the data first."""
    data = te.placeholder((rows, terms), name="data")
    weight = te.placeholder((columns // 32, terms, 32), name="weight")
    k = te.reduce_axis((0, terms), "k")
    output = te.compute(
        (rows, columns),
        lambda i, j: te.sum(data[i, k] * weight[j // 32, k, j % 32], axis=k),
        name="output",
    )
    func = te.create_prim_func([data, weight, output]).with_attr("global_symbol", "main")
    schedule = tvm.s_tir.Schedule(func)
    i, j, term = schedule.get_loops("output")
    rows_of_tiles, row = schedule.split(i, [None, tile])
    panel, lanes = schedule.split(j, [None, 32])
    chunks, term = schedule.split(term, [None, chunk])
    if share == "columns":
        schedule.reorder(panel, chunks, rows_of_tiles, term, row, lanes)
        schedule.parallel(panel)
    else:
        parts, rows_of_tiles = schedule.split(rows_of_tiles, [2, None])
        schedule.reorder(parts, panel, chunks, rows_of_tiles, term, row, lanes)
        schedule.parallel(parts)
    if copy:
        schedule.compute_at(schedule.cache_read("output", 0, "global"), panel)
    schedule.unroll(row)
    schedule.vectorize(lanes)
    schedule.decompose_reduction("output", chunks)
    return schedule.mod


def abreast(
    rows: int, terms: int, columns: int, tile: int, chunk: int, panels: int
) -> tvm.IRModule:
    """As :func:`matmul`, with so many panels of 32 columns computed for each tile of rows, whose chunks
    of weights are next to each other."""
    group = 32 * panels
    data = te.placeholder((rows, terms), name="data")
    shape = (columns // group, terms // chunk, panels, chunk, 32)
    weight = te.placeholder(shape, name="weight")
    k = te.reduce_axis((0, terms), "k")

    def term(i: Any, j: Any) -> Any:
        at = (j // group, k // chunk, j % group // 32, k % chunk, j % 32)
        return te.sum(data[i, k] * weight[at], axis=k)

    output = te.compute((rows, columns), term, name="output")
    func = te.create_prim_func([data, weight, output]).with_attr("global_symbol", "main")
    schedule = tvm.s_tir.Schedule(func)
    i, j, reduced = schedule.get_loops("output")
    tiles, row = schedule.split(i, [None, tile])
    groups, panel, lanes = schedule.split(j, [None, panels, 32])
    chunks, inner = schedule.split(reduced, [None, chunk])
    schedule.reorder(groups, chunks, tiles, panel, inner, row, lanes)
    schedule.parallel(groups)
    schedule.unroll(row)
    schedule.vectorize(lanes)
    schedule.decompose_reduction("output", chunks)
    return schedule.mod


@pytest.fixture
def requests(monkeypatch) -> Callable[[tvm.IRModule, str], list[tuple[int, str]]]:
    """The prefetches of a buffer that a program gets: how many in a loop over ``line``, and the index,
    in the program's variables."""
    inserted = []
    insert = prefetch.insert

    def spy(func: Any) -> Any:
        inserted.append(insert(func))
        return inserted[-1]

    monkeypatch.setattr(prefetch, "insert", spy)

    def of(mod: tvm.IRModule, buffer: str) -> list[tuple[int, str]]:
        inserted.clear()
        build_for_cpu(mod)
        found = re.findall(
            rf"(?:for line in range\((\d+)\):\s+)?.*prefetch.*address_of\({buffer}\w*\[(.+)\]\)",
            "\n".join(func.script() for func in inserted),
        )
        return [(int(lines or 1), index) for lines, index in found]

    return of


@pytest.mark.parametrize(
    ("rows", "tile", "chunk", "asked_for"),
    [(64, 8, 128, {"weight"}), (49, 7, 32, {"weight", "data"})],
)
def test_products_that_prefetch_keep_their_results(requests, rows, tile, chunk, asked_for):
    mod = matmul(rows, 768, 512, tile, chunk)
    assert prefetches(mod) > 0
    assert {buffer for buffer in ("weight", "data") if requests(mod, buffer)} == asked_for
    rng = np.random.RandomState(0)
    data = rng.standard_normal((rows, 768)).astype("float32")
    weight = rng.standard_normal((16, 768, 32)).astype("float32")
    output = tvm.runtime.tensor(np.zeros((rows, 512), "float32"))
    build_for_cpu(mod)["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight), output)
    wanted = data @ weight.transpose(1, 0, 2).reshape(768, 512)
    np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((64, 128, 128, 8, 128), "the weights are small"),
        ((16, 768, 512, 8, 128), "two blocks of rows take less time than loading a chunk"),
        ((64, 8192, 64, 8, 8192), "a chunk of 1 MB would displace the data"),
    ],
)
def test_others_do_not_prefetch_weights(requests, shape, reason):
    assert not requests(matmul(*shape), "weight"), reason


@pytest.mark.parametrize(("rows", "tile", "chunk"), [(49, 7, 32), (64, 8, 16), (24, 3, 32)])
def test_tiles_of_rows_ask_for_their_data_of_the_next_chunk(requests, rows, tile, chunk):
    asked = requests(matmul(rows, 768, 512, tile, chunk), "data")
    place, at = 2, 1
    found = {eval(index, {"i_0": at, "k_0": place, "j_0": 2}) for _, index in asked}
    wanted = {
        row * 768 + (place + 1) * chunk + term
        for row in range(at * tile, (at + 1) * tile)
        for term in range(0, chunk, LINE)
    }
    assert found == wanted


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((64, 768, 512, 8, 32, "rows"), "the threads computed their rows themselves, if any"),
        ((49, 128, 512, 7, 32), "the data is soon in the first-level cache"),
        ((64, 768, 512, 8, 64), "the hardware sees a stream"),
        ((64, 768, 512, 8, 4), "the next chunks are in lines that were loaded already"),
        ((1024, 16, 512, 8, 16), "there is no other chunk"),
    ],
)
def test_others_do_not_prefetch_data(requests, shape, reason):
    assert not requests(matmul(*shape), "data"), reason


def test_data_that_each_thread_copies_for_itself_are_not_prefetched(requests):
    assert requests(matmul(64, 768, 512, 8, 32), "data")
    assert not requests(matmul(64, 768, 512, 8, 32, copy=True), "data")


def test_inner_loops_of_changing_length_compile():
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def triangle(
        a: T.Buffer((8, 128, 128), "float32"),
        b: T.Buffer((8, 128, 64), "float32"),
        c: T.Buffer((8, 128, 64), "float32"),
    ) -> None:
        T.func_attr({"global_symbol": "main"})
        for j in T.parallel(64):
            for n in range(8):
                for i in range(128):
                    with T.sblock("sum"):
                        vj, vn, vi = T.axis.remap("SSS", [j, n, i])
                        c[vn, vi, vj] = T.float32(0)
                        for k in range(vi + 1):
                            c[vn, vi, vj] = c[vn, vi, vj] + a[vn, vi, k] * b[vn, k, vj]

    rng = np.random.RandomState(0)
    a, b = (rng.standard_normal(shape).astype("float32") for shape in ((8, 128, 128), (8, 128, 64)))
    output = tvm.runtime.tensor(np.zeros((8, 128, 64), "float32"))
    build_for_cpu(tvm.IRModule({"main": triangle}))["main"](
        tvm.runtime.tensor(a), tvm.runtime.tensor(b), output
    )
    np.testing.assert_allclose(output.numpy(), np.tril(a) @ b, rtol=1e-4, atol=1e-3)


def pairs(size: int) -> tvm.IRModule:
    """Sums of two vectors of 16 each, of so many in all, by a loop that reads them once."""
    data = te.placeholder((size, 2, LINE), name="data")
    output = te.compute((size, LINE), lambda i, j: data[i, 0, j] + data[i, 1, j], name="output")
    func = te.create_prim_func([data, output]).with_attr("global_symbol", "main")
    schedule = tvm.s_tir.Schedule(func)
    i, lanes = schedule.get_loops("output")
    part, inner = schedule.split(i, [None, 32])
    schedule.parallel(part)
    schedule.vectorize(lanes)
    schedule.annotate(inner, prefetch.READ_ONCE, 1)
    return schedule.mod


def test_loops_that_read_once_ask_for_what_a_later_iteration_reads(requests):
    asked = requests(pairs(4096), "data")
    found = {eval(index, {"i_0": 3, "i_1": 5}) for _, index in asked}
    place = 2 * LINE * (3 * 32 + 5 + prefetch.LATER)
    assert found == {place, place + LINE}
    assert prefetches(pairs(4096)) > 0
    assert not requests(pairs(1024), "data"), "128 KiB are in the caches soon"


def test_kernels_without_products_do_not():
    x = te.placeholder((1024, 1024), name="x")
    func = te.create_prim_func([x, topi.nn.softmax(x)]).with_attr("global_symbol", "main")
    assert prefetches(tvm.IRModule({"main": func})) == 0


@pytest.mark.parametrize(("rows", "tile", "chunk"), [(64, 8, 128), (40, 8, 96), (198, 11, 64)])
def test_the_rows_of_a_chunk_ask_for_each_line_of_the_next_one(requests, rows, tile, chunk):
    ((lines, index),) = requests(matmul(rows, 768, 512, tile, chunk), "weight")
    tiles, size = rows // tile, chunk * 32
    for place in range(768 // chunk):
        asked = {
            eval(index, {"i_0": i, "k_0": place, "j_0": 2, "line": line})
            for i in range(tiles)
            for line in range(lines)
        }
        start = 2 * 768 * 32 + (place + 1) * size
        assert set(range(start, start + size, LINE)) <= asked
        assert len(asked) * LINE < size + tiles * LINE, "at most one line too many for each tile"


@pytest.mark.parametrize("panels", [2, 4])
def test_each_of_several_tiles_of_columns_asks_for_its_part(requests, panels):
    """The loads of a tile would wait behind many requests made at once."""
    rows, terms, columns, tile, chunk = 64, 768, 512, 8, 32
    mod = abreast(rows, terms, columns, tile, chunk, panels)
    ((lines, index),) = requests(mod, "weight")
    assert not re.search(r"\bk_1\b", index), "none for each term"
    data = requests(mod, "data")
    assert data
    assert not any(re.search(r"\bj_1\b", at) for _, at in data), "the panels read the same rows"
    tiles, size = rows // tile * panels, chunk * 32 * panels
    assert lines == -(-size // LINE // tiles)
    for place in (0, 3, terms // chunk - 2):
        asked = {
            eval(index, {"i_0": i, "j_1": panel, "k_0": place, "j_0": 1, "line": line})
            for i in range(rows // tile)
            for panel in range(panels)
            for line in range(lines)
        }
        start = terms * 32 * panels + (place + 1) * size
        assert set(range(start, start + size, LINE)) <= asked
        assert len(asked) * LINE < size + tiles * LINE, "at most one line too many for each tile"
    rng = np.random.RandomState(0)
    values = rng.standard_normal((rows, terms)).astype("float32")
    weight = rng.standard_normal((columns // 32 // panels, terms // chunk, panels, chunk, 32))
    weight = weight.astype("float32")
    output = tvm.runtime.tensor(np.zeros((rows, columns), "float32"))
    build_for_cpu(mod)["main"](tvm.runtime.tensor(values), tvm.runtime.tensor(weight), output)
    wanted = values @ weight.transpose(1, 3, 0, 2, 4).reshape(terms, columns)
    np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-4, atol=1e-3)


def test_two_blocks_of_rows_do_not_prefetch_however_many_tiles_of_columns_they_have(requests):
    assert not requests(abreast(16, 768, 512, 8, 64, 4), "weight")
