"""Writing a library: whole or not at all, with one message on failure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_failing_linker_is_quoted(lowered, device, unharmed, monkeypatch):
    monkeypatch.setenv("TVMTUNE_LINKER", "sh -c 'echo first >&2; echo no way >&2; exit 3'")
    assert refusal(lowered, device, unharmed) == f"cannot write {unharmed}: no way"


@pytest.mark.slow
def test_a_killed_linker_is_reported(lowered, device, unharmed, monkeypatch):
    monkeypatch.setenv("TVMTUNE_LINKER", "sh -c 'kill -9 $$'")
    assert "exit status -9" in refusal(lowered, device, unharmed)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ld") is None, reason="needs ld")
def test_a_disk_full_for_the_linker_is_reported(lowered, device, unharmed, monkeypatch):
    # SIGXFSZ is ignored, so that the linker gets an error instead of the signal.
    monkeypatch.setenv("TVMTUNE_LINKER", """sh -c 'trap "" XFSZ; ulimit -f 8; exec ld "$@"' ld""")
    assert f"cannot write {unharmed}" in refusal(lowered, device, unharmed)


@pytest.mark.slow
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


@pytest.mark.sweep
@pytest.mark.parametrize(
    "bug", [ImportError, MemoryError, AssertionError, TypeError, NotImplementedError]
)
def test_bugs_do_not_look_like_unwritable_files(lowered, device, unharmed, monkeypatch, bug):
    def broken(*_):
        raise bug("oops")

    monkeypatch.setattr("tvmtune.library.linking.link", broken)
    with pytest.raises(bug, match="oops"):
        export_lib(lowered, device, unharmed)


@pytest.mark.slow
def test_an_error_of_tvm_names_the_file(lowered, device, unharmed, monkeypatch):
    def broken(*_):
        raise tvm.error.InternalError("no object file")

    monkeypatch.setattr("tvmtune.library.linking.link", broken)
    assert refusal(lowered, device, unharmed) == f"cannot write {unharmed}: no object file"


def test_an_operator_without_a_kernel_is_named(tiny_library, device):
    network = networks.load(str(tiny_library.with_name("model.onnx")))
    with pytest.raises(TvmtuneError, match=r"no kernel for .*relax\.nn\.conv2d"):
        build(network.to_relax(), device)


@pytest.mark.slow
def test_the_instructions_are_those_of_tvms_default_pipeline(lowered, device):
    import tvm

    usual = tvm.compile(lowered, tvm.target.Target(device.target))
    assert build(lowered, device).as_text() == usual.as_text()


@pytest.mark.slow
def test_the_library_does_not_depend_on_the_number_of_cores(lowered, device, tmp_path, monkeypatch):
    made = []
    for cores in (1, 3):
        monkeypatch.setattr("tvmtune.machine.parallel.cores", lambda cores=cores: cores)
        made.append(export_lib(lowered, device, tmp_path / f"{cores}.so").read_bytes())
    assert made[0] == made[1]


@pytest.mark.slow
def test_several_kernels_may_share_an_object_file(lowered, device, tmp_path, monkeypatch):
    usual = export_lib(lowered, device, tmp_path / "usual.so")
    monkeypatch.setattr("tvmtune.library.export.PARTS", 2)
    shared = export_lib(lowered, device, tmp_path / "shared.so")
    kernels = {str(v.name_hint) for v, f in lowered.functions_items() if isinstance(f, PrimFunc)}
    assert len(kernels) > 2
    for path in (usual, shared):
        library = tvm.runtime.load_module(str(path))
        assert all(library.implements_function(name, query_imports=True) for name in kernels)


@pytest.mark.slow
def test_a_kernel_that_calls_another_is_compiled_with_it(device, tmp_path):
    @I.ir_module
    class Calls:
        @T.prim_func(private=True, s_tir=True)
        def square(x: T.float32) -> T.float32:
            return x * x

        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
            for i in range(4):
                b[i] = Calls.square(a[i])

        @R.function
        def main(a: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            return R.call_tir(Calls.kernel, (a,), out_ty=R.Tensor((4,), "float32"))

    library = tvm.runtime.load_module(str(export_lib(Calls, device, tmp_path / "calls.so")))
    for name in ("kernel", "square"):
        assert library.implements_function(name, query_imports=True)


def test_a_kernel_that_cannot_be_compiled_is_one_error(lowered, device, unharmed):
    module = tvm.IRModule(dict(lowered.functions_items()), attrs=lowered.attrs)
    variable = next(v for v, f in module.functions_items() if isinstance(f, PrimFunc))

    @T.prim_func(s_tir=True)
    def broken(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in T.thread_binding(4, thread="threadIdx.x"):
            b[i] = a[i]

    module.update_func(variable, broken.with_attr("global_symbol", str(variable.name_hint)))
    assert "the network cannot be compiled" in refusal(module, device, unharmed)


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
