"""Reads TFLite files and explains what is wrong with unsupported ones.

LiteRT's interpreter validates a file; the schema in its package reads and writes the content. Operators
have the schema's names, which TVM's importer uses, too.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import TvmtuneError, UsageError, one_line
from tvmtune.networks.model_file import Format
from tvmtune.networks.shapes import check_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tvmtune.types import TensorSpec

FORMAT = Format(
    name="TFLite",
    suffix=".tflite",
    export="make one with tf.lite.TFLiteConverter",
)

_PACKAGES = {"tflite": "tflite", "ai_edge_litert": "ai-edge-litert"}
"""Modules that the importer and the reference need, and their packages."""

_REDIRECTING = threading.Lock()
"""Standard error is one for all threads."""

CONTROL_FLOW = {"CALL", "CALL_ONCE", "IF", "STABLEHLO_COMPOSITE", "STABLEHLO_WHILE", "WHILE"}
"""Operators that run another graph of the file."""

_DETECTION = "TFLite_Detection_PostProcess"
CUSTOM = {_DETECTION: "DETECTION_POSTPROCESS"}
"""Custom operators that LiteRT and TVM's importer know, and the importer's names for them."""


def read(path: Path) -> bytes:
    """The content of the file at ``path``.

    Raises :class:`UsageError` if there is no such file or a package is missing,
    :class:`TvmtuneError` if it holds no TFLite model.
    """
    content = FORMAT.read(path)
    missing = [p for module, p in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UsageError(
            f"{path} needs packages that are not installed: pip install {' '.join(missing)}"
        )
    try:
        interpreter(content)
    except ValueError as error:
        if "Flatbuffer" in str(error):
            raise FORMAT.wrong_format(path, content) from error
        raise TvmtuneError(
            f"LiteRT cannot load {path}: {one_line(error)}; update it with pip install -U "
            "ai-edge-litert, or convert the network again with TFLite's built-in operators"
        ) from error
    return content


def interpreter(
    content: bytes, *, threads: int = 1, keep: bool = False, xnnpack: bool = False
) -> Any:
    """LiteRT's interpreter of a model; with ``keep`` it keeps all values of a run.

    It runs LiteRT's own kernels, or with ``xnnpack`` those of XNNPACK where there are any, as
    applications do by default. XNNPACK hides the values between its operators.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    own = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return Interpreter(
        model_content=content,
        num_threads=threads,
        experimental_op_resolver_type=OpResolverType.AUTO if xnnpack else own,
        experimental_preserve_all_tensors=keep,
    )


def allocate(machine: Any) -> None:
    """``allocate_tensors`` of an interpreter, without the note about XNNPACK on standard error, which
    nothing turns off."""
    with _REDIRECTING:
        try:
            kept = os.dup(2)
        except OSError:  # standard error is closed
            machine.allocate_tensors()
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            machine.allocate_tensors()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)


def resize(machine: Any, specs: Sequence[TensorSpec]) -> list[int]:
    """Give the inputs of an interpreter these shapes; returns the numbers of their tensors."""
    places = [int(detail["index"]) for detail in machine.get_input_details()]
    for place, spec in zip(places, specs, strict=True):
        machine.resize_tensor_input(place, spec.shape)
    allocate(machine)
    return places


def run(
    machine: Any, specs: Sequence[TensorSpec], inputs: Mapping[str, np.ndarray], label: str
) -> list[np.ndarray]:
    """Outputs of an interpreter for ``inputs``; resizes it to their shapes.

    Raises :class:`TvmtuneError` if the interpreter cannot run the model.
    """
    try:
        places = resize(machine, specs)
        for place, spec in zip(places, specs, strict=True):
            machine.set_tensor(place, inputs[spec.name])
        machine.invoke()
        return [machine.get_tensor(d["index"]).copy() for d in machine.get_output_details()]
    except (RuntimeError, ValueError) as error:
        raise TvmtuneError(
            f"LiteRT cannot run {label} on the inputs {', '.join(map(str, specs))}: "
            f"{one_line(error)}; choose another --shape or --batch, or convert the network again"
        ) from error


