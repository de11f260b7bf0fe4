"""Powers of two for tensors and weights, chosen by what calibration showed of their values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.quantise import integers
from tvmtune.quantise.integers import HIGHEST, LOWEST, Whole
from tvmtune.quantise.region import Floats, Layer

FINER = 2
"""How many exponents below the one that cuts nothing are tried: a few large values are cut then, and
all others have finer steps."""
DEAD = -7
"""The exponent of a tensor that calibration saw nothing but zeros of: its values reach to 1."""
_FACTORS = 6
"""log2 of the largest factor that fits a weight of int8."""
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Row:
    """What became of one layer: a line of the table."""

    name: str
    kind: str
    exponents: tuple[int, ...]
    weight_exponent: int | None
    exponent: int
    shift: int
    cut: float
    """The part of the output's values that int8 does not reach."""
    sqnr: float | None
    """10 log10 of signal by noise at the layer's output, all layers before it in whole numbers that
    nothing in float lies between; None where there is no noise, or no signal."""


def exponent_for(values: Floats) -> int:
    """The exponent with the least squared error among those that cut nothing or a little."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if not math.isfinite(largest):
        raise TvmtuneError("calibration gave values that are not finite: its data are unusable.")
    if largest == 0:
        return DEAD
    most = math.ceil(math.log2(largest / HIGHEST))
    errors = {}
    for exponent in range(most, most - FINER - 1, -1):
        kept = integers.restore(integers.quantise(values, exponent), exponent)
        errors[exponent] = float(np.sum((kept - values).astype(np.float64) ** 2))
    return min(errors, key=lambda each: errors[each])


def choose(
    layers: Sequence[Layer], tensors: Mapping[str, Floats]
) -> tuple[list[Whole], dict[str, int]]:
    """Layers in whole numbers, and the exponent of each tensor that they read or write.

    ``tensors`` holds the float values (N, C, H, W) of all of these, for all calibration inputs. Raises
    :class:`TvmtuneError` for values from which no scale follows.
    """
    exponents: dict[str, int] = {}
    wholes: list[Whole] = []
    for layer in layers:
        for name in layer.inputs:
            if name not in exponents:
                exponents[name] = exponent_for(tensors[name])
        whole = (_convolution if layer.kind == "convolution" else _sum)(layer, exponents, tensors)
        exponents[layer.output] = whole.exponent
        wholes.append(whole)
    return wholes, exponents


def table(
    wholes: Sequence[Whole], exponents: Mapping[str, int], tensors: Mapping[str, Floats]
) -> list[Row]:
    """A row for each layer."""
    made = {whole.layer.output for whole in wholes}
    outside = {n for whole in wholes for n in whole.layer.inputs} - made
    known = {n: integers.quantise(tensors[n], exponents[n]) for n in outside}
    found = integers.run_all(wholes, known)
    rows = []
    for whole in wholes:
        name = whole.layer.output
        wanted, got = tensors[name], found[name]
        noise = integers.restore(got, whole.exponent).astype(np.float64) - wanted
        signal = float(np.sum(wanted.astype(np.float64) ** 2))
        error = float(np.sum(noise**2))
        sqnr = 10 * math.log10(signal / error) if error and signal else None
        steps = np.ldexp(wanted.astype(np.float64), -whole.exponent)
        cut = float(np.mean(np.abs(steps) > HIGHEST + 0.5))
        rows.append(
            Row(
                name,
                whole.layer.kind,
                whole.exponents,
                whole.weight_exponent if whole.weights is not None else None,
                whole.exponent,
                whole.shift,
                cut,
                sqnr,
            )
        )
    return rows


def _convolution(
    layer: Layer, exponents: Mapping[str, int], tensors: Mapping[str, Floats]
) -> Whole:
    weights, bias = layer.parameters()
    given = exponents[layer.inputs[0]]
    own = exponent_for(weights)
    exact = given + own
    out = max(exponent_for(tensors[layer.output]), exact)
    shift = out - exact
    half = 1 << shift - 1 if shift else 0
    steps = np.rint(np.ldexp(bias.astype(np.float64), -exact)) + half
    whole = integers.quantise(weights, own)
    # the largest sum that inputs of int8 can make
    reach = np.abs(whole.astype(np.int64)).sum(axis=(1, 2, 3)) * 128 + np.abs(steps)
    if shift > 30 or float(reach.max()) > _MOST:
        raise TvmtuneError(
            f"layer {layer.output} cannot be computed in 32 bits: its sums reach "
            f"{float(reach.max()):.3g}, shifted by {shift}. Its bias is too large for its weights; "
            "leave it out with start-op= or stop-op= where the target has these, or stay in float."
        )
    low, high = _bounds(layer, out)
    return Whole(
        *(layer, (given,), out, shift, low, high, whole, own),
        bias=steps.astype(np.int32),
    )


def _sum(layer: Layer, exponents: Mapping[str, int], tensors: Mapping[str, Floats]) -> Whole:
    """Of operands whose scales differ by more than weights can express, one is left out: the smaller,
    which is less than a step of the other, or was nothing but zeros."""
    left, right = (exponents[name] for name in layer.inputs)
    fine = min(left, right)
    factors: tuple[int | None, int | None] = (left - fine, right - fine)
    if abs(left - right) > _FACTORS:
        reach = [float(np.max(np.abs(tensors[name]), initial=0.0)) for name in layer.inputs]
        small = reach.index(min(reach))
        factors = (None, 0) if small == 0 else (0, None)
        fine = right if small == 0 else left
        warnings.warn(
            f"layer {layer.output}: what {layer.inputs[small]} adds (at most {reach[small]:.2g} to at "
            f"most {max(reach):.2g}) is less than a step of int8, and is left out",
            stacklevel=2,
        )
    out = max(exponent_for(tensors[layer.output]), fine)
    low, high = _bounds(layer, out)
    return Whole(layer, (left, right), out, out - fine, low, high, factors=factors)


def _bounds(layer: Layer, exponent: int) -> tuple[int, int]:
    """The activation's bounds in steps of the output."""

    def steps(bound: float | None, default: int) -> int:
        if bound is None:
            return default
        return round(min(HIGHEST, max(LOWEST, math.ldexp(bound, -exponent))))

    return steps(layer.low, LOWEST), steps(layer.high, HIGHEST)
