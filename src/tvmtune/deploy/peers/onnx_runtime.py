"""ONNX Runtime: reads the ONNX form."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.deploy.peers.base import Peer, onnx_form
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tvmtune.types import Network


_CUDA = "CUDAExecutionProvider"


class OnnxRuntime(Peer):
    """ONNX Runtime's CPU provider, or that for CUDA; all graph optimisations on, as by default."""

    name = "onnxruntime"
    package = "onnxruntime"

    def _without_cuda(self) -> str | None:
        import onnxruntime

        found = _CUDA in onnxruntime.get_available_providers()
        return None if found else "its package for CUDA is onnxruntime-gpu"

    def load(self, network: Network, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what fails is raised, too
        # Its threads spin for some 40 ms after a run, waiting for the next. They may: to forbid it
        # slows down what follows directly. The bench waits instead.
        providers: list[Any] = ["CPUExecutionProvider"]
        if self.device == "cuda":
            providers.insert(0, (_CUDA, {"use_tf32": "0"}))
            onnxruntime.preload_dlls()  # those of pip's packages, which it does not find by itself
        self._session = onnxruntime.InferenceSession(
            onnx_form(network), options, providers=providers
        )
        if self.device == "cuda" and _CUDA not in self._session.get_providers():
            # It would go on without.
            raise TvmtuneError(
                "its part for CUDA cannot be loaded: pip install 'onnxruntime-gpu[cuda,cudnn]'"
            )

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        from onnxruntime import OrtValue

        # Bound, so that no call pays for wrapping arrays: the library has its inputs in place, too.
        self._binding = self._session.io_binding()
        for name, array in inputs.items():
            self._binding.bind_ortvalue_input(
                name, OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), self.device)
            )
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name, self.device)

    def invoke(self, count: int = 1) -> float:
        run, binding = self._session.run_with_iobinding, self._binding
        start = time.perf_counter()
        for _ in range(count):
            run(binding)
        return time.perf_counter() - start

    def outputs(self) -> list[np.ndarray]:
        return list(self._binding.copy_outputs_to_cpu())
