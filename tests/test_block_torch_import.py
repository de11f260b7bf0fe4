"""tvmtune's own processes import TVM without PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tvmtune.workers import Workers

pytest.importorskip("torch")


def run(code: str, *arguments: str) -> str:
    """The output of a fresh Python process."""
    words = [sys.executable, *(arguments or ("-c", code))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


OURS = "import sys; from tvmtune import block_torch_import; block_torch_import.install(); "


@pytest.mark.slow
def test_tvm_is_imported_without_pytorch():
    assert run(OURS + "import tvm; print('torch' in sys.modules)") == "False\n"


@pytest.mark.slow
def test_the_garbage_collector_does_not_traverse_what_the_import_of_tvm_creates():
    told = "import gc, tvm; print(gc.get_freeze_count() > 100_000, gc.isenabled())"
    assert run(OURS + told) == "True True\n"
    assert run(OURS + "import gc; gc.disable(); " + told) == "False False\n"


@pytest.mark.slow
def test_pytorch_can_be_imported_later_and_tvm_accepts_its_tensors():
    later = (
        "import tvm, torch; given = torch.arange(6.0).reshape(2, 3); "
        "print(tvm.runtime.from_dlpack(given).numpy().tolist())"
    )
    assert run(OURS + later).startswith("[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]")


@pytest.mark.slow
def test_an_earlier_import_of_pytorch_is_kept():
    both = "import torch, tvm, tvm_ffi._convert as c; print(c.torch is torch)"
    assert run(OURS + both) == "True\n"


@pytest.mark.slow
def test_another_thread_can_import_pytorch_during_the_import_of_tvm():
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
def test_programs_that_use_tvmtune_as_a_library_are_unaffected():
    assert run("import sys, tvmtune, tvm; print('torch' in sys.modules)") == "True\n"


@pytest.mark.slow
def test_commands_do_not_import_pytorch():
    command = "tvmtune.cli tasks mobilenet --shape data:1x3x32x32"
    stderr = run("", "-X", "importtime", "-m", *command.split())
    imported = {line.rpartition("|")[2].strip() for line in stderr.splitlines()}
    assert "tvm" in imported
    assert "torch._C" not in imported


@pytest.mark.slow
def test_workers_do_not_import_pytorch():
    with Workers(1) as workers:
        (outcome,) = workers.map("measure.calls:imported", [("tvm",)], deadline=60, stage="build")
        assert outcome.value
        (outcome,) = workers.map("measure.calls:imported", [("torch",)], deadline=60, stage="build")
        assert not outcome.value
