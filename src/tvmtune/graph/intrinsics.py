"""Load only the tensor intrinsics that a target can use.

``import tvm.s_tir.tensor_intrin``, which every TuneContext does, parses the intrinsics of all
vendors: 8 to 14 s on two cores. A package object put in its place beforehand makes that import free;
the wanted vendor's module is then loaded from the real package folder (x86: 0.15 s).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

PACKAGE = "tvm.s_tir.tensor_intrin"
VENDORS = {
    "llvm": ("x86",),
    "aarch64": ("arm_cpu",),
    "cuda": (),  # those for tensor cores: half a minute, and its plain rules use none
    "rocm": (),
    "opencl": (),
}


def load_for(kind: str) -> None:
    """Register the intrinsics for a target kind (a key of :data:`VENDORS`); others load nothing."""
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
    for name in VENDORS.get(kind, ()):
        importlib.import_module(f"{PACKAGE}.{name}")
    if "x86" in VENDORS.get(kind, ()):
        from tvmtune.graph import dot_products

        dot_products.register()
