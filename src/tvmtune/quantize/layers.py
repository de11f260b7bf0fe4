"""Layers that int8 quantization can compute: convolutions and sums with what fuses into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
LAYOUT = "NCHW"
"""Layout of the graphs in which layers are found."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of the float graph. Tensors go by the names of the graph's variables."""

    kind: ClassVar[Literal["convolution", "sum"]]

    inputs: tuple[str, ...]
    output: str
    in_shapes: tuple[tuple[int, ...], ...]
    """(N, C, H, W) of each input."""
    out_shape: tuple[int, ...]
    low: float | None = None
    """Lower bound of the fused activation; None for no bound."""
    high: float | None = None
    """Upper bound of the fused activation; None for no bound."""
    covers: tuple[str, ...] = ()
    """The graph's variables that the layer replaces; the last is its output."""


@dataclass(frozen=True, eq=False)
class SumLayer(Layer):
    """The element-wise sum of two tensors of one shape, with its activation."""

    kind = "sum"


@dataclass(frozen=True, eq=False)
class ConvolutionLayer(Layer):
    """A convolution with the scales, biases and activation that follow it.

    A transposed convolution is one with ``input_dilation`` and a flipped kernel.
    """

    kind = "convolution"

    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    input_dilation: tuple[int, int] = (1, 1)
    """Distance between rows and columns of the input, with zeros in between: the strides of a
    transposed convolution."""
    constants: tuple[Any, ...] = ()
    """The constant of the weights, then the per-channel operations that follow as pairs of operator
    and constant."""

    @property
    def kernel(self) -> tuple[int, ...]:
        """Shape of the weights, (O, I / groups, KH, KW)."""
        return tuple(int(d) for d in self.constants[0].ty.shape)

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        out, ins, _, _ = self.kernel
        return self.groups > 1 and ins == 1 and out == self.groups

    def parameters(self) -> tuple[FloatArray, FloatArray]:
        """Weights (O, I / groups, KH, KW) and bias (O,), with the per-channel operations folded in."""
        weights = constant_values(self.constants[0])
        bias = np.zeros(weights.shape[0])
        for op, constant in self.constants[1:]:
            value = np.broadcast_to(constant_values(constant).reshape(-1), bias.shape)
            if op == "relax.add":
                bias = bias + value
            elif op == "relax.subtract":
                bias = bias - value
            else:
                factor = value if op == "relax.multiply" else 1 / value
                bias, weights = bias * factor, weights * factor[:, None, None, None]
        return weights.astype(np.float32), bias.astype(np.float32)


def constant_values(constant: Any) -> npt.NDArray[np.float64]:
    """The values of a Relax constant, in float64."""
    values: npt.NDArray[np.float64] = constant.value.numpy().astype(np.float64)
    return values
