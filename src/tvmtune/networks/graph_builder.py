"""Builds the ONNX models of the zoo layer by layer, with weights that keep activations sound.

Untrained weights at a careless scale make activations grow, vanish or lose the input, and then a
check of outputs proves nothing. So each value carries the moments that its channels have on
standard normal inputs, and batch norms get the running statistics that training would have found.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtune.errors import UsageError
from tvmtune.networks.moments import Moments, rectified, rectified_maximum
from tvmtune.types import product

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSET = 17
IR_VERSION = 8
"""Of 2022: old enough for every peer, new enough for LayerNormalization."""


@dataclass(frozen=True)
class Value:
    """An activation of shape (N, C, extents ...)."""

    name: str
    """Of the tensor in the graph."""
    shape: tuple[int, ...]
    moments: Moments
    latent: Moments | None = None
    """Of the normal values that a rectified one comes from."""


class GraphBuilder:
    """Appends layers to one graph; each method returns the value that it computes.

    A weight depends on the seed, its name and its shape alone, never on the order of the layers.
    """

    def __init__(self, name: str, *, seed: int = 0) -> None:
        self._name = name
        self._seed = seed
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._weights: list[onnx.TensorProto] = []

    def input(self, name: str, shape: Sequence[int]) -> Value:
        """A float32 input, taken to be standard normal."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return Value(name, tuple(shape), Moments.standard(shape[1]))

    def conv(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        pad: int | Sequence[int] = 0,
        groups: int = 1,
    ) -> Value:
        """Convolution with a bias, which makes the result standard normal."""
        weight, found = self._filters(x, name, channels, kernel, groups)
        deviation = np.sqrt(found.variance)
        weight /= deviation.reshape(-1, *[1] * (weight.ndim - 1))
        bias = -found.mean / deviation
        shape = self._convolve(x, name, weight, bias, stride, pad, groups)
        return Value(name, shape, Moments.standard(channels))

    def conv_bn(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        pad: int | Sequence[int] = 0,
        groups: int = 1,
        mean: np.ndarray | float = 0.0,
        variance: np.ndarray | float = 1.0,
    ) -> Value:
        """Convolution without a bias and then batch norm.

        The result's channels have about the given moments: no two channels of a trained network
        are scaled alike, and running statistics are not exactly those of the next input.
        """
        weight, found = self._filters(x, name, channels, kernel, groups)
        shape = self._convolve(x, name, weight, None, stride, pad, groups)
        norm = f"{name}.bn"
        spread = self._random(norm, (4, channels))
        deviation = np.sqrt(found.variance)
        gamma = np.sqrt(variance) * (1.0 + 0.1 * spread[0])
        beta = mean + 0.1 * spread[1]
        running_mean = found.mean + 0.1 * deviation * spread[2]
        running_var = found.variance * (1.0 + 0.1 * spread[3])
        names = [f"{norm}.{key}" for key in ("weight", "bias", "running_mean", "running_var")]
        for key, array in zip(names, (gamma, beta, running_mean, running_var), strict=True):
            self._add_weight(key, array)
        self._add_node("BatchNormalization", norm, [name, *names], epsilon=1e-5)
        scale = gamma / np.sqrt(running_var)
        moments = Moments.of(
            beta + scale * (found.mean - running_mean), np.square(scale) * found.variance
        )
        return Value(norm, shape, moments)

    def relu(self, x: Value) -> Value:
        """Rectify a normally distributed value."""
        name = self._add_node("Relu", f"{x.name}.relu", [x.name])
        return Value(name, x.shape, rectified(x.moments), latent=x.moments)

    def add(self, a: Value, b: Value, name: str) -> Value:
        """Sum of two values of one shape, taken to be independent."""
        self._add_node("Add", name, [a.name, b.name])
        moments = Moments.of(
            a.moments.mean + b.moments.mean, a.moments.variance + b.moments.variance
        )
        return Value(name, a.shape, moments)

    def max_pool(self, x: Value, name: str, kernel: int, *, stride: int = 1, pad: int = 0) -> Value:
        """Max pooling of a value that comes from :meth:`relu`."""
        assert x.latent is not None
        rank = len(x.shape) - 2
        attributes = _window([kernel] * rank, stride, pad)
        shape = (*x.shape[:2], *_extents(x, name, attributes))
        self._add_node("MaxPool", name, [x.name], **attributes)
        return Value(name, shape, rectified_maximum(x.latent, kernel**rank))

    def global_average_pool(self, x: Value, name: str) -> Value:
        """Average over all extents, flattened to (N, C)."""
        pooled = self._add_node("GlobalAveragePool", name, [x.name])
        flat = self._add_node("Flatten", f"{name}.flatten", [pooled], axis=1)
        # Neighbours overlap in what they see: about a third of the positions count as independent.
        independent = 1.0 + (product(x.shape[2:]) - 1) / 3.0
        moments = Moments.of(x.moments.mean, x.moments.variance / independent)
        return Value(flat, x.shape[:2], moments)

    def dense(self, x: Value, name: str, units: int, *, output: str = "") -> Value:
        """Fully connected layer from (N, C) to (N, units) with standard normal results."""
        draw = self._random(f"{name}.weight", (units, x.shape[1]))
        scale = math.sqrt(3.0 / x.moments.variance.sum())  # uniform in [-1, 1]: variance 1/3
        weight = draw * scale
        bias = 0.1 * self._random(f"{name}.bias", (units,)) - weight @ x.moments.mean
        self._add_weight(f"{name}.weight", weight)
        self._add_weight(f"{name}.bias", bias)
        inputs = [x.name, f"{name}.weight", f"{name}.bias"]
        self._add_node("Gemm", name, inputs, output=output, transB=1)
        return Value(output or name, (x.shape[0], units), Moments.standard(units))

    def model(self, *outputs: Value) -> onnx.ModelProto:
        """The model that computes ``outputs``."""
        infos = [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, v.shape) for v in outputs]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, infos, self._weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, producer_name="tvmtune", opset_imports=[opset])
        model.ir_version = IR_VERSION
        return model

    def _filters(
        self, x: Value, name: str, channels: int, kernel: int | Sequence[int], groups: int
    ) -> tuple[np.ndarray, Moments]:
        """Filters with He initialisation, and the moments of what they make of ``x``."""
        shape = (channels, x.shape[1] // groups, *_each(kernel, len(x.shape) - 2))
        draw = self._random(f"{name}.weight", shape)
        weight = draw * math.sqrt(6.0 / product(shape[1:]))  # uniform in [-1, 1]: variance 1/3
        # Channels of x that each output channel sees: (groups, channels / groups, C / groups).
        taps = weight.reshape(groups, channels // groups, shape[1], -1)
        mean, variance = (m.reshape(groups, shape[1]) for m in (x.moments.mean, x.moments.variance))
        return weight, Moments.of(
            np.einsum("goik,gi->go", taps, mean).ravel(),
            np.einsum("goik,gi->go", np.square(taps), variance).ravel(),
        )

    def _convolve(
        self,
        x: Value,
        name: str,
        weight: np.ndarray,
        bias: np.ndarray | None,
        stride: int | Sequence[int],
        pad: int | Sequence[int],
        groups: int,
    ) -> tuple[int, ...]:
        """Append the node, and return the shape of its output."""
        attributes = _window(weight.shape[2:], stride, pad)
        shape = (x.shape[0], weight.shape[0], *_extents(x, name, attributes))
        inputs = [x.name, f"{name}.weight"]
        self._add_weight(f"{name}.weight", weight)
        if bias is not None:
            self._add_weight(f"{name}.bias", bias)
            inputs.append(f"{name}.bias")
        attributes["dilations"] = [1] * (weight.ndim - 2)
        self._add_node("Conv", name, inputs, group=groups, **attributes)
        return shape

    def _random(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """Float64 values, uniform in [-1, 1]."""
        seed = zlib.crc32(f"{self._seed}/{self._name}/{name}".encode())
        rng = np.random.RandomState(seed)  # its stream is frozen, unlike that of default_rng
        return 2.0 * rng.random_sample(shape) - 1.0

    def _add_weight(self, name: str, array: np.ndarray) -> None:
        self._weights.append(numpy_helper.from_array(array.astype(np.float32), name))

    def _add_node(
        self, op: str, name: str, inputs: list[str], *, output: str = "", **attributes: Any
    ) -> str:
        """Append a node whose only output is called ``output``, or like the node itself."""
        output = output or name
        self._nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output


def _each(extent: int | Sequence[int], rank: int) -> list[int]:
    return [extent] * rank if isinstance(extent, int) else list(extent)


def _window(
    kernel: Sequence[int], stride: int | Sequence[int], pad: int | Sequence[int]
) -> dict[str, Any]:
    """Attributes of a convolution or pooling with the same padding at both ends of an axis."""
    rank = len(kernel)
    return {
        "kernel_shape": list(kernel),
        "strides": _each(stride, rank),
        "pads": _each(pad, rank) * 2,
    }


def _extents(x: Value, name: str, window: dict[str, Any]) -> list[int]:
    """Extents after the window slid over those of ``x``; :class:`UsageError` if none are left."""
    triples = zip(window["kernel_shape"], window["strides"], window["pads"], strict=False)
    extents = [
        (extent + 2 * pad - kernel) // stride + 1
        for extent, (kernel, stride, pad) in zip(x.shape[2:], triples, strict=True)
    ]
    if min(extents) < 1:
        size = "x".join(map(str, x.shape[2:]))
        raise UsageError(f"the input is too small: only {size} is left of it at layer '{name}'")
    return extents
