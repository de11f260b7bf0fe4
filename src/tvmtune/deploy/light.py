"""A large library, run with its weights in memory once.

TVM's loader copies the program of a library twice before it makes tensors of it: with the file, which
is mapped, the weights are there four times. A light library has the code of the whole one, byte by
byte, and its program with placeholders for the weights, which TVM's loader takes as it takes any. The
weights are read from the whole library, and kernels are given them in the place of the placeholders.
So what a large library computes can be checked in the memory that its weights need.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tvmtune.deploy import image, program
from tvmtune.deploy.session import LocalSession
from tvmtune.errors import TvmtuneError
from tvmtune.types import product

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PASSED_ON = frozenset(f"vm.builtin.{name}" for name in ("copy", "make_tuple", "tuple_getitem"))
"""Calls of the VM that do not look at a tensor: they may see a placeholder."""
_WINDOW = 1 << 20


class Unsupplied(Exception):
    """Something else than a kernel looks at a weight: the library cannot be run in this way."""


class LightSession(LocalSession):
    """Implements :class:`tvmtune.deploy.session.Session` for a check on this CPU.

    Every call that the VM makes goes through Python: its times say nothing, and it has no profile.
    ``invoke`` and ``outputs`` raise :class:`Unsupplied` where the weights cannot be supplied.
    """

    def __init__(self, path: Path, threads: int) -> None:
        """Load the library at ``path``, beside which there must be room for its code.

        Raises TvmtuneError if it cannot be loaded, or its program has another form than TVM's.
        """
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            light = Path(folder) / path.name
            weights = write(path, light)
            try:
                super().__init__(light, "cpu", threads)
            except TvmtuneError as error:
                raise TvmtuneError(str(error).replace(str(light), str(path))) from error
        self._supplier = _Supplier(_read(path, weights))
        self._vm.set_instrument(self._supplier)

    def invoke(self, count: int = 1) -> float:
        spent = super().invoke(count)
        if self._supplier.failed:
            raise Unsupplied(f"{self._supplier.failed} looks at a weight")
        return spent

    def outputs(self) -> list[np.ndarray]:
        found = super().outputs()
        if any(program.index_of(array) is not None for array in found):
            raise Unsupplied("an output is a weight")
        return found


class _Supplier:
    """What the VM asks before each call: calls with placeholders it makes itself, with the weights.

    It must not know the session: a cycle through the VM would never be collected.
    """

    def __init__(self, weights: Sequence[Any]) -> None:
        from tvm.runtime.vm import VMInstrumentReturnKind

        self.failed = ""
        """The first call with a placeholder that could not be made; none is made from then on."""
        self._weights = weights
        self._go_on = int(VMInstrumentReturnKind.NO_OP)
        self._leave_out = int(VMInstrumentReturnKind.SKIP_RUN)

    def __call__(self, function: Any, name: str, before: bool, _result: Any, *args: Any) -> int:
        if self.failed:
            return self._leave_out
        indices = [_index(arg) for arg in args] if before else []
        if name in _PASSED_ON or all(index is None for index in indices):
            return self._go_on
        given = [
            arg if index is None else self._weights[index]
            for arg, index in zip(args, indices, strict=True)
        ]
        # Kernels write to their last arguments. What a call returns would be lost.
        if not callable(function) or function(*given) is not None:
            self.failed = name
        return self._leave_out


@dataclass(frozen=True)
class Weight:
    """A weight in a library."""

    start: int
    """Of its values in the file, in bytes."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Of its values, in bytes."""
        return product(self.shape) * self.dtype.itemsize


def write(whole: Path, light: Path) -> list[Weight]:
    """Write the light library of the one at ``whole``; returns what the placeholders stand for.

    Raises TvmtuneError if the program has not the form that TVM 0.27 gives it.
    """
    start, size = program.find(whole)
    parts: list[bytes] = []
    weights: list[Weight] = []
    with whole.open("rb") as source, light.open("wb") as target:
        for part in _parts(source, start, size):
            if isinstance(part, Weight):
                weights.append(part)
                part = program.stand_in(len(weights) - 1)
            parts.append(part)
        shorter = sum(map(len, parts))
        source.seek(0)
        target.write(source.read(start))
        target.write(program.lengthened(b"".join(parts), size, shorter - size))
        # What follows has to keep its place. The hole before it takes no space.
        target.seek(start + size)
        source.seek(start + size)
        shutil.copyfileobj(source, target)
    return weights


def _parts(file: BinaryIO, start: int, size: int) -> Iterator[bytes | Weight]:
    """The program piece by piece, its large weights as such."""
    end = start + size
    while start < end:
        file.seek(start)
        window = file.read(min(_WINDOW, end - start))
        found = window.find(program.TENSOR)
        if found < 0:
            # The next tensor may start with the last bytes of this window.
            last = start + len(window) >= end
            found = len(window) - (0 if last else len(program.TENSOR) - 1)
            yield window[:found]
            start += found
            continue
        yield window[:found]
        start += found
        file.seek(start)
        dtype, shape, length = program.read_record(file)
        values = file.tell()
        if values + length > end:
            raise program.unexpected("serialises tensors")
        if dtype is None or length < image.LARGE:
            file.seek(start)
            yield file.read(values + length - start)
        else:
            weight = Weight(values, dtype, shape)
            if weight.size != length:
                raise program.unexpected("serialises tensors")
            yield weight
        start = values + length


def _read(whole: Path, weights: Sequence[Weight]) -> list[Any]:
    """The weights as tensors of TVM, aligned as its kernels expect."""
    import tvm

    tensors = []
    with whole.open("rb") as file:
        for weight in weights:
            tensor = tvm.runtime.empty(weight.shape, str(weight.dtype))
            file.seek(weight.start)
            if file.readinto(np.from_dlpack(tensor).reshape(-1).view(np.uint8).data) != weight.size:
                raise TvmtuneError(f"{whole} is truncated. Copy or compile it again")
            tensors.append(tensor)
    return tensors


def _index(argument: Any) -> int | None:
    """Which weight the argument of a call stands for; None if it stands for itself."""
    import tvm

    if not isinstance(argument, tvm.runtime.Tensor) or str(argument.dtype) != "int64":
        return None
    return program.index_of(argument.numpy()) if tuple(argument.shape) == (4,) else None
