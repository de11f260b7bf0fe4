"""Which dot-product instructions the CPU of a target has.

Such an instruction adds several products to each of some sums: it multiplies a few neighboring values
of the data, 32 bits in all, by as many weights of each of as many outputs as it has lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvmtune import cpu_features


@dataclass(frozen=True)
class DotInstruction:
    """An instruction, or what takes its place on older CPUs. The types are those in which its operands
    are stored."""

    name: str
    """Of the intrinsic in TensorIR; traces hold it."""
    function: str
    """In LLVM IR: ``(sums, data of 32 bits in each lane, weights of 32 bits in each lane) -> sums``."""
    feature: str
    """What the CPU must have, by LLVM's name."""
    lanes: int
    """Sums."""
    terms: int
    """Products that it adds to each sum."""
    data: str
    weights: str
    sums: str
    vector: str
    """Type of data and weights in LLVM IR."""
    call: str
    """In LLVM IR, with ``{sums}`` for the type of the sums: ``%result`` from ``%sums``, ``%values`` and
    ``%weights``."""
    declaration: str
    """Of the function that ``call`` calls."""
    meaning: str | None = None
    """Type of values with the same bits as the stored ones, if these stand for others."""
    architecture: str = "x86_64"
    """What the target's triple starts with."""


def _accumulating(intrinsic: str, sums: str, vector: str) -> dict[str, Any]:
    arguments = f"{{sums}} %sums, {vector} %values, {vector} %weights"
    return {
        "sums": sums,
        "vector": vector,
        "declaration": f"declare {{sums}} @{intrinsic}({{sums}}, {vector}, {vector})",
        "call": f"%result = call {{sums}} @{intrinsic}({arguments})",
    }


def _multiplying(intrinsic: str, vector: str) -> dict[str, Any]:
    arguments = f"{vector} %values, {vector} %weights"
    return {
        "sums": "int32",
        "vector": vector,
        "declaration": f"declare {{sums}} @{intrinsic}({vector}, {vector})",
        "call": f"%products = call {{sums}} @{intrinsic}({arguments})\n"
        "  %result = add {sums} %sums, %products",
    }


MOST_MERGED, NARROW = 8, 64
"""Groups that are computed as one, at most, and the channels that more than two of them may have
together. Most of their products are with zero, so this is for groups so narrow that floats are slow,
too (those of ResNeXt run at 27% of the peak). The limits were not measured."""

BYTES = (
    # TVM 0.27 has this intrinsic, but passes operand types that its LLVM does not accept: no kernel
    # with it can be built. The one here replaces it under the same name, which older traces hold.
    DotInstruction(
        "dot_16x4_vnni",
        "tvmtune_dot_16x4_vnni",
        "avx512vnni",
        *(16, 4, "uint8", "int8"),
        **_accumulating("llvm.x86.avx512.vpdpbusd.512", "int32", "<64 x i8>"),
    ),
    DotInstruction(
        "tvmtune_dot_8x4_vnni",
        "tvmtune_dot_8x4_vnni",
        "avxvnni",
        *(8, 4, "uint8", "int8"),
        **_accumulating("llvm.x86.avx512.vpdpbusd.256", "int32", "<32 x i8>"),
    ),
    # Products of bytes (vpmaddubsw) would saturate: the sum of two exceeds 16 bits.
    DotInstruction(
        "tvmtune_dot_16x2_int16",
        "tvmtune_dot_16x2_int16",
        "avx512bw",
        *(16, 2, "int16", "int16"),
        **_multiplying("llvm.x86.avx512.pmaddw.d.512", "<32 x i16>"),
    ),
    DotInstruction(
        "tvmtune_dot_8x2_int16",
        "tvmtune_dot_8x2_int16",
        "avx2",
        *(8, 2, "int16", "int16"),
        **_multiplying("llvm.x86.avx2.pmadd.wd", "<16 x i16>"),
    ),
    DotInstruction(
        "tvmtune_dot_4x4_i8mm",
        "tvmtune_dot_4x4_i8mm",
        "i8mm",
        *(4, 4, "uint8", "int8"),
        **_accumulating("llvm.aarch64.neon.usdot.v4i32.v16i8", "int32", "<16 x i8>"),
        architecture="aarch64",
    ),
    DotInstruction(
        "tvmtune_dot_4x4_dotprod",
        "tvmtune_dot_4x4_dotprod",
        "dotprod",
        *(4, 4, "int8", "int8"),
        **_accumulating("llvm.aarch64.neon.sdot.v4i32.v16i8", "int32", "<16 x i8>"),
        architecture="aarch64",
    ),
)
"""For bytes, with exact sums; the fastest first. Where bytes are stored as int16, twice as many
instructions are needed."""


def _bfloat16(
    name: str, feature: str, lanes: int, intrinsic: str, architecture: str
) -> Iterator[DotInstruction]:
    for data in ("bfloat16", "uint16"):
        # Weights are bits: TVM would otherwise try the instruction for products of all kinds, whose
        # operands it cannot read.
        yield DotInstruction(
            f"{name}_{data}",
            name,
            feature,
            *(lanes, 2, data, "uint16"),
            **_accumulating(intrinsic, "float32", f"<{2 * lanes} x bfloat>"),
            meaning="bfloat16",
            architecture=architecture,
        )


