"""Convert ONNX models for PyTorch and ncnn with pnnx, the converter of ncnn's authors.

It serves PyTorch too: onnx2torch lacks operators as current exporters write them (AveragePool of
opset 19, ReduceMean of opset 18), and it imports torchvision, which often does not match the installed
PyTorch. For one network of each family of the zoo, pnnx's output computes the same as ONNX Runtime:
within 3e-5 of max|ref| in PyTorch, and 7e-5 in ncnn, which uses Winograd more.

pnnx runs as a process, so a crash does no harm and nothing of it remains. It crashes if integers
below 10, on which it runs the model once, index a table with fewer entries.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.bench.peers.base import onnx_form
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from tvmtune.types import Network

PACKAGE = "pnnx"
REMEDY = "pip install 'tvmtune[torch]'"  # as doctor says; ncnn looks for the converter itself
DEADLINE = 600.0
"""Seconds after which the converter is stopped; VGG-16 (550 MB) takes half a minute."""

FILES = {
    "pnnxparam": "network.pnnx.param",
    "pnnxbin": "network.pnnx.bin",
    "pnnxpy": "network_pnnx.py",
    "pnnxonnx": "network.pnnx.onnx",
    "ncnnparam": "network.ncnn.param",
    "ncnnbin": "network.ncnn.bin",
    "ncnnpy": "network_ncnn.py",
}
"""The files that pnnx can write, by its options."""


def installed() -> bool:
    """Whether the converter is installed; :data:`REMEDY` installs it."""
    return importlib.util.find_spec(PACKAGE) is not None


def convert(network: Network, folder: Path, *wanted: str) -> list[Path]:
    """Write the ``wanted`` ones of :data:`FILES` to ``folder``, all floats in float32.

    ``folder`` also gets the model and its simplified form, about twice the weights.
    Raises TvmtuneError if the network has no ONNX form, pnnx is missing, or it fails.
    """
    program = _program()
    model = folder / "network.onnx"
    model.write_bytes(onnx_form(network))
    written = [folder / FILES[name] for name in wanted]
    # Absolute paths: the Python file that pnnx writes refers to the weights by this path.
    places = {name: folder / file if name in wanted else os.devnull for name, file in FILES.items()}
    words = [f"{name}={place}" for name, place in places.items()]
    try:
        done = subprocess.run(
            [program, str(model), "fp16=0", *words],
            cwd=folder,
            env=os.environ | {"TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DEADLINE,
        )
    except subprocess.TimeoutExpired:
        raise TvmtuneError(f"pnnx did not convert it within {DEADLINE:g} s") from None
    except OSError as error:
        raise TvmtuneError(
            f"pnnx cannot be started: {error}; install it again: "
            f"pip install --force-reinstall {PACKAGE}"
        ) from error
    if done.returncode != 0 or not all(file.exists() for file in written):
        last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip()
        raise TvmtuneError(f"pnnx cannot convert it (exit status {done.returncode}): {last[:200]}")
    return written


def _program() -> str:
    # Importing the package would import PyTorch, which ncnn does not need.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise TvmtuneError(f"the converter {PACKAGE} is not installed: {REMEDY}")
    name = f"{PACKAGE}.exe" if sys.platform == "win32" else PACKAGE
    return str(Path(next(iter(spec.submodule_search_locations)), name))
