"""Writes an ONNX model node by node, with its large weights kept outside of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtune import arrays
from tvmtune.networks.onnx import weights as onnx_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSET = 17
IR_VERSION = 8
"""Opset and IR of 2022: old enough for every peer, new enough for LayerNormalization."""

Detached = tuple[onnx.ModelProto, dict[str, np.ndarray]]
"""A model, and by name the large weights that it only declares."""


class OnnxWriter:
    """Builds one float32 model and holds its weights once: protobuf would copy them."""

    def __init__(self, name: str) -> None:
        opset = helper.make_opsetid("", OPSET)
        self._model = onnx.ModelProto(
            ir_version=IR_VERSION, producer_name="tvmtune", opset_import=[opset]
        )
        self._graph = self._model.graph
        self._graph.name = name
        self._weights: dict[str, np.ndarray] = {}

    def input(self, name: str, shape: Sequence[int], data_type: int = TensorProto.FLOAT) -> None:
        self._graph.input.append(helper.make_tensor_value_info(name, data_type, shape))

    def output(self, name: str, shape: Sequence[int]) -> None:
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def weight(self, name: str, array: np.ndarray) -> None:
        """Add a weight, rounded to float32."""
        self.empty_weight(name, array.shape)[...] = array

    def empty_weight(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """Add a float32 weight and return its array, for the caller to fill."""
        self._weights[name] = arrays.empty(shape, np.float32)
        return self._weights[name]

    def integers(self, name: str, array: np.ndarray) -> None:
        """Add an int64 constant: a shape, axes or indices."""
        constant = numpy_helper.from_array(np.asarray(array, np.int64), name)
        self._graph.initializer.append(constant)

    def node(
        self, op: str, name: str, inputs: Sequence[str], *, output: str = "", **attributes: Any
    ) -> str:
        """Add a node whose only output is named ``output``, by default like the node."""
        self.split_node(op, name, inputs, [output or name], **attributes)
        return output or name

    def split_node(
        self, op: str, name: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Add a node with any number of outputs."""
        self._graph.node.append(helper.make_node(op, inputs, outputs, name=name, **attributes))

    def finish(self) -> Detached:
        """The model, which the caller owns. Nothing can be added afterwards."""
        large = {}
        for name, array in self._weights.items():
            if math.prod(array.shape) > onnx_weights.LARGEST:
                onnx_weights.declare(self._model, name, array.shape, TensorProto.FLOAT)
                large[name] = array
            else:
                self._graph.initializer.append(numpy_helper.from_array(array, name))
        return self._model, large
