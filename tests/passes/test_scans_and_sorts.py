"""The largest and smallest elements along an axis."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from tvmtune.passes import scans_and_sorts


def run(function, x: np.ndarray, count: int, axis: int) -> list[np.ndarray]:
    data = te.placeholder(x.shape, str(x.dtype))
    target = tvm.target.Target({"kind": "llvm", "num-cores": 3})
    with target:
        program = te.create_prim_func([data, *function(data, count, axis, "int64")])
    library = tvm.compile(tvm.IRModule({"main": program}), target)
    shape = [count if n == axis else extent for n, extent in enumerate(x.shape)]
    results = [tvm.runtime.empty(shape, kind) for kind in (str(x.dtype), "int64")]
    library["main"](tvm.runtime.tensor(x), *results)
    return [each.numpy() for each in results]


@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [((40, 512), 1, 20), ((3, 7), 1, 7), ((9, 4, 5), 0, 3), ((4, 30, 6), 1, 1), ((1, 64), 1, 64)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["float32", "int32"])
@pytest.mark.parametrize("name", ["largest", "smallest"])
def test_of_equal_elements_the_first_comes_first(shape, axis, count, kind, name):
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(kind)
    values, places = run(getattr(scans_and_sorts, name), x, count, axis)
    order = np.argsort(-x if name == "largest" else x, axis=axis, kind="stable")
    wanted = np.take(order, range(count), axis=axis)
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis))


def test_rising_elements_are_all_inserted():
    x = np.arange(3000, dtype="float32").reshape(1, -1)
    values, places = run(scans_and_sorts.largest, x, 5, 1)
    np.testing.assert_array_equal(values[0], [2999, 2998, 2997, 2996, 2995])
    np.testing.assert_array_equal(places[0], values[0])


def test_nan_is_larger_than_any_number():
    nan = np.nan
    x = np.array([[1, nan, 2, np.inf, nan, -1]], "float32")
    values, places = run(scans_and_sorts.largest, x, 4, 1)
    np.testing.assert_array_equal(values[0], [nan, nan, np.inf, 2])
    np.testing.assert_array_equal(places[0], [1, 4, 3, 2])
    values, places = run(scans_and_sorts.smallest, x, 5, 1)
    np.testing.assert_array_equal(values[0], [-1, 1, 2, np.inf, nan])
    np.testing.assert_array_equal(places[0], [5, 0, 2, 3, 1])
