"""Values of a kernel's arguments that make its errors visible.

A kernel is checked on two sets. In the *dense* one every value counts about the same, so a value that
was taken from the wrong place shows. A sum of thousands of terms hides one that is missing, and an
output in 16 bits hides a bias beside large sums. So in the *sparse* set long sums consist of few large
terms and many small ones.

Integers cover their range and both signs, unless they are indices, shifts or divisors
(:mod:`tvmtune.passes.kernel_arguments`) or 8-bit results would be clipped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvmtune.arrays import numpy_dtype
from tvmtune.passes.kernel_arguments import KernelArgument
from tvmtune.types import TensorSpec, product

DENSE, SPARSE = SETS = range(2)
ORDINARY, TAME = LEVELS = range(2)
"""``TAME`` values are for kernels whose outputs say little for ordinary ones, such as square roots:
floats from 0.5 to 1.5, small integers, and zeros and ones for those of more than 16 bits."""

PERIOD = 65521
"""Values repeat after this many, a prime, so that no loop sees the same ones in each iteration."""
LARGE_TERMS = 16
"""Number of large terms in a sum of the sparse set."""
LONG_SUM = 64
"""Terms from which on a sum is made sparse."""
CLIPPED = 127
"""Where 8-bit results are clipped; sums are kept below it, after the shift if there is one: by bits
that are an argument, or a constant."""
TELLING = 0.25
"""Share of an output's values that must be visible."""
VISIBLE = 1e-3
"""A value is visible if it differs by at least this much, relative to the output's largest, from the
most frequent value, or from 0 if there is none."""
_SAMPLES = 4096


def draw(args: Sequence[TensorSpec], which: int, level: int = ORDINARY) -> list[np.ndarray]:
    """Each argument's value before the call, in the set ``which``.

    Outputs are filled with NaN, or the lowest integer of their type (in the other set the highest),
    so that what a kernel leaves out is wrong.

    The last argument is an output; a :class:`KernelArgument` says whether others are.
    """
    drawing = _Drawing([_known(spec, spec is args[-1]) for spec in args], which, level)
    return [drawing.value(n) for n in range(len(args))]


def shows_errors(outputs: Sequence[np.ndarray]) -> float:
    """The share of values in which an error would be visible, of the output where it is smallest."""
    return min(map(_visible, outputs), default=1.0)


def _known(spec: TensorSpec, last: bool) -> KernelArgument:
    if isinstance(spec, KernelArgument):
        return spec
    most = 1 if _is_wide(spec) and not last else None  # it may be an index
    low = None if most is None else 0
    return KernelArgument(spec.name, spec.shape, spec.dtype, written=last, low=low, high=most)


def _is_float(spec: TensorSpec) -> bool:
    return "float" in spec.dtype


def _is_wide(spec: TensorSpec) -> bool:
    """Whether it is an integer of more than 16 bits."""
    return "int" in spec.dtype and numpy_dtype(spec.dtype).itemsize > 2


