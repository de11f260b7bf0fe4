"""The OpenCL add-on on an emulated 64-bit ARM board without an OpenCL driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from models import tiny_cnn
from opencl.conftest import LIMIT
from remote import emulated
from tvmtune import api, networks

CROSS = "aarch64-linux-gnu-g++"
PLUGIN = Path(__file__).parents[2] / "plugins" / "mali"

pytestmark = [
    pytest.mark.slow,
    emulated.needed,
    pytest.mark.skipif(
        shutil.which(CROSS) is None,
        reason=f"the emulated board has no compiler, and {CROSS} is not installed",
    ),
]

ON_BOARD = """
import json, sys, tvm, tvmtune_opencl
before = tvmtune_opencl.active()
tvmtune_opencl.load()
try:
    said = ""
    tvm.runtime.empty((4,), "float32", tvm.opencl(0))
except RuntimeError as error:
    said = str(error)
import tvmtune_mali
from tvmtune.errors import TvmtuneError
try:
    tvmtune_mali.serve_init({})
    served = ""
except TvmtuneError as error:
    served = str(error)
def all_of(module):
    return [module, *(each for part in module.imports for each in all_of(part))]
(kernels,) = [m for m in all_of(tvm.runtime.load_module(sys.argv[1])) if m.kind == "opencl"]
print(json.dumps({
    "before": before,
    "after": tvmtune_opencl.active(),
    "built": str(tvmtune_opencl.built()),
    "exist": tvm.opencl(0).exist,
    "said": said,
    "served": served,
    "kind": kernels.kind,
    "source": kernels.inspect_source(),
}))
"""


def test_a_board_builds_the_add_on_and_loads_a_network_compiled_for_it(tmp_path):
    onnx.save(tiny_cnn(), tmp_path / "model.onnx")
    network = networks.load(str(tmp_path / "model.onnx"))
    library = tmp_path / "lib.so"
    api.compile(api.plan(network, "mali", attrs={"board": "rk3399"}), library)
    env = os.environ | emulated.environment()
    env["PYTHONPATH"] += f"{os.pathsep}{PLUGIN}"
    # Emulated processes can start native ones: the cross compiler replaces the board's own.
    env |= {"XDG_CACHE_HOME": str(tmp_path), "CXX": CROSS}
    done = subprocess.run(
        [str(emulated.board()), "-c", ON_BOARD, str(library)],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["before"], report["after"], report["exist"]) == (False, True, False)
    assert "_aarch64-glibc-" in report["built"]
    assert report["said"].endswith("or name its library in TVMTUNE_OPENCL_LIBRARY.")
    assert "no OpenCL device: no driver is installed" in report["said"]
    # With the packages that docs/mali.md lists for boards.
    assert "no OpenCL device: no driver is installed" in report["served"]
    assert report["kind"] == "opencl"
    assert "__kernel void" in report["source"]
