"""Writing a library: whole or not at all, and one message where it cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deploy.building import host_device, lower
from disks import mounted
from tvmtune import networks
from tvmtune.deploy.atomic import replacing, write_text
from tvmtune.deploy.export import build, export_lib
from tvmtune.errors import TvmtuneError, UsageError


@pytest.fixture(scope="module")
def device():
    return host_device(1)


@pytest.fixture(scope="module")
def lowered(made, device):
    return lower(networks.load(str(made.with_name("model.onnx"))), device)


def refusal(lowered, device, path: Path) -> str:
    with pytest.raises(TvmtuneError) as raised:
        export_lib(lowered, device, path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A library that is already there."""
    path = tmp_path / "lib.so"
    path.write_text("what was there before")
    return path


@pytest.fixture
def unharmed(old: Path):
    """After the test, what was there is there, and nothing else."""
    yield old
    assert old.read_text() == "what was there before"
    assert [path.name for path in old.parent.iterdir()] == ["lib.so"]


def test_a_library_takes_the_old_ones_place(lowered, device, old):
    inode = old.stat().st_ino
    assert export_lib(lowered, device, old) == old
    assert old.read_bytes().startswith(b"\x7fELF")
    assert old.stat().st_ino != inode, "who has the old one loaded keeps it"
    assert [path.name for path in old.parent.iterdir()] == ["lib.so"]


def test_no_linker(lowered, device, unharmed, monkeypatch):
    monkeypatch.delenv("TVMTUNE_LINKER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "linker" in refusal(lowered, device, unharmed)


def test_a_linker_that_fails(lowered, device, unharmed, monkeypatch):
    monkeypatch.setenv("TVMTUNE_LINKER", "sh -c 'echo first >&2; echo no way >&2; exit 3'")
    assert refusal(lowered, device, unharmed) == f"cannot write {unharmed}: no way"


def test_a_linker_that_is_killed(lowered, device, unharmed, monkeypatch):
    monkeypatch.setenv("TVMTUNE_LINKER", "sh -c 'kill -9 $$'")
    assert "exit status -9" in refusal(lowered, device, unharmed)


@pytest.mark.skipif(shutil.which("ld") is None, reason="needs ld")
def test_a_disk_that_is_full_for_the_linker(lowered, device, unharmed, monkeypatch):
    # SIGXFSZ ignored, as by a program that wants an error in place of the signal.
    monkeypatch.setenv("TVMTUNE_LINKER", """sh -c 'trap "" XFSZ; ulimit -f 8; exec ld "$@"' ld""")
    assert f"cannot write {unharmed}" in refusal(lowered, device, unharmed)


def test_a_disk_that_is_full(lowered, device, tmp_path):
    """LLVM would end the process on a full disk; it never writes to one."""
    disk = tmp_path / "disk"
    with mounted(disk, "size=64k"):
        text = refusal(lowered, device, disk / "lib.so")
        assert list(disk.iterdir()) == []
    assert "No space left on device" in text


def test_places_that_cannot_be_written_to(lowered, device, tmp_path, old):
    assert "there is no directory" in refusal(lowered, device, tmp_path / "none" / "lib.so")
    assert "Not a directory" in refusal(lowered, device, old / "lib.so")
    assert "cannot write /proc/lib.so" in refusal(lowered, device, Path("/proc/lib.so"))
    with pytest.raises(UsageError, match="is a directory"):
        export_lib(lowered, device, tmp_path)


def test_a_read_only_file_system(lowered, device, tmp_path):
    disk = tmp_path / "disk"
    with mounted(disk, "ro"):
        assert "Read-only file system" in refusal(lowered, device, disk / "lib.so")


def test_an_operator_without_a_kernel_is_named(made, device):
    network = networks.load(str(made.with_name("model.onnx")))
    with pytest.raises(TvmtuneError, match=r"no kernel for .*relax\.nn\.conv2d"):
        build(network.to_relax(), device)


def test_it_has_the_instructions_of_tvms_own_pipeline(lowered, device):
    import tvm

    usual = tvm.compile(lowered, tvm.target.Target(device.target))
    assert build(lowered, device).as_text() == usual.as_text()


def test_a_result_appears_when_it_is_complete(old):
    with replacing(old) as temporary:
        temporary.write_text("new")
        assert old.read_text() == "what was there before"
    assert old.read_text() == "new"


def test_a_result_that_fails_leaves_what_was_there(unharmed):
    with pytest.raises(ZeroDivisionError), replacing(unharmed) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError


def test_text_is_written_whole_or_refused(tmp_path):
    write_text(tmp_path / "a.json", "{}")
    assert (tmp_path / "a.json").read_text() == "{}"
    with pytest.raises(TvmtuneError, match="cannot write"):
        write_text(tmp_path / "none" / "a.json", "{}")
