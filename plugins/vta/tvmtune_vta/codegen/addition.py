"""Programs of sums of two tensors: GEMMs with powers of two on the diagonal of a weight tile add
both into the accumulators.

Vectors of one block are contiguous in memory, so a tile is a number of consecutive vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.codegen.workload import Epilogue
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Alu, AluOp, Engine, Finish, Gemm, Load, Store
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program, Step

A, B, W, Y = 0, 1, 2, 3
"""Buffer indices."""
LARGEST = 6
"""log2 of the largest factor that a weight can hold."""
_SLOTS = 2
_UOPS = 3
"""Per slot."""
_MAX_ITERATIONS = (1 << 14) - 1


@dataclass(frozen=True)
class Addition:
    """``(a * 2^left + b * 2^right + 2^(shift - 1)) >> shift``, clipped; without a shift there is no
    rounding term.

    ``shape`` is that of both operands and the result, (N/b, C/c, H, W, b, c). None for ``left`` or
    ``right`` omits an operand.
    """

    shape: tuple[int, ...]
    left: int | None = 0
    right: int | None = 0
    shift: int = 0
    low: int = -127
    high: int = 127

    @property
    def vectors(self) -> int:
        return int(np.prod(self.shape[:-2]))

    def check(self) -> None:
        """Raise :class:`TvmtuneError` for factors and shifts that the core does not support."""
        if not all(0 <= factor <= LARGEST for factor in (self.left or 0, self.right or 0)):
            raise TvmtuneError(
                f"a sum of operands times 2^{self.left} and 2^{self.right}: weights hold 2^0 to "
                f"2^{LARGEST}"
            )
        if not 0 <= self.shift <= 15:
            raise TvmtuneError(f"a sum shifted by {self.shift}: must be 0 to 15")

    def weights(self) -> npt.NDArray[np.int8]:
        """(2, c, c): the factors on the diagonals."""
        identity = np.eye(self.shape[-1], dtype=np.int8)
        factors = (0 if each is None else 1 << each for each in (self.left, self.right))
        return np.stack([identity * factor for factor in factors]).astype(np.int8)


def largest_tile(config: Config) -> int:
    """Vectors of a slot's operands that the memories hold; 0 if there is no room for sums."""
    if config.depth(Memory.UOP) < _SLOTS * _UOPS or config.depth(Memory.WGT) < 2:
        return 0
    return min(
        config.depth(Memory.ACC) // _SLOTS,
        config.depth(Memory.INP) // (2 * _SLOTS),
        _MAX_ITERATIONS,
    )


def generate(addition: Addition, config: Config, *, name: str = "") -> Program:
    """The program; its buffers are both operands, the weights, which it contains, and the
    result. Raises :class:`TvmtuneError` for a sum or a configuration that cannot be used."""
    addition.check()
    total = addition.vectors
    tile = min(largest_tile(config), -(-total // _SLOTS))
    if not tile:
        raise TvmtuneError(f"{config.bitstream} has no room for a sum")
    bases = [(slot * tile, slot * 2 * tile) for slot in range(_SLOTS)]
    # Per slot: the products of both sides, and what follows, whose source is an accumulator, too.
    uops = isa.pack_uops(
        config,
        np.array([dst for dst, _ in bases for _ in range(_UOPS)]),
        np.array([each for dst, src in bases for each in (src, src + tile, dst)]),
        np.array([each for _ in bases for each in (0, 1, 0)]),
    )
    steps: list[Step] = [
        (Load(memory=Memory.UOP, x_size=len(uops), x_stride=len(uops)), UOPS),
        (Load(memory=Memory.WGT, x_size=2, x_stride=2), W),
    ]
    starts = range(0, total, tile)
    for turn, first in enumerate(starts):
        slot, size = turn % _SLOTS, min(tile, total - first)
        reuses_buffer, followed = turn >= _SLOTS, turn + _SLOTS < len(starts)
        dst, src = bases[slot]
        for side, operand in enumerate((A, B)):
            load = Load(
                memory=Memory.INP,
                sram_base=src + side * tile,
                dram_base=first,
                x_size=size,
                x_stride=size,
                pop_next=reuses_buffer and side == 0,
                push_next=side == 1,
            )
            steps.append((load, operand))
        over: dict[str, Any] = {"iter_in": size, "dst_factor_in": 1}
        sums = over | {"uop_bgn": _UOPS * slot + 2, "uop_end": _UOPS * slot + 3}
        steps.append((Gemm(**sums, reset=True, pop_next=reuses_buffer), NO_OPERAND))
        for side in range(2):
            begin = _UOPS * slot + side
            product = Gemm(
                **over,
                uop_bgn=begin,
                uop_end=begin + 1,
                src_factor_in=1,
                pop_prev=side == 0,
                push_prev=side == 1 and followed,
            )
            steps.append((product, NO_OPERAND))
        ends = [
            Alu(**sums, op=op, use_imm=True, imm=amount) for op, amount in _operations(addition)
        ]
        ends[-1] = replace(ends[-1], push_next=True)
        steps += [(end, NO_OPERAND) for end in ends]
        store = Store(
            sram_base=dst,
            dram_base=first,
            x_size=size,
            x_stride=size,
            pop_prev=True,
            push_prev=True,
        )
        steps.append((store, Y))
    for _ in range(min(_SLOTS, len(starts))):
        steps.append((isa.noop(Engine.COMPUTE, pop_next=True), NO_OPERAND))
    steps.append((Finish(), NO_OPERAND))
    weights = addition.weights()
    buffers = [
        Buffer("a", "input", "int8", addition.shape),
        Buffer("b", "input", "int8", addition.shape),
        Buffer("w", "constant", "int8", weights.shape),
        Buffer("y", "output", "int8", addition.shape),
    ]
    return Program.build(config, steps, uops, buffers, contents={W: weights}, name=name or "sum")


def _operations(addition: Addition) -> list[tuple[AluOp, int]]:
    rounding = [(AluOp.ADD, 1 << addition.shift - 1)] if addition.shift else []
    end = Epilogue(shift=addition.shift, low=addition.low, high=addition.high)
    return rounding + end.operations()
