"""Makes a TFLite model static: binds shapes and folds the constants that follow.

Converters emit chains of SHAPE, STRIDED_SLICE and PACK before a RESHAPE where the batch is open, and
float16 weights through DEQUANTIZE. LiteRT computes all of these here, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.tflite import file as tflite_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmtune.types import TensorSpec

_STATEFUL = ("RANDOM", "MULTINOMIAL", "VARIABLE", "VAR_HANDLE", "HASHTABLE")
"""Parts of the names of operators whose results differ from run to run."""


def bind(model: Any, content: bytes, specs: Sequence[TensorSpec], label: str) -> bytes:
    """The serialized ``model``, modified in place, for inputs with the shapes of ``specs``.

    ``content`` is what the model was parsed from, and is returned if nothing changes. Raises
    :class:`TvmtuneError` if LiteRT cannot run it with these shapes, or if a shape depends on the data.
    """
    machine = tflite_file.interpreter(content, keep=True)
    shapes = []
    for seed in (0, 1):
        tflite_file.run(machine, specs, random_inputs(specs, seed), label)
        details = machine.get_tensor_details()
        shapes.append({d["index"]: tuple(map(int, d["shape"])) for d in details})
    graph = model.subgraphs[0]
    for index, node in enumerate(graph.operators or ()):
        if any(shapes[0].get(place) != shapes[1].get(place) for place in node.outputs):
            name = tflite_file.operator_name(model.operatorCodes[node.opcodeIndex])
            raise TvmtuneError(
                f"the shape that {tflite_file.describe(name, index)} of {label} makes depends on "
                "the data; only static shapes are supported"
            )
    changed = _set_shapes(graph, shapes[0])
    changed = _fold(model, machine) or changed
    return pack(model) if changed else content


def _set_shapes(graph: Any, shapes: dict[int, tuple[int, ...]]) -> bool:
    """Write static shapes into the graph; returns whether any changed."""
    changed = False
    for place, tensor in enumerate(graph.tensors):
        signature = tensor.shapeSignature
        if signature is not None and any(extent < 0 for extent in signature):
            tensor.shapeSignature = None
            changed = True
        if place in shapes and shapes[place] != tflite_file.extents(tensor):
            tensor.shape = np.array(shapes[place], np.int32)
            changed = True
    return changed


def _fold(model: Any, machine: Any) -> bool:
    """Fold operators whose results follow from constants and shapes; returns whether there were any."""
    graph = model.subgraphs[0]
    known = {
        place
        for place, tensor in enumerate(graph.tensors)
        if tflite_file.value(model, tensor) is not None
    }
    kept = []
    for node in graph.operators or ():
        name = tflite_file.operator_name(model.operatorCodes[node.opcodeIndex])
        arguments = [place for place in node.inputs if place >= 0]
        if (
            not arguments
            or any(word in name for word in _STATEFUL)
            or not (name in ("SHAPE", "RANK") or known.issuperset(arguments))
        ):
            kept.append(node)
            continue
        for place in node.outputs:
            constant = np.asarray(machine.get_tensor(place), order="C")
            graph.tensors[place].buffer = len(model.buffers)
            model.buffers.append(_buffer(constant))
            known.add(place)
    folded = len(kept) < len(graph.operators or ())
    graph.operators = kept
    return folded


def _buffer(constant: np.ndarray) -> Any:
    from ai_edge_litert.schema_py_generated import BufferT

    buffer = BufferT()
    buffer.data = np.frombuffer(constant.tobytes(), np.uint8)
    return buffer


def pack(model: Any) -> bytes:
    """Serialize a model without buffers that nothing reads."""
    import flatbuffers

    _drop_unused(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _drop_unused(model: Any) -> None:
    """Empty the buffers that only folded operators read: float16 weights are half of a file."""
    from ai_edge_litert.schema_py_generated import BufferT

    graph = model.subgraphs[0]
    read = {place for node in graph.operators for place in node.inputs}
    read |= {int(place) for place in graph.outputs}
    used = {graph.tensors[place].buffer for place in read if place >= 0}
    used |= {tensor.buffer for other in model.subgraphs[1:] for tensor in other.tensors}
    used |= {entry.buffer for entry in model.metadata or ()}
    for index in range(len(model.buffers)):
        if index not in used:
            model.buffers[index] = BufferT()
