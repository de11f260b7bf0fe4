"""Vectors at the end of an axis are stored in parts, others whole."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tvmtune.operators import cpu_pipeline


def doubled(columns: int, rows: int = 7, fewer: int = 0) -> Any:
    """A kernel that doubles the first ``columns`` of the first ``rows`` of 7x48 values in vectors of 8;
    in each row ``fewer`` than in the one before."""
    vectors = -(-columns // 8)

    @T.prim_func(s_tir=True)
    def main(
        x: T.Buffer((7, 48), "float32"),
        y: T.Buffer((7, 48), "float32"),
    ) -> None:
        for i, j in T.grid(7, vectors):
            for k in T.vectorized(8):
                with T.sblock("stored"):
                    v0 = T.axis.spatial(7, i)
                    v1 = T.axis.spatial(48, j * 8 + k)
                    T.where(i < rows and i * fewer + (j * 8 + k) < columns)
                    y[v0, v1] = x[v0, v1] * T.float32(2)

    return tvm.IRModule({"main": main})


def lanes_of(mod: Any) -> list[int]:
    """Of the loops over vectors, in their order."""
    return [int(n) for n in re.findall(r"in T.vectorized\((?:T.int64\()?(\d+)", mod.script())]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("columns", "lanes"),
    [
        (16, [8]),
        (17, [8]),
        (18, [8, 2]),
        (21, [8, 4]),
        (38, [8, 4, 2]),
        (39, [8, 4, 2]),
        (3, [8, 2]),
    ],
)
def test_the_last_vector_is_stored_in_powers_of_two(columns, lanes):
    mod = cpu_pipeline.rewrite_loops(doubled(columns))
    assert lanes_of(mod) == lanes
    assert_stores(mod, columns)


@pytest.mark.parametrize(("columns", "rows"), [(18, 5), (39, 1), (24, 3)])
def test_rows_are_checked_as_before(columns, rows):
    assert_stores(cpu_pipeline.rewrite_loops(doubled(columns, rows=rows)), columns, rows=rows)


def test_vectors_stay_as_they_are_if_the_number_of_elements_left_varies():
    mod = cpu_pipeline.rewrite_loops(doubled(18, fewer=2))
    assert lanes_of(mod) == [8]
    assert_stores(mod, 18, fewer=2)


def test_loops_over_other_numbers_of_lanes_are_split_with_what_they_read():
    """The sums of 24 channels in two vectors."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((7, 32), "float32"), y: T.Buffer((7, 24), "float32")) -> None:
        sums = T.sblock_alloc_buffer((7, 32), "float32")
        other = T.sblock_alloc_buffer((7, 32), "float32")
        for i in range(7):
            for k in T.vectorized(32):
                with T.sblock("sums"):
                    v0, v1 = T.axis.remap("SS", [i, k])
                    sums[v0, v1] = x[v0, v1] + T.float32(1)
            for k in T.vectorized(32):
                with T.sblock("other"):
                    v0, v1 = T.axis.remap("SS", [i, k])
                    other[v0, v1] = x[v0, v1] + T.float32(2)
            for k in T.vectorized(24):
                with T.sblock("stored"):
                    v0, v1 = T.axis.remap("SS", [i, k])
                    y[v0, v1] = sums[v0, v1] * other[v0, 31 - v1]

    mod = cpu_pipeline.rewrite_loops(tvm.IRModule({"main": main}))
    assert lanes_of(mod) == [16, 16, 16, 16, 16, 8]
    x = np.random.default_rng(0).normal(size=(7, 32)).astype("float32")
    y = tvm.runtime.tensor(np.zeros((7, 24), "float32"))
    tvm.compile(mod, "llvm")["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), ((x + 1) * (x + 2)[:, ::-1])[:, :24], rtol=1e-6)


def test_kernels_without_such_checks_stay_as_they_are():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((7, 40), "float32"), y: T.Buffer((7, 40), "float32")) -> None:
        for i, j in T.grid(7, 5):
            for k in T.vectorized(8):
                with T.sblock("stored"):
                    v0, v1 = T.axis.spatial(7, i), T.axis.spatial(40, j * 8 + k)
                    y[v0, v1] = x[v0, v1] * T.float32(2)

    mod = tvm.IRModule({"main": main})
    assert cpu_pipeline.rewrite_loops(mod).same_as(mod)


def assert_stores(mod: Any, columns: int, rows: int = 7, fewer: int = 0) -> None:
    """What the kernel stores, and that it stores nothing else."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    built = tvm.compile(mod, target, tir_pipeline=cpu_pipeline.pipeline_for({"kind": "llvm"}))
    x = np.random.default_rng(0).standard_normal((7, 48), "float32")
    y = tvm.runtime.tensor(np.zeros((7, 48), "float32"))
    built["main"](tvm.runtime.tensor(x), y)
    expected = np.zeros((7, 48), "float32")
    for row in range(rows):
        stored = np.s_[row, : columns - row * fewer]
        expected[stored] = 2 * x[stored]
    np.testing.assert_array_equal(y.numpy(), expected)
