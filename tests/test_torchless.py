"""PyTorch beside TVM: in our own processes only where somebody wants it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tvmtune.workers import Workers

pytest.importorskip("torch")


def run(code: str, *arguments: str) -> str:
    """What a fresh process says of its modules."""
    words = [sys.executable, *(arguments or ("-c", code))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


OURS = "import sys; from tvmtune import torchless; torchless.install(); "


def test_tvm_is_imported_alone():
    assert run(OURS + "import tvm; print('torch' in sys.modules)") == "False\n"


@pytest.mark.slow
def test_pytorch_can_be_imported_later_and_its_tensors_are_taken():
    later = (
        "import tvm, torch; given = torch.arange(6.0).reshape(2, 3); "
        "print(tvm.runtime.from_dlpack(given).numpy().tolist())"
    )
    assert run(OURS + later).startswith("[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]")


@pytest.mark.slow
def test_whoever_has_pytorch_already_keeps_it():
    both = "import torch, tvm, tvm_ffi._convert as c; print(c.torch is torch)"
    assert run(OURS + both) == "True\n"


@pytest.mark.slow
def test_another_thread_imports_pytorch_meanwhile():
    """While this one imports TVM, which takes longer."""
    beside = (
        "import threading, time\n"
        "def other():\n"
        "    while 'tvm_ffi' not in sys.modules: time.sleep(0.001)\n"
        "    import torch.version\n"
        "    print('there')\n"
        "thread = threading.Thread(target=other); thread.start(); import tvm; thread.join()"
    )
    assert run(OURS + "\n" + beside) == "there\n"


@pytest.mark.slow
def test_a_program_that_uses_tvmtune_decides_for_itself():
    assert run("import sys, tvmtune, tvm; print('torch' in sys.modules)") == "True\n"


def test_a_command_does_without():
    command = "tvmtune.cli tasks mobilenet --shape data:1x3x32x32"
    said = run("", "-X", "importtime", "-m", *command.split())
    imported = {line.rpartition("|")[2].strip() for line in said.splitlines()}
    assert "tvm" in imported
    assert "torch._C" not in imported


def test_a_worker_does_without():
    with Workers(1) as workers:
        (found,) = workers.map("measure.calls:imported", [("tvm",)], deadline=60, stage="build")
        assert found.value
        (found,) = workers.map("measure.calls:imported", [("torch",)], deadline=60, stage="build")
        assert not found.value
