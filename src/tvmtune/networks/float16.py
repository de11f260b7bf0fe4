"""A float32 network in half precision: weights, inputs, outputs and activations in float16."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tvmtune.arrays import narrowed
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import check_inputs
from tvmtune.networks.onnx.batch_norm import fold_batch_norms
from tvmtune.networks.onnx.network import OnnxNetwork
from tvmtune.networks.onnx.operators import nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    import tvm

    from tvmtune.types import JSON, Network, TensorSpec

_LARGEST = float(np.finfo(np.float16).max)
_INFINITE = 1e9
"""Larger constants stand for infinity, as in masks: weights are never that large."""


class Float16Network:
    """Implements :class:`tvmtune.types.Network` for the half-precision form of an ONNX network.

    Batch norms are folded before weights are rounded, so that they are rounded once. The reference
    computes in float32 with the rounded weights: it differs by the rounding of activations.
    Raises :class:`UsageError` if ``network`` is not in ONNX form, :class:`TvmtuneError` if a weight
    is too large for float16, unless it stands for infinity.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: JSON
    structure_hash: str
    weights_hash: str
    rounded: OnnxNetwork
    """The float32 network with weights rounded to float16."""

    def __init__(self, network: Network) -> None:
        full = float32_model(network, "float16")
        self._half = OnnxNetwork(_converted(full, network.name), name=network.name)
        round_weights(full, np.dtype(np.float16))
        self.rounded = OnnxNetwork(full, name=network.name)
        self.name, self.inputs, self.outputs = network.name, self._half.inputs, self._half.outputs
        self.source = network.source | {"dtype": "float16"}
        self.structure_hash = self._half.structure_hash
        self.weights_hash = self._half.weights_hash
        self.ranges, self.state = self.rounded.ranges, self.rounded.state

    def to_relax(self) -> tvm.IRModule:
        return self._half.to_relax()

    def to_onnx(self) -> bytes | None:
        return self._half.to_onnx()

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of float32 arithmetic with the rounded weights, rounded to the outputs' dtypes."""
        check_inputs(inputs, self.inputs)
        wide = {spec.name: inputs[spec.name].astype(spec.dtype) for spec in self.rounded.inputs}
        outputs = self.rounded.reference(wide)
        return [a.astype(spec.dtype) for a, spec in zip(outputs, self.outputs, strict=True)]


def _converted(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """A copy of the model in float16."""
    from onnxconverter_common import float16

    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor)
            magnitude = np.abs(array)
            most = float(magnitude.max(initial=0.0, where=magnitude < _INFINITE))
            if most > _LARGEST:
                raise TvmtuneError(
                    f"weight '{tensor.name}' of {label} reaches {most:g}, and float16 ends at "
                    f"{_LARGEST:g}: stay with --dtype float32"
                )
    half = onnx.ModelProto()
    half.CopyFrom(model)
    # The converter ignores these casts, after which float32 would meet float16.
    for node in nodes(half.graph):
        for attribute in node.attribute:
            if (
                node.op_type == "Cast"
                and attribute.name == "to"
                and attribute.i == TensorProto.FLOAT
            ):
                attribute.i = TensorProto.FLOAT16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one for each weight below float16's range
        # Its default limits would move small weights away from zero, and large ones to 1e4.
        return float16.convert_float_to_float16(
            half,
            min_positive_val=0.0,
            max_finite_val=_LARGEST,
            disable_shape_infer=True,
            check_fp16_ready=False,  # casts to float16 are there already
        )


def round_weights(model: onnx.ModelProto, dtype: np.dtype) -> None:
    """Round float32 weights to ``dtype``, in place."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = narrowed(numpy_helper.to_array(tensor), dtype).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def float32_model(network: Network, dtype: str) -> onnx.ModelProto:
    """The ONNX form of a network to be computed in ``dtype``, with its batch norms folded.

    Raises :class:`UsageError` if there is none.
    """
    content = network.to_onnx() if isinstance(network, OnnxNetwork) else None
    if content is None:
        raise UsageError(
            f"--dtype {dtype} is for the zoo and ONNX files below 2 GiB; export {network.name} in "
            "half precision instead"
        )
    return fold_batch_norms(onnx.load_model_from_string(content))
