"""Import TVM without PyTorch, and in less time.

Where PyTorch is installed, ``import tvm`` imports it too: to guard against a symbol conflict on
Windows, and for modules that mix both. That costs each of our processes 2 to 4 s and memory, and
almost none needs it. So tvmtune's own processes (the command line, workers, boards) import TVM alone;
programs that use tvmtune as a library keep TVM's behavior. An explicit ``import torch`` works as
always.

The 140,000 objects that importing TVM creates live as long as the process, so the garbage collector
is off during the import, which takes an eighth less time, and ignores them afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_TVM = ("tvm", "tvm_ffi")
_TORCH = "torch"


def install() -> None:
    """From now on ``import tvm`` does not import PyTorch. Has no effect if either is already
    imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds TVM's packages as usual, and hides PyTorch from the importing thread meanwhile."""

    def __init__(self) -> None:
        self.thread = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _TORCH and getattr(self.thread, "hide_torch", False):
            raise ModuleNotFoundError(f"{_TORCH} is left out while TVM is imported", name=name)
        if name not in _TVM or _TORCH in sys.modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _TorchlessLoader(spec.loader, self.thread)
        return spec


class _TorchlessLoader(Loader):
    """Delegates to another loader, with PyTorch hidden."""

    def __init__(self, loader: Loader, thread: threading.local) -> None:
        self._loader, self._thread = loader, thread

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        outer = getattr(self._thread, "hide_torch", False)
        self._thread.hide_torch = True
        try:
            with _uncollected():
                self._loader.exec_module(module)
        finally:
            self._thread.hide_torch = outer


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """What is created meanwhile is never looked at by the garbage collector."""
    if not gc.isenabled():  # within another such import
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
