"""Writing a library: whole or not at all, with one message on failure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tvm

from disks import mounted
from libraries import host_device, lower
from tvmtune import networks
from tvmtune.atomic_write import replacing, write_text
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library.export import build, export_lib


@pytest.fixture(scope="module")
def device():
    return host_device(1)


@pytest.fixture(scope="module")
def lowered(tiny_library, device):
    return lower(networks.load(str(tiny_library.with_name("model.onnx"))), device)


def refusal(lowered, device, path: Path) -> str:
    with pytest.raises(TvmtuneError) as raised:
        export_lib(lowered, device, path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An existing library."""
    path = tmp_path / "lib.so"
    path.write_text("what was there before")
    return path


@pytest.fixture
def unharmed(old: Path):
    """Checks after the test that the old library is unchanged and alone."""
    yield old
    assert old.read_text() == "what was there before"
    assert [path.name for path in old.parent.iterdir()] == ["lib.so"]


def test_a_new_library_replaces_the_old_one(lowered, device, old):
    inode = old.stat().st_ino
    assert export_lib(lowered, device, old) == old
    assert old.read_bytes().startswith(b"\x7fELF")
    assert old.stat().st_ino != inode, "processes that have loaded the old one keep it"
    assert [path.name for path in old.parent.iterdir()] == ["lib.so"]


def test_a_missing_linker_is_reported(lowered, device, unharmed, monkeypatch):
    monkeypatch.delenv("TVMTUNE_LINKER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "linker" in refusal(lowered, device, unharmed)


def test_a_failing_linker_is_quoted(lowered, device, unharmed, monkeypatch):
    monkeypatch.setenv("TVMTUNE_LINKER", "sh -c 'echo first >&2; echo no way >&2; exit 3'")
    assert refusal(lowered, device, unharmed) == f"cannot write {unharmed}: no way"


def test_a_killed_linker_is_reported(lowered, device, unharmed, monkeypatch):
    monkeypatch.setenv("TVMTUNE_LINKER", "sh -c 'kill -9 $$'")
    assert "exit status -9" in refusal(lowered, device, unharmed)


@pytest.mark.skipif(shutil.which("ld") is None, reason="needs ld")
def test_a_disk_full_for_the_linker_is_reported(lowered, device, unharmed, monkeypatch):
    # SIGXFSZ is ignored, so that the linker gets an error instead of the signal.
    monkeypatch.setenv("TVMTUNE_LINKER", """sh -c 'trap "" XFSZ; ulimit -f 8; exec ld "$@"' ld""")
    assert f"cannot write {unharmed}" in refusal(lowered, device, unharmed)


def test_a_full_disk_is_reported(lowered, device, tmp_path):
    """LLVM would end the process on a full disk, so it writes to memory."""
    disk = tmp_path / "disk"
    with mounted(disk, "size=64k"):
        text = refusal(lowered, device, disk / "lib.so")
        assert list(disk.iterdir()) == []
    assert "No space left on device" in text


def test_unwritable_paths_are_reported(lowered, device, tmp_path, old):
    assert "there is no directory" in refusal(lowered, device, tmp_path / "none" / "lib.so")
    assert "Not a directory" in refusal(lowered, device, old / "lib.so")
    assert "cannot write /proc/lib.so" in refusal(lowered, device, Path("/proc/lib.so"))
    with pytest.raises(UsageError, match="is a directory"):
        export_lib(lowered, device, tmp_path)


def test_a_read_only_file_system_is_reported(lowered, device, tmp_path):
    disk = tmp_path / "disk"
    with mounted(disk, "ro"):
        assert "Read-only file system" in refusal(lowered, device, disk / "lib.so")


@pytest.mark.parametrize(
    "bug", [ImportError, MemoryError, AssertionError, TypeError, NotImplementedError]
)
def test_bugs_do_not_look_like_unwritable_files(lowered, device, unharmed, monkeypatch, bug):
    def broken(*_):
        raise bug("oops")

    monkeypatch.setattr("tvmtune.library.export._link", broken)
    with pytest.raises(bug, match="oops"):
        export_lib(lowered, device, unharmed)


def test_an_error_of_tvm_names_the_file(lowered, device, unharmed, monkeypatch):
    def broken(*_):
        raise tvm.error.InternalError("no object file")

    monkeypatch.setattr("tvmtune.library.export._link", broken)
    assert refusal(lowered, device, unharmed) == f"cannot write {unharmed}: no object file"


def test_an_operator_without_a_kernel_is_named(tiny_library, device):
    network = networks.load(str(tiny_library.with_name("model.onnx")))
    with pytest.raises(TvmtuneError, match=r"no kernel for .*relax\.nn\.conv2d"):
        build(network.to_relax(), device)


def test_the_instructions_are_those_of_tvms_default_pipeline(lowered, device):
    import tvm

    usual = tvm.compile(lowered, tvm.target.Target(device.target))
    assert build(lowered, device).as_text() == usual.as_text()


def test_a_file_is_replaced_when_it_is_complete(old):
    with replacing(old) as temporary:
        temporary.write_text("new")
        assert old.read_text() == "what was there before"
    assert old.read_text() == "new"


def test_a_failed_write_leaves_the_old_file(unharmed):
    with pytest.raises(ZeroDivisionError), replacing(unharmed) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError


def test_text_is_written_or_an_error_raised(tmp_path):
    write_text(tmp_path / "a.json", "{}")
    assert (tmp_path / "a.json").read_text() == "{}"
    with pytest.raises(TvmtuneError, match="cannot write"):
        write_text(tmp_path / "none" / "a.json", "{}")
