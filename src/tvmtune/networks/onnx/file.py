"""Reading an ONNX file, and saying plainly what is wrong with one that cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto
from onnx.external_data_helper import load_external_data_for_model

from tvmtune.errors import TvmtuneError
from tvmtune.networks.model_file import Format, one_line
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
    """Load the model at ``path``, weights kept in other files included.

    Large weights are only declared in the model, and come as arrays by name. Raises
    :class:`UsageError` if there is no such file, :class:`TvmtuneError` if it holds no model.
    """
    start = FORMAT.start(path)
    try:
        model, weights = onnx_wire.read(path)
    except Exception as error:  # protobuf's own class, which differs between its implementations
        raise FORMAT.mistaken(path, start) from error
    # The graph stands before the operator set in a file, so a model without one was cut short,
    # and text can by chance parse as a message without either.
    if not model.graph.node or not model.graph.output or not model.opset_import:
        raise FORMAT.mistaken(path, start)
    try:
        _load_other_files(model, path.parent)
    except Exception as error:  # missing, too short, outside the directory, ...
        raise TvmtuneError(
            f"{path} keeps weights in another file, which cannot be read: {one_line(error)}; "
            "put that file beside the model under its original name"
        ) from error
    return model, weights


def _load_other_files(model: onnx.ModelProto, folder: Path) -> None:
    """Put the values that are in files beside the model into it."""
    own = [t for t in model.graph.initializer if onnx_weights.is_declared(t)]
    own = [t for t in own if t.external_data[0].value == onnx_weights.HERE]
    for tensor in own:
        tensor.data_location = TensorProto.DEFAULT
    load_external_data_for_model(model, str(folder))
    for tensor in own:
        tensor.data_location = TensorProto.EXTERNAL