def parse(content: bytes, label: str) -> Any:
    """The model in ``content`` as an object of the schema (``ModelT``).

    Raises :class:`TvmtuneError` if it refers to what it lacks, if an operator is custom or runs another
    graph, or if weights are stored after the model.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content)
    graph = model.subgraphs[0]
    _check_references(model, label)
    for index, node in enumerate(graph.operators or ()):
        code = model.operatorCodes[node.opcodeIndex]
        name = operator_name(code)
        where = f"{describe(name, index)} of {label}"
        if name.startswith("Flex"):
            raise TvmtuneError(
                f"{where} is TensorFlow's own {name.removeprefix('Flex')}, which is not supported; "
                "convert the network with TFLite's built-in operators alone (TFLITE_BUILTINS)"
            )
        if code.customCode and name not in CUSTOM:
            raise TvmtuneError(
                f"{where} is a custom operator, which is not supported; "
                "replace it by TFLite's built-in operators and convert the network again"
            )
        if name == _DETECTION:
            _check_detection(node, where)
        if name in CONTROL_FLOW:
            raise TvmtuneError(
                f"{where} runs another graph of the file, which is not supported; "
                "convert the network without control flow, variables and composites"
            )
    for tensor in graph.tensors:
        check_size(f"tensor '{text(tensor.name)}' of {label}", extents(tensor))
    if any(buffer.offset > 1 for buffer in model.buffers):
        raise TvmtuneError(
            f"{label} keeps weights after the model itself, as files above 2 GB do, which is not "
            "supported; give the network as an ONNX file"
        )
    return model


def _check_detection(node: Any, where: str) -> None:
    """Raise :class:`TvmtuneError` for what the importer does otherwise than LiteRT."""
    from flatbuffers import flexbuffers

    try:
        options = flexbuffers.Loads(bytes(bytearray(node.customOptions)))
        regular, classes = (
            options.get(k, 0) for k in ("use_regular_nms", "max_classes_per_detection")
        )
    except Exception as error:  # its parser checks nothing
        raise TvmtuneError(f"{where} has damaged options; convert the network again") from error
    if regular:  # LiteRT's never returns the last class
        raise TvmtuneError(
            f"{where} suppresses boxes of each class alone, which is not supported; "
            "convert the network with use_regular_nms=False"
        )
    if classes > 1:
        raise TvmtuneError(
            f"{where} returns {classes} classes of a box, which is not supported; "
            "convert the network with max_classes_per_detection=1"
        )


def detections(model: Any) -> list[list[int]]:
    """Which outputs of a parsed model are the boxes, classes, scores and number of the detections of an
    operator, for each whose results all are outputs."""
    graph = model.subgraphs[0]
    places = [int(place) for place in graph.outputs]
    return [
        [places.index(place) for place in node.outputs]
        for node in graph.operators or ()
        if operator_name(model.operatorCodes[node.opcodeIndex]) == _DETECTION
        and all(place in places for place in node.outputs)
    ]


def _check_references(model: Any, label: str) -> None:
    """Raise :class:`TvmtuneError` if the model's first graph names tensors, operators or buffers that
    are not there: LiteRT checks what it runs, and not before."""
    graph = model.subgraphs[0]
    count = len(graph.tensors or ())
    damaged = (
        f"{label} is damaged: {{}} refers to {{}}, which it lacks; restore or convert it again"
    )
    for index, node in enumerate(graph.operators or ()):
        if not 0 <= node.opcodeIndex < len(model.operatorCodes or ()):
            raise TvmtuneError(damaged.format(f"operator {index}", f"code {node.opcodeIndex}"))
        node.inputs = [] if node.inputs is None else node.inputs
        node.outputs = [] if node.outputs is None else node.outputs
        for place in (*node.inputs, *node.outputs):
            if not -1 <= place < count:
                raise TvmtuneError(damaged.format(f"operator {index}", f"tensor {place}"))
    for number, tensor in enumerate(graph.tensors or ()):
        if not 0 <= tensor.buffer < len(model.buffers or ()):
            raise TvmtuneError(damaged.format(f"tensor {number}", f"buffer {tensor.buffer}"))


def operator_name(code: Any) -> str:
    """The name of an ``OperatorCodeT``, e.g. ``CONV_2D``, or of its custom operator."""
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    if code.customCode:
        return text(code.customCode)
    # Codes above 127 do not fit the older of the two fields, which then holds 127.
    value = max(code.builtinCode, code.deprecatedBuiltinCode)
    names = {v: k for k, v in vars(BuiltinOperator).items() if isinstance(v, int)}
    return names.get(value, f"number {value}")


def describe(name: str, index: int) -> str:
    """``operator 3 (CONV_2D)``, counted from 0 as file viewers do."""
    return f"operator {index} ({name})"


def text(name: bytes | str | None) -> str:
    """A string of the schema as ``str``."""
    return name.decode(errors="replace") if isinstance(name, bytes) else name or ""


def dtype(tensor: Any) -> str:
    """The name of a ``TensorT``'s type: NumPy's, if NumPy has the type."""
    from ai_edge_litert.schema_py_generated import TensorType

    names = {v: k for k, v in vars(TensorType).items() if isinstance(v, int)}
    return names.get(tensor.type, f"type {tensor.type}").lower()


def value(model: Any, tensor: Any) -> np.ndarray | None:
    """The constant in a ``TensorT``, raw bytes if NumPy lacks the type; None if it is not constant."""
    data = model.buffers[tensor.buffer].data
    if data is None or not len(data) or tensor.isVariable:
        return None
    raw = np.asarray(data, np.uint8)
    try:
        return raw.view(np.dtype(dtype(tensor))).reshape(extents(tensor))
    except (TypeError, ValueError):
        return raw


def extents(tensor: Any) -> tuple[int, ...]:
    """The shape of a ``TensorT``, which may be missing for a scalar."""
    return tuple(int(extent) for extent in (tensor.shape if tensor.shape is not None else ()))
