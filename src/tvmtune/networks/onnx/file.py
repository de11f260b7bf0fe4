"""Reads ONNX files and explains what is wrong with unreadable ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto
from onnx.external_data_helper import load_external_data_for_model

from tvmtune.errors import TvmtuneError, one_line
from tvmtune.networks.model_file import Format
from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.networks.onnx import wire as onnx_wire

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

FORMAT = Format(
    "ONNX",
    ".onnx",
    "export the network with torch.onnx.export, save it as .pt2 with torch.export.save, or convert it "
    "with tf2onnx",
)


def read(path: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Load the model at ``path``, with weights from external data files.

    Large weights are only declared in the model, and returned as arrays by name. Raises
    :class:`UsageError` if there is no such file, :class:`TvmtuneError` if it holds no model.
    """
    start = FORMAT.start(path)
    try:
        model, weights = onnx_wire.read(path)
    except Exception as error:  # protobuf's own class, which differs between its implementations
        raise FORMAT.wrong_format(path, start) from error
    # The operator set follows the graph in a file: without one, the file was cut short. Text may by
    # chance parse as a message without either.
    if not model.graph.node or not model.graph.output or not model.opset_import:
        raise FORMAT.wrong_format(path, start)
    if not _is_unicode(model):
        raise TvmtuneError(
            f"{path} is damaged: a name in it is not UTF-8 text; export or download it again"
        )
    try:
        _load_external_data(model, path.parent)
    except Exception as error:  # missing, too short, outside the directory, ...
        missing = _missing_data(model, path.parent)
        cause = f"there is no file '{missing}'" if missing else one_line(error)
        raise TvmtuneError(
            f"{path} keeps weights in another file, which cannot be read: {cause}; "
            "put that file beside the model under its original name"
        ) from error
    return model, weights


def _missing_data(model: onnx.ModelProto, folder: Path) -> str:
    """The first external data file that does not exist; empty if all do."""
    for tensor in filter(onnx_weights.is_declared, model.graph.initializer):
        for entry in tensor.external_data:
            if entry.key == "location" and not (folder / entry.value).exists():
                return entry.value
    return ""


def _is_unicode(message: Any) -> bool:
    """Whether all texts in a message are: protobuf returns others as bytes, which nothing expects."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            if not all(map(_is_unicode, [value] if hasattr(value, "ListFields") else value)):
                return False
        elif field.type == field.TYPE_STRING and (  # one text, or a list of them
            isinstance(value, bytes) or not all(isinstance(text, str) for text in value)
        ):
            return False
    return True


def _load_external_data(model: onnx.ModelProto, folder: Path) -> None:
    """Put the values from external data files into the model."""
    loaded = [t for t in model.graph.initializer if onnx_weights.is_declared(t)]
    loaded = [t for t in loaded if t.external_data[0].value == onnx_weights.IN_MEMORY]
    for tensor in loaded:
        tensor.data_location = TensorProto.DEFAULT
    load_external_data_for_model(model, str(folder))
    for tensor in loaded:
        tensor.data_location = TensorProto.EXTERNAL
