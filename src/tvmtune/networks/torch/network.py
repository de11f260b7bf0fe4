"""Networks from exported PyTorch programs (``.pt2``)."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

from tvmtune.arrays import numpy_dtype
from tvmtune.machine import cpu_count
from tvmtune.networks.hashing import NetworkHasher
from tvmtune.networks.importer_helpers import quiet
from tvmtune.networks.inputs import check_inputs, inputs_of
from tvmtune.networks.torch import file as torch_file
from tvmtune.types import State, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import torch
    import tvm
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

    from tvmtune.types import JSON


def read(
    path: Path,
    *,
    label: str,
    source: JSON,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> TorchNetwork:
    """The network in a file of ``torch.export.save``, as :func:`tvmtune.networks.load` wants it."""
    program = torch_file.read(path)
    return TorchNetwork(
        program, name=path.stem, source=source, batch=batch, shapes=shapes, label=label
    )


_ROUNDING = "quantized_decomposed.quantize_"
"""How the names of operators begin whose results, bytes, make a network one that computes in int8."""


class TorchNetwork:
    """Implements :class:`tvmtune.types.Network`; see there for the attributes.

    Inputs and outputs are the tensors among what the program takes and returns, flattened in
    PyTorch's order. Open dimensions are bound as those of ONNX files are.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: JSON
    structure_hash: str
    weights_hash: str
    ranges: dict[str, tuple[int, int]]
    """As those of an ONNX network (:func:`tvmtune.networks.onnx.index_ranges.index_ranges`)."""

    def __init__(
        self,
        program: ExportedProgram,
        *,
        name: str,
        source: JSON | None = None,
        batch: int = 1,
        shapes: Mapping[str, Sequence[int]] | None = None,
        label: str | None = None,
    ) -> None:
        """Bind dynamic dimensions of ``program`` and check it; ``label`` names it in messages.

        Raises :class:`UsageError` if dimensions stay open or ``batch`` or ``shapes`` do not fit,
        :class:`TvmtuneError` if it computes as in training or its shapes depend on the data.
        """
        from tvmtune.networks.torch.index_ranges import index_ranges
        from tvmtune.networks.torch.program import bind

        self.name = name
        self.source = source or {}
        self._label = label or name
        bound = bind(program, batch=batch, shapes=shapes, label=self._label)
        self._program, self.inputs, self.outputs, _ = bound
        specs = self.inputs[len(self.inputs) - len(bound.state) :]
        self.state = {
            spec.name: State(
                output=spec.name,
                initial=value if value.tobytes().strip(b"\0") else None,
            )
            for spec, tensor in zip(specs, bound.state.values(), strict=True)
            for value in [to_array(tensor, spec)]
        }
        self.ranges = index_ranges(self._program, [spec.name for spec in self.inputs])
        self.structure_hash, self.weights_hash = _hashes(self._program)
        if any(str(n.target).startswith(_ROUNDING) for n in self._program.graph.nodes):
            self.computes = "int8"

    def to_relax(self) -> tvm.IRModule:
        """Import into Relax. Parameters of ``main`` correspond to ``inputs`` by position."""
        from tvmtune.networks.torch.relax import to_relax

        return to_relax(self._program, self.inputs, self.outputs, self._label)

    def to_torch(self) -> torch.nn.Module:
        """A module on the CPU that takes the inputs as positional tensors, in order.

        It returns the outputs as a tuple of tensors, in order, and shares its weights with this
        network. Call it under ``torch.no_grad()`` or ``torch.inference_mode()``.
        """
        from tvmtune.networks.torch.program import FlatModule

        return FlatModule(self._program)

    def to_onnx(self) -> bytes | None:
        """The serialized ONNX model; None if PyTorch cannot export it or onnxscript is missing."""
        import torch

        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            with quiet():
                exported = torch.onnx.export(
                    self._program,
                    dynamo=True,
                    input_names=[spec.name for spec in self.inputs],
                    output_names=_others(self.outputs, self.inputs),
                    verbose=False,
                )
                model = exported.model_proto if exported is not None else None
            if model is None or len(model.graph.output) != len(self.outputs):
                return None
            if [value.name for value in model.graph.input] != [spec.name for spec in self.inputs]:
                return None
            return model.SerializeToString()
        except Exception:  # every part of the exporter has its own classes
            return None

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs by PyTorch's eager mode, on all cores of the CPU.

        Raises :class:`UsageError` if ``inputs`` have other names, shapes or dtypes than the network's.
        """
        import torch

        check_inputs(inputs, self.inputs)
        with torch.no_grad(), _threads(cpu_count.usable_cpus()):
            results = self.to_torch()(*(to_tensor(inputs[spec.name]) for spec in self.inputs))
        return [to_array(tensor, spec) for tensor, spec in zip(results, self.outputs, strict=True)]

    @functools.cached_property
    def rounding_runs(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        """Outputs of PyTorch with and without oneDNN, for an input of a check: in networks that round
        to bytes, they decide differently what is just between two steps."""
        import torch

        feed = inputs_of(self, 0)
        with quiet(), torch.backends.mkldnn.flags(enabled=False):
            plain = self.reference(feed)
        return [(self.reference(feed), plain)]


def _others(specs: Sequence[TensorSpec], taken: Sequence[TensorSpec]) -> list[str]:
    """Names of ``specs`` that are none of ``taken``: in ONNX, no output is called as an input."""
    names = {spec.name for spec in taken}
    return [f"{s.name}_changed" if s.name in names else s.name for s in specs]


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A copy of an array as a tensor on the CPU."""
    import torch

    if array.dtype.name == "bfloat16":  # PyTorch does not know ml_dtypes' type
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_array(tensor: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """A copy of a tensor as an array of the dtype of ``spec``."""
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(numpy_dtype(spec.dtype)).copy()
    return tensor.numpy().copy()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _hashes(program: ExportedProgram) -> tuple[str, str]:
    """Structure hash and weights hash of a static program.

    The structure is the nodes in order, their arguments and the edges between them, dtypes and
    shapes of inputs and weights, and the values of small constants of integers. Names do not count,
    nor do unused weights.
    """
    hasher = NetworkHasher()
    tensors = {
        spec.arg.name: tensor
        for spec in program.graph_signature.input_specs
        if (tensor := _tensor(program, spec.target)) is not None
    }
    _walk(program.graph_module, tensors, hasher)
    return hasher.hashes()


def _tensor(program: ExportedProgram, target: str | None) -> torch.Tensor | None:
    if target is None:
        return None
    tensor = program.state_dict.get(target)
    return tensor if tensor is not None else program.tensor_constants.get(target)


def _walk(module: GraphModule, tensors: Mapping[str, torch.Tensor], hasher: NetworkHasher) -> None:
    numbers: dict[Node, int] = {}
    for node in module.graph.nodes:
        tensor = tensors.get(node.name) if node.op == "placeholder" else None
        if tensor is not None and not node.users:
            continue
        numbers[node] = len(numbers)
        if tensor is not None:
            hasher.add(["weight", _constant(tensor, hasher)])
        elif node.op == "placeholder":
            value = node.meta.get("val")
            hasher.add(["input", str(getattr(value, "dtype", value)), _shape(value)])
        elif node.op == "get_attr":  # a constant, or the body of a control flow operator
            value = _attribute(module, str(node.target))
            if hasattr(value, "graph"):
                hasher.add("body")
                _walk(value, {}, hasher)
            else:
                hasher.add(["constant", _constant(value, hasher)])
        else:
            hasher.add([str(node.target), _plain([node.args, node.kwargs], numbers)])


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _constant(tensor: torch.Tensor, hasher: NetworkHasher) -> list[Any]:
    import torch

    tensor = tensor.detach().cpu()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    try:
        return hasher.constant(tensor.contiguous().numpy())
    except TypeError:  # a dtype that NumPy lacks
        raw = tensor.contiguous().view(torch.uint8 if tensor.ndim else tensor.dtype)
        return hasher.constant(raw.numpy(), dtype=str(tensor.dtype))


def _shape(value: Any) -> list[int]:
    return [int(extent) for extent in getattr(value, "shape", ())]


def _plain(value: Any, numbers: Mapping[Node, int]) -> Any:
    """An argument as JSON, with nodes as edge numbers."""
    if isinstance(value, (list, tuple)):
        return [_plain(item, numbers) for item in value]
    if isinstance(value, dict):
        return [[key, _plain(value[key], numbers)] for key in sorted(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if value in numbers:
        return {"edge": numbers[value]}
    return str(value)  # a dtype, a device, a layout
