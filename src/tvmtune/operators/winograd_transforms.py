"""The matrices of Winograd's convolutions; Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", 2015, section 4.

F(m, r) computes m outputs of a kernel with r weights along one axis by m + r - 1 multiplications
instead of m * r. An image has one such transform along each axis.

With many points, a transform rounds too much. A longer kernel has parts of m weights, of which each
reads what the one before reads of the next tile: F(m, m) transforms all inputs once, and the products
of a tile's parts are added before they are transformed back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from tvmtune.operators.combinations import Factors


@dataclass(frozen=True)
class Transform:
    """The matrices of F(tile, kernel) along one axis.

    TVM has a generator (``topi.nn.winograd_util``), but with its own choice of points, and for TE
    tensors, while the weights are transformed by NumPy.
    """

    input: Factors
    """(alpha, alpha)"""
    weight: Factors
    """(alpha, kernel)"""
    output: Factors
    """(tile, alpha)"""

    @property
    def tile(self) -> int:
        """Outputs of a tile."""
        return len(self.output)

    @property
    def kernel(self) -> int:
        """Weights."""
        return len(self.weight[0])

    @property
    def alpha(self) -> int:
        """Products of a tile, and its inputs: tile + kernel - 1."""
        return len(self.input)

    @classmethod
    def at(cls, *points: Fraction | int, kernel: int) -> Transform:
        """Interpolate at these points and at infinity (Toom and Cook)."""
        tile = len(points) + 1 - (kernel - 1)
        others = [[q for q in points if q != p] for p in points]
        scale = [prod(p - q for q in rest) for p, rest in zip(points, others, strict=True)]
        rows = [[*_polynomial(rest), 0] for rest in others] + [_polynomial(points)]
        weight = [
            [Fraction(p) ** k / by for k in range(kernel)]
            for p, by in zip(points, scale, strict=True)
        ]
        last = [0] * (kernel - 1) + [1]
        output = [[*(p**i for p in points), int(i == tile - 1)] for i in range(tile)]
        return cls(_matrix(rows), _matrix([*weight, last]), _matrix(output))

    @classmethod
    def at_opposites(cls, *points: float, kernel: int) -> Transform:
        """Interpolate at 0, at these points and their negatives, and at infinity."""
        pairs = [Fraction(sign * point) for point in points for sign in (1, -1)]
        return cls.at(0, *pairs, kernel=kernel)

    def with_unit_weights(self) -> Transform:
        """The same with 1 as the first nonzero factor of each row for the weights, and the row for the
        inputs multiplied by what it was: transforming weights then takes fewer multiplications."""
        factors = [next(value for value in row if value) for row in self.weight]
        inputs, weights = (zip(factors, rows, strict=True) for rows in (self.input, self.weight))
        return Transform(
            tuple(tuple(factor * value for value in row) for factor, row in inputs),
            tuple(tuple(value / factor for value in row) for factor, row in weights),
            self.output,
        )


def _polynomial(roots: Sequence[Fraction | int]) -> list[Fraction | int]:
    """Coefficients of the product of ``x - root``, from that of the constant."""
    result: list[Fraction | int] = [1]
    for root in roots:
        above, below = [0, *result], [*result, 0]
        result = [a - root * b for a, b in zip(above, below, strict=True)]
    return result


def _matrix(rows: Sequence[Sequence[Fraction | int]]) -> Factors:
    return tuple(tuple(float(value) for value in row) for row in rows)


@dataclass(frozen=True)
class Transforms:
    """Those of an image's two axes."""

    down: Transform
    across: Transform
    columns: int = 0
    """Of the weights, if they are more than those of ``across``: then that is an F(m, m), and the
    weights have parts, of which the i-th reads what the first reads of the i-th next tile."""

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the weights."""
        return self.down.kernel, self.columns or self.across.kernel

    @property
    def parts(self) -> int:
        """Of a row of the weights."""
        return ceil(self.kernel[1] / self.across.kernel)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile's outputs."""
        return self.down.tile, self.across.tile

    @property
    def alpha(self) -> tuple[int, int]:
        """Rows and columns of a tile's products, and of its inputs."""
        return self.down.alpha, self.across.alpha

    def with_unit_weights(self) -> Transforms:
        """See :meth:`Transform.with_unit_weights`."""
        down, across = self.down.with_unit_weights(), self.across.with_unit_weights()
        return Transforms(down, across, self.columns)


def _square(transform: Transform) -> Transforms:
    return Transforms(transform, transform)


def _lines(transform: Transform) -> tuple[Transforms, Transforms]:
    """For kernels of one row, and of one column."""
    return Transforms(NONE, transform), Transforms(transform, NONE)


NONE = Transform.at(kernel=1)
"""For an axis along which a kernel has one weight."""
_TWO_OF_3 = Transform.at_opposites(1, kernel=3)
_FOUR_OF_3 = Transform.at_opposites(0.625, 1.25, kernel=3)
_FOUR_OF_4 = Transform.at(0, Fraction(1, 2), Fraction(-1, 2), 1, -1, 2, kernel=4)
_FOUR_OF_5 = Transform.at_opposites(0.5, 1, 2, kernel=5)
_FOUR_OF_7 = Transform.at_opposites(0.375, 0.875, 1.25, 2, kernel=7)

F2 = _square(_TWO_OF_3)
"""F(2x2, 3x3), whose errors are no larger than the direct algorithm's."""
F4 = _square(_FOUR_OF_3)
"""F(4x4, 3x3), whose errors are less than half of those with Lavin and Gray's points (root mean
square)."""
F4_INTEGERS = _square(Transform.at_opposites(1, 2, kernel=3))
"""Lavin and Gray's F(4x4, 3x3)."""

TILES_2X2 = (F2,)
TILES_4X4 = (F4, _square(_FOUR_OF_5))
TILES_2 = _lines(_TWO_OF_3)
TILES_4 = (
    *(line for each in (_FOUR_OF_3, _FOUR_OF_5, _FOUR_OF_7) for line in _lines(each)),
    *(Transforms(NONE, _FOUR_OF_4, columns) for columns in (9, 11, 13, 15)),
)
TILES = (*TILES_2X2, *TILES_2, *TILES_4X4, *TILES_4)
"""All, and of those for a kernel the one that rounds least first."""
