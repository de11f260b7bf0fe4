"""OpenCL runs in child processes, never in pytest's own, where it would stay loaded until exit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tvmtune_opencl
from tvmtune_opencl import compiler

TESTS = Path(__file__).parents[1]
LIMIT = 240.0
"""Seconds after which a process counts as hanging."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache directory that contains the compiled add-on."""
    if not any(shutil.which(name) for name in compiler.COMPILERS):
        pytest.skip("there is no C++ compiler")
    # Compiled once for all of pytest-xdist's workers, whose temporary folders have the same parent.
    own = tmp_path_factory.getbasetemp()
    compiled = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "opencl-add-on"
    compiled.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(compiled))
        tvmtune_opencl.build()
    return shutil.copytree(compiled, tmp_path_factory.mktemp("cache"), dirs_exist_ok=True)


@pytest.fixture(scope="session")
def pocl(cache: Path) -> Path:
    """``cache`` on machines with PoCL; skips the test elsewhere."""
    if not list(Path("/etc/OpenCL/vendors").glob("pocl*.icd")):
        pytest.skip("PoCL is not installed (Debian: pocl-opencl-icd ocl-icd-libopencl1)")
    return cache


@pytest.fixture
def run(pocl: Path) -> Callable[..., Any]:
    """Call a function of ``on_device.py`` in a new process, with environment variables.

    The process must end with status 0: a crash at its very end counts.
    """

    def call(function: str, *args: Any, **env: str) -> Any:
        done = start(pocl, function, *args, **env)
        output, errors = done.communicate(timeout=LIMIT)
        assert done.returncode == 0, errors
        return json.loads(output.splitlines()[-1])

    return call


def start(cache: Path, function: str, *args: Any, **env: str) -> subprocess.Popen[str]:
    code = (
        "import json, sys; from tvmtune import block_torch_import; block_torch_import.install()\n"
        "from opencl import on_device\n"
        f"print(json.dumps(on_device.{function}(*json.loads(sys.argv[1]))))"
    )
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    settings = {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(args)],
        env=os.environ | settings | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
