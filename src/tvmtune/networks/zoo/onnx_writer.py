"""Writes an ONNX model node by node, without a second copy of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSET = 17
IR_VERSION = 8
"""Of 2022: old enough for every peer, new enough for LayerNormalization."""


class OnnxWriter:
    """Fills one float32 model in place: the usual helpers copy all weights with every part."""

    def __init__(self, name: str) -> None:
        opset = helper.make_opsetid("", OPSET)
        self.model = onnx.ModelProto(
            ir_version=IR_VERSION, producer_name="tvmtune", opset_import=[opset]
        )
        self._graph = self.model.graph
        self._graph.name = name

    def input(self, name: str, shape: Sequence[int]) -> None:
        self._graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def output(self, name: str, shape: Sequence[int]) -> None:
        self._graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def weight(self, name: str, array: np.ndarray) -> None:
        """Add a weight, rounded to float32."""
        content = array.astype("<f4", copy=False).tobytes()
        self._graph.initializer.add(
            name=name, data_type=TensorProto.FLOAT, dims=array.shape, raw_data=content
        )

    def node(
        self, op: str, name: str, inputs: Sequence[str], *, output: str = "", **attributes: Any
    ) -> str:
        """Add a node whose only output is called ``output``, or like the node itself."""
        output = output or name
        self._graph.node.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output
