"""Other runtimes, to compare a library with.

A peer reads the network's ONNX form and runs on the CPU, with its own defaults but for two things:
as many threads as the library has, and float32 where it would choose less.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tvmtune import system
from tvmtune.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping


class Peer(ABC):
    """One runtime. Nothing of it is imported before :meth:`load`."""

    name: ClassVar[str]
    package: ClassVar[str]
    """The distribution that pip installs, which is also the name of the module."""

    @property
    def version(self) -> str:
        """Version of the package, or an empty string if it is not installed."""
        # The module knows it, too, where it came from a distribution of another name (-gpu).
        module = sys.modules.get(self.package)
        return system.version_of(self.package) or str(getattr(module, "__version__", ""))

    def available(self) -> str | None:
        """None if it can be used, or the reason why not, with the remedy."""
        if importlib.util.find_spec(self.package) is None:
            return f"{self.name} is not installed: pip install {self.package}"
        return None

    @abstractmethod
    def load(self, model: bytes, threads: int) -> None:
        """Read a serialised ONNX model, to compute with ``threads`` threads."""

    @abstractmethod
    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Put the inputs, by name, where the calls that are timed find them."""

    @abstractmethod
    def invoke(self, count: int = 1) -> float:
        """Run ``count`` times on the inputs that are in place; the seconds that all took."""

    @abstractmethod
    def outputs(self) -> list[np.ndarray]:
        """Outputs of the last run, in the order of the model."""

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs for these inputs."""
        self.set_inputs(inputs)
        self.invoke()
        return self.outputs()


class OnnxRuntime(Peer):
    """ONNX Runtime's CPU provider, all graph optimisations on, as by default."""

    name = "onnxruntime"
    package = "onnxruntime"

    def load(self, model: bytes, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what fails is raised, too
        # Its threads spin for some 40 ms after a run, waiting for the next. They may: to forbid it
        # slows down what follows directly. The bench waits instead.
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        from onnxruntime import OrtValue

        # Bound, so that no call pays for wrapping arrays: the library has its inputs in place, too.
        self._binding = self._session.io_binding()
        for name, array in inputs.items():
            self._binding.bind_ortvalue_input(
                name, OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
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


class OpenVino(Peer):
    """OpenVINO's CPU plugin with the hint for low latency."""

    name = "openvino"
    package = "openvino"

    def load(self, model: bytes, threads: int) -> None:
        import openvino

        core = openvino.Core()
        compiled = core.compile_model(
            core.read_model(model),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": threads,
                # By itself it computes in bfloat16 where the CPU has it (AVX512-BF16, AMX):
                # nearly twice as fast as float32, and not the same network.
                "INFERENCE_PRECISION_HINT": "f32",
            },
        )
        self._count = len(compiled.outputs)
        self._request = compiled.create_infer_request()

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        import openvino

        self._arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
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


PEERS: dict[str, type[Peer]] = {cls.name: cls for cls in (OnnxRuntime, OpenVino)}
_ALIASES = {"ort": "onnxruntime", "ov": "openvino"}


def peer(name: str) -> Peer:
    """A peer by its name. Raises UsageError, which names the nearest, if there is none."""
    word = name.strip().lower()
    found: Any = PEERS.get(_ALIASES.get(word, word))
    if found is None:
        raise UsageError(
            f"there is no runtime '{name}' to compare with.{nearest(word, list(PEERS))}"
        )
    return found()


def parse(names: str) -> list[Peer]:
    """Peers from a list such as ``onnxruntime,openvino``, each once."""
    words = [word.strip() for word in names.split(",") if word.strip()]
    if not words:
        raise UsageError(f"no runtime to compare with is named. Known: {', '.join(sorted(PEERS))}.")
    found = {one.name: one for one in map(peer, words)}
    return list(found.values())
