"""Fourier transforms, as products with matrices of cosines and sines (:mod:`tvmtune.networks.fourier`).

Many points, mostly more than 200, take two steps [Cooley and Tukey 1965, "An algorithm for the machine
calculation of complex Fourier series"]: with A * B points, A from each B-th sample, then B points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.fourier import factors
from tvmtune.networks.relax_operators import Operators, dtype, shape
from tvmtune.networks.torch.converters.complex_numbers import Complex, product
from tvmtune.networks.torch.program import arguments

_LANES = 16
"""Products compute whole blocks of so many columns."""

_MOVES = 250
"""What moving a value between two steps costs, in operations of products: with 256 or 512 points, the
difference between measured times and those of the products alone (Zen 4)."""


def _of_real(node: Any, importer: Any) -> Complex:
    """``rfft`` and ``fft`` of real values: (..., n) to (..., n // 2 + 1) or (..., n)."""
    op, given = Operators(importer.block_builder), arguments(node)
    x, axes = importer.env[node.args[0]], given["dim"]
    extents = shape(x)
    points = extents[axes[-1]]
    results = points // 2 + 1 if given["onesided"] else points
    scale = _scale([extents[axis] for axis in axes], given["normalization"])
    z = _along(op, axes[-1], [x], points, results, scale=scale)
    for axis in axes[:-1]:
        z = _along(op, axis, z, extents[axis], extents[axis])
    return Complex(*z)


def _of_complex(node: Any, importer: Any) -> Complex:
    op, given = Operators(importer.block_builder), arguments(node)
    source = importer.env[node.args[0]]
    z, axes, extents = [source.real, source.imag], given["dim"], shape(source.real)
    scale = _scale([extents[axis] for axis in axes], given["normalization"])
    for axis in axes:
        points, inverse = extents[axis], not given["forward"]
        z = _along(op, axis, z, points, points, scale=scale, inverse=inverse)
        scale = 1.0
    return Complex(*z)


def _to_real(node: Any, importer: Any) -> Any:
    """``irfft``: (..., n // 2 + 1) to (..., n)."""
    op, given = Operators(importer.block_builder), arguments(node)
    source = importer.env[node.args[0]]
    z, axes, points = [source.real, source.imag], given["dim"], given["last_dim_size"]
    extents = shape(source.real)
    for axis in axes[:-1]:
        z = _along(op, axis, z, extents[axis], extents[axis], inverse=True)
    scale = _scale([*(extents[axis] for axis in axes[:-1]), points], given["normalization"])
    samples = points // 2 + 1
    if extents[axes[-1]] != samples:
        raise NotImplementedError(f"it has {extents[axes[-1]]} instead of {samples} values")
    return _along(op, axes[-1], z, points, points, scale=scale, inverse=True, halved=True)[0]


def _scale(extents: Sequence[int], normalization: int) -> float:
    """By PyTorch's number of a normalization: none, by the root of the number of points, by it."""
    return float(math.prod(extents) ** -(normalization / 2))


def _along(
    op: Operators,
    axis: int,
    parts: list[Any],
    points: int,
    results: int,
    *,
    scale: float = 1.0,
    inverse: bool = False,
    halved: bool = False,
) -> list[Any]:
    """The first ``results`` of a transform along an axis, from one part, the real one, or both.

    ``halved``: the samples are half of a spectrum, and the results real.
    """
    rank = len(shape(parts[0]))
    axis %= rank
    order = [*(i for i in range(rank) if i != axis), axis]
    if axis < rank - 1:
        parts = [op.permute_dims(part, order) for part in parts]
    samples = shape(parts[0])[-1]
    weights = np.full(samples, scale)
    # The other half has the conjugates of all but the first value and the middle one of an even number.
    if halved:
        weights[1 : (points + 1) // 2] *= 2
    split = _split(points, samples, results, len(parts), real=halved)
    if split is None:
        matrix = factors(samples, results, points, parts=len(parts), inverse=inverse)
        parts = _product(op, parts, weights[:, None] * matrix, real=halved)
    else:
        parts = _in_two_steps(op, parts, split, weights, inverse=inverse, real=halved)
        if results < points:
            parts = [op.strided_slice(part, [rank - 1], [0], [results]) for part in parts]
    if axis < rank - 1:
        parts = [op.permute_dims(part, list(np.argsort(order))) for part in parts]
    return parts


def _split(
    points: int, samples: int, results: int, parts: int, *, real: bool
) -> tuple[int, int] | None:
    """The factors A and B of a number of points by which two steps take the shortest time, or None if
    one step is faster.

    B is even if the number is: then the middle value of a real transform stays real.
    """
    computed = 1 if real else 2

    def operations(split: tuple[int, int]) -> int:
        a, b = (math.ceil(factor / _LANES) * _LANES for factor in split)
        return points * (4 * parts * a + 4 * computed * b + _MOVES)

    step = 1 if points % 2 else 2
    splits = [(points // b, b) for b in range(2, points // 2 + 1, step) if points % b == 0]
    best = min(splits, key=operations, default=None)
    at_once = 2 * samples * parts * computed * results
    return best if best is not None and operations(best) < at_once else None


def _in_two_steps(
    op: Operators,
    parts: list[Any],
    split: tuple[int, int],
    weights: np.ndarray,
    *,
    inverse: bool,
    real: bool,
) -> list[Any]:
    """A transform of A * B points along the last axis. Samples that are missing are 0."""
    a, b = split
    *outer, samples = shape(parts[0])
    missing = a * b - samples
    if (weights != 1).any():
        factor = relax.const(weights.astype(dtype(parts[0])))
        parts = [op.multiply(part, factor) for part in parts]
    if missing:
        padding = [0, 0] * len(outer) + [0, missing]
        parts = [op.nn.pad(part, padding) for part in parts]
    rank = len(outer) + 2
    swap = [*range(rank - 2), rank - 1, rank - 2]
    parts = [op.permute_dims(op.reshape(part, [*outer, a, b]), swap) for part in parts]
    first = factors(a, a, a, parts=len(parts), inverse=inverse)
    parts = _product(op, parts, first)
    parts = _turned(op, parts, factors(b, a, a * b, parts=2, inverse=inverse))
    parts = [op.permute_dims(part, swap) for part in parts]
    parts = _product(op, parts, factors(b, b, b, parts=2, inverse=inverse), real=real)
    return [op.reshape(op.permute_dims(part, swap), [*outer, a * b]) for part in parts]


def _turned(op: Operators, parts: list[Any], turns: np.ndarray) -> list[Any]:
    """Complex values times ``turns``."""
    kind = dtype(parts[0])
    by = Complex(*(relax.const(each.astype(kind)) for each in (turns.real, turns.imag)))
    turned = product(op, op.multiply, Complex(*parts), by)
    return [turned.real, turned.imag]


def _product(
    op: Operators, parts: list[Any], matrix: np.ndarray, *, real: bool = False
) -> list[Any]:
    """(..., n) times a complex (n, k) matrix: both parts of the results, or the real ones alone.

    Each is a product of its own, so that one which nothing reads is not computed.
    """
    kind = dtype(parts[0])

    def times(part: Any, weights: np.ndarray) -> Any:
        return op.matmul(part, relax.const(np.ascontiguousarray(weights, kind), kind))

    results = [times(parts[0], each) for each in (matrix.real, matrix.imag)[: 1 if real else 2]]
    if len(parts) > 1:
        others = (-matrix.imag, matrix.real)
        results = [
            op.add(r, times(parts[1], each)) for r, each in zip(results, others, strict=False)
        ]
    return results


CONVERTERS = {
    "_fft_c2c.default": _of_complex,
    "_fft_c2r.default": _to_real,
    "_fft_r2c.default": _of_real,
}
