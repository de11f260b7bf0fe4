"""Writes the quantized form of a float32 ONNX network: QuantizeLinear and DequantizeLinear (QDQ).

Activations are uint8 with a zero point, so that 0 is exact; weights int8 with a scale for each output;
biases int32 in steps of both scales. This is the form that ONNX Runtime's and OpenVINO's tools write,
and that they and :mod:`tvmtune.passes.quantized_operators` compute in integers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from tvmtune.errors import UsageError, one_line
from tvmtune.networks.onnx.batch_norm import fold_batch_norms
from tvmtune.networks.onnx.control_flow import without_control_flow
from tvmtune.networks.onnx.integer_layers import IntegerLayers, Layer, constants
from tvmtune.networks.onnx.operators import STANDARD, standard_version

OPSET = 13
"""From here on, weights may have a scale for each output."""
_STEPS = 255
_WEIGHT_STEPS = 127
_MOST_BIAS = 2**30
"""Steps of a bias; sums of products need the rest of int32."""


class Range(NamedTuple):
    """The lowest and the highest value of a tensor that a byte expresses."""

    low: float
    high: float

    def steps(self) -> tuple[np.float32, np.uint8]:
        """Scale and zero point of uint8. Zero is always in the range, because convolutions pad with
        it."""
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        scale = np.float32((high - low) / _STEPS)
        if not scale > 0:  # a tensor of zeros
            return np.float32(1), np.uint8(0)
        return scale, np.uint8(np.clip(np.rint(-low / float(scale)), 0, _STEPS))


def prepared(content: bytes, name: str) -> onnx.ModelProto:
    """A network's model with constants where weights are computed, and batch normalizations folded.

    Raises :class:`UsageError` for an old version that cannot be converted; ``name`` is the network's.
    """
    model = onnx.load_model_from_string(content)
    version = standard_version(model)
    if version < OPSET:
        try:
            model = version_converter.convert_version(model, OPSET)
        except Exception as error:
            raise UsageError(
                f"{name} has ONNX opset {version}, --dtype int8 needs {OPSET}, and onnx cannot convert "
                f"it ({one_line(error)}): export it with opset {OPSET} or later"
            ) from error
    return fold_batch_norms(_with_weights(without_control_flow(model)))


def quantize(
    model: onnx.ModelProto, ranges: Mapping[str, Range], skipped: Collection[str] = ()
) -> onnx.ModelProto:
    """The quantized form of a :func:`prepared` model.

    ``ranges``: of each tensor in the values of :attr:`IntegerLayers.tensors`. ``skipped``: names of
    layers that stay in float.
    """
    return _Writer(model, ranges, skipped).model


class _Writer:
    def __init__(
        self, model: onnx.ModelProto, ranges: Mapping[str, Range], skipped: Collection[str]
    ) -> None:
        self._ranges = ranges
        self._layers = IntegerLayers(model, skipped)
        self._tensors = constants(model)
        self._names = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._rounded: dict[str, str] = {}
        """Tensors, and what holds their rounded values."""
        self.model = self._write(model)

    def _write(self, model: onnx.ModelProto) -> onnx.ModelProto:
        layers = {layer.node_output: layer for layer in self._layers.layers}
        for name in (info.name for info in model.graph.input):
            self._round(name)
        for node in model.graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for place, name in enumerate(node.input):
                if self._layers.reads_bytes(name, node):
                    copy.input[place] = self._rounded[name]
            if (layer := layers.get(node.output[0])) is not None:
                self._quantize_weights(copy, layer)
            self._nodes.append(copy)
            for name in node.output:
                self._round(name)
        result = onnx.ModelProto()
        result.CopyFrom(model)
        del result.graph.node[:], result.graph.value_info[:]
        result.graph.node.extend(self._nodes)
        used = {name for node in self._nodes for name in node.input}
        used |= {info.name for info in model.graph.output}
        kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
        del result.graph.initializer[:]
        result.graph.initializer.extend([*kept, *self._weights])
        # Older files also list weights as inputs.
        listed = [i for i in model.graph.input if i.name not in self._tensors or i.name in used]
        del result.graph.input[:]
        result.graph.input.extend(listed)
        return result

    def _round(self, name: str) -> None:
        """Append the nodes that round a tensor, if it becomes bytes."""
        source = self._layers.tensors.get(name)
        if source is None:
            return
        scale, zero = self._ranges[source].steps()
        bounds = [self._weight(f"{name}/scale", scale), self._weight(f"{name}/zero", zero)]
        stored, self._rounded[name] = self._free(f"{name}/bytes"), self._free(f"{name}/rounded")
        self._node("QuantizeLinear", [name, *bounds], stored)
        self._node("DequantizeLinear", [stored, *bounds], self._rounded[name])

    def _quantize_weights(self, node: onnx.NodeProto, layer: Layer) -> None:
        """Replace the weights of a layer, and a bias that belongs to the operator."""
        weights = numpy_helper.to_array(self._tensors[layer.weight]).astype(np.float64)
        weights = np.moveaxis(weights, layer.axis, 0)
        channels = len(weights)
        bias = None
        if len(node.input) > 2 and node.input[2]:
            values = numpy_helper.to_array(self._tensors[node.input[2]]).astype(np.float64)
            bias = np.broadcast_to(values.reshape(-1), (channels,))
        steps, _ = self._ranges[self._layers.tensors[layer.input]].steps()
        scales = np.abs(weights.reshape(channels, -1)).max(axis=1, initial=0.0) / _WEIGHT_STEPS
        if bias is not None:
            # A channel of tiny weights would have too fine steps for its bias.
            scales = np.maximum(scales, np.abs(bias) / (float(steps) * _MOST_BIAS))
        scales = scales.astype(np.float32)
        scales[~(scales > np.finfo(np.float32).tiny)] = 1.0  # channels of zeros
        shape = (-1,) + (1,) * (weights.ndim - 1)
        whole = np.rint(weights / scales.astype(np.float64).reshape(shape))
        whole = np.clip(whole, -_WEIGHT_STEPS, _WEIGHT_STEPS).astype(np.int8)
        whole = np.ascontiguousarray(np.moveaxis(whole, 0, layer.axis))
        base = layer.node_output
        node.input[1] = self._dequantized(f"{base}/weight", whole, scales, layer.axis)
        if bias is not None:
            fine = (steps * scales).astype(np.float32)
            whole = np.rint(bias / fine.astype(np.float64)).astype(np.int32)
            node.input[2] = self._dequantized(f"{base}/bias", whole, fine, 0)

    def _dequantized(self, name: str, whole: np.ndarray, scales: np.ndarray, axis: int) -> str:
        zeros = np.zeros(scales.shape, whole.dtype)
        inputs = [
            self._weight(f"{name}/bytes", whole),
            self._weight(f"{name}/scale", scales),
            self._weight(f"{name}/zero", zeros),
        ]
        result = self._free(f"{name}/rounded")
        self._node("DequantizeLinear", inputs, result, axis)
        return result

    def _node(self, operator: str, inputs: list[str], output: str, axis: int | None = None) -> None:
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        self._nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))

    def _weight(self, name: str, array: np.ndarray | np.generic) -> str:
        name = self._free(name)
        self._weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _free(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with weights in place of constants in nodes, and of weights that are transposed first,
    as exporters write dense layers."""
    known = constants(model)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = []
    outputs = {info.name for info in model.graph.output}
    for node in result.graph.node:
        is_inner = node.domain in STANDARD and node.output[0] not in outputs
        tensor = _folded(node, known) if is_inner else None
        if tensor is None:
            kept.append(node)
        else:
            known[tensor.name] = tensor
            result.graph.initializer.append(tensor)
    if len(kept) < len(result.graph.node):
        del result.graph.node[:]
        result.graph.node.extend(kept)
    return result


def _folded(node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto]) -> onnx.TensorProto | None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Constant" and "value" in attributes:
        array = numpy_helper.to_array(attributes["value"])
    elif node.op_type in ("Identity", "Transpose") and node.input[0] in known:
        array = numpy_helper.to_array(known[node.input[0]])
        if node.op_type == "Transpose":
            array = np.ascontiguousarray(array.transpose(attributes.get("perm")))
    else:
        return None
    return numpy_helper.from_array(array, node.output[0])
