"""Converters of Fourier transforms, as products with a constant matrix of cosines and sines.

A product needs more operations than a fast transform, but for the frames of audio, of a few hundred
samples, it runs at the machine's peak.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.fourier import factors
from tvmtune.networks.onnx.converters.request import Converter, Node, optional, required
from tvmtune.networks.relax_operators import dtype, shape


def dft(node: Node) -> Any:
    """``(..., n, 1 or 2)`` to ``(..., k, 2)``: the axis may be another than the last but one."""
    data = node.inputs[0]
    rank = len(shape(data))
    axis = node.attrs.get("axis", 1)
    if node.opset >= 20:
        given = optional(node.input(2), "axis")
        axis = -2 if given is None else int(given.item())
    axis %= rank
    length = optional(node.input(1), "dft_length")
    points = shape(data)[axis] if length is None else int(length.item())
    inverse, onesided = (bool(node.attrs.get(name, 0)) for name in ("inverse", "onesided"))
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    data = node.op.permute_dims(data, order)
    *outer, samples, parts = shape(data)
    if samples > points:
        samples = points
        data = node.op.strided_slice(data, [rank - 2], [0], [points])
    matrix = _matrix(points, samples, parts, onesided=onesided, inverse=inverse)
    result = _product(node, data, outer, matrix)
    return node.op.permute_dims(result, list(np.argsort(order)))


def stft(node: Node) -> Any:
    """``(batch, samples, 1 or 2)`` to ``(batch, frames, k, 2)``."""
    signal = node.inputs[0]
    if len(shape(signal)) == 2:
        signal = node.op.expand_dims(signal, -1)
    batch, samples, parts = shape(signal)
    step = int(required(node.inputs[1], "frame_step").item())
    window, length = optional(node.input(2), "window"), optional(node.input(3), "frame_length")
    if window is None:
        if length is None:
            raise ValueError("it has neither a window nor a frame_length")
        window = np.ones(int(length.item()))
    points = window.size
    if length is not None and int(length.item()) != points:
        raise ValueError(f"its window has {points} values, and its frames have {length.item()}")
    if step < 1 or samples < points:
        raise ValueError(f"its signal of {samples} samples has no frame of {points}, {step} apart")
    frames = (samples - points) // step + 1
    onesided = bool(node.attrs.get("onesided", 1))
    matrix = _matrix(points, points, parts, onesided=onesided) * np.repeat(window, parts)[:, None]
    starts = step * np.arange(frames)
    indices = relax.const((starts[:, None] + np.arange(points)).astype("int64"))
    return _product(node, node.op.take(signal, indices, axis=1), [batch, frames], matrix)


def _matrix(
    points: int, samples: int, parts: int, *, onesided: bool, inverse: bool = False
) -> np.ndarray:
    """The real and imaginary parts of the results by those of the samples; ``parts`` is 1 for real
    samples. Further samples of a transform of so many points are 0."""
    if onesided and (inverse or parts > 1):
        raise ValueError("onesided=1 is supported for a forward transform of real values only")
    count = points // 2 + 1 if onesided else points
    by_sample = factors(samples, count, points, parts=parts, inverse=inverse)
    by_sample /= points if inverse else 1
    rows = np.stack([by_sample, 1j * by_sample][:parts], axis=1)
    return np.stack([rows.real, rows.imag], axis=-1).reshape(samples * parts, count * 2)


def _product(node: Node, data: Any, outer: list[int], matrix: np.ndarray) -> Any:
    """``data`` of the shape ``(*outer, samples, parts)`` times the matrix."""
    length, columns = matrix.shape
    rows = node.op.reshape(data, [*outer, length])
    kind = dtype(data)
    result = node.op.matmul(rows, relax.const(matrix.astype(kind), kind))
    return node.op.reshape(result, [*outer, columns // 2, 2])


CONVERTERS: dict[str, Converter] = {"DFT": dft, "STFT": stft}

LIMITS = {
    "DFT": "onesided=1 for complex values or with inverse=1; a length or axis that is not constant; "
    "matrices of more than 256 MB",
    "STFT": "a step, window or length that is not constant; a window of another length than the "
    "frames; onesided=1 for complex values; matrices of more than 256 MB",
}
"""What is not supported, by operator."""
