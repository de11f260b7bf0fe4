"""ONNX Runtime: reads the ONNX form."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.deploy.peers.base import Peer, onnx_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tvmtune.types import Network


class OnnxRuntime(Peer):
    """ONNX Runtime's CPU provider, all graph optimisations on, as by default."""

    name = "onnxruntime"
    package = "onnxruntime"

    def load(self, network: Network, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what fails is raised, too
        # Its threads spin for some 40 ms after a run, waiting for the next. They may: to forbid it
        # slows down what follows directly. The bench waits instead.
        self._session = onnxruntime.InferenceSession(
            onnx_form(network), options, providers=["CPUExecutionProvider"]
        )

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        from onnxruntime import OrtValue

        # Bound, so that no call pays for wrapping arrays: the library has its inputs in place, too.
        self._binding = self._session.io_binding()
        for name, array in inputs.items():
            self._binding.bind_ortvalue_input(
                name, OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
            )
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name, "cpu")

    def invoke(self, count: int = 1) -> float:
        run, binding = self._session.run_with_iobinding, self._binding
        start = time.perf_counter()
        for _ in range(count):
            run(binding)
        return time.perf_counter() - start

    def outputs(self) -> list[np.ndarray]:
        return list(self._binding.copy_outputs_to_cpu())
