"""OpenVINO, which reads the ONNX form and TFLite files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.bench.peers.base import Peer, onnx_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tvmtune.types import Network


class OpenVino(Peer):
    """OpenVINO's CPU plugin with the latency hint."""

    name = "openvino"
    aliases = ("ov",)
    package = "openvino"

    def load(self, network: Network, threads: int) -> None:
        import openvino

        core = openvino.Core()
        brain = getattr(network, "computes", "") == "bfloat16"
        compiled = core.compile_model(
            _read(core, network),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": threads,
                # By default it computes float32 networks in bfloat16 if the CPU has it
                # (AVX512-BF16, AMX): faster, but not the same network.
                "INFERENCE_PRECISION_HINT": "bf16" if brain else "f32",
            },
        )
        self._count = len(compiled.outputs)
        self._request = compiled.create_infer_request()

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        import openvino

        self._arrays = {name: np.asarray(array, order="C") for name, array in inputs.items()}
        for name, array in self._arrays.items():
            self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

    def invoke(self, count: int = 1) -> float:
        run = self._request.infer
        start = time.perf_counter()
        for _ in range(count):
            run(share_outputs=True)
        return time.perf_counter() - start

    def outputs(self) -> list[np.ndarray]:
        return [np.array(self._request.get_output_tensor(i).data) for i in range(self._count)]


def _read(core: Any, network: Network) -> Any:
    file = Path(network.source.get("file", ""))
    if file.suffix.lower() != ".tflite":
        return core.read_model(onnx_form(network))
    model = core.read_model(file)
    model.reshape({spec.name: list(spec.shape) for spec in network.inputs})
    return model
