"""A compiled graph in the place of the captured one."""

from __future__ import annotations

import functools
import hashlib
import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from tvmtune import api
from tvmtune.accuracy import relative_error, tolerance
from tvmtune.compiling.compile import choose_records
from tvmtune.errors import TvmtuneError
from tvmtune.machine import package_versions, scratch
from tvmtune.networks.model_file import kind_and_line
from tvmtune.networks.torch.network import TorchNetwork, to_array, to_tensor
from tvmtune.runtime.inference import CallThread
from tvmtune.runtime.library import Library
from tvmtune.torch_backend import graph as graphs
from tvmtune.torch_backend.fallback import warn
from tvmtune.torch_backend.graph import LABEL, NoGraph
from tvmtune.torch_backend.options import Options
from tvmtune.types import digest

__all__ = ["CompiledGraph", "NoGraph"]

RECOMPILATIONS = 4
"""How often a graph is compiled again for changed weights, before it runs in eager mode for good."""

_open: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
"""Libraries in use, by the key of :func:`_key`."""
_compiling = threading.Lock()


@functools.cache
def _calls(threads: int) -> CallThread:
    """The thread that runs all graphs with this number of CPU threads: PyTorch's may have a smaller
    pool of TVM's, and each pool that was used spins for a while."""
    return CallThread(f"tvmtune's backend of torch.compile ({threads} threads)")


@dataclass(frozen=True)
class _Weight:
    """What an input was when it became a constant."""

    tensor: weakref.ReferenceType[torch.Tensor]
    version: int

    @staticmethod
    def of(tensor: torch.Tensor) -> _Weight:
        if tensor.is_inference():
            raise NoGraph(
                "its weights were made in torch.inference_mode(), where changes cannot be noticed; "
                "make the model outside of it"
            )
        return _Weight(weakref.ref(tensor), tensor._version)

    def is_same(self, tensor: torch.Tensor) -> bool:
        return self.tensor() is tensor and tensor._version == self.version


class CompiledGraph:
    """Called by PyTorch with the inputs of the graph, weights included; returns its outputs."""

    _library: Library | None
    """None while it runs in eager mode."""

    def __init__(
        self, graph: fx.GraphModule, inputs: Sequence[torch.Tensor], options: Options
    ) -> None:
        """Raises :class:`NoGraph`, with the reason, if the graph has to run in eager mode."""
        self._graph = graph
        self._options = options
        self._compilations = 0
        graphs.check(graph, inputs)
        self._compile(inputs)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        library = self._library
        if library is not None and self._changed(inputs):
            library = self._compile_again(inputs)
        if library is None:
            return self._graph(*inputs)
        return tuple(
            tensor if strides is None else _strided(tensor, strides)
            for tensor, strides in zip(
                _run(library, self._arguments(inputs)), self._strides, strict=True
            )
        )

    def _arguments(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs that are no weights, as the library takes them."""
        return [value for i, value in enumerate(inputs) if i not in self._weights]

    def _changed(self, inputs: Sequence[torch.Tensor]) -> bool:
        return not all(weight.is_same(inputs[i]) for i, weight in self._weights.items())

    def _compile_again(self, inputs: Sequence[torch.Tensor]) -> Library | None:
        self._library = None
        if self._compilations > RECOMPILATIONS:
            warn(f"its weights have changed {self._compilations} times")
            return None
        try:
            return self._compile(inputs)
        except NoGraph as reason:
            warn(str(reason))
            return None

    def _compile(self, inputs: Sequence[torch.Tensor]) -> Library:
        self._library = None
        self._compilations += 1
        self._weights = {
            i: _Weight.of(value) for i, value in enumerate(inputs) if graphs.is_weight(value)
        }
        network = graphs.network_of(self._graph, inputs)
        expected = graphs.in_eager_mode(self._graph, inputs, network)
        library = _library(network, self._options)
        _check_on(self._arguments(inputs), expected, library, network)
        self._strides = [None if each.is_contiguous() else each.stride() for each in expected]
        self._library = library
        return library


def _run(library: Library, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    arrays = {spec.name: _array(value) for spec, value in zip(library.inputs, inputs, strict=True)}
    outputs = _calls(library.threads).call(library.run, arrays)
    return [_tensor(array) for array in outputs]


def _array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor as an array; it shares memory where NumPy has the dtype."""
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.detach().contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().resolve_conj().resolve_neg().numpy()


def _tensor(array: np.ndarray) -> torch.Tensor:
    """An array of our own as a tensor."""
    return to_tensor(array) if array.dtype.name == "bfloat16" else torch.from_numpy(array)


def _strided(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
    return made.copy_(tensor)


def _check_on(
    inputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    library: Library,
    network: TorchNetwork,
) -> None:
    """Raise :class:`NoGraph` if the library's outputs differ from eager mode's."""
    for spec, tensor, reference in zip(
        network.outputs, _run(library, inputs), expected, strict=True
    ):
        error = relative_error(to_array(tensor, spec), to_array(reference, spec))
        allowed = tolerance(spec.dtype, network=True)
        if not error <= allowed:
            raise NoGraph(
                f"its output '{spec.name}' differs from eager mode's by {error:.1e}, and "
                f"{allowed:.0e} are allowed"
            )


def _key(network: TorchNetwork, options: Options) -> str:
    """Of a library: it changes with whatever the library depends on."""
    return digest(
        [
            network.structure_hash,
            network.weights_hash,
            [str(spec) for spec in (*network.inputs, *network.outputs)],
            options.device().identity(),
            [_content(path) for path in options.log],
            options.shipped_records,
            package_versions.versions(),
        ]
    )


def _content(path: Path) -> list[str]:
    """Digests of a log, or of the files of a database."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def _library(network: TorchNetwork, options: Options) -> Library:
    """The library of a network: one in use, one in the cache, or a new one.

    Raises :class:`NoGraph` if it cannot be compiled.
    """
    with _compiling:
        try:
            key = _key(network, options)
            if (library := _open.get(key)) is not None:
                return library
            library = _from_cache(key, options) or _new(key, network, options)
        except Exception as error:  # TVM's own classes among them
            expected = isinstance(error, TvmtuneError)
            raise NoGraph(str(error) if expected else kind_and_line(error)) from error
        _open[key] = library
        return library


def _from_cache(key: str, options: Options) -> Library | None:
    """None if it is not there, damaged, or for other CPUs."""
    if options.cache is None or not (path := _cached(options.cache, key)).exists():
        return None
    try:
        return _opened(path, options)
    except TvmtuneError:
        return None


def _new(key: str, network: TorchNetwork, options: Options) -> Library:
    plan = api.plan(network, options.target, attrs=options.attrs)
    logs = list(options.log)
    if logs:
        try:
            choose_records(options.logs(), plan.tasks, plan.device)
        except TvmtuneError as error:
            warnings.warn(f"{LABEL} is compiled without the logs: {error}", stacklevel=2)
            logs = []
    with scratch.folder(scratch.WORK) as folder:
        path = folder / "graph.so" if options.cache is None else _cached(options.cache, key)
        compiled = api.compile(plan, path, logs, shipped_records=options.shipped_records)
        return _opened(compiled.path, options)


def _opened(path: Path, options: Options) -> Library:
    threads = options.device().threads
    return _calls(threads).call(Library.open, path, threads)


def _cached(folder: Path, key: str) -> Path:
    return folder / f"torch-{key}.so"
