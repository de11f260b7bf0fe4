"""ncnn, which reads the ONNX form as converted by pnnx.

By default ncnn computes in float16 and bfloat16 if the CPU can; here that is off. Its algorithms for
convolutions (Winograd, matrix products, packed layouts) are the default ones.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.bench.peers import pnnx_convert
from tvmtune.bench.peers.base import Peer
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tvmtune.types import Network

_TYPES = {"float32": "f", "int32": "i", "int64": "i"}
"""ncnn's types, whose elements all have four bytes, by dtypes."""
_NO_AXIS = 233
"""ncnn's mark of a tensor without a batch axis."""


class Ncnn(Peer):
    """ncnn on the CPU, in float32."""

    name = "ncnn"
    package = "ncnn"
    extra = "ncnn"

    def available(self) -> str | None:
        missing = super().available()
        if missing is None and not pnnx_convert.installed():
            missing = f"ncnn's converter pnnx is not installed: {self.remedy}"
        return missing

    def load(self, network: Network, threads: int) -> None:
        import ncnn

        for spec in (*network.inputs, *network.outputs):
            if spec.dtype not in _TYPES:
                raise TvmtuneError(f"{spec} is of a type that ncnn does not compute in")
        self._specs = network.inputs, network.outputs
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads = threads
        options.use_vulkan_compute = False
        for name in dir(options):
            if re.match(r"use_b?fp?16_", name):
                setattr(options, name, False)
        with tempfile.TemporaryDirectory(prefix="tvmtune-") as folder:
            wanted = ("ncnnparam", "ncnnbin", "ncnnpy")
            graph, weights, example = pnnx_convert.convert(network, Path(folder), *wanted)
            _check_layers(graph.read_text())
            self._axes = _batch_axes(example.read_text())
            if self._net.load_param(str(graph)) != 0 or self._net.load_model(str(weights)) != 0:
                raise TvmtuneError("ncnn cannot read the model that pnnx wrote")
        names = self._net.input_names(), self._net.output_names()
        for present, specs in zip(names, self._specs, strict=True):
            if len(present) != len(specs):
                raise TvmtuneError("pnnx removed inputs or outputs that nothing depends on")
        self._results: list[tuple[int, object]] = []

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        import ncnn

        # pnnx names them in0, in1, ..., in the order of the network.
        self._inputs = {}
        for index, spec in enumerate(self._specs[0]):
            array = inputs[spec.name]
            array = np.asarray(array, "float32" if array.dtype.kind == "f" else "int32", order="C")
            name = f"in{index}"
            # A clone has ncnn's memory layout.
            self._inputs[name] = ncnn.Mat(array, batch_index=self._axes[name]).clone()

    def invoke(self, count: int = 1) -> float:
        begin, inputs = self._net.create_extractor, list(self._inputs.items())
        outputs = [f"out{index}" for index in range(len(self._specs[1]))]
        start = time.perf_counter()
        for _ in range(count):
            with begin() as extractor:  # it caches results: one for each run
                for name, value in inputs:
                    extractor.input(name, value)
                self._results = [extractor.extract(name) for name in outputs]
        spent = time.perf_counter() - start
        if any(status != 0 for status, _ in self._results):
            raise TvmtuneError("ncnn failed while it ran the network")
        return spent

    def outputs(self) -> list[np.ndarray]:
        arrays = []
        for index, ((_, value), spec) in enumerate(zip(self._results, self._specs[1], strict=True)):
            view = value.numpy(_TYPES[spec.dtype], batch_index=self._axes[f"out{index}"])  # type: ignore[attr-defined]
            array = np.array(view, spec.dtype)
            # It drops extents of 1. If the number of elements differs too, the result is wrong.
            arrays.append(array.reshape(spec.shape) if array.size == np.prod(spec.shape) else array)
        return arrays


def _check_layers(graph: str) -> None:
    """Raise TvmtuneError if ncnn lacks operators of the graph, which it would only print."""
    import ncnn

    # After two lines of numbers, each layer has a line that begins with its type.
    kinds = {line.split()[0] for line in graph.splitlines()[2:] if line.strip()}
    missing = sorted(kind for kind in kinds if ncnn.layer_to_index(kind) < 0)
    if missing:
        raise TvmtuneError(f"ncnn has no operator {', '.join(missing)}")


def _batch_axes(example: str) -> dict[str, int]:
    """The batch axis of each input and output, from the example that pnnx writes."""
    inputs = r"ncnn\.Mat\((in\d+)\.numpy\(\)(?:, batch_index=(\d+))?\)"
    outputs = r"(out\d+)\.numpy\((?:batch_index=(\d+))?\)"
    axes = [*re.findall(inputs, example), *re.findall(outputs, example)]
    if not axes:
        raise TvmtuneError("this pnnx writes unknown code: pip install --upgrade pnnx ncnn")
    return {name: int(axis or _NO_AXIS) for name, axis in axes}
