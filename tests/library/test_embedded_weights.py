"""tvmtune writes the weights of a library into its object file itself, in TVM's serialized form."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest

from models import tiny_cnn
from tvmtune import api
from tvmtune.errors import TvmtuneError
from tvmtune.library import embedded_weights, vm_program
from tvmtune.networks.inputs import random_inputs
from tvmtune.runtime.library import Library


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "tiny.onnx"
    onnx.save(tiny_cnn(classes=2000), path)  # 128 kB in the classifier
    return api.plan(api.load(str(path)))


def lowered(plan):
    return plan.backend.lower(plan.prepared, {}, plan.device)


@pytest.mark.slow
def test_only_large_constants_are_taken_out_and_each_once(plan):
    import tvm_ffi

    mod = lowered(plan)
    without, weights = embedded_weights.take_weights(mod)
    sizes = [int(np.prod(w.shape)) * 4 for w in weights]
    assert max(sizes) == 16 * 2000 * 4
    assert min(sizes) >= 1 << 14
    # less than KEPT: the module keeps its weights
    assert not tvm_ffi.structural_equal(without, mod)
    again, found = embedded_weights.take_weights(mod)
    assert tvm_ffi.structural_equal(without, again)
    assert [w.same_as(f) for w, f in zip(weights, found, strict=True)] == [True] * len(weights)


@pytest.mark.slow
def test_a_library_computes_with_the_written_weights(plan, tmp_path):
    api.compile(plan, tmp_path / "lib.so", check_seed=None)
    inputs = random_inputs(plan.network.inputs, 3)
    (got,) = Library.open(tmp_path / "lib.so").run(inputs)
    (want,) = plan.network.reference(inputs)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.slow
def test_plain_tvm_loads_it_without_tvmtune(plan, tmp_path):
    api.compile(plan, tmp_path / "lib.so", check_seed=None)
    code = (
        "import sys, numpy as np, tvm\n"
        "from tvm import relax\n"
        f"vm = relax.VirtualMachine(tvm.runtime.load_module({str(tmp_path / 'lib.so')!r}), tvm.cpu())\n"
        "y = vm['main'](tvm.runtime.tensor(np.ones((1, 3, 32, 32), 'float32'))).numpy()\n"
        "assert y.shape == (1, 2000) and np.isfinite(y).all()\n"
        # TVM itself loads the OpenCL runtime where it has been built
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "assert not [n for n in names - {'tvmtune_opencl'} if n.startswith('tvmtune')], names\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_unknown_program_form_is_refused_and_nothing_is_written(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(vm_program, "KIND", b"relax.AnotherExecutable")
    with pytest.raises(TvmtuneError, match="differently than tvmtune expects"):
        api.compile(plan, tmp_path / "lib.so", check_seed=None)
    assert not (tmp_path / "lib.so").exists()


@pytest.mark.slow
def test_an_unknown_tensor_form_is_refused(plan, tmp_path, monkeypatch):
    header = vm_program.tensor_header
    monkeypatch.setattr(vm_program, "tensor_header", lambda *a: header(*a) + b"\0")
    with pytest.raises(TvmtuneError, match="serializes tensors differently"):
        api.compile(plan, tmp_path / "lib.so", check_seed=None)
    assert not (tmp_path / "lib.so").exists()


@pytest.mark.slow
def test_one_bit_changed_by_the_linker_is_detected(plan, tmp_path, monkeypatch):
    script = tmp_path / "linker.py"
    script.write_text(
        "import shutil, subprocess, sys\n"
        "from pathlib import Path\n"
        "from tvmtune.library import vm_program as program\n"
        "subprocess.run([shutil.which('ld'), *sys.argv[1:]], check=True, close_fds=False)\n"
        "path = Path(sys.argv[sys.argv.index('-o') + 1])\n"
        "start, size = program.find(path)\n"
        "with path.open('r+b') as file:\n"
        "    file.seek(start + size // 2)\n"
        "    (value,) = file.read(1)\n"
        "    file.seek(start + size // 2)\n"
        "    file.write(bytes([value ^ 1]))\n"
    )
    monkeypatch.setenv("TVMTUNE_LINKER", f"{sys.executable} {script}")
    path = tmp_path / "lib.so"
    path.write_text("what was there before")
    with pytest.raises(TvmtuneError) as raised:
        api.compile(plan, path, check_seed=None)
    remedy = "name another linker in TVMTUNE_LINKER"
    assert str(raised.value) == f"cannot write {path}: the linker changed the weights: {remedy}"
    assert path.read_text() == "what was there before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lib.so", "linker.py"]


@pytest.mark.parametrize(
    ("mtriple", "can"),
    [
        ("", True),
        ("aarch64-linux-gnu", True),
        ("arm64-linux-android", True),
        ("x86_64-linux-gnu", True),
        ("armv7l-linux-gnueabihf", False),
        ("aarch64_be-linux-gnu", False),
        ("arm64-apple-darwin", False),
    ],
)
def test_only_64_bit_linux_is_supported(mtriple, can):
    assert embedded_weights.can_write_objects(mtriple) is can
