"""PyTorch, in eager mode and compiled by Inductor.

A network from PyTorch runs as its own module; for every other one pnnx writes a PyTorch module, with
batch normalization folded into convolutions. Both run in inference mode and with PyTorch's defaults for
everything but the threads: no autocast, no freezing, and contiguous tensors on the CPU. On a GPU images
are channels last, with which cuDNN is fastest, float32 is float32 and not TF32, and kernels are
captured in a CUDA graph if and only if the library's are.
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
from typing import TYPE_CHECKING, Any, ClassVar

from tvmtune.bench.peers import pnnx_convert
from tvmtune.bench.peers.base import Peer
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import inputs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from tvmtune.types import Network


_MAX_AUTOTUNE = "max-autotune-no-cudagraphs"
_BEFORE_CAPTURE = 3
"""Runs before a capture: some libraries choose their kernels in the first runs."""


class Torch(Peer):
    """PyTorch's eager mode."""

    name = "torch"
    aliases: ClassVar[tuple[str, ...]] = ("pytorch",)
    package = "torch"
    extra = "torch"
    captures = True

    def _why_not_cuda(self) -> str | None:
        import torch

        if torch.cuda.is_available():
            return None
        return f"PyTorch {torch.__version__} finds no CUDA here"

    def load(self, network: Network, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)  # of the whole process, in which all runtimes have as many
        self._specs = network.inputs, network.outputs
        to_torch = getattr(network, "to_torch", None)
        rounded = getattr(network, "rounded", None)  # pnnx only knows float32 convolutions
        if to_torch is not None:
            module = to_torch()
        elif rounded is not None:
            module = _halved(_converted(rounded), network)
        else:
            module = _converted(network)
        if self.device == "cuda":
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
            # Copied, because the module shares its weights with the network.
            module = copy.deepcopy(module).to(self.device, memory_format=torch.channels_last)
        self._module = self._prepare(module)
        try:
            self.run(inputs_of(network))
        except NameError as error:
            if to_torch is not None:
                raise
            # The converted code calls the operator by its name in the model.
            raise TvmtuneError(f"pnnx has no PyTorch form of the model's {error.name}") from error

    def _prepare(self, module: Any) -> Any:
        """The callable to run instead of the module."""
        return module

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        from tvmtune.networks.torch.network import to_tensor

        self._inputs = [self._placed(to_tensor(inputs[spec.name])) for spec in self._specs[0]]
        self._launch = self._launcher()

    def _placed(self, tensor: Any) -> Any:
        """The tensor on the module's device, in the fastest memory format."""
        import torch

        if self.device == "cpu":
            return tensor
        images = torch.channels_last if tensor.dim() == 4 else torch.preserve_format
        return tensor.to(self.device, memory_format=images)

    def _launcher(self) -> Callable[[], Any]:
        """A function that runs the module on the current inputs and returns the outputs."""
        import torch

        run, inputs = self._module, self._inputs
        if self.device == "cpu" or not self.graphs:
            return lambda: run(*inputs)
        # As PyTorch's documentation prescribes: a few runs on a side stream, then the capture.
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(side_stream):
            for _ in range(_BEFORE_CAPTURE):
                run(*inputs)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            captured = run(*inputs)

        def replay() -> Any:
            graph.replay()
            return captured

        return replay

    def invoke(self, count: int = 1) -> float:
        import torch

        launch = self._launch
        with torch.inference_mode():
            start = time.perf_counter()
            for _ in range(count):
                self._result = launch()
            if self.device == "cuda":
                torch.cuda.synchronize()
            return time.perf_counter() - start

    def device_seconds(self, count: int) -> float | None:
        import torch

        if self.device == "cpu":
            return None
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        self.invoke(count)
        last.record()
        last.synchronize()
        return 1e-3 * float(first.elapsed_time(last)) / count

    def outputs(self) -> list[np.ndarray]:
        from tvmtune.networks.torch.network import to_array

        tensors = self._result if isinstance(self._result, (tuple, list)) else [self._result]
        pairs = zip(tensors, self._specs[1], strict=True)
        return [to_array(tensor.cpu(), spec) for tensor, spec in pairs]


