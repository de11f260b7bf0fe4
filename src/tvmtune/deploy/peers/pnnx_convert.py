"""ONNX models in the terms of PyTorch and of ncnn, by pnnx, the converter of ncnn's authors.

It was chosen for PyTorch, too. onnx2torch has no form of operators as current exporters write them
(AveragePool of opset 19, ReduceMean of opset 18), and it imports torchvision, which often does not fit
the PyTorch that is installed. What pnnx makes of one network of each family of the zoo computes what
ONNX Runtime computes: within 3e-5 of max|ref| in PyTorch, and 7e-5 in ncnn, which uses Winograd more.

pnnx is a program, started as a process of its own: it may crash, and nothing of it stays behind. It
crashes where integers below 10, on which it runs the model once, index a table of fewer entries.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.deploy.peers.base import onnx_form
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from tvmtune.types import Network

PACKAGE = "pnnx"
REMEDY = f"pip install {PACKAGE}"
DEADLINE = 600.0
"""Seconds after which the converter is stopped; VGG-16's 550 MB take it half a minute."""

FILES = {
    "pnnxparam": "network.pnnx.param",
    "pnnxbin": "network.pnnx.bin",
    "pnnxpy": "network_pnnx.py",
    "pnnxonnx": "network.pnnx.onnx",
    "ncnnparam": "network.ncnn.param",
    "ncnnbin": "network.ncnn.bin",
    "ncnnpy": "network_ncnn.py",
}
"""What pnnx can write, by the names of its options."""


def installed() -> bool:
    """Whether there is a converter; :data:`REMEDY` is the command that installs it."""
    return importlib.util.find_spec(PACKAGE) is not None


def convert(network: Network, folder: Path, *wanted: str) -> list[Path]:
    """Write those of :data:`FILES` that are wanted to ``folder``, all floats in float32.

    ``folder`` also gets the model and what the converter simplifies it to, about twice the weights.
    Raises TvmtuneError if the network has no ONNX form, pnnx is missing, or it fails.
    """
    program = _program()
    model = folder / "network.onnx"
    model.write_bytes(onnx_form(network))
    found = [folder / FILES[name] for name in wanted]
    # Whole paths: the Python file that it writes names the weights by the one that is given here.
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
        raise TvmtuneError(f"pnnx cannot be started: {error}; {REMEDY} again") from error
    if done.returncode != 0 or not all(file.exists() for file in found):
        last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1].strip()
        raise TvmtuneError(f"pnnx cannot convert it (exit status {done.returncode}): {last[:200]}")
    return found


def _program() -> str:
    # The package is not imported: that would import PyTorch, which ncnn has no need of.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise TvmtuneError(f"the converter {PACKAGE} is not installed: {REMEDY}")
    name = f"{PACKAGE}.exe" if sys.platform == "win32" else PACKAGE
    return str(Path(next(iter(spec.submodule_search_locations)), name))
