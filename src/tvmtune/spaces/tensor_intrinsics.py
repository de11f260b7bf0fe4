"""Load only the tensor intrinsics that are used.

``import tvm.s_tir.tensor_intrin``, which every TuneContext does, parses the intrinsics of all
vendors: 8 to 14 s on two cores. A package object put in its place beforehand makes that import free;
a single module is then loaded from the real package folder (x86: 0.15 s).
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

from tvmtune import dot_instructions

PACKAGE = "tvm.s_tir.tensor_intrin"
MODULES = {"wmma_": "cuda"}
"""TVM's modules with intrinsics that a stored trace may name, by prefix. Those of CPUs are loaded by
:func:`load_for`. A backend with intrinsics of its own registers them in its builder's ``init``."""
_OF_CPUS = {each.name for each in (*dot_instructions.BYTES, *dot_instructions.BFLOAT16)}
_USUAL_STACK = inspect.stack


def load_for(kind: str) -> None:
    """Register what TVM's default rules for this target kind use: only those for LLVM use any."""
    if kind == "llvm":
        load("x86")
        from tvmtune.operators import dot_products

        dot_products.register()
    else:
        load()


def load_named(instructions: Sequence[Any]) -> None:
    """Register the intrinsics that a stored trace's instructions name."""
    for kind, _, attributes, *_ in instructions:
        if kind == "Tensorize":
            name = str(attributes[0])
            if name in _OF_CPUS:
                load_for("llvm")
            for prefix, module in MODULES.items():
                if name.startswith(prefix):
                    load(module)


def load(*names: str) -> None:
    """Register the intrinsics in these modules of :data:`PACKAGE`, once; some take seconds. Without
    names, only keep TVM from loading them all."""
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
    """As :func:`inspect.stack`, which TVM's parser calls for each function. That one searches all
    modules for each frame, which took nine tenths of the parser's time."""
    frames, frame = [], inspect.currentframe()
    while frame is not None and (frame := frame.f_back) is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        text = [linecache.getline(file, line)]
        frames.append(inspect.FrameInfo(frame, file, line, frame.f_code.co_name, text, 0))
    return frames
