"""Workers on GPUs: recovery from fatal errors, several GPUs, and flushing the L2 cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm

import no_locks
from tvmtune import host
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.workers import Workers
from tvmtune_cuda import worker
from tvmtune_cuda.gpus import alike
from tvmtune_cuda.target import VISIBLE, describe_device

KERNELS = "cuda_backend.kernels"
CALL = f"{KERNELS}:call"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "message",
    [
        "CUDA: an illegal memory access was encountered",
        "CUDALaunch Error: CUDA_ERROR_ILLEGAL_ADDRESS\n grid=(1,1,1)",
        "CUDA: the launch timed out and was terminated",
    ],
)
def test_a_worker_is_replaced_after_a_fatal_cuda_error(message):
    with Workers(1) as workers:

        def call(text: str):
            (outcome,) = workers.map(CALL, [(text,)], deadline=60, stage="run")
            return outcome

        before = call("").value
        outcome = call(message)
        assert outcome.stage == "crash"
        assert "CUDA: " in outcome.message
        after = call("").value
        assert before != after


def test_a_worker_survives_a_recoverable_cuda_error():
    with Workers(1) as workers:

        def call(text: str):
            (outcome,) = workers.map(CALL, [(text,)], deadline=60, stage="run")
            return outcome

        before = call("").value
        outcome = call("CUDALaunch Error: CUDA_ERROR_INVALID_VALUE")
        assert outcome.stage == "run"
        assert "CUDA_ERROR_INVALID_VALUE" in outcome.message
        assert call("").value == before


@pytest.fixture
def machine(driver, nvcc, monkeypatch) -> Callable[[int], None]:
    """``machine(count)`` makes this a machine with that many GPUs."""

    def make(count: int) -> None:
        monkeypatch.delenv(VISIBLE, raising=False)
        for name, value in driver(count=count).items():
            monkeypatch.setenv(name, value)

    return make


def test_several_gpus_measure_in_parallel_on_request(machine, monkeypatch):
    machine(4)
    backend = host.backend("cuda")
    one, three = (describe_device(attrs, None) for attrs in ({}, {"gpus": 3}))
    assert one.identity() == three.identity()  # the same times
    assert backend.make_runner(one).slots == 1
    runner = backend.make_runner(three)
    assert (runner.slots, runner.options["gpus"]) == (3, ["0", "1", "2"])
    monkeypatch.setenv(VISIBLE, "7,GPU-c,2,0")
    assert describe_device({"gpus": 2}, None).params["gpus"] == ["7", "GPU-c"]


def test_only_identical_gpus_are_used_together():
    kinds = [("A", "sm_90"), ("B", "sm_90"), ("A", "sm_80"), ("A", "sm_90")]
    description = {"devices": [{"name": name, "arch": arch} for name, arch in kinds]}
    assert alike(description) == [0, 3]


def test_requesting_more_gpus_than_exist_is_an_error(machine):
    machine(2)
    with pytest.raises(UsageError, match=r"gpus=3: this machine has 2 \(NVIDIA Stand-in\)"):
        describe_device({"gpus": 3}, None)
    with pytest.raises(UsageError, match="gpus=2: only for GPUs of this machine"):
        describe_device({"gpus": 2, "arch": "sm_75"}, None)
    with pytest.raises(UsageError, match="gpus=many is not a number"):
        describe_device({"gpus": "many"}, None)


@pytest.mark.parametrize("crashed", [False, True])
def test_each_worker_gets_its_own_gpu(tmp_path: Path, crashed):
    options = {"gpus": ["0", "GPU-b"], "directory": str(tmp_path)}
    with Workers(2, init=f"{KERNELS}:take", options=options) as workers:
        if crashed:  # a GPU is free again when its process has ended
            workers.map("os:abort", [(), ()], deadline=60, stage="run")
        calls = [(str(tmp_path),)] * 2
        outcomes = workers.map(f"{KERNELS}:visible", calls, deadline=60, stage="run")
    assert all(outcome.ok for outcome in outcomes), outcomes
    assert len({pid for pid, _ in (outcome.value for outcome in outcomes)}) == 2
    assert {name for _, name in (outcome.value for outcome in outcomes)} == {"0", "GPU-b"}


def test_a_worker_without_a_free_gpu_fails(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(worker, "GPU_RELEASE_TIMEOUT", 0.0)
    monkeypatch.setenv(VISIBLE, "")
    worker.take(["3"], tmp_path)
    assert os.environ[VISIBLE] == "3"
    with pytest.raises(TvmtuneError, match="every GPU is in use"):
        worker.take(["3"], tmp_path)


def test_without_locks_no_gpu_is_said_to_be_in_use(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(VISIBLE, "")
    no_locks.patch(monkeypatch, errno.ENOLCK)
    with pytest.raises(TvmtuneError, match="cannot lock files.*Set TMPDIR to a local disk"):
        worker.take(["3"], tmp_path)


def test_the_l2_cache_is_flushed_on_request(machine):
    machine(1)
    backend = host.backend("cuda")
    plain, flushed = (describe_device(a, None) for a in ({}, {"flush-l2": 1}))
    assert plain.identity() != flushed.identity()  # their times cannot be compared
    assert "flush" not in backend.make_runner(plain).options
    for remote in (None, "a-key"):
        device = describe_device({"flush-l2": 1, "arch": "sm_90"}, remote)
        assert backend.make_runner(device).options["flush"] == worker.FLUSH
    with pytest.raises(UsageError, match="flush-l2=3: give 1"):
        describe_device({"flush-l2": 3}, None)


def test_flushing_copies_twice_the_size_of_the_cache(monkeypatch):
    """On this machine's CPU, whose cache size TVM does not report."""
    monkeypatch.setattr(worker, "LARGE", 1 << 20)
    monkeypatch.setattr(worker, "_scratch", None)
    tensor = tvm.runtime.tensor(np.zeros(4, "float32"))
    worker.flush(tensor, tensor)
    assert worker._scratch is not None
    left, right = worker._scratch
    left.copyfrom(np.full(2 << 20, 7, "uint8"))
    worker.flush(tensor)
    assert (right.numpy() == 7).all()
