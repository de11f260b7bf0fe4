"""Code generation for AMD GPUs on machines without one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te

from cli.commands import complaint, tvmtune
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.spaces.gpu_spaces import GpuSpace
from tvmtune_rocm import doctor, quiet, toolchain
from tvmtune_rocm.target import describe_device

EM_AMDGPU = 224
FLAGS = {"gfx90a": 0x3F, "gfx1100": 0x41}
"""The lowest byte of the ELF header's flags, from LLVM's AMDGPU documentation."""


def programs(data: bytes) -> list[int]:
    """The lowest byte of the ELF flags of each GPU program in a file."""
    flags = []
    at = data.find(b"\x7fELF")
    while at >= 0:
        if int.from_bytes(data[at + 18 : at + 20], "little") == EM_AMDGPU:
            flags.append(data[at + 48])
        at = data.find(b"\x7fELF", at + 1)
    return flags


def kernel(function: Any, arch: str, tools: toolchain.Tools, path: Path) -> Path:
    """A library with one element-wise function."""
    x = te.placeholder((4096,), "float32", "x")
    y = te.compute((4096,), lambda i: function(x[i]), "y")
    mod = tvm.IRModule({"main": te.create_prim_func([x, y])})
    with quiet.warnings():
        device = describe_device({"arch": arch}, None)
        target = tvm.target.Target(device.target)
        tools.register()
        scheduled = GpuSpace(device.target).default(mod, target)
        tvm.compile(scheduled.mod, target=target).export_library(str(path))
    return path


@pytest.mark.parametrize("arch", FLAGS)
def test_a_kernel_is_compiled_for_the_architecture(arch, tmp_path):
    library = kernel(lambda x: x * 2 + 1, arch, toolchain.find(arch), tmp_path / "lib.so")
    assert programs(library.read_bytes()) == [FLAGS[arch]]


def test_a_missing_device_library_is_named_with_its_package(tmp_path):
    tools = toolchain.Tools(toolchain.find("gfx90a").linker)
    with pytest.raises(
        Exception, match="__ocml_atan_f32 of ROCm's device library.*rocm-device-libs"
    ):
        kernel(tvm.tirx.atan, "gfx90a", tools, tmp_path / "lib.so")


def test_rocms_device_library_is_linked_if_installed(tmp_path):
    tools = toolchain.find("gfx90a")
    if not tools.bitcode:
        pytest.skip("ROCm's device library is not installed (Debian: rocm-device-libs)")
    library = kernel(tvm.tirx.atan, "gfx90a", tools, tmp_path / "lib.so")
    assert programs(library.read_bytes()) == [FLAGS["gfx90a"]]


@pytest.mark.parametrize(
    "arch",
    [
        pytest.param("gfx90a", marks=pytest.mark.soak),
        pytest.param("gfx1100", marks=pytest.mark.slow),
    ],
)
def test_every_task_of_a_network_is_compiled(arch, tmp_path):
    words = ["resnet-18", "--target", "rocm", "--target-attr", f"arch={arch}"]
    done = tvmtune("compile", *words, "-o", "lib.so", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20 with the default schedule" in done.stdout
    assert "Warning" not in done.stderr
    assert set(programs((tmp_path / "lib.so").read_bytes())) == {FLAGS[arch]}
    done = tvmtune("bench", "lib.so", cwd=tmp_path)
    assert done.returncode == 1
    assert "this TVM has no ROCm runtime" in complaint(done.stderr)


@pytest.mark.slow
def test_tuning_without_the_gpu_fails_immediately(tmp_path):
    words = ["resnet-18", "--target", "rocm", "--target-attr", "arch=gfx90a"]
    done = tvmtune("tune", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "no AMD GPU of gfx90a in this machine to measure on" in complaint(done.stderr)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({}, "which AMD GPU.*arch=gfx90a.*--target opencl"),
        ({"arch": "gfx9a"}, "arch=gfx9a: LLVM does not compile for it. Did you mean gfx90a"),
        ({"arch": "sm_90"}, "arch=sm_90: LLVM does not compile for it"),
        ({"arch": "gfx90a", "max_threads_per_block": 512}, "it must be from 1 to 256"),
        ({"arch": "gfx90a", "threads": "x"}, "threads=x is not a number"),
        ({"arch": "gfx90a", "threads": 0}, "threads must be from 1 to"),
        ({"ark": "gfx90a"}, "'ark' is not known. Did you mean arch"),
    ],
)
def test_invalid_attributes_are_rejected(attrs, message):
    with quiet.warnings(), pytest.raises(UsageError, match=message):
        describe_device(attrs, None)


def fake_lld(folder: Path, version: int) -> Path:
    path = folder / "ld.lld"
    path.write_text(f"#!/bin/sh\necho 'LLD {version}.0.0 (compatible with GNU linkers)'\n")
    path.chmod(0o755)
    return path


def test_a_linker_that_is_too_old_is_skipped(tmp_path, monkeypatch):
    old = fake_lld(tmp_path, 14)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(TvmtuneError, match=r"need lld 19 or later \(.*14\): run pip install"):
        toolchain.find("gfx90a")
    new = fake_lld(tmp_path, 22)
    assert toolchain.find("gfx90a").linker == (str(new),)
    monkeypatch.setenv("TVMTUNE_ROCM_LLD", "/nonexistent/lld")
    with pytest.raises(TvmtuneError, match="TVMTUNE_ROCM_LLD names '/nonexistent/lld'"):
        toolchain.find("gfx90a")
    assert old == new


def test_the_device_library_is_selected_by_architecture(tmp_path, monkeypatch):
    folder = tmp_path / "amdgcn" / "bitcode"
    folder.mkdir(parents=True)
    names = ["ocml", "oclc_daz_opt_off", "oclc_finite_only_off", "oclc_unsafe_math_off"]
    names += ["oclc_correctly_rounded_sqrt_on", "oclc_wavefrontsize64_on", "oclc_isa_version_90a"]
    for name in names:
        (folder / f"{name}.bc").touch()
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    selected = toolchain.find("gfx90a").bitcode
    assert {Path(file).stem for file in selected} == set(names)
    assert toolchain.find("gfx1100").bitcode == ()


def test_only_the_expected_warnings_are_suppressed(capfd):
    with quiet.warnings():
        os.write(2, b"x.cc:96: Warning: Unable to detect ROCm version, assuming >= 3.5\n")
        os.write(2, b"something else\n")
        subprocess.run(["sh", "-c", "echo of a child >&2"], check=True)
    assert capfd.readouterr().err == "something else\nof a child\n"


def test_the_doctor_reports_the_linker(monkeypatch):
    assert "links; with" in doctor.check()
    monkeypatch.setenv(toolchain.VARIABLE, "no-such-linker")
    with pytest.raises(TvmtuneError, match="names 'no-such-linker', which cannot be run"):
        doctor.check()