@dataclass
class _Drawing:
    args: list[KernelArgument]
    which: int
    level: int

    def __post_init__(self) -> None:
        inputs = [arg for arg in self.args if not arg.written]
        narrow = [arg for arg in inputs if self._is_narrow(arg)]
        self._products = max((arg.products for arg in self.args), default=1)
        self._sparse: KernelArgument | None = None
        if self.which == SPARSE and self._products > LONG_SUM:
            terms = [arg for arg in inputs if self._is_narrow(arg) or _is_float(arg)]
            self._sparse = max(terms, key=lambda arg: product(arg.shape), default=None)
        self._most = CLIPPED << max((arg.shifted for arg in self.args), default=0)
        """Where sums are clipped."""
        self._terms = LARGE_TERMS if self._sparse is not None else self._products
        results = [arg for arg in self.args if arg.written and "int" in arg.dtype]
        self._clips = (
            self._products > 1
            and any(not _is_wide(arg) for arg in results)
            and not any(arg.shifts for arg in inputs)
        )
        bits = min(14.0, (30.0 - math.log2(self._products)) / 2)
        if self.which == SPARSE and self._products > 1:
            bits = 4.0  # a bias shows beside sums of such products
        self._wide = 2.0 ** max(1.0, bits)
        self._sum = self._wide
        """The size of sums, before any shift."""
        if narrow:
            ranges = [self._range(arg) for arg in narrow]
            sizes = [math.sqrt((low**2 + low * high + high**2) / 3) for low, high in ranges]
            if self._products > 1 or any(arg.shifts for arg in inputs):
                self._sum = math.sqrt(self._terms) * math.prod(sorted(sizes)[-2:])
            else:
                self._sum = max(sizes)
        self._has_narrow = bool(narrow)

    def value(self, place: int) -> np.ndarray:
        arg = self.args[place]
        dtype = numpy_dtype(arg.dtype)
        if arg.written:
            return self._unwritten(arg, dtype)
        seed = 100 * self.which + place
        count = product(arg.shape)
        if _is_float(arg):
            block = self._floats(arg, seed).astype(dtype)
        elif "int" in arg.dtype:
            block = self._integers(arg, seed).astype(dtype)
        else:
            block = (_uniform(seed) < 0.5).astype(dtype)
        values = np.resize(block, count)
        if arg is self._sparse and self.level == ORDINARY:
            places = max(1, round(count * LARGE_TERMS / self._products))
            where = np.random.RandomState(seed).randint(0, count, places)
            large = self._large(arg, seed)
            values[where] = np.resize(large, places).astype(dtype)
        return values.reshape(arg.shape)

    def _unwritten(self, arg: KernelArgument, dtype: np.dtype) -> np.ndarray:
        lowest = self.which == DENSE
        if _is_float(arg):
            fill: float = math.nan
        elif "int" in arg.dtype:
            fill = _limits(dtype)[0 if lowest else 1]
        else:
            fill = not lowest
        return np.full(arg.shape, fill, dtype)

    def _floats(self, arg: KernelArgument, seed: int) -> np.ndarray:
        if self.level == TAME:
            return 0.5 + _uniform(seed)
        values = _normal(seed)
        if arg is self._sparse:
            return values / (4 * math.sqrt(self._products))
        if self.which == SPARSE:
            return np.ldexp(values, -(4 * _uniform(seed)).astype(np.int32))
        return values

    def _integers(self, arg: KernelArgument, seed: int) -> np.ndarray:
        if arg.low is not None and arg.high is not None:
            return _between(arg.low, arg.high, seed)
        if arg.shifts:
            tame = self.level == TAME
            bits = 0 if tame else max(0, round(math.log2(max(1.0, 2.5 * self._sum / CLIPPED))))
            return _between(bits, bits + 1, seed)
        if self.level == TAME:
            low, high = self._range(arg) if not _is_wide(arg) else (0, 1)
            return _between(max(low, -3), min(high, 3), seed)
        if arg is self._sparse:
            return _between(-1 if self._range(arg)[0] < 0 else 0, 1, seed)
        if self._is_narrow(arg):
            return _between(*self._range(arg), seed)
        signed = 2.0 * _uniform(seed) - 1.0 if arg.dtype.startswith("int") else _uniform(seed)
        if self._has_narrow:  # a bias beside sums of this size
            return np.rint(self._sum * signed)
        # Magnitudes of all sizes.
        return np.rint(np.copysign(self._wide ** np.abs(signed), signed))

    def _large(self, arg: KernelArgument, seed: int) -> np.ndarray:
        if not _is_float(arg):
            return _between(*self._range(arg), seed + 50)
        values = _normal(seed + 50)
        return np.copysign(1.0 + np.abs(values) / 2, values)

    def _is_narrow(self, arg: KernelArgument) -> bool:
        """Whether it holds 8- or 16-bit integers that are data."""
        return "int" in arg.dtype and not _is_wide(arg) and arg.low is None and not arg.shifts

    def _range(self, arg: KernelArgument) -> tuple[int, int]:
        """The lowest and highest value of 8- or 16-bit integers."""
        low, high = _limits(numpy_dtype(arg.dtype))
        most = high
        if self._products > 1:
            most = min(most, 255)  # sums of products of 16-bit integers would exceed 32 bits
        if self._clips:
            most = min(most, max(1, round(math.sqrt(self._most / math.sqrt(self._terms)))))
        return max(low, -most - 1 if most == high else -most), most


def _limits(dtype: np.dtype) -> tuple[int, int]:
    import ml_dtypes

    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


@functools.lru_cache(maxsize=64)
def _normal(seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(PERIOD).astype(np.float32)


@functools.lru_cache(maxsize=64)
def _uniform(seed: int) -> np.ndarray:
    """From 0 up to but not including 1."""
    return np.random.RandomState(1000 + seed).random_sample(PERIOD)


def _between(low: int, high: int, seed: int) -> np.ndarray:
    return low + np.floor(_uniform(seed) * (high - low + 1))


def _visible(output: np.ndarray) -> float:
    flat = output.reshape(-1)
    if flat.size < 2:
        return 1.0
    step = max(1, flat.size // _SAMPLES) | 1
    sample = flat[::step].astype(np.float64)
    finite = sample[np.isfinite(sample)]
    if not finite.size:
        return 0.0
    values, counts = np.unique(finite, return_counts=True)
    usual = values[counts.argmax()] if counts.max() > 1 else 0.0
    visible = np.abs(finite - usual) >= VISIBLE * np.abs(values).max()
    return float(np.count_nonzero(visible & (finite != usual)) / sample.size)
