"""A kernel after which CUDA refuses everything costs its own trial, and a process."""

from __future__ import annotations

import pytest

from tvmtune.workers import Workers

CALL = "cuda_backend.kernels:call"


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
