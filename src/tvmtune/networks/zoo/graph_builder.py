"""Builds the ONNX models of the zoo layer by layer, with weights that keep activations in range.

With badly scaled random weights activations explode, vanish or lose the input, and then a check of
outputs proves nothing. So each value carries the moments of its channels for standard normal inputs,
and batch norms get the running statistics that training would have before.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from tvmtune.networks.onnx import weights as onnx_weights
from tvmtune.networks.zoo.moments import (
    Moments,
    averaged,
    clipped,
    concatenated,
    rectified,
    rectified_maximum,
)
from tvmtune.networks.zoo.onnx_writer import OnnxWriter
from tvmtune.networks.zoo.windows import Extent, Window, each
from tvmtune.types import product

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from tvmtune.networks.zoo.onnx_writer import Detached

_CHUNK = 1 << 22
"""Values of a large weight that are drawn at a time."""


@dataclass(frozen=True)
class Value:
    """An activation of shape (N, C, extents ...)."""

    name: str
    """The tensor's name in the graph."""
    shape: tuple[int, ...]
    moments: Moments
    latent: Moments | None = None
    """Moments of the normal values before a ReLU."""


class GraphBuilder:
    """Appends layers to a graph; each method returns the value that it computes.

    Random weights depend only on the seed, their name and their shape, not on the order of layers.
    """

    def __init__(self, name: str, *, seed: int = 0, centered: bool = True) -> None:
        """``centered`` filters cancel the mean of their input.

        The moments ignore the padding's zeros and the correlation of neighbors, which shift or scale
        all channels alike. Without centering, deep networks amplify this layer by layer.
        """
        self._name = name
        self._seed = seed
        self._centered = centered
        self._writer = OnnxWriter(name)
        self._scalars: set[str] = set()

    def input_integers(self, name: str, shape: Sequence[int]) -> str:
        """An int64 input, such as token ids."""
        self._writer.input(name, shape, TensorProto.INT64)
        return name

    def input(self, name: str, shape: Sequence[int]) -> Value:
        """A float32 input, assumed to be standard normal."""
        self._writer.input(name, shape)
        return Value(name, tuple(shape), Moments.standard(shape[1]))

    def conv(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: Extent,
        *,
        stride: Extent = 1,
        pad: Extent = 0,
        groups: int = 1,
        mean: float = 0.0,
        variance: float = 1.0,
    ) -> Value:
        """Convolution with a bias; its channels have approximately the given moments."""
        weight, moments = self._filters(x, name, channels, kernel, groups)
        scale = np.sqrt(variance / moments.variance)
        weight *= scale.reshape(-1, *[1] * (weight.ndim - 1))
        shift = mean + 0.1 * math.sqrt(variance) * self.random(f"{name}.bias", (channels,))
        bias = shift - scale * moments.mean
        shape = self._convolve(x, name, weight, bias, stride, pad, groups)
        return Value(name, shape, Moments.of(shift, np.full(channels, variance)))

    def conv_plain(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: Extent,
        *,
        stride: Extent = 1,
        pad: Extent = 0,
        groups: int = 1,
    ) -> Value:
        """Convolution without a bias."""
        weight, moments = self._filters(x, name, channels, kernel, groups)
        return Value(name, self._convolve(x, name, weight, None, stride, pad, groups), moments)

    def batch_norm(
        self,
        x: Value,
        name: str,
        *,
        mean: np.ndarray | float = 0.0,
        variance: np.ndarray | float = 1.0,
        epsilon: float = 1e-5,
    ) -> Value:
        """Batch norm whose channels have approximately the given moments.

        Approximately: in a trained network channels are scaled differently, and running statistics
        deviate from those of the next input.
        """
        before = x.moments
        spread = self.random(name, (4, x.shape[1]))
        deviation = np.sqrt(before.variance)
        gamma = np.sqrt(variance) * (1.0 + 0.1 * spread[0])
        beta = mean + 0.1 * spread[1]
        running_mean = before.mean + 0.1 * deviation * spread[2]
        running_var = before.variance * (1.0 + 0.1 * spread[3])
        names = [f"{name}.{key}" for key in ("weight", "bias", "running_mean", "running_var")]
        for key, array in zip(names, (gamma, beta, running_mean, running_var), strict=True):
            self._writer.weight(key, array)
        self._writer.node("BatchNormalization", name, [x.name, *names], epsilon=epsilon)
        scale = gamma / np.sqrt(running_var)
        moments = Moments.of(
            beta + scale * (before.mean - running_mean), np.square(scale) * before.variance
        )
        return Value(name, x.shape, moments)

    def conv_bn(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: Extent,
        *,
        stride: Extent = 1,
        pad: Extent = 0,
        groups: int = 1,
        mean: np.ndarray | float = 0.0,
        variance: np.ndarray | float = 1.0,
        epsilon: float = 1e-5,
    ) -> Value:
        """:meth:`conv_plain` and then :meth:`batch_norm`."""
        y = self.conv_plain(x, name, channels, kernel, stride=stride, pad=pad, groups=groups)
        return self.batch_norm(y, f"{name}.bn", mean=mean, variance=variance, epsilon=epsilon)

    def relu(self, x: Value) -> Value:
        """Rectify a normally distributed value."""
        name = self._writer.node("Relu", f"{x.name}.relu", [x.name])
        return Value(name, x.shape, rectified(x.moments), latent=x.moments)

    def relu6(self, x: Value) -> Value:
        """Clip a normally distributed value to [0, 6]."""
        bounds = [self.scalar("relu6.min", 0.0), self.scalar("relu6.max", 6.0)]
        name = self._writer.node("Clip", f"{x.name}.relu6", [x.name, *bounds])
        return Value(name, x.shape, clipped(x.moments, 6.0))

    def add(self, a: Value, b: Value, name: str) -> Value:
        """Sum of two values of one shape, assumed to be independent."""
        self._writer.node("Add", name, [a.name, b.name])
        moments = Moments.of(
            a.moments.mean + b.moments.mean, a.moments.variance + b.moments.variance
        )
        return Value(name, a.shape, moments)

    def concat(self, values: Sequence[Value], name: str) -> Value:
        """The channels of all ``values``, whose other dimensions are equal."""
        self._writer.node("Concat", name, [value.name for value in values], axis=1)
        channels = sum(value.shape[1] for value in values)
        latents = [value.latent for value in values if value.latent is not None]
        return Value(
            name,
            (values[0].shape[0], channels, *values[0].shape[2:]),
            concatenated(*(value.moments for value in values)),
            latent=concatenated(*latents) if len(latents) == len(values) else None,
        )

    def max_pool(
        self, x: Value, name: str, kernel: int, *, stride: int = 1, pad: int = 0, ceil: bool = False
    ) -> Value:
        """Max pooling of a value that comes from :meth:`relu`."""
        assert x.latent is not None
        window = Window.of(len(x.shape) - 2, kernel, stride, pad, ceil=ceil)
        shape = (*x.shape[:2], *window.slide(x.shape[2:], name))
        self._writer.node("MaxPool", name, [x.name], **window.attributes)
        return Value(name, shape, rectified_maximum(x.latent, product(window.kernel)))

    def average_pool(
        self, x: Value, name: str, kernel: Extent, *, stride: Extent = 1, pad: Extent = 0
    ) -> Value:
        """Average pooling that counts the zeros of the padding, as PyTorch does."""
        window = Window.of(len(x.shape) - 2, kernel, stride, pad)
        shape = (*x.shape[:2], *window.slide(x.shape[2:], name))
        self._writer.node("AveragePool", name, [x.name], count_include_pad=1, **window.attributes)
        samples: float = product(window.kernel)
        if any(
            stride < extent for stride, extent in zip(window.stride, window.kernel, strict=True)
        ):
            # Overlapping windows correlate neighbors, which the next such pooling averages.
            samples = effective_samples(product(window.kernel))
        return Value(name, shape, averaged(x.moments, samples, window.coverage(x.shape[2:])))

    def global_average_pool(self, x: Value, name: str, *, output: str = "") -> Value:
        """Average over all extents, flattened to (N, C)."""
        pooled = self._writer.node("GlobalAveragePool", name, [x.name])
        flat = self._writer.node("Flatten", f"{name}.flatten", [pooled], output=output, axis=1)
        moments = Moments.of(
            x.moments.mean, x.moments.variance / effective_samples(product(x.shape[2:]))
        )
        return Value(flat, x.shape[:2], moments)

    def flatten(self, x: Value, name: str) -> Value:
        """Flatten to (N, C * extents ...)."""
        self._writer.node("Flatten", name, [x.name], axis=1)
        area = product(x.shape[2:])
        moments = Moments(np.repeat(x.moments.mean, area), np.repeat(x.moments.variance, area))
        return Value(name, (x.shape[0], x.shape[1] * area), moments)

    def dense(self, x: Value, name: str, units: int, *, output: str = "") -> Value:
        """Fully connected layer from (N, C) to (N, units) with standard normal results."""
        width = x.shape[1]
        scale = math.sqrt(3.0 / x.moments.variance.sum())  # uniform in [-1, 1]: variance 1/3
        weight = self._writer.empty_weight(f"{name}.weight", (units, width))
        bias = 0.1 * self.random(f"{name}.bias", (units,))
        draws = self._draws(f"{name}.weight")
        rows = max(1, _CHUNK // width)
        for start in range(0, units, rows):  # float64 of the whole weight is twice its size
            part = _uniform(draws, (min(rows, units - start), width))
            part *= scale
            weight[start : start + rows] = part
            bias[start : start + rows] -= part @ x.moments.mean
        self._writer.weight(f"{name}.bias", bias)
        inputs = [x.name, f"{name}.weight", f"{name}.bias"]
        self._writer.node("Gemm", name, inputs, output=output, transB=1)
        return Value(output or name, (x.shape[0], units), Moments.standard(units))

    def node(
        self, op: str, name: str, inputs: Sequence[str], *, output: str = "", **attributes: Any
    ) -> str:
        """Append any operator, for layers that are written elsewhere; returns its output's name."""
        return self._writer.node(op, name, inputs, output=output, **attributes)

    def split(self, x: str, sizes: str, parts: Sequence[str], *, axis: int) -> None:
        """Split a tensor into ``parts``; ``sizes`` names their extents along ``axis``."""
        self._writer.split_node("Split", f"{x}.split", [x, sizes], parts, axis=axis)

    def weight(self, name: str, array: np.ndarray) -> str:
        """Add a float32 weight, and return its name."""
        self._writer.weight(name, array)
        return name

    def drawn_weight(self, name: str, shape: Sequence[int], scale: float) -> np.ndarray:
        """Add a weight that is uniform in [-scale, scale), and return it as float32.

        Values are multiples of ``scale / 32768``: 16 bits each are drawn four times as fast as 53.
        """
        weight = self._writer.empty_weight(name, shape)
        flat, draws = weight.reshape(-1), self._draws(name)
        factor = np.float32(scale / 32768.0)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            np.multiply(np.frombuffer(draws.bytes(2 * part.size), "<i2"), factor, out=part)
        return weight

    def integers(self, name: str, array: np.ndarray) -> str:
        """Add an int64 constant, and return its name."""
        self._writer.integers(name, array)
        return name

    def scalar(self, name: str, number: float) -> str:
        """The name of a float32 constant, which is added once."""
        if name not in self._scalars:
            self._writer.weight(name, np.array(number))
        self._scalars.add(name)
        return name

    def random(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """Float64 values, uniform in [-1, 1]."""
        return _uniform(self._draws(name), shape)

    def finish(self, *outputs: Value) -> Detached:
        """The model of ``outputs``, which the caller owns. No layer can be added afterwards."""
        for value in outputs:
            self._writer.output(value.name, value.shape)
        return self._writer.finish()

    def model(self, *outputs: Value) -> onnx.ModelProto:
        """:meth:`finish`, with all weights in the model."""
        return onnx_weights.attach(*self.finish(*outputs))

    def _filters(
        self, x: Value, name: str, channels: int, kernel: Extent, groups: int
    ) -> tuple[np.ndarray, Moments]:
        """Filters with He initialization, and the moments of the result."""
        shape = (channels, x.shape[1] // groups, *each(kernel, len(x.shape) - 2))
        draw = self.random(f"{name}.weight", shape)
        weight = draw * math.sqrt(6.0 / product(shape[1:]))  # uniform in [-1, 1]: variance 1/3
        # Channels of x that each output channel sees: (groups, channels / groups, C / groups).
        taps = weight.reshape(groups, channels // groups, shape[1], -1)
        mean, variance = (m.reshape(groups, shape[1]) for m in (x.moments.mean, x.moments.variance))
        if self._centered and groups == 1 and mean.any():
            along = np.einsum("goik,gi->gok", taps, mean) / np.square(mean).sum()
            taps -= np.einsum("gok,gi->goik", along, mean)
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
        stride: Extent,
        pad: Extent,
        groups: int,
    ) -> tuple[int, ...]:
        """Append the node, and return the shape of its output."""
        rank = weight.ndim - 2
        window = Window.of(rank, weight.shape[2:], stride, pad)
        shape = (x.shape[0], weight.shape[0], *window.slide(x.shape[2:], name))
        inputs = [x.name, f"{name}.weight"]
        self._writer.weight(f"{name}.weight", weight)
        if bias is not None:
            self._writer.weight(f"{name}.bias", bias)
            inputs.append(f"{name}.bias")
        self._writer.node(
            "Conv", name, inputs, group=groups, dilations=[1] * rank, **window.attributes
        )
        return shape

    def _draws(self, name: str) -> np.random.RandomState:
        seed = zlib.crc32(f"{self._seed}/{self._name}/{name}".encode())
        return np.random.RandomState(seed)  # its stream is frozen, unlike that of default_rng


def _uniform(draws: np.random.RandomState, shape: Sequence[int]) -> np.ndarray:
    values = draws.random_sample(shape)
    values *= 2.0
    values -= 1.0
    return values


def effective_samples(positions: int) -> float:
    """Effective number of independent samples among neighboring positions that are averaged."""
    # Their receptive fields overlap: about a third.
    return 1.0 + (positions - 1) / 3.0
