"""There is no GPU where these run: a driver stands in for NVIDIA's where one has to be asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tvmtune_cuda import toolkit


@pytest.fixture(scope="session")
def nvcc() -> toolkit.Compiler:
    found = toolkit.nvcc()
    if found is None:
        pytest.skip("nvcc is not installed: CUDA's toolkit, with a C++ compiler")
    return found


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``libcuda.so.1`` that answers as the driver's documentation says."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parent / "driver.c"
    output = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(output), str(source)], check=True)
    return folder


@pytest.fixture
def driver(stand_in: Path) -> Callable[..., dict[str, str]]:
    """Environment variables of a machine with such a driver: ``status`` of its start, its ``version``,
    how many GPUs there are (``count``), and their compute capability (``arch``)."""

    def environment(**told: int) -> dict[str, str]:
        known = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in told.items()}
        path = os.pathsep.join(filter(None, [str(stand_in), os.environ.get("LD_LIBRARY_PATH")]))
        return {"LD_LIBRARY_PATH": path, **known}

    return environment
