"""ONNX Runtime, which reads the ONNX form."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.bench.peers.base import Peer, onnx_form
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tvmtune.types import Network


_CUDA = "CUDAExecutionProvider"


class OnnxRuntime(Peer):
    """ONNX Runtime's provider for CPUs or for CUDA, with all graph optimizations, as by default."""

    name = "onnxruntime"
    aliases = ("ort",)
    package = "onnxruntime"

    def _why_not_cuda(self) -> str | None:
        import onnxruntime

        has_cuda = _CUDA in onnxruntime.get_available_providers()
        return None if has_cuda else "its package for CUDA is onnxruntime-gpu"

    def load(self, network: Network, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # failures raise exceptions anyway
        # Its threads spin for some 40 ms after a run, waiting for the next. Forbidding that would slow
        # down runs in quick succession, so the bench waits instead.
        providers: list[Any] = ["CPUExecutionProvider"]
        if self.device == "cuda":
            providers.insert(0, (_CUDA, {"use_tf32": "0"}))
            onnxruntime.preload_dlls()  # it does not find those of pip's packages
        self._session = onnxruntime.InferenceSession(
            onnx_form(network), options, providers=providers
        )
        if self.device == "cuda" and _CUDA not in self._session.get_providers():
            # It would continue on the CPU.
            raise TvmtuneError(
                "its CUDA provider cannot be loaded: pip install 'onnxruntime-gpu[cuda,cudnn]'"
            )

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        from onnxruntime import OrtValue

        # Bound, so that no call wraps arrays: the library's inputs are in place too.
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
