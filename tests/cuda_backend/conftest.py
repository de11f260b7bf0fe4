"""Fixtures for machines without a GPU: nvcc, and a fake of NVIDIA's driver."""

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
    compiler = toolkit.nvcc()
    if compiler is None:
        pytest.skip("nvcc is not installed: CUDA's toolkit, with a C++ compiler")
    return compiler


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def driver(fake_driver: Path) -> Callable[..., dict[str, str]]:
    """Environment variables that load the fake driver: its initialization ``status``, its ``version``,
    the number of GPUs (``count``), and their compute capability (``arch``)."""

    def environment(**settings: int) -> dict[str, str]:
        variables = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
        path = os.pathsep.join(filter(None, [str(fake_driver), os.environ.get("LD_LIBRARY_PATH")]))
        return {"LD_LIBRARY_PATH": path, **variables}

    return environment
