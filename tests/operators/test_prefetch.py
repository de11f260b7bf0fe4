"""Kernels ask for the chunk of weights after the one that they compute with, and only for that."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from kernels import this_machine
from tvmtune.operators import cpu_pipeline, prefetch

LINE = 16
"""float32 values in a cache line."""


def matmul(rows: int, terms: int, columns: int, tile: int, chunk: int) -> tvm.IRModule:
    """Products with weights that are packed in panels of 32 columns, ``chunk`` terms for all rows at a
    time, ``tile`` rows in registers."""
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
    schedule.reorder(panel, chunks, rows_of_tiles, term, row, lanes)
    schedule.parallel(panel)
    schedule.unroll(row)
    schedule.vectorize(lanes)
    schedule.decompose_reduction("output", chunks)
    return schedule.mod


def build(mod: tvm.IRModule) -> Any:
    cpu_pipeline.register()
    target = tvm.target.Target(this_machine().target)
    return tvm.compile(mod, target, tir_pipeline=cpu_pipeline.PIPELINE)


def prefetches(mod: tvm.IRModule) -> int:
    """How many instructions for it there are in the machine code."""
    return len(
        re.findall(r"^\s+(?:prefetch\w+|prfm)\s", build(mod).mod.inspect_source("asm"), re.M)
    )


def test_products_with_large_weights_prefetch_and_keep_their_results():
    mod = matmul(64, 768, 512, 8, 128)
    assert prefetches(mod) > 0
    rng = np.random.RandomState(0)
    data = rng.standard_normal((64, 768)).astype("float32")
    weight = rng.standard_normal((16, 768, 32)).astype("float32")
    output = tvm.runtime.tensor(np.zeros((64, 512), "float32"))
    build(mod)["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight), output)
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
def test_others_do_not(shape, reason):
    assert prefetches(matmul(*shape)) == 0, reason


def test_kernels_without_products_do_not():
    x = te.placeholder((1024, 1024), name="x")
    func = te.create_prim_func([x, topi.nn.softmax(x)]).with_attr("global_symbol", "main")
    assert prefetches(tvm.IRModule({"main": func})) == 0


@pytest.mark.parametrize(("rows", "tile", "chunk"), [(64, 8, 128), (40, 8, 96), (198, 11, 64)])
def test_the_rows_of_a_chunk_ask_for_each_line_of_the_next_one(monkeypatch, rows, tile, chunk):
    inserted = []
    insert = prefetch.insert

    def spy(func: Any) -> Any:
        inserted.append(insert(func))
        return inserted[-1]

    monkeypatch.setattr(prefetch, "insert", spy)
    build(matmul(rows, 768, 512, tile, chunk))
    (loop,) = re.findall(
        r"for line in range\((\d+)\):\s+.*prefetch.*address_of\(\w+\[(.+)\]\)",
        "\n".join(func.script() for func in inserted),
    )
    lines, index = int(loop[0]), loop[1]
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
