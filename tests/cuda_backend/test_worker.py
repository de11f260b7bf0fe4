"""A kernel after which CUDA refuses everything costs its own trial, and a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm

from tvmtune import host
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.workers import Workers
from tvmtune_cuda import worker
from tvmtune_cuda.target import describe_device

KERNELS = "cuda_backend.kernels"
CALL = f"{KERNELS}:call"


@pytest.mark.parametrize(
    "message",
    [
        "CUDA: an illegal memory access was encountered",
        "CUDALaunch Error: CUDA_ERROR_ILLEGAL_ADDRESS\n grid=(1,1,1)",
        "CUDA: the launch timed out and was terminated",
    ],
)
def test_a_process_that_cuda_has_given_up_is_replaced(message):
    with Workers(1) as workers:

        def call(said: str):
            (outcome,) = workers.map(CALL, [(said,)], deadline=60, stage="run")
            return outcome

        before = call("").value
        outcome = call(message)
        assert outcome.stage == "crash"
        assert "CUDA: " in outcome.message
        after = call("").value
        assert before != after


def test_an_error_that_passes_leaves_the_process_as_it_is():
    with Workers(1) as workers:

        def call(said: str):
            (outcome,) = workers.map(CALL, [(said,)], deadline=60, stage="run")
            return outcome

        before = call("").value
        outcome = call("CUDALaunch Error: CUDA_ERROR_INVALID_VALUE")
        assert outcome.stage == "run"
        assert "CUDA_ERROR_INVALID_VALUE" in outcome.message
        assert call("").value == before


def test_gpus_of_one_kind_measure_side_by_side(driver, nvcc, monkeypatch):
    for name, value in driver(count=4).items():
        monkeypatch.setenv(name, value)
    backend = host.backend("cuda")
    here = backend.make_runner(describe_device({}, None))
    assert (here.slots, here.options["gpus"]) == (4, [0, 1, 2, 3])
    elsewhere = backend.make_runner(describe_device({"arch": "sm_90"}, "a-key"))
    assert elsewhere.slots == 1


@pytest.mark.parametrize(("told", "seen"), [("", {"0", "2"}), ("GPU-a,GPU-b,7", {"GPU-a", "7"})])
def test_each_process_has_a_gpu_to_itself(tmp_path: Path, told, seen):
    assert gpus(tmp_path, told, lambda workers: None) == seen


def test_a_gpu_is_free_again_when_its_process_is_killed(tmp_path: Path):
    def kill(workers: Workers) -> None:
        workers.map("os:abort", [(), ()], deadline=60, stage="run")

    assert gpus(tmp_path, "", kill) == {"0", "2"}


def gpus(folder: Path, told: str, before: Callable[[Workers], None]) -> set[str]:
    """What the processes of a pool see that has GPUs 0 and 2; each its own."""
    options = {"gpus": [0, 2], "directory": str(folder), "told": told}
    with Workers(2, init=f"{KERNELS}:settle", options=options) as workers:
        before(workers)
        calls = [(n,) for n in range(8)]
        outcomes = workers.map(f"{KERNELS}:visible", calls, deadline=60, stage="run")
    assert all(outcome.ok for outcome in outcomes), outcomes
    found = {outcome.value for outcome in outcomes}
    assert len(found) == len({pid for pid, _ in found}) == 2
    return {visible for _, visible in found}


def test_when_all_gpus_are_taken_that_is_said(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(worker, "FREED", 0.0)
    monkeypatch.setenv(worker.VISIBLE, "")
    assert worker.settle([3], tmp_path) == 3
    with pytest.raises(TvmtuneError, match="every GPU is taken"):
        worker.settle([3], tmp_path)


def test_the_second_level_cache_is_emptied_where_that_is_asked_for(driver, nvcc, monkeypatch):
    for name, value in driver().items():
        monkeypatch.setenv(name, value)
    backend = host.backend("cuda")
    plain, flushed = (describe_device(a, None) for a in ({}, {"flush-l2": 1}))
    assert plain.identity() != flushed.identity()  # their times cannot be compared
    assert "flush" not in backend.make_runner(plain).options
    for remote in (None, "a-key"):
        device = describe_device({"flush-l2": 1, "arch": "sm_90"}, remote)
        assert backend.make_runner(device).options["flush"] == worker.FLUSH
    with pytest.raises(UsageError, match="flush-l2=3: give 1"):
        describe_device({"flush-l2": 3}, None)


def test_what_empties_the_cache_is_twice_as_large(monkeypatch):
    """By this machine's CPU, whose cache TVM does not tell."""
    monkeypatch.setattr(worker, "LARGE", 1 << 20)
    monkeypatch.setattr(worker, "_scratch", None)
    tensor = tvm.runtime.tensor(np.zeros(4, "float32"))
    worker.flush(tensor, tensor)
    assert worker._scratch is not None
    left, right = worker._scratch
    left.copyfrom(np.full(2 << 20, 7, "uint8"))
    worker.flush(tensor)
    assert (right.numpy() == 7).all()
