"""CUDA compilers: selection, versions and error messages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cuda_backend.libraries import EM_CUDA
from tvmtune.errors import TvmtuneError
from tvmtune_cuda import toolkit
from tvmtune_cuda.toolkit import NVRTC, Compiler

KERNEL = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }\n'


@pytest.fixture
def nvrtc() -> Compiler:
    if not importlib.util.find_spec("cuda"):
        pytest.skip("NVRTC is not installed (pip install 'tvmtune[cuda]')")
    return Compiler(NVRTC)


def machine(binary: bytes) -> int:
    assert binary.startswith(b"\x7fELF")
    return int.from_bytes(binary[18:20], "little")


@pytest.fixture(params=["nvcc", "nvrtc"])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    return request.getfixturevalue(request.param)


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_a_kernel_is_compiled_to_machine_code(compiler, arch):
    binary = compiler.compile(KERNEL, arch)
    assert machine(binary) == EM_CUDA
    assert b"twice" in binary
    toolkit.check_arch(compiler, arch)


def test_the_first_compiler_error_is_reported(compiler):
    with pytest.raises(TvmtuneError, match="(?i)^(nvcc|nvrtc): .*kernels.cu.*error.*wrong"):
        compiler.compile(KERNEL.replace("2.0f", "wrong"), "sm_90")


def test_the_version_and_the_architectures_are_detected(compiler):
    assert compiler.version() >= (13, 0)
    assert {"sm_80", "sm_90"} <= set(compiler.architectures())


def test_tvmtune_nvcc_selects_the_compiler(monkeypatch, nvcc):
    monkeypatch.setenv("TVMTUNE_NVCC", nvcc.command)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert toolkit.find() == nvcc
    monkeypatch.setenv("TVMTUNE_NVCC", "/nonexistent/nvcc")
    with pytest.raises(TvmtuneError, match="TVMTUNE_NVCC names '/nonexistent/nvcc', which cannot"):
        toolkit.find()


def test_nvcc_without_a_host_compiler_is_ignored(monkeypatch, nvcc, tmp_path):
    (tmp_path / "nvcc").symlink_to(nvcc.command)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolkit.nvcc() is None


def test_without_a_compiler_the_message_lists_the_remedies(monkeypatch):
    monkeypatch.setattr(toolkit, "nvcc", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        TvmtuneError, match="no CUDA compiler was found: .*nvcc.*TVMTUNE_NVCC.*NVRTC"
    ):
        toolkit.find()


def test_other_programs_are_not_accepted_as_nvcc(tmp_path: Path):
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\necho hello\n")
    fake.chmod(0o755)
    with pytest.raises(TvmtuneError, match="does not print its version: is it nvcc?"):
        Compiler(str(fake)).version()
    with pytest.raises(TvmtuneError, match="cannot be run"):
        Compiler(str(tmp_path / "gone")).version()
