"""Static libraries: what they contain, who reads them, and who refuses them.

``tests/runtime/test_docs.py`` links and runs them.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from pathlib import Path

import onnx
import pytest

from cli.commands import complaint
from libraries import host_device, lower
from models import tiny_cnn
from tvmtune import host, networks
from tvmtune.errors import TvmtuneError
from tvmtune.library import STATIC, elf, export, metadata, static_library
from tvmtune.machine import scratch
from tvmtune.types import Device


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same network as ``lib.o``, ``lib.a`` and ``lib.tar``."""
    path = tmp_path_factory.mktemp("static")
    onnx.save(tiny_cnn(), path / "tiny.onnx")
    write_all(path, host_device())
    return path


def write_all(path: Path, device: Device) -> None:
    """The network beside ``path``'s libraries, compiled once and written in each form."""
    network = networks.load(str(path / "tiny.onnx"))
    with scratch.folder(scratch.WORK) as objects:
        export.export_lib(lower(network, device), device, objects / "objects.tar")
        described = metadata.describe(network, device, layout="NCHW")
        for suffix in STATIC:
            static_library.write(objects / "objects.tar", described, path / f"lib{suffix}", device)


@pytest.fixture
def run(folder, monkeypatch, command_line):
    monkeypatch.chdir(folder)
    return command_line


@pytest.mark.sweep
@pytest.mark.parametrize("suffix", STATIC)
def test_inspect_reads_all_forms(run, suffix):
    code, out, err = run("inspect", f"lib{suffix}", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["network"]["name"] == "tiny"
    shown = run("inspect", f"lib{suffix}")[1]
    assert re.search(rf"^  machine +{elf.host_machine()}$", shown, re.MULTILINE)


@pytest.mark.parametrize("words", [["run"], ["bench"]])
def test_only_inspect_takes_static_libraries(run, words):
    for suffix in STATIC:
        code, _, err = run(*words, f"lib{suffix}")
        assert code == 2
        assert f"lib{suffix} is a static library: link it into a program" in complaint(err)


def test_each_function_is_registered_once(folder):
    symbols = elf.defined_symbols(folder / "lib.o")
    assert len(symbols) == len(set(symbols))
    assert {"__tvm_ffi_main", "__tvm_ffi__library_bin", static_library.METADATA} <= set(symbols)


def test_ar_reads_the_archive(folder):
    done = subprocess.run(["ar", "t", folder / "lib.a"], capture_output=True, text=True, check=True)
    with tarfile.open(folder / "lib.tar") as archive:
        assert done.stdout.split() == [*archive.getnames(), "register.o"]
    done = subprocess.run(
        ["nm", "-s", folder / "lib.a"], capture_output=True, text=True, check=True
    )
    assert "__tvm_ffi__library_bin in devc.o" in done.stdout


@pytest.mark.sweep
@pytest.mark.parametrize("suffix", STATIC)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.97])
def test_a_damaged_library_is_refused(folder, tmp_path, suffix, share):
    content = (folder / f"lib{suffix}").read_bytes()
    path = tmp_path / f"cut{suffix}"
    meaningful = content.rstrip(b"\0")  # tar files end with zeros that nobody reads
    path.write_bytes(content[: int(len(meaningful) * share)])
    with pytest.raises(TvmtuneError, match=f"cut{suffix} is (damaged|not a library)"):
        metadata.read_any(path)


def test_only_libraries_are_overwritten(run, folder, tmp_path):
    for name in ("notes.o", "notes.a", "notes.tar"):
        path = tmp_path / name
        path.write_text("not yours")
        code, _, err = run("compile", "tiny.onnx", "-o", str(path))
        assert code == 2
        assert "exists and is not a library" in complaint(err)
        assert path.read_text() == "not yours"
    code, _, err = run("compile", "tiny.onnx", "-o", "lib.dll")
    assert code == 2
    assert "libraries end in .so or .o or .a or .tar" in complaint(err)


def test_other_devices_have_none(run, folder):
    code, _, err = run("compile", "tiny.onnx", "--target", "vta", "-o", "vta.o")
    assert code == 2
    assert "static libraries hold kernels for CPUs only" in complaint(err)
    assert not (folder / "vta.o").exists()


@pytest.mark.slow
def test_for_another_machine(folder, tmp_path):
    (tmp_path / "tiny.onnx").write_bytes((folder / "tiny.onnx").read_bytes())
    write_all(tmp_path, host.backend("arm").make_target({"board": "rk3588"}, None))
    for suffix in STATIC:
        assert metadata.read_any(tmp_path / f"lib{suffix}")[1] == "aarch64"
