"""Run workers: the arguments of candidates, and the number of runs."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from tvmtune.measure import check_data, comparison, local
from tvmtune.types import TensorSpec, Timing

TIMING = Timing(repeat=10)


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec("x", shape, dtype)


def address(array: tvm.runtime.Tensor) -> int:
    return np.from_dlpack(array).ctypes.data


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(local, "_arguments", None)


def test_candidates_with_other_weight_layouts_share_memory():
    arguments = local.Arguments(tvm.cpu(0))
    plain = arguments.of([spec(4, 8), spec(8, 16), spec(4, 16)])
    packed = arguments.of([spec(4, 8), spec(2, 8, 8), spec(4, 16)])
    assert [tuple(a.shape) for a in packed] == [(4, 8), (2, 8, 8), (4, 16)]
    assert [address(a) for a in packed] == [address(a) for a in plain]
    assert len({address(a) for a in plain}) == 3


def test_another_workload_gets_its_own_arguments():
    arguments = local.Arguments(tvm.cpu(0))
    arguments.of([spec(4), spec(4)])
    second = arguments.of([spec(4), spec(4, dtype="int32"), spec()])
    assert [str(a.dtype) for a in second] == ["float32", "int32", "float32"]
    assert tuple(second[2].shape) == ()
    assert set(second[1].numpy()) <= {0, 1}


class Scripted:
    """A kernel whose repeats take the given seconds."""

    def __init__(self, seconds: list[float]) -> None:
        self.left = list(seconds)
        self.first_runs = 0

    def __getitem__(self, name: str):
        def call(*args: object) -> None:
            self.first_runs += 1

        return call

    def time_evaluator(self, name: str, device: object, *, repeat: int, **_: object):
        def evaluate(*args: object) -> SimpleNamespace:
            taken, self.left = self.left[:repeat], self.left[repeat:]
            return SimpleNamespace(results=taken)

        return evaluate


def run(monkeypatch, seconds: list[float], best: float | None = None) -> list[float]:
    kernel = Scripted(seconds)
    monkeypatch.setattr(tvm.runtime, "load_module", lambda path: kernel)
    return local.run("kernel.so", [spec(4)], TIMING, {"best": best})


def test_a_fast_kernel_gets_all_repeats(monkeypatch, fresh):
    assert run(monkeypatch, [1e-3] * 20) == [1e-3] * 10


def test_a_slow_kernel_stops_once_its_times_agree(monkeypatch, fresh):
    assert run(monkeypatch, [0.1, 0.1005] + [0.1] * 18) == [0.1, 0.1005, 0.1, 0.1, 0.1]


def test_a_slow_kernel_with_noisy_times_gets_all_repeats(monkeypatch, fresh):
    seconds = [0.1, 0.12, 0.14, 0.11, 0.13] * 2
    assert run(monkeypatch, seconds + [0.1] * 10) == seconds


def test_one_disturbed_run_does_not_drop_a_candidate(monkeypatch, fresh):
    seconds = [5e-3, *[1e-3] * 9]
    assert run(monkeypatch, seconds, best=1e-3) == seconds


def test_a_slower_candidate_gets_two_repeats(monkeypatch, fresh):
    assert run(monkeypatch, [1.6e-3] * 20, best=1e-3) == [1.6e-3] * 2


def test_a_truncated_reference_file_is_never_used(tmp_path, monkeypatch):
    """As a full disk leaves it: the check fails, and the next one does not find what it wrote."""
    reference = tmp_path / "reference.so"
    args = [TensorSpec("x", (4,), "float32"), TensorSpec("y", (4,), "float32")]

    def after(artifact: str, values: Any, options: Any) -> Any:
        return [values[0], np.full(4, 2.0 if "wrong" in artifact else 1.0, "float32")]

    def fails(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local, "_after", after)
    with monkeypatch.context() as full:
        full.setattr(np, "savez", fails)
        with pytest.raises(OSError, match="No space"):
            local.check("right.so", str(reference), args, {})
    assert list(tmp_path.iterdir()) == []
    assert local.check("right.so", str(reference), args, {}) == 0.0
    for which in check_data.SETS:
        with np.load(tmp_path / f"reference-{which}.npz") as stored:
            kept = set(stored) - {comparison.LEVEL}
            assert kept == {"1"}, "inputs are not kept: they may be half a gigabyte"
    assert local.check("wrong.so", str(reference), args, {}) == pytest.approx(1.0)


def test_a_kernel_that_writes_into_its_inputs_is_wrong(tmp_path, monkeypatch):
    args = [TensorSpec("x", (4,), "float32"), TensorSpec("y", (4,), "float32")]

    def after(artifact: str, values: Any, options: Any) -> Any:
        spoilt = values[0] * 2 if "spoils" in artifact else values[0]
        return [spoilt, np.ones(4, "float32")]

    monkeypatch.setattr(local, "_after", after)
    assert local.check("right.so", str(tmp_path / "r.so"), args, {}) == 0.0
    assert local.check("spoils.so", str(tmp_path / "r.so"), args, {}) > 0.5


@pytest.mark.parametrize(("number", "flushed"), [(1, 4), (2, 0)])
def test_caches_are_flushed_before_each_single_call_repeat(tmp_path, fresh, number, flushed):
    a = tvm.te.placeholder((8,), name="a")
    mod = tvm.IRModule({"main": tvm.te.create_prim_func([a, tvm.te.compute((8,), lambda i: a[i])])})
    library = tvm.compile(mod, target="llvm")
    library.export_library(str(tmp_path / "kernel.so"))
    seen: list[int] = []
    tvm_ffi.register_global_func("tests.flush", lambda *args: seen.append(len(args)), override=True)
    args = [spec(8), spec(8)]
    timing = Timing(repeat=4, number=number)
    options = {"flush": "tests.flush", "threads": 1}
    assert len(local.run(str(tmp_path / "kernel.so"), args, timing, options)) == 4
    assert seen == [2] * flushed
