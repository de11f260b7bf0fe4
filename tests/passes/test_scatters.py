"""Scatters on CPUs: each reduction, in one thread and in several, and indices at the limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from tvmtune.passes import scatters

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
RNG = np.random.default_rng(0)


def run(function: Any, arrays: list[np.ndarray], *options: Any, threads: int = 3) -> np.ndarray:
    target = tvm.target.Target({"kind": "llvm", "num-cores": threads})
    tensors = [te.placeholder(array.shape, str(array.dtype)) for array in arrays]
    with target:
        program = te.create_prim_func([*tensors, function(*tensors, *options)])
    library = tvm.compile(tvm.IRModule({"main": program}), target)
    result = tvm.runtime.empty(arrays[0].shape, str(arrays[0].dtype))
    library["main"](*map(tvm.runtime.tensor, arrays), result)
    return result.numpy()


def by_position(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str
) -> np.ndarray:
    result = data.copy()
    for at in np.ndindex(*indices.shape[:-1]):
        place = tuple(indices[at])
        result[place] = REDUCTIONS[reduction](result[place], updates[at])
    return result


def by_axis(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, reduction: str
) -> np.ndarray:
    result = data.copy()
    for at in np.ndindex(*indices.shape):
        place = (*at[:axis], indices[at], *at[axis + 1 :])
        result[place] = REDUCTIONS[reduction](result[place], updates[at])
    return result


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


@pytest.mark.sweep
@pytest.mark.parametrize("reduction", list(REDUCTIONS)[::-1])
@pytest.mark.parametrize(
    ("shape", "depth", "entries"),
    [((200, 64), 1, (800,)), ((4, 5, 6), 2, (3, 7)), ((3, 4), 2, (9,)), ((5000,), 1, (20000,))],
    ids=str,
)
def test_positions_that_occur_several_times_are_applied_in_their_order(
    shape, depth, entries, reduction
):
    data, updates = floats(*shape), floats(*entries, *shape[depth:])
    indices = np.stack([RNG.integers(-n, n, entries) for n in shape[:depth]], axis=-1)
    found = run(scatters.scatter_nd, [data, indices, updates], reduction)
    np.testing.assert_allclose(found, by_position(data, indices, updates, reduction), rtol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "axis", "entries"),
    [((4, 5, 6), 1, (2, 9, 3)), ((4, 5, 6), 0, (7, 5, 6)), ((90, 300), 1, (90, 400))],
    ids=str,
)
def test_indices_along_an_axis_may_be_fewer_or_more_than_the_data(shape, axis, entries, reduction):
    data, updates = floats(*shape), floats(*entries)
    indices = RNG.integers(-shape[axis], shape[axis], entries).astype("int32")
    found = run(scatters.scatter_elements, [data, indices, updates], axis, reduction)
    wanted = by_axis(data, indices, updates, axis, reduction)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_index_out_of_range_changes_nothing(threads):
    data, updates = np.zeros((50, 512), "float32"), np.ones((3, 512), "float32")
    indices = np.array([[50], [-51], [1 << 40]])
    found = run(scatters.scatter_nd, [data, indices, updates], "add", threads=threads)
    assert not found.any()


@pytest.mark.slow
def test_an_index_out_of_range_of_a_later_axis_changes_no_other_row():
    data = np.zeros((4, 3), "float32")
    places = np.array([[0, 3], [1, -4], [0, 1]])
    found = run(scatters.scatter_nd, [data, places, np.ones(3, "float32")], "add")
    np.testing.assert_array_equal(np.argwhere(found), [[0, 1]])
    columns = np.array([[3, -4, 2]])
    updates = np.ones((1, 3), "float32")
    found = run(scatters.scatter_elements, [data, columns, updates], 1, "add")
    np.testing.assert_array_equal(np.argwhere(found), [[0, 2]])
