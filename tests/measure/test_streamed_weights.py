"""Kernels with large weights are called back to back, each time with another copy of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm

from libraries import host_device
from tvmtune.measure import local, specs, streamed_weights
from tvmtune.types import TensorSpec, Timing

MB = 1 << 20


def spec(megabytes: float, dtype: str = "float32") -> TensorSpec:
    return TensorSpec("x", (int(megabytes * MB) // 4,), dtype)


@pytest.mark.parametrize(
    ("weights", "copies"),
    [([4], 0), ([4, 4], 16), ([38], 4), ([400], 1), ([4, 0.01], 0)],
)
def test_all_copies_together_are_four_times_as_large_as_the_cache(weights, copies):
    args = [spec(20), *map(spec, weights), spec(20)]
    assert streamed_weights.copies(args, 32 * MB) == copies


def test_copies_stay_within_half_a_gigabyte_where_caches_are_huge():
    assert streamed_weights.copies([spec(1), spec(32), spec(1)], 1024 * MB) == 16


def test_activations_are_no_weights():
    assert streamed_weights.copies([spec(100), spec(100)], 32 * MB) == 0
    assert streamed_weights.copies([spec(100)], 32 * MB) == 0


def test_the_last_level_cache_is_the_largest_that_the_device_has():
    device = host_device()
    assert "cache" not in specs.runner(device).options
    caches = {"l1_bytes": 1 << 15, "l3_bytes": 1 << 25, "l2_bytes": 1 << 20, "num_cores": 1 << 30}
    assert specs.runner(replace(device, params=caches)).options["cache"] == 1 << 25


def test_each_call_gets_the_next_copy_and_the_first_of_a_series_does_not_count():
    called: list[str] = []
    measure = streamed_weights.timer(called.append, [["a"], ["b"], ["c"]])
    assert len(measure(3)) == 3
    assert len(measure(1)) == 1
    assert called == ["a", "b", "c", "a", "b", "c"]


def test_copies_have_weights_of_their_own_and_share_activations():
    arguments = local.Arguments(tvm.cpu(0))
    args = [TensorSpec("x", shape, "float32") for shape in ((1, 4), (4, 8), (8,), (1, 8))]
    turns = arguments.in_turns(args, 3)
    places = [[np.from_dlpack(each).ctypes.data for each in turn] for turn in turns]
    first, weight, bias, last = (set(column) for column in zip(*places, strict=True))
    assert [len(each) for each in (first, weight, bias, last)] == [1, 3, 3, 1]
    assert all(np.array_equal(turn[1].numpy(), turns[0][1].numpy()) for turn in turns)
    assert [tuple(a.shape) for a in turns[2]] == [arg.shape for arg in args]
    again = arguments.in_turns(args, 2)
    assert [np.from_dlpack(turn[1]).ctypes.data for turn in again] == [row[1] for row in places[:2]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_kernel_is_timed_with_streamed_weights(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(local, "_arguments", None)
    monkeypatch.setattr(streamed_weights, "LARGE", 1)
    shape = (64, 64)
    x, w = (tvm.te.placeholder(shape, dtype, name) for name in "xw")
    y = tvm.te.compute(shape, lambda i, j: x[i, j] + w[i, j])
    mod = tvm.IRModule({"main": tvm.te.create_prim_func([x, w, y])})
    path = str(tmp_path / "kernel.so")
    tvm.compile(mod, target="llvm").export_library(path)
    args = [TensorSpec(name, shape, dtype) for name in "xwy"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("TVM's timer knows one set of arguments")

    monkeypatch.setattr(tvm.runtime.Module, "time_evaluator", refuse)
    times = local.run(path, args, Timing(repeat=5), {"flush": local.FLUSH, "cache": 1 << 12})
    assert len(times) == 5
    assert all(0 < each < 1 for each in times)
