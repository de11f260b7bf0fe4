"""Right kernels of six families, and wrong ones that tile or index them as a wrong schedule would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WRONG = (
    "shifted",
    "flipped",
    "transposed",
    "tail",  # the last term of each sum, or the last column, is left out
    "unwritten",  # the last rows of the output are not written
    "race",  # one of two threads overwrites the other's partial sum, or computes no row of its own
    "group",  # the parameters of another group of channels
    "off by one",
    "one for all",  # the first weight, or index, used for all
    "no epilogue",
)
CHANNELS, SIZE, DEPTH = 16, 8, 128


def pick(wrong: str, index: Any, extent: int) -> Any:
    """Where a wrong kernel reads instead of ``index``."""
    if wrong == "shifted":
        return (index + extent - 1) % extent
    if wrong == "off by one":
        return (index + 1) % extent
    if wrong == "flipped":
        return extent - 1 - index
    return 0 * index if wrong == "one for all" else index


def sum_type(dtype: str) -> str:
    return "int32" if dtype.startswith("int") else "float32"


class Kernel:
    """Builds one kernel: its inputs, and what follows its sums."""

    def __init__(self, dtype: str, wrong: str) -> None:
        self.dtype, self.wrong = dtype, wrong
        self.inputs: list[Any] = []

    def input(self, name: str, *shape: int, dtype: str | None = None) -> Callable[..., Any]:
        from tvm import te

        tensor = te.placeholder(shape, dtype or self.dtype, name=name)
        self.inputs.append(tensor)
        return lambda *at: tensor[at].astype(self.sums) if dtype is None else tensor[at]

    @property
    def sums(self) -> str:
        return sum_type(self.dtype)

    def terms(self, extent: int) -> tuple[int, int]:
        """The terms that are summed up."""
        if self.wrong == "tail":
            return 0, extent - 1
        return (extent // 2 if self.wrong == "race" else 0), extent

    def group(self, channel: Any) -> Any:
        return (channel + 4) % CHANNELS if self.wrong == "group" else channel

    def rows(self, count: int) -> int:
        return count - 1 if self.wrong == "unwritten" else count

    def finish(self, sums: Any, shape: tuple[int, ...], scale: int = 0) -> Any:
        """Bias, then ReLU, or what requantizes a sum; rounded to the dtype. ``shape`` ends with the
        channels."""
        from tvm import te, tirx

        narrow = self.dtype == "int8"
        bias = self.input("bias", shape[-1], dtype="int32" if narrow else self.dtype)
        shift = self.input("shift", shape[-1], dtype="int32") if narrow and scale else None

        def element(*at: Any) -> Any:
            value = sums[at]
            if self.wrong != "no epilogue":
                value = value + bias(self.group(at[-1])).astype(self.sums)
            if shift is not None:
                value = value >> shift(at[-1])
            if narrow:
                value = te.min(te.max(value, tirx.const(-127, "int32")), tirx.const(127, "int32"))
            return value.astype(self.dtype)

        return te.compute(shape, element, name="out")


def conv2d(k: Kernel, depthwise: bool = False) -> Any:
    from tvm import te

    outs = CHANNELS
    x = k.input("x", SIZE + 2, SIZE + 2, CHANNELS)
    w = k.input("w", 3, 3, *([] if depthwise else [CHANNELS]), outs)
    ky, kx = te.reduce_axis((0, 3), "ky"), te.reduce_axis((0, 3), "kx")
    c = te.reduce_axis(k.terms(CHANNELS), "c")
    if depthwise and k.wrong in ("tail", "race"):
        kx = te.reduce_axis((0, 2) if k.wrong == "tail" else (1, 3), "kx")
    side = "one for all" if k.wrong == "one for all" else k.wrong

    def element(y: Any, z: Any, o: Any) -> Any:
        column = pick("off by one", z, SIZE) if k.wrong == "shifted" else z
        taps = (ky, kx) if k.wrong == "shifted" else (pick(side, ky, 3), pick(side, kx, 3))
        if k.wrong == "transposed":
            taps = taps[::-1]
        if depthwise:
            return te.sum(x(y + ky, column + kx, o) * w(*taps, k.group(o)), axis=[ky, kx])
        ends = (o, c) if k.wrong == "transposed" else (c, k.group(o))
        return te.sum(x(y + ky, column + kx, c) * w(*taps, *ends), axis=[ky, kx, c])

    shape = (k.rows(SIZE), SIZE, outs)
    return k.finish(te.compute(shape, element, name="sums"), shape, scale=1)


def depthwise(k: Kernel) -> Any:
    return conv2d(k, depthwise=True)


def matmul(k: Kernel) -> Any:
    from tvm import te

    a, b = k.input("a", SIZE, DEPTH), k.input("b", DEPTH, DEPTH)
    term = te.reduce_axis(k.terms(DEPTH), "k")

    def element(i: Any, j: Any) -> Any:
        row, column = pick(k.wrong, term, DEPTH), j
        if k.wrong == "group":
            column = (j + CHANNELS) % DEPTH
        at = (column, row) if k.wrong == "transposed" else (row, column)
        return te.sum(a(i, term) * b(*at), axis=term)

    shape = (k.rows(SIZE), DEPTH)
    return k.finish(te.compute(shape, element, name="sums"), shape, scale=1)


def pooling(k: Kernel) -> Any:
    from tvm import te

    x = k.input("x", SIZE + 2, SIZE + 2, CHANNELS)
    ky, kx = te.reduce_axis((0, 3), "ky"), te.reduce_axis((0, 3), "kx")
    if k.wrong in ("tail", "race"):
        kx = te.reduce_axis((0, 2) if k.wrong == "tail" else (1, 3), "kx")

    def element(y: Any, z: Any, o: Any) -> Any:
        rows, columns = (y + ky, z + kx)[:: -1 if k.wrong == "transposed" else 1]
        if k.wrong == "one for all":
            rows, columns = y + 0 * ky, z + 0 * kx
        elif k.wrong != "transposed":
            columns = pick(k.wrong, columns, SIZE + 2)
        return te.max(x(rows, columns, k.group(o)), axis=[ky, kx])

    shape = (k.rows(SIZE), SIZE, CHANNELS)
    return k.finish(te.compute(shape, element, name="pooled"), shape)


def elementwise(k: Kernel) -> Any:
    from tvm import te

    a, b = k.input("a", CHANNELS, CHANNELS), k.input("b", CHANNELS)

    def element(i: Any, j: Any) -> Any:
        at = (j, i) if k.wrong == "transposed" else (i, j)
        factor = b(pick(k.wrong, j, CHANNELS))
        if k.wrong in ("tail", "race"):
            end = CHANNELS - 1 if k.wrong == "tail" else CHANNELS // 2
            return te.if_then_else(j < end, a(*at) - factor, a(*at))
        return a(*at) - factor

    shape = (k.rows(CHANNELS), CHANNELS)
    return k.finish(te.compute(shape, element, name="difference"), shape)


def gather(k: Kernel) -> Any:
    from tvm import te

    table = k.input("table", CHANNELS, CHANNELS)
    index = k.input("index", DEPTH, dtype="int32")

    def element(i: Any, j: Any) -> Any:
        row = index(pick(k.wrong, i, DEPTH))
        if k.wrong == "transposed":
            return table(j, row)
        if k.wrong == "tail":
            row = te.min(row, CHANNELS - 2)
        if k.wrong == "race":
            row = te.if_then_else(i < DEPTH // 2, row, index(i - DEPTH // 2))
        return table(row, j)

    shape = (k.rows(DEPTH), CHANNELS)
    return k.finish(te.compute(shape, element, name="rows"), shape)


FAMILIES = (conv2d, depthwise, matmul, pooling, elementwise, gather)


def make(family: Callable[[Kernel], Any], dtype: str, wrong: str = "") -> Any:
    """The PrimFunc of a family's kernel in this dtype."""
    from tvm import te

    kernel = Kernel(dtype, wrong)
    out = family(kernel)
    return te.create_prim_func([*kernel.inputs, out])
