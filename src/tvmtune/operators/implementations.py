"""Algorithms for convolutions and products, and the legalizers that apply them to a network.

An :class:`~tvmtune.types.Algorithm` is a custom legalization: it replaces some calls of a Relax
operator by another TensorIR program with the same result. Fusion then works as before, so the
network keeps its kernels in number and order, and each kernel that changed has a second implementation.

Backends choose among these values, and may add their own, in the hook ``implementations``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.dot_instructions import DotInstruction
from tvmtune.operators import (
    bfloat16_products,
    cpu_gemm,
    gemm,
    grouped,
    padded,
    strassen,
    winograd,
    winograd_fused,
    winograd_rows,
)
from tvmtune.operators.winograd_calls import GAIN, LANES, Convolution, fitting
from tvmtune.operators.winograd_transforms import (
    F4_INTEGERS,
    TILES_2,
    TILES_2X2,
    TILES_4,
    TILES_4X4,
    Transforms,
)
from tvmtune.passes import call_marks, repeated_calls
from tvmtune.types import Algorithm

if TYPE_CHECKING:
    from tvmtune.passes.repeated_calls import Legalizer

_CONV2D = "relax.nn.conv2d"
_CONVOLUTIONS = {"": _CONV2D, "-1d": "relax.nn.conv1d", "-3d": "relax.nn.conv3d"}
"""By what follows the name of an algorithm that has one for each."""
_MATMUL = "relax.matmul"
_Suits = Callable[[Transforms, Convolution], bool]


def _winograd(
    name: str,
    choices: Sequence[Transforms],
    program: Callable[[Transforms, Any, Any, bool], Any] = winograd.replace,
    applies: _Suits = lambda transforms, conv: True,
    prefers: _Suits | None = None,
    *,
    exact: bool = False,
    fewest_lanes: int = LANES,
) -> Algorithm:
    """By the one of ``choices`` that fits a convolution, which ``applies`` and ``prefers`` are asked
    about."""

    def suits(question: _Suits, call: Any) -> bool:
        transforms = fitting(choices, call, fewest_lanes)
        return transforms is not None and question(transforms, Convolution.of(call))

    def replace(builder: Any, call: Any, values: bool) -> Any:
        transforms = fitting(choices, call)
        assert transforms is not None
        return program(transforms, builder, call, values)

    preferred = None if prefers is None else functools.partial(suits, prefers)
    applicable = functools.partial(suits, applies)
    return Algorithm(name, _CONV2D, applicable, replace, exact=exact, prefers=preferred)


WINOGRAD = _winograd("winograd", [F4_INTEGERS])
"""F(4x4, 3x3) with few multiplications in the transforms."""
IMPLICIT_GEMM = Algorithm("implicit-gemm", _CONV2D, gemm.applies, gemm.replace)
"""For GPUs whose schedule rules stage operands in shared memory, as is :data:`SPLIT_K`."""
SPLIT_K = Algorithm("split-k", _CONV2D, gemm.splits, gemm.replace_split)
PADDED = Algorithm(
    "padded",
    _MATMUL,
    padded.applies_to_matmul,
    padded.replace_matmul,
    prefers=lambda call: True,
)
"""For CPUs, whose schedule rules split loops into equal parts."""


def bfloat16_batched(instruction: DotInstruction) -> Algorithm:
    """Batched products of two activations, as in attention."""
    return Algorithm(
        "bfloat16-batched",
        _MATMUL,
        bfloat16_products.applies_to_batched,
        functools.partial(bfloat16_products.replace_batched, instruction),
        prefers=lambda call: True,
    )


def bfloat16(instruction: DotInstruction) -> tuple[Algorithm, ...]:
    """Convolutions and products with weights by a dot-product instruction for bfloat16."""
    return (
        Algorithm(
            "bfloat16-convolution",
            _CONV2D,
            bfloat16_products.applies_to_conv2d,
            functools.partial(bfloat16_products.replace_conv2d, instruction),
            prefers=lambda call: True,
        ),
        Algorithm(
            "bfloat16-product",
            _MATMUL,
            bfloat16_products.applies_to_matmul,
            functools.partial(bfloat16_products.replace_matmul, instruction),
            prefers=lambda call: True,
        ),
    )


def winograd_cpu(cores: int, fewest_lanes: int) -> tuple[Algorithm, ...]:
    """Winograd's convolutions for so many cores: by whole images, by rows of tiles, which cores share,
    and with weights that are transformed at run time. They prefer themselves where they should be the
    fastest. Numbers of channels are multiples of ``fewest_lanes``."""
    return tuple(
        dataclasses.replace(each, name=f"{each.name}{suffix}", operator=operator)
        for suffix, operator in _CONVOLUTIONS.items()
        for each in _winograd_cpu(cores, fewest_lanes, of_signals=suffix == "-1d")
    )


def _winograd_cpu(cores: int, fewest_lanes: int, *, of_signals: bool) -> Iterator[Algorithm]:
    """Those for two-dimensional convolutions, or those of them that have signals; what compile should
    prefer first."""

    def is_fused(transforms: Transforms, conv: Convolution) -> bool:
        return winograd_fused.prefers(transforms, cores, conv)

    def is_best(transforms: Transforms, conv: Convolution) -> bool:
        return conv.fastest() is transforms

    def saves_time(transforms: Transforms, conv: Convolution) -> bool:
        return conv.time(transforms) < GAIN * conv.time(None)

    def in_rows(best: _Suits, transforms: Transforms, conv: Convolution) -> bool:
        return (
            winograd_rows.is_parallel(transforms, cores, conv)
            and winograd_rows.fits(transforms, conv)
            and best(transforms, conv)
        )

    families = [
        ("winograd-4x4", TILES_4X4, False, is_best),
        ("winograd-4", TILES_4, False, is_best),
        ("winograd-2x2", TILES_2X2, True, saves_time),
        ("winograd-2", TILES_2, True, saves_time),
    ]
    if of_signals:
        families = [each for each in families if each[1] in (TILES_4, TILES_2)]
    make = functools.partial(_winograd, fewest_lanes=fewest_lanes)
    for name, choices, exact, _ in families:
        program, applies = winograd_fused.replace, winograd_fused.applies
        yield make(f"{name}-fused", choices, program, applies, is_fused, exact=exact)
    for name, choices, exact, best in families:
        program, applies = winograd_rows.replace, winograd_rows.applies
        prefers = functools.partial(in_rows, best)
        yield make(f"{name}-rows", choices, program, applies, prefers, exact=exact)
        yield make(name, choices, prefers=best, exact=exact)


def padded_channels(columns: padded.PaddedColumns) -> Algorithm:
    """Convolutions with as many output channels as ``columns`` chooses, for CPUs."""
    return Algorithm(
        "padded-channels",
        _CONV2D,
        functools.partial(padded.applies_to_conv2d, columns),
        functools.partial(padded.replace_conv2d, columns),
        prefers=lambda call: True,
    )


def groups_cpu(vectors: grouped.Vectors, lanes: int) -> tuple[Algorithm, ...]:
    """Convolutions with groups in as many vectors of so many lanes as ``vectors`` chooses, for CPUs."""
    return tuple(
        Algorithm(
            f"groups{suffix}",
            operator,
            functools.partial(grouped.applies_to, vectors),
            functools.partial(grouped.replace, vectors, lanes),
            prefers=lambda call: True,
        )
        for suffix, operator in _CONVOLUTIONS.items()
    )


def gemms_cpu(
    padding: cpu_gemm.Padding, prefers: Callable[[cpu_gemm.Extents], bool]
) -> tuple[Algorithm, ...]:
    """Convolutions and products with weights as products of matrices that ``padding`` pads, for
    CPUs."""

    def is_preferred(call: Any) -> bool:
        return prefers(cpu_gemm.Extents.of(call))

    convolutions = (
        Algorithm(
            f"implicit-gemm{suffix}",
            operator,
            functools.partial(cpu_gemm.applies_to_convolution, padding),
            functools.partial(cpu_gemm.replace_convolution, padding),
            prefers=is_preferred,
        )
        for suffix, operator in _CONVOLUTIONS.items()
    )
    return (
        *convolutions,
        Algorithm(
            "flattened",
            _MATMUL,
            functools.partial(cpu_gemm.applies_to_matmul, padding),
            functools.partial(cpu_gemm.replace_matmul, padding),
            prefers=is_preferred,
        ),
    )


def strassen_cpu(
    blocking: strassen.Blocking, prefers: Callable[[int, int, int], bool]
) -> Algorithm:
    """Products with weights by Strassen's algorithm, in blocks that ``blocking`` chooses, for CPUs.
    ``prefers`` is asked with a product's rows, terms and columns."""
    return Algorithm(
        "strassen",
        _MATMUL,
        functools.partial(strassen.applies, blocking),
        functools.partial(strassen.replace, blocking),
        exact=False,
        prefers=lambda call: prefers(*strassen.extents(call)),
    )


