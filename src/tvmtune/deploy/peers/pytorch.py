"""PyTorch, operator by operator and compiled by Inductor.

A network that came from PyTorch runs as the module that it is; of every other one pnnx writes a module
in PyTorch's terms, batch normalisation folded into convolutions. Both are run in inference mode and
with PyTorch's defaults for everything but the threads: no autocast, no freezing, and on the CPU
contiguous tensors. On a GPU images are channels last, which cuDNN is quickest with, float32 is float32
and not TF32, and nothing is captured in CUDA graphs.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune.deploy.peers import pnnx_convert
from tvmtune.deploy.peers.base import Peer
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from tvmtune.types import Network


class Torch(Peer):
    """PyTorch's eager mode."""

    name = "torch"
    package = "torch"

    def _without_cuda(self) -> str | None:
        import torch

        found = torch.cuda.is_available()
        return None if found else f"PyTorch {torch.__version__} finds no CUDA here"

    def load(self, network: Network, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)  # of the whole process: all that compute here have as many
        self._specs = network.inputs, network.outputs
        to_torch = getattr(network, "to_torch", None)
        rounded = getattr(network, "rounded", None)  # pnnx knows convolutions of float32 alone
        if to_torch is not None:
            module = to_torch()
        elif rounded is not None:
            module = _converted(rounded).half()
        else:
            module = _converted(network)
        if self.device == "cuda":
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
            # A copy: a network's module shares its weights with it.
            module = copy.deepcopy(module).to(self.device, memory_format=torch.channels_last)
        self._module = self._prepare(module)
        try:
            self.run(random_inputs(network.inputs, 0))
        except NameError as error:
            if to_torch is not None:
                raise
            # The operator stands in the converted code as it stood in the model.
            raise TvmtuneError(f"pnnx has no PyTorch form of the model's {error.name}") from error

    def _prepare(self, module: Any) -> Any:
        """What is called in place of the module."""
        return module

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        from tvmtune.networks.torch.network import to_tensor

        self._inputs = [self._placed(to_tensor(inputs[spec.name])) for spec in self._specs[0]]

    def _placed(self, tensor: Any) -> Any:
        """Where the module computes, in the order that it likes."""
        import torch

        if self.device == "cpu":
            return tensor
        images = torch.channels_last if tensor.dim() == 4 else torch.preserve_format
        return tensor.to(self.device, memory_format=images)

    def invoke(self, count: int = 1) -> float:
        import torch

        run, inputs = self._module, self._inputs
        with torch.inference_mode():
            start = time.perf_counter()
            for _ in range(count):
                self._result = run(*inputs)
            if self.device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - start

    def outputs(self) -> list[np.ndarray]:
        from tvmtune.networks.torch.network import to_array

        tensors = self._result if isinstance(self._result, (tuple, list)) else [self._result]
        pairs = zip(tensors, self._specs[1], strict=True)
        return [to_array(tensor.cpu(), spec) for tensor, spec in pairs]


class TorchCompile(Torch):
    """``torch.compile`` with its default backend, for these shapes only: in its default mode for the
    CPU, and with every choice tried out for a GPU.

    The compiled code is kept where PyTorch keeps it (TORCHINDUCTOR_CACHE_DIR, by default a directory
    for temporary files), so that it is compiled once.
    """

    name = "torch-compile"

    def available(self) -> str | None:
        return super().available() or _no_compiler()

    def _prepare(self, module: Any) -> Any:
        import torch
        from torch._inductor import config

        # Otherwise, with Triton installed, a pool of processes stays until the program ends.
        config.compile_threads = 1
        mode = None if self.device == "cpu" else "max-autotune-no-cudagraphs"
        return torch.compile(module, backend="inductor", dynamic=False, mode=mode)


def _no_compiler() -> str | None:
    """Why Inductor cannot compile for the CPU here, with the remedy, or None if it can."""
    wanted = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(wanted) is None:
        return (
            f"torch-compile needs a C++ compiler, and {wanted} is not there: on Debian or Ubuntu "
            "sudo apt-get install g++, or name another one in CXX"
        )
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return (
            "torch-compile needs Python's headers, and Python.h is not there: on Debian or Ubuntu "
            "sudo apt-get install python3-dev"
        )
    return None


def _converted(network: Network) -> Any:
    """The network as a module that takes its inputs by position, weights in memory."""
    with tempfile.TemporaryDirectory(prefix="tvmtune-") as name:
        source, _ = pnnx_convert.convert(network, Path(name), "pnnxpy", "pnnxbin")
        spec = importlib.util.spec_from_file_location("network_pnnx", source)
        assert spec is not None and spec.loader is not None  # it ends in .py
        written = importlib.util.module_from_spec(spec)
        vars(written).update(_OPERATORS)
        spec.loader.exec_module(written)
        return written.Model().eval()


def _gather(data: Any, indices: Any, axis: int = 0) -> Any:
    """ONNX's Gather; negative indices count from the end in both."""
    return data[(slice(None),) * (axis % data.dim()) + (indices,)]


_OPERATORS = {"Gather": _gather}
"""Operators that pnnx leaves under their ONNX names; an encoder's embedding is one."""
