"""Networks from TFLite models."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.machine import cpu_count
from tvmtune.networks.hashing import NetworkHasher
from tvmtune.networks.inputs import check_inputs, inputs_of
from tvmtune.networks.shapes import resolve
from tvmtune.networks.tflite import file as tflite_file
from tvmtune.networks.tflite import quantized
from tvmtune.networks.tflite.bind import bind, pack
from tvmtune.types import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import tvm

    from tvmtune.networks.shapes import Dim
    from tvmtune.types import JSON


def read(
    path: Path,
    *,
    label: str,
    source: JSON,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> TfliteNetwork:
    """The network in a TFLite file, as :func:`tvmtune.networks.load` wants it."""
    content = tflite_file.read(path)
    return TfliteNetwork(
        content, name=path.stem, source=source, batch=batch, shapes=shapes, label=label
    )


class TfliteNetwork:
    """Implements :class:`tvmtune.types.Network`; see there for the attributes.

    Inputs and outputs are those of the first graph, under the names of its tensors, in the file's
    layout, which is NHWC for images. It keeps the model with its weights in memory once.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: JSON
    structure_hash: str
    weights_hash: str

    def __init__(
        self,
        content: bytes,
        *,
        name: str,
        source: JSON | None = None,
        batch: int = 1,
        shapes: Mapping[str, Sequence[int]] | None = None,
        label: str | None = None,
    ) -> None:
        """Bind dynamic dimensions of the sound model in ``content`` and check it.

        ``label`` names the network in messages. Raises :class:`UsageError` if dimensions stay open
        or ``batch`` or ``shapes`` do not fit, :class:`TvmtuneError` if it uses unsupported features.
        """
        self.name = name
        self.source = source or {}
        self._label = label or name
        model = tflite_file.parse(content, self._label)
        if quantized.check(model, self._label):
            self.computes = "int8"
        if quantized.widen_weights(model, self._label):
            content = pack(model)
        details = tflite_file.interpreter(content).get_input_details()
        names = _unique([detail["name"] or f"input_{i}" for i, detail in enumerate(details)])
        declared = {one: _declared(detail) for one, detail in zip(names, details, strict=True)}
        static, _ = resolve(declared, batch=batch, shapes=shapes, label=self._label)
        self.inputs = tuple(
            TensorSpec(one, static[one], _dtype(detail, one, self._label))
            for one, detail in zip(names, details, strict=True)
        )
        self._detections = tflite_file.detections(model)
        self._content = bind(model, content, self.inputs, self._label)
        self.outputs = self._outputs()
        self.structure_hash, self.weights_hash = _hashes(model)

    def to_relax(self) -> tvm.IRModule:
        """Import into Relax. Parameters of ``main`` correspond to ``inputs`` by position."""
        from tvmtune.networks.tflite.relax import to_relax

        return to_relax(self._content, self.inputs, self.outputs, self._label)

    def to_onnx(self) -> bytes | None:
        """None: TFLite models have no ONNX form."""
        return None

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs by LiteRT's interpreter, with XNNPACK's kernels where there are any, as by default.

        Raises :class:`UsageError` if ``inputs`` have other names, shapes or dtypes than the network's.
        """
        check_inputs(inputs, self.inputs)
        return self._run(inputs)

    @functools.cached_property
    def rounding_runs(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        """Outputs with XNNPACK and of LiteRT's own kernels, for both inputs of a check. Quantized, the
        latter round twice, and later layers amplify the difference, to 0.1 to 0.7 in MediaPipe's
        networks."""
        feeds = [inputs_of(self, seed) for seed in (0, 1)]
        return [(self._run(feed), self._run(feed, xnnpack=False)) for feed in feeds]

    def _run(self, inputs: Mapping[str, np.ndarray], *, xnnpack: bool = True) -> list[np.ndarray]:
        machine = tflite_file.interpreter(
            self._content, threads=cpu_count.usable_cpus(), xnnpack=xnnpack
        )
        outputs = tflite_file.run(machine, self.inputs, inputs, self._label)
        # Behind the last detection, LiteRT leaves the memory as it was.
        for *found, count in self._detections:
            for place in found:
                outputs[place][:, int(outputs[count].item()) :] = 0
        return outputs

    def _outputs(self) -> tuple[TensorSpec, ...]:
        machine = tflite_file.interpreter(self._content)
        tflite_file.allocate(machine)
        details = machine.get_output_details()
        names = _unique([detail["name"] or f"output_{i}" for i, detail in enumerate(details)])
        return tuple(
            TensorSpec(one, tuple(map(int, d["shape"])), _dtype(d, one, self._label))
            for one, d in zip(names, details, strict=True)
        )


def _declared(detail: Mapping[str, Any]) -> list[Dim]:
    """Extents as the file declares them. Negative ones are open; ``shape`` has a 1 in their place."""
    signature = detail["shape_signature"]
    dims = signature if len(signature) else detail["shape"]
    return [int(dim) if dim >= 0 else None for dim in dims]


def _dtype(detail: Mapping[str, Any], name: str, label: str) -> str:
    dtype = np.dtype(detail["dtype"])
    if dtype.kind not in "biuf":
        raise TvmtuneError(f"'{name}' of {label} holds no real numbers, which is not supported")
    return dtype.name


def _unique(names: Sequence[str]) -> list[str]:
    """The names, with a number appended to repeated ones."""
    return [n if n not in names[:i] else f"{n}_{i}" for i, n in enumerate(names)]


def _hashes(model: Any) -> tuple[str, str]:
    """Structure hash and weights hash of a static model.

    The structure is the operators in order, their options, the edges between them, shapes and dtypes
    of inputs and weights, and the values of small constants of integers. Names do not count. Scales and
    zero points count as weights.
    """
    graph, hasher = model.subgraphs[0], NetworkHasher()
    edges: dict[int, int] = {}
    for place in graph.inputs:
        edges[int(place)] = len(edges)
        tensor = graph.tensors[place]
        hasher.add(["input", tflite_file.dtype(tensor), tflite_file.extents(tensor)])
    for node in graph.operators:
        name = tflite_file.operator_name(model.operatorCodes[node.opcodeIndex])
        arguments = [_argument(model, int(place), edges, hasher) for place in node.inputs]
        for place in node.outputs:
            edges[int(place)] = len(edges)
        options = [_plain(node.builtinOptions), _plain(node.builtinOptions2)]
        if node.customOptions is not None:
            options.append(_plain(node.customOptions))
        hasher.add([name, options, arguments, len(node.outputs)])
    hasher.add([_argument(model, int(place), edges, hasher) for place in graph.outputs])
    for place in edges:
        given = graph.tensors[place].quantization
        for numbers in (given.scale, given.zeroPoint) if given is not None else ():
            if numbers is not None and len(numbers):
                hasher.constant(np.asarray(numbers, "float64"))
    return hasher.hashes()


def _argument(model: Any, place: int, edges: dict[int, int], hasher: NetworkHasher) -> Any:
    """The number of an edge; a constant is described where it is first used."""
    if place < 0 or place in edges:
        return edges.get(place)
    edges[place] = len(edges)
    tensor = model.subgraphs[0].tensors[place]
    constant = tflite_file.value(model, tensor)
    described = hasher.constant(constant) if constant is not None else tflite_file.dtype(tensor)
    return [edges[place], described]


def _plain(options: Any) -> Any:
    """Options of the schema as JSON."""
    if isinstance(options, np.ndarray):
        return options.tolist()
    if isinstance(options, (list, tuple)):
        return [_plain(option) for option in options]
    if hasattr(options, "__dict__"):
        return {key: _plain(option) for key, option in vars(options).items()}
    return str(options) if isinstance(options, bytes) else options
