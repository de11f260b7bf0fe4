"""Mean and variance of activations, channel by channel, for normally distributed inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Moments:
    """Mean and variance per channel, both of shape (C,)."""

    mean: np.ndarray
    variance: np.ndarray

    @staticmethod
    def of(mean: np.ndarray, variance: np.ndarray) -> Moments:
        """Rounded, because math libraries differ in the last bit and weights must not."""
        return Moments(np.round(mean, 6), np.round(variance, 6))

    @staticmethod
    def standard(channels: int) -> Moments:
        return Moments(np.zeros(channels), np.ones(channels))


def rectified(x: Moments) -> Moments:
    """Moments of ``max(0, x)`` for normal ``x``."""
    deviation = np.sqrt(x.variance)
    ratio = x.mean / deviation
    inside = _cumulative(ratio)
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2.0 * math.pi)
    first = x.mean * inside + deviation * density
    second = (x.mean**2 + x.variance) * inside + x.mean * deviation * density
    return Moments.of(first, second - first**2)


def rectified_maximum(x: Moments, samples: int, *, steps: int = 400) -> Moments:
    """Moments of ``max(0, x_1, ..., x_samples)`` for independent normal ``x_i``."""
    deviation = np.sqrt(x.variance)
    top = np.maximum(x.mean, 0.0) + 6.0 * deviation
    first = np.zeros_like(top)
    second = np.zeros_like(top)
    # E[max] is the integral of P(max > z) over z >= 0, and E[max^2] that of 2 z P(max > z).
    for step in range(steps):
        z = (step + 0.5) * top / steps
        above = 1.0 - _cumulative((z - x.mean) / deviation) ** samples
        first += above * top / steps
        second += 2.0 * z * above * top / steps
    return Moments.of(first, second - first**2)


def clipped(x: Moments, top: float) -> Moments:
    """Moments of ``min(max(0, x), top)`` for normal ``x``."""
    low, high = rectified(x), rectified(Moments(x.mean - top, x.variance))
    # It is max(0, x) - max(0, x - top), and so is its square but for 2 top max(0, x - top).
    first = low.mean - high.mean
    second = _mean_square(low) - _mean_square(high) - 2.0 * top * high.mean
    return Moments.of(first, second - first**2)


def transformed(x: Moments, function: Callable[[np.ndarray], np.ndarray]) -> Moments:
    """Moments of ``function(x)`` for normal ``x``, by sums over a grid of up to 6 deviations."""
    grid = np.linspace(-6.0, 6.0, 49)
    density = np.exp(-0.5 * np.square(grid))
    density /= density.sum()
    values = function(x.mean[:, None] + np.sqrt(x.variance)[:, None] * grid)
    first = values @ density
    return Moments.of(first, np.square(values) @ density - first**2)


def multiplied(x: Moments, y: Moments) -> Moments:
    """Moments of the product of independent values."""
    mean = x.mean * y.mean
    return Moments.of(mean, _mean_square(x) * _mean_square(y) - mean**2)


def averaged(x: Moments, samples: float, coverage: np.ndarray) -> Moments:
    """Moments of means over ``samples`` independent values, some of which may be padding.

    ``coverage`` holds, for each position, the share of its window that is not padding.
    """
    part = float(coverage.mean())
    spread = x.mean**2 * float(coverage.var())  # the mean differs between positions
    return Moments.of(x.mean * part, x.variance * part / samples + spread)


def concatenated(*parts: Moments) -> Moments:
    """Moments of the channels of ``parts``, one after another."""
    return Moments(
        np.concatenate([part.mean for part in parts]),
        np.concatenate([part.variance for part in parts]),
    )


def _mean_square(x: Moments) -> np.ndarray:
    """Mean of the square."""
    return x.mean**2 + x.variance


def _cumulative(x: np.ndarray) -> np.ndarray:
    """The standard normal distribution function, which NumPy lacks."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x])
