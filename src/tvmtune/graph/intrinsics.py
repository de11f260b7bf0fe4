"""Load only the tensor intrinsics that are used.

``import tvm.s_tir.tensor_intrin``, which every TuneContext does, parses the intrinsics of all
vendors: 8 to 14 s on two cores. A package object put in its place beforehand makes that import free;
the wanted vendor's module is then loaded from the real package folder (x86: 0.15 s).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import linecache
import sys
import types
from collections.abc import Sequence
from typing import Any

PACKAGE = "tvm.s_tir.tensor_intrin"
VENDORS = {
    "llvm": ("x86",),
    "aarch64": ("arm_cpu",),
    "cuda": (),
    "rocm": (),
    "opencl": (),
}
TENSOR_CORES = "cuda"
"""The module for NVIDIA's tensor cores, which no target needs but where it is asked for."""
_TENSOR_CORES_PREFIX = "wmma_"
_USUAL_STACK = inspect.stack


def load_for(kind: str) -> None:
    """Register the intrinsics for a target kind (a key of :data:`VENDORS`); others load nothing."""
    _load(*VENDORS.get(kind, ()))
    if "x86" in VENDORS.get(kind, ()):
        from tvmtune.graph import dot_products

        dot_products.register()


def load_tensor_cores() -> None:
    """Register those for NVIDIA's tensor cores, which takes seconds; once."""
    _load(TENSOR_CORES)


def load_named(instructions: Sequence[Any]) -> None:
    """Register what a stored trace's instructions name and no target loads."""
    for kind, _, attributes, *_ in instructions:
        if kind == "Tensorize" and str(attributes[0]).startswith(_TENSOR_CORES_PREFIX):
            load_tensor_cores()
            return


def _load(*names: str) -> None:
    if PACKAGE not in sys.modules:
        import tvm.s_tir

        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            return
        package = types.ModuleType(PACKAGE)
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules[PACKAGE] = package
        tvm.s_tir.tensor_intrin = package  # what ``from tvm.s_tir import tensor_intrin`` looks up
    modules = [f"{PACKAGE}.{name}" for name in names]
    if all(module in sys.modules for module in modules):
        return
    inspect.stack = _stack
    try:
        for module in modules:
            importlib.import_module(module)
    finally:
        inspect.stack = _USUAL_STACK


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    """As :func:`inspect.stack`, which TVM's parser calls for each function. That one looks through all
    modules for each frame: nine tenths of the time that the parser took."""
    found, frame = [], inspect.currentframe()
    while frame is not None and (frame := frame.f_back) is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        text = [linecache.getline(file, line)]
        found.append(inspect.FrameInfo(frame, file, line, frame.f_code.co_name, text, 0))
    return found
