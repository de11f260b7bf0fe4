"""Bit fields of instructions and uops: positions, packing and unpacking.

Source: the VTA hardware repository, ``include/vta/hw_spec.h``. Its structures are C bit-fields of
64-bit units: a field that would cross bit 64 starts there instead. With the default configuration
that leaves bits 58-63 (LOAD, STORE) or bit 63 (GEMM, ALU) unused; with a small uop buffer, the
first factors move up into the first word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError

Words = npt.NDArray[np.uint64]
"""Instructions: (n, 2), the low word first."""
Uops = npt.NDArray[np.uint32]
Columns = dict[str, npt.NDArray[np.int64]]
"""Fields of many instructions or uops, as arrays by name."""

WORD = 64
UOP_BITS = 32
FLAGS = ("pop_prev", "pop_next", "push_prev", "push_next")
HEAD = (("opcode", 3), *((flag, 1) for flag in FLAGS))
MEMORY = (
    *HEAD,
    *(("memory", 3), ("sram_base", 16), ("dram_base", 32)),
    *(("y_size", 16), ("x_size", 16), ("x_stride", 16)),
    *(("y_pad_0", 4), ("y_pad_1", 4), ("x_pad_0", 4), ("x_pad_1", 4)),
)
SIGNED = ("imm",)


@dataclass(frozen=True)
class Field:
    """Bits ``low`` to ``low + width - 1``."""

    name: str
    low: int
    width: int

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        if self.name in SIGNED:
            return -(1 << self.width - 1), (1 << self.width - 1) - 1
        return 0, (1 << self.width) - 1

    def out_of_range(self, what: str, value: object) -> TvmtuneError:
        """The error for a value that does not fit."""
        least, most = self.limits
        return TvmtuneError(
            f"{what}: {self.name}={value} does not fit its field: {least} to {most}"
        )


@dataclass(frozen=True)
class Layout:
    """The fields of one kind of instruction, or of a uop."""

    name: str
    fields: tuple[Field, ...]
    unused: int
    """A mask of the bits outside all fields."""


def widths(uop: int, inp: int, wgt: int, acc: int) -> dict[str, tuple[tuple[str, int], ...]]:
    """Names and widths of all fields, given log2 of the buffers' depths."""
    loops = (
        *HEAD,
        *(("reset", 1), ("uop_bgn", uop), ("uop_end", uop + 1), ("iter_out", 14), ("iter_in", 14)),
        *(("dst_factor_out", acc), ("dst_factor_in", acc)),
    )
    return {
        "LOAD": MEMORY,
        "STORE": MEMORY,
        "GEMM": (
            *loops,
            *(("src_factor_out", inp), ("src_factor_in", inp)),
            *(("wgt_factor_out", wgt), ("wgt_factor_in", wgt)),
        ),
        "FINISH": HEAD,
        "ALU": (
            *(loops),
            *(("src_factor_out", acc), ("src_factor_in", acc)),
            *(("op", 3), ("use_imm", 1), ("imm", 16)),
        ),
    }


def place_fields(widths_by_name: tuple[tuple[str, int], ...]) -> tuple[tuple[Field, ...], int]:
    """Fields with their positions, by the rule of C's bit-fields, and the number of bits used."""
    placed, at = [], 0
    for name, width in widths_by_name:
        if at % WORD + width > WORD:
            at += WORD - at % WORD
        placed.append(Field(name, at, width))
        at += width
    return tuple(placed), at


def instruction_layouts(uop: int, inp: int, wgt: int, acc: int) -> dict[str, Layout]:
    """Layouts by opcode name; :class:`tvmtune_vta.hardware.config.Config` has checked that they
    fit."""
    return {
        name: _layout(name, place_fields(widths_by_name)[0], 2 * WORD)
        for name, widths_by_name in widths(uop, inp, wgt, acc).items()
    }


def uop_layout(inp: int, wgt: int, acc: int) -> Layout:
    """Layout of a uop; its source index addresses inputs for GEMM, accumulators for ALU."""
    fields, _ = place_fields((("dst", acc), ("src", max(inp, acc)), ("wgt", wgt)))
    return _layout("uop", fields, UOP_BITS)


def _layout(name: str, fields: tuple[Field, ...], bits: int) -> Layout:
    used = sum((1 << f.width) - 1 << f.low for f in fields)
    return Layout(name, fields, (1 << bits) - 1 & ~used)


def pack(layout: Layout, values: Mapping[str, npt.ArrayLike | int], count: int) -> Words:
    """(count, 2) words of one kind of instruction; each value is a scalar or an array.

    Fields that are not given are 0. Raises :class:`TvmtuneError` that names the field, the value
    and its limits if a value does not fit, and for unknown field names.
    """
    words = np.zeros((count, 2), np.uint64)
    for name in values:
        if name not in {f.name for f in layout.fields}:
            raise TvmtuneError(f"{layout.name} has no field '{name}'")
    for field in layout.fields:
        if field.name in values:
            column = _checked(layout.name, field, values[field.name])
            bits = column.astype(np.uint64) & np.uint64((1 << field.width) - 1)
            words[:, field.low // WORD] |= bits << np.uint64(field.low % WORD)
    return words


def unpack(layout: Layout, words: Words) -> Columns:
    """The fields of (n, 2) words of one kind of instruction, unchecked."""
    columns = {}
    for field in layout.fields:
        column = words[:, field.low // WORD] >> np.uint64(field.low % WORD)
        value = (column & np.uint64((1 << field.width) - 1)).astype(np.int64)
        if field.name in SIGNED:
            value -= (value >> field.width - 1) << field.width
        columns[field.name] = value
    return columns


def pack_uops(layout: Layout, dst: npt.ArrayLike, src: npt.ArrayLike, wgt: npt.ArrayLike) -> Uops:
    """Uops from their indices, broadcast to one shape and flattened."""
    columns = np.broadcast_arrays(
        *(
            _checked("uop", field, value)
            for field, value in zip(layout.fields, (dst, src, wgt), strict=True)
        )
    )
    words = np.zeros(columns[0].shape, np.uint32)
    for field, column in zip(layout.fields, columns, strict=True):
        words |= column.astype(np.uint32) << np.uint32(field.low)
    return words.reshape(-1)


def unpack_uops(layout: Layout, words: Uops) -> Columns:
    """``dst``, ``src`` and ``wgt`` of each uop."""
    wide = words.astype(np.int64)
    return {f.name: wide >> f.low & (1 << f.width) - 1 for f in layout.fields}


def _checked(what: str, field: Field, value: npt.ArrayLike | int) -> npt.NDArray[np.int64]:
    array = np.asarray(value)
    if array.dtype.kind not in "iub":
        raise TvmtuneError(f"{what}: {field.name}={value!r} is not a 64-bit integer")
    least, most = field.limits
    wrong = (array < least) | (array > most)
    if np.any(wrong):
        raise field.out_of_range(what, array[wrong].flat[0])
    return array.astype(np.int64)