BFLOAT16 = (
    *_bfloat16(
        *("tvmtune_dot_16x2_bf16", "avx512bf16", 16),
        *("llvm.x86.avx512bf16.dpbf16ps.512", "x86_64"),
    ),
    *_bfloat16(
        *("tvmtune_dot_4x2_bfdot", "bf16", 4),
        *("llvm.aarch64.neon.bfdot.v4f32.v8bf16", "aarch64"),
    ),
)
"""Each twice, by what the data are stored as: bfloat16 or its bits."""


@dataclass(frozen=True)
class TileInstruction:
    """An instruction that multiplies two tiles and adds the products to a third: AMX's. Weights are
    packed as for a :class:`DotInstruction` with 16 lanes; sums have 32 bits."""

    name: str
    """In the names of functions that use it."""
    feature: str
    """What the CPU must have, by LLVM's name, beside ``amx-tile``."""
    intrinsic: str
    """Of LLVM: ``(tile of sums, tile of data, tile of weights)``."""
    data: tuple[str, ...]
    """The types in which data may be stored."""
    weights: str
    sums: str
    terms: int
    """Neighboring values of 32 bits in all."""
    fewest: int
    """Groups of so many terms with which an instruction is faster than a :class:`DotInstruction`'s."""
    meaning: str | None = None
    """As :attr:`DotInstruction.meaning`."""

    @property
    def bytes(self) -> int:
        """Of a value of data or weights."""
        return 4 // self.terms

    def reads(self, data: str, weights: str) -> bool:
        """Whether it multiplies values that are stored in these types."""
        return data in self.data and weights == self.weights


TILES = (
    TileInstruction(
        *("u8s8", "amx-int8", "llvm.x86.tdpbusd", ("uint8",), "int8", "int32"),
        terms=4,
        fewest=4,
    ),
    TileInstruction(
        *("bf16", "amx-bf16", "llvm.x86.tdpbf16ps", ("bfloat16", "uint16"), "uint16", "float32"),
        terms=2,
        meaning="bfloat16",
        fewest=2,  # AVX512-BF16 is slow where there is AMX: 16 products per cycle on a Granite Rapids
    ),
)


def for_tiles(target: dict[str, Any]) -> tuple[TileInstruction, ...]:
    """Those that the CPU has; they take the place of dot-product instructions in large products."""
    if not cpu_features.has(target, "amx-tile") or "linux" not in cpu_features.triple(target):
        return ()  # the functions ask Linux for permission
    return tuple(each for each in TILES if cpu_features.has(target, each.feature))


def for_bytes(target: dict[str, Any]) -> DotInstruction | None:
    """The fastest for products of bytes; None where float32 is as fast: plain NEON, for example, has a
    Cortex-A72 start 8 products of bytes in each cycle, or 8 of floats."""
    return next((each for each in BYTES if _has(target, each)), None)


def merged_groups(groups: int, outputs: int, inputs: int, lanes: int = 16, terms: int = 4) -> int:
    """How many groups of a convolution to compute as one, with weights of zero in between, so that
    outputs fill lanes and inputs fill terms, or all groups; 0 if these are too many
    (:data:`MOST_MERGED`, :data:`NARROW`).

    ``outputs`` and ``inputs`` are those of one group. With fewer lanes or terms the result is no
    larger, and not 0 unless it was.
    """
    for merged in range(1, min(groups, MOST_MERGED) + 1):
        if merged > 2 and merged * outputs > NARROW:
            return 0
        is_full = merged * outputs % lanes == 0 and merged * inputs % terms == 0
        if is_full or merged == groups:
            return merged
    return 0


def is_depthwise(groups: int, outputs: int, inputs: int) -> bool:
    """Whether each channel of a convolution is a group with one output. ``outputs`` are those of all
    groups, ``inputs`` those of one."""
    return 1 < groups == outputs and inputs == 1


def computes_groups(
    groups: int, outputs: int, inputs: int, lanes: int = 16, terms: int = 4
) -> bool:
    """Whether a convolution, which may be depthwise, has a kernel for instructions with so many lanes
    and terms; then it has one for those with fewer, too. ``outputs`` and ``inputs`` as in
    :func:`is_depthwise`."""
    own = outputs // groups
    return (
        is_depthwise(groups, outputs, inputs)
        or merged_groups(groups, own, inputs, lanes, terms) > 0
    )


def for_bfloat16(target: dict[str, Any]) -> tuple[DotInstruction, ...]:
    """The one for products of bfloat16, by what the data are stored as; none where there is none."""
    return tuple(each for each in BFLOAT16 if _has(target, each))


def _has(target: dict[str, Any], instruction: DotInstruction) -> bool:
    return cpu_features.has(target, instruction.feature) and cpu_features.triple(target).startswith(
        (instruction.architecture, *_OTHER_NAMES.get(instruction.architecture, ()))
    )


_OTHER_NAMES = {"aarch64": ("arm64",), "x86_64": ("x86-64", "amd64")}
