"""Workloads: convolutions in VTA's packed layout, and their epilogues."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import AluOp

Taps = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class Convolution:
    """An int8 convolution with int32 accumulators; a dense layer is one on a single pixel.

    ``height`` and ``width`` are the input's. The fields up to the strides are the numbers by which
    the tutorial of VTA's tuner names ResNet-18's layers, in its order.

    A transposed convolution is represented as a convolution by the flipped kernel on an input
    dilated by its stride (``up_h``, ``up_w``): Dumoulin and Visin, A guide to convolution
    arithmetic for deep learning (2016), chapter 4.
    """

    batch: int
    height: int
    width: int
    in_channels: int
    out_channels: int
    kernel_h: int
    kernel_w: int
    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    groups: int = 1
    end_h: int = 0
    """Bottom padding minus top padding; ``end_w`` is right minus left."""
    end_w: int = 0
    up_h: int = 1
    up_w: int = 1

    @property
    def out_height(self) -> int:
        return (self.padded[0] - self.kernel_h) // self.stride_h + 1

    @property
    def out_width(self) -> int:
        return (self.padded[1] - self.kernel_w) // self.stride_w + 1

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of the dilated and padded input."""
        return (
            (self.height - 1) * self.up_h + 1 + 2 * self.pad_h + self.end_h,
            (self.width - 1) * self.up_w + 1 + 2 * self.pad_w + self.end_w,
        )

    @property
    def units(self) -> tuple[int, int]:
        """Rows and columns of the output in units of ``up_h`` x ``up_w`` pixels: every unit has the
        same pattern of kernel taps. The last ones may be cropped."""
        return -(-self.out_height // self.up_h), -(-self.out_width // self.up_w)

    @property
    def taps(self) -> tuple[Taps, Taps]:
        """For each row, or column, within a unit: the kernel's rows that meet a non-zero input
        there, each with that input's distance from the unit's index."""
        return (
            _taps(self.kernel_h, self.pad_h, self.up_h),
            _taps(self.kernel_w, self.pad_w, self.up_w),
        )

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those with padding included."""
        rows, columns = (
            sum(len(taps[place % len(taps)]) for place in range(extent))
            for taps, extent in zip(self.taps, (self.out_height, self.out_width), strict=True)
        )
        channels = self.out_channels * (self.in_channels // self.groups)
        return self.batch * channels * rows * columns

    def to_json(self) -> dict[str, int]:
        """All fields; those after ``groups`` only if they differ from the default."""
        always = {f.name for f in fields(self)} - {"end_h", "end_w", "up_h", "up_w"}
        defaults = {f.name: f.default for f in fields(self)}
        return {k: v for k, v in asdict(self).items() if k in always or v != defaults[k]}

    def check(self, config: Config) -> None:
        """Raise :class:`TvmtuneError` if no schedule can compute it on this configuration."""
        for name, value, unit in (
            ("batch", self.batch, config.batch),
            ("input channels of a group", self.in_channels // self.groups, config.block),
            ("output channels of a group", self.out_channels // self.groups, config.block),
        ):
            if value < 1 or value % unit:
                raise TvmtuneError(
                    f"{self}: its {name} are {value}: pad them to a multiple of {unit}"
                )
        if self.up_h > 1 < self.stride_h or self.up_w > 1 < self.stride_w:
            raise TvmtuneError(f"{self}: an input dilated by more than 1 requires stride 1")
        if self.out_height < 1 or self.out_width < 1:
            raise TvmtuneError(f"{self}: the kernel is larger than its input with padding")

    def shapes(self, config: Config) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of the packed input (N/b, CI/c, H, W, b, c), weights (CO/c, CI/g/c, KH, KW, c, c)
        and output (N/b, CO/c, OH, OW, b, c), for batch b and block c of the GEMM core."""
        b, c = config.batch, config.block
        return (
            (self.batch // b, self.in_channels // c, self.height, self.width, b, c),
            (
                *(self.out_channels // c, self.in_channels // self.groups // c),
                *(self.kernel_h, self.kernel_w, c, c),
            ),
            (self.batch // b, self.out_channels // c, self.out_height, self.out_width, b, c),
        )

    def __str__(self) -> str:
        shape = f"{self.batch}x{self.in_channels}x{self.height}x{self.width}"
        kernel = f"{self.kernel_h}x{self.kernel_w} to {self.out_channels}"
        kind = "convolution" if self.up_h == self.up_w == 1 else "transposed convolution"
        return f"{kind} of {shape} by {kernel}"


def _taps(kernel: int, pad: int, up: int) -> Taps:
    return tuple(
        tuple((k, (r + k - pad) // up) for k in range(kernel) if (r + k - pad) % up == 0)
        for r in range(up)
    )


@dataclass(frozen=True)
class Epilogue:
    """Operations on the accumulators before their low 8 bits are stored, in this order.

    ``bias``: add an int32 per output channel. ``shift``: arithmetic shift right, by at most 30.
    ``low`` and ``high``: clip, None for no bound.
    """

    bias: bool = False
    shift: int = 8
    low: int | None = 0
    high: int | None = 127

    def operations(self) -> list[tuple[AluOp, int]]:
        """The operations after the bias with their immediates; one SHR shifts by at most 15."""
        if not 0 <= self.shift <= 30:
            raise TvmtuneError(f"a shift by {self.shift}: must be 0 to 30")
        first = min(self.shift, 15)
        operations = [(AluOp.SHR, amount) for amount in (first, self.shift - first) if amount]
        operations += [(AluOp.MAX, self.low)] if self.low is not None else []
        operations += [(AluOp.MIN, self.high)] if self.high is not None else []
        return operations


def numpy_reference(
    convolution: Convolution,
    epilogue: Epilogue,
    x: npt.NDArray[np.int8],
    w: npt.NDArray[np.int8],
    bias: npt.NDArray[np.int32] | None = None,
) -> npt.NDArray[np.int8]:
    """The packed output computed by NumPy, one kernel position at a time.

    ``bias`` is (CO/c, b, c). Products are summed in float64, which represents every sum exactly and
    runs on BLAS.
    """
    conv = convolution
    (rows, columns), up = conv.padded, (conv.up_h, conv.up_w)
    # extra room at the end, where the padding may be negative
    extended = (rows + up[0] * conv.height, columns + up[1] * conv.width)
    padded = np.zeros((*x.shape[:2], *extended, *x.shape[4:]))
    dilated = padded[:, :, conv.pad_h :: up[0], conv.pad_w :: up[1]]
    dilated[:, :, : conv.height, : conv.width] = x
    weights = w.astype(np.float64)
    ins, outs = x.shape[1] // conv.groups, w.shape[0] // conv.groups
    shape = (x.shape[0], w.shape[0], conv.out_height, conv.out_width, *x.shape[4:])
    products = np.zeros(shape)
    for g in range(conv.groups):
        inputs = padded[:, g * ins : (g + 1) * ins]
        tiles = weights[g * outs : (g + 1) * outs]
        for ky in range(conv.kernel_h):
            for kx in range(conv.kernel_w):
                down = slice(ky, ky + conv.stride_h * (conv.out_height - 1) + 1, conv.stride_h)
                across = slice(kx, kx + conv.stride_w * (conv.out_width - 1) + 1, conv.stride_w)
                seen: Any = inputs[:, :, down, across]
                products[:, g * outs : (g + 1) * outs] += np.einsum(
                    "nihwbc,oikc->nohwbk", seen, tiles[:, :, ky, kx], optimize=True
                )
    sums = products.astype(np.int64)
    if epilogue.bias:
        assert bias is not None
        sums += bias.astype(np.int64)[None, :, None, None]
    for op, amount in epilogue.operations():
        if op is AluOp.SHR:
            sums >>= amount
        else:
            sums = (np.maximum if op is AluOp.MAX else np.minimum)(sums, amount)
    return sums.astype(np.int8)