class TorchCompile(Torch):
    """``torch.compile`` with its default backend and static shapes: in default mode on the CPU, in
    ``max-autotune`` mode on a GPU.

    PyTorch caches the compiled code (in TORCHINDUCTOR_CACHE_DIR, by default a temporary directory).
    """

    name = "torch-compile"
    aliases: ClassVar[tuple[str, ...]] = ("torch-compiled", "inductor")

    def available(self) -> str | None:
        return super().available() or _no_compiler()

    def _prepare(self, module: Any) -> Any:
        import torch
        from torch._inductor import config

        if self.device == "cpu":
            # Otherwise, if Triton is installed, a pool of processes lives until this one ends. For a
            # GPU it compiles hundreds of kernels, which takes minutes without the pool.
            config.compile_threads = 1
        mode = None if self.device == "cpu" else _MAX_AUTOTUNE
        return torch.compile(module, backend="inductor", dynamic=False, mode=mode)


class TorchMaxAutotune(TorchCompile):
    """``torch.compile`` in ``max-autotune`` mode, and on the CPU with weights as constants (freezing).

    Freezing lets Inductor pack the weights once. Without it PyTorch 2.13 takes 60 times as long for
    squeezenet_v1.1 in this mode, on two cores of an Intel Xeon.
    """

    name = "torch-max-autotune"
    aliases = ("max-autotune",)

    def _prepare(self, module: Any) -> Any:
        import torch
        from torch._inductor import config, list_mode_options

        if self.device == "cpu":
            config.compile_threads = 1  # see TorchCompile
        options = {**list_mode_options(_MAX_AUTOTUNE), "freezing": self.device == "cpu"}
        return torch.compile(module, backend="inductor", dynamic=False, options=options)


def _no_compiler() -> str | None:
    """None if Inductor can compile for the CPU here; otherwise the reason and a remedy."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return (
            f"torch-compile needs a C++ compiler, and {compiler} is not installed: on Debian or Ubuntu "
            "sudo apt-get install g++, or name another one in CXX"
        )
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return (
            "torch-compile needs Python's headers, and Python.h is not installed: on Debian or Ubuntu "
            "sudo apt-get install python3-dev"
        )
    return None


def _converted(network: Network) -> Any:
    """The network as a module with its weights in memory, which takes inputs by position."""
    with tempfile.TemporaryDirectory(prefix="tvmtune-") as name:
        source, _ = pnnx_convert.convert(network, Path(name), "pnnxpy", "pnnxbin")
        spec = importlib.util.spec_from_file_location("network_pnnx", source)
        assert spec is not None and spec.loader is not None  # it ends in .py
        written = importlib.util.module_from_spec(spec)
        vars(written).update(_OPERATORS)
        spec.loader.exec_module(written)
        return written.Model().eval()


def _halved(module: Any, network: Network) -> Any:
    """The float32 module in the precision that the network computes in."""
    import torch

    if getattr(network, "computes", "") != "bfloat16":
        return module.half()

    class Inside(torch.nn.Module):
        """Takes and returns float32."""

        def __init__(self) -> None:
            super().__init__()
            self.inside = module.bfloat16()

        def forward(self, *inputs: Any) -> Any:
            result = self.inside(*[x.bfloat16() if x.is_floating_point() else x for x in inputs])
            outputs = result if isinstance(result, (tuple, list)) else [result]
            return [y.float() if y.is_floating_point() else y for y in outputs]

    return Inside().eval()


def _gather(data: Any, indices: Any, axis: int = 0) -> Any:
    """ONNX's Gather; negative indices count from the end in both."""
    return data[(slice(None),) * (axis % data.dim()) + (indices,)]


_OPERATORS = {"Gather": _gather}
"""Operators that pnnx does not convert, by their ONNX names, such as an encoder's embedding."""
