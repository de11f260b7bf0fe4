"""Convolutions whose weights are packed for dot-product instructions."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from tvmtune.dot_instructions import BYTES, MOST_MERGED, merged_groups
from tvmtune.passes import quantized_kernels
from tvmtune.passes.packed_products import Window, blocked_weights, merged_weights


def by_groups(x: np.ndarray, w: np.ndarray, groups: int) -> np.ndarray:
    """A 3x3 convolution of (N, H, W, C) without padding, group by group."""
    ins, outs = w.shape[3], len(w) // groups
    patches = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    results = [
        np.einsum(
            "nyxcij,oijc->nyxo",
            patches[..., group * ins : (group + 1) * ins, :, :],
            w[group * outs : (group + 1) * outs],
        )
        for group in range(groups)
    ]
    return np.concatenate(results, axis=3)


@pytest.mark.sweep
@pytest.mark.parametrize("instruction", BYTES, ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("groups", "inputs", "outputs"),
    [(2, 32, 32), (2, 10, 10), (3, 5, 7), (8, 4, 4), (13, 8, 8), (16, 1, 2), (5, 16, 48)],
)
def test_groups_are_computed_together_until_they_fill_an_instruction(
    groups, inputs, outputs, instruction
):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 128, (1, 5, 6, groups * inputs)).astype(instruction.data)
    w = rng.integers(-128, 128, (groups * outputs, 3, 3, inputs)).astype("int8")
    merged = merged_groups(groups, outputs, inputs, instruction.lanes, instruction.terms)
    assert 1 <= merged <= merged_groups(groups, outputs, inputs)
    packed = blocked_weights(merged_weights(w, groups, merged), instruction)
    data = te.placeholder(x.shape, x.dtype.name, name="x")
    weights = te.placeholder(packed.shape, packed.dtype.name, name="w")
    sums = quantized_kernels.convolution(
        *(data, weights, Window((1, 1), (0, 0, 0, 0), (1, 1)), 0),
        *((1, 3, 4, len(w)), instruction, -(-groups // merged)),
    )
    mod = tvm.IRModule({"main": te.create_prim_func([data, weights, sums])})
    got = tvm.runtime.tensor(np.zeros([int(n) for n in sums.shape], "int32"))
    library = tvm.compile(mod, tvm.target.Target({"kind": "llvm"}))
    library["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(packed), got)
    wanted = by_groups(x.astype("int64"), w.astype("int64"), groups)
    np.testing.assert_array_equal(got.numpy()[..., : len(w)], wanted)


def test_groups_that_would_fill_no_instruction_are_not_computed_together():
    assert merged_groups(12, 3, 3) == 0
    assert merged_groups(12, 3, 3, lanes=8, terms=2) == 8
    assert merged_groups(12, 3, 3, lanes=4, terms=4) == 4
    assert merged_groups(16, 30, 30) == 0
    assert merged_groups(16, 24, 24) == 2
    assert merged_groups(2 * MOST_MERGED, 1, 1) == 0
    assert merged_groups(1, 3, 5) == 1
