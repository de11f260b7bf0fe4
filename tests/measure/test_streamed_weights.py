"""Kernels with large weights are called back to back, each time with another copy of them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tvmtune.machine import cpu_caches
from tvmtune.measure import local, streamed_weights
from tvmtune.types import TensorSpec, Timing

MB = 1 << 20


def spec(megabytes: float, dtype: str = "float32") -> TensorSpec:
    return TensorSpec("x", (int(megabytes * MB) // 4,), dtype)


@pytest.fixture
def cache(monkeypatch):
    """Sets the size of the last-level caches, in MB."""

    def set_to(size: int) -> None:
        monkeypatch.setattr(streamed_weights, "last_level_caches", lambda threads: size * MB)

    set_to(32)
    return set_to


@pytest.mark.parametrize(
    ("weights", "copies"),
    [([4], 0), ([4, 4], 16), ([38], 4), ([400], 1), ([4, 0.01], 0)],
)
def test_all_copies_together_are_four_times_as_large_as_the_caches(cache, weights, copies):
    args = [spec(20), *map(spec, weights), spec(20)]
    assert streamed_weights.copies(args, 2) == copies


@pytest.mark.parametrize(("weights", "copies"), [(100, 5), (300, 0), (600, 1)])
def test_caches_are_flushed_instead_if_copies_would_take_half_a_gigabyte(cache, weights, copies):
    cache(125)
    assert streamed_weights.copies([spec(1), spec(weights), spec(1)], 2) == copies


@pytest.mark.usefixtures("cache")
def test_activations_are_no_weights():
    assert streamed_weights.copies([spec(100), spec(100)], 2) == 0
    assert streamed_weights.copies([spec(100)], 2) == 0


@pytest.mark.parametrize(("threads", "size"), [(1, 32), (2, 64), (4, 64)])
def test_caches_count_that_threads_can_use(tmp_path, monkeypatch, threads, size):
    """Of four CPUs, two at a time share one of 32 MB."""
    for cpu in range(4):
        pair = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        for number, (kb, shared) in enumerate([(32, cpu), (1024, cpu), (32768, pair)]):
            folder = tmp_path / f"cpu{cpu}/cache/index{number}"
            folder.mkdir(parents=True)
            described = {
                "type": "Unified",
                "level": number + 1,
                "size": f"{kb}K",
                "coherency_line_size": 64,
                "shared_cpu_list": shared,
            }
            for name, value in described.items():
                (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(cpu_caches, "CPUS", tmp_path)
    monkeypatch.setattr(streamed_weights, "allowed_cpus", lambda: [0, 1, 2, 3])
    assert streamed_weights.last_level_caches.__wrapped__(threads) == size * MB


def test_without_a_description_of_caches_a_size_is_assumed(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_caches, "CPUS", tmp_path)
    assert streamed_weights.last_level_caches.__wrapped__(2) == streamed_weights.UNKNOWN_CACHE


def test_each_call_gets_the_next_copy_and_the_first_of_a_series_does_not_count():
    called: list[str] = []
    measure = streamed_weights.timer(called.append, lambda: [["a"], ["b"], ["c"]])
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
    for turn in turns:
        for each, one in zip(turn, turns[0], strict=True):
            assert np.array_equal(each.numpy(), one.numpy())
    assert [tuple(a.shape) for a in turns[2]] == [arg.shape for arg in args]
    again = arguments.in_turns(args, 2)
    assert [np.from_dlpack(turn[1]).ctypes.data for turn in again] == [row[1] for row in places[:2]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_a_kernel_is_timed_with_streamed_weights(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(local, "_arguments", None)
    monkeypatch.setattr(streamed_weights, "LARGE", 1)
    monkeypatch.setattr(streamed_weights, "last_level_caches", lambda threads: 1 << 12)
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
    times = local.run(path, args, Timing(repeat=5), {"flush": local.FLUSH})
    assert len(times) == 5
    assert all(0 < each < 1 for each in times)


@pytest.mark.parametrize("timing", [Timing(number=2), Timing(min_repeat_ms=1)])
def test_longer_repeats_are_timed_by_tvm(tmp_path, monkeypatch, timing):
    monkeypatch.setattr(local, "_arguments", None)
    monkeypatch.setattr(streamed_weights, "copies", lambda *_: pytest.fail("asked"))
    x = tvm.te.placeholder((8,), name="x")
    mod = tvm.IRModule({"main": tvm.te.create_prim_func([x, tvm.te.compute((8,), lambda i: x[i])])})
    path = str(tmp_path / "kernel.so")
    tvm.compile(mod, target="llvm").export_library(path)
    assert local.run(path, [spec(32 / MB)] * 2, timing, {"flush": local.FLUSH})