DEFAULT = (WINOGRAD,)
"""Implementations of a backend without the hook ``implementations``."""


class AlgorithmSelection:
    """Legalizers that use ``algorithms`` where they apply.

    ``only`` limits an algorithm (by name) to some of its applicable calls, counted from 0 in the order
    of the graph; an algorithm missing from it is used for none. Pass ``values=False`` to get kernels
    that are inspected but never run; :mod:`tvmtune.passes.call_marks` tells their calls' numbers.
    """

    def __init__(
        self,
        algorithms: Sequence[Algorithm],
        only: dict[str, set[int]] | None = None,
        *,
        values: bool = True,
    ) -> None:
        self.algorithms = algorithms
        self.only = only
        self.values = values
        self.applicable = {a.name: 0 for a in algorithms}
        """Number of calls each algorithm could compute, counted by the last legalization."""
        self.preferred: dict[str, set[int]] = {a.name: set() for a in algorithms}
        """Which of them (as in ``only``) it prefers to the direct algorithm."""

    def legalizers(self) -> dict[str, Legalizer]:
        """One legalizer per operator, for one run of ``LegalizeOps``."""
        self.applicable = {a.name: 0 for a in self.algorithms}
        self.preferred = {a.name: set() for a in self.algorithms}
        return {a.operator: self._legalizer(a.operator) for a in self.algorithms}

    def _legalizer(self, operator: str) -> Legalizer:
        direct = repeated_calls.legalizer(operator)
        assert direct is not None, f"TVM cannot legalize {operator}"

        def legalize(builder: Any, call: Any) -> Any:
            chosen, number = None, 0
            for algorithm in self.algorithms:
                if algorithm.operator == operator and algorithm.applies(call):
                    ordinal = self.applicable[algorithm.name]
                    self.applicable[algorithm.name] += 1
                    if algorithm.prefers is not None and algorithm.prefers(call):
                        self.preferred[algorithm.name].add(ordinal)
                    is_used = self.only is None or ordinal in self.only.get(algorithm.name, ())
                    if chosen is None and is_used:
                        chosen, number = algorithm, ordinal
            if chosen is None:
                return direct(builder, call)
            replaced = chosen.replace(builder, call, self.values)
            return replaced if self.values else call_marks.mark(builder, replaced, number)

        return legalize
