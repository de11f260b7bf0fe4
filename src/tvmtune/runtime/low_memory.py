"""Check a large library with one copy of its weights in memory.

TVM's loader copies the program of a library twice before it makes tensors of it: with the mapped file,
the weights are there four times. A *skeleton* has the code of the whole library, byte for byte, and its
program with placeholders for the weights, which TVM's loader takes for ordinary tensors. The weights
are read from the whole library, and kernels get them in place of the placeholders.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.library import embedded_weights, huge_pages, vm_program
from tvmtune.runtime.session import LocalSession
from tvmtune.types import product

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PASS_THROUGH = frozenset(
    (huge_pages.NAME, "vm.builtin.copy", "vm.builtin.make_tuple", "vm.builtin.tuple_getitem")
)
"""Calls of the VM that do not read tensors: they may get a placeholder."""
_WINDOW = 1 << 20


class WeightInjectionError(Exception):
    """Something other than a kernel reads a weight: the library cannot be run in this way."""


class LowMemorySession(LocalSession):
    """Implements :class:`tvmtune.runtime.session.LibrarySession` for a check on this CPU.

    Every call of the VM goes through Python, so its times mean nothing, and it has no profile.
    ``invoke`` and ``outputs`` raise :class:`WeightInjectionError` if weights cannot be injected.
    """

    def __init__(self, path: Path, threads: int) -> None:
        """Load the library at ``path``; its directory needs room for a copy of its code.

        Raises TvmtuneError if it cannot be loaded, or its program has an unexpected form.
        """
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            skeleton = Path(folder) / path.name
            weights = write_skeleton(path, skeleton)
            try:
                super().__init__(skeleton, "cpu", threads)
            except TvmtuneError as error:
                raise TvmtuneError(str(error).replace(str(skeleton), str(path))) from error
        self._injection = _WeightInjection(_load(path, weights))
        self._vm.set_instrument(self._injection)

    def invoke(self, count: int = 1) -> float:
        seconds = super().invoke(count)
        if self._injection.failed:
            raise WeightInjectionError(f"{self._injection.failed} reads a weight")
        return seconds

    def outputs(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        arrays = super().outputs(numbers)
        if any(vm_program.placeholder_index(array) is not None for array in arrays):
            raise WeightInjectionError("an output is a weight")
        return arrays


class _WeightInjection:
    """Instrument of the VM: makes the calls that have placeholders itself, with the weights.

    It must not refer to the session: a cycle through the VM would never be collected.
    """

    def __init__(self, weights: Sequence[Any]) -> None:
        from tvm.runtime.vm import VMInstrumentReturnKind

        self.failed = ""
        """The first call with a placeholder that could not be made; later ones are skipped."""
        self._weights = weights
        self._proceed = int(VMInstrumentReturnKind.NO_OP)
        self._skip = int(VMInstrumentReturnKind.SKIP_RUN)

    def __call__(self, function: Any, name: str, before: bool, _result: Any, *args: Any) -> int:
        if self.failed:
            return self._skip
        indices = [_weight_index(arg) for arg in args] if before else []
        if name in _PASS_THROUGH or all(index is None for index in indices):
            return self._proceed
        injected = [
            arg if index is None else self._weights[index]
            for arg, index in zip(args, indices, strict=True)
        ]
        # Kernels write to their last arguments. A returned value would be lost.
        if not callable(function) or function(*injected) is not None:
            self.failed = name
        return self._skip


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a library's file."""

    start: int
    """File offset of its values, in bytes."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return product(self.shape) * self.dtype.itemsize


def write_skeleton(whole: Path, skeleton: Path) -> list[StoredWeight]:
    """Write the skeleton of the library at ``whole``; returns the weights that placeholders replaced.

    Raises TvmtuneError if the program has not the form that TVM 0.27 gives it.
    """
    start, size = vm_program.find(whole)
    pieces: list[bytes] = []
    weights: list[StoredWeight] = []
    with whole.open("rb") as source, skeleton.open("wb") as target:
        for piece in _pieces(source, start, size):
            if isinstance(piece, StoredWeight):
                weights.append(piece)
                piece = vm_program.serialized_placeholder(len(weights) - 1)
            pieces.append(piece)
        growth = sum(map(len, pieces)) - size
        source.seek(0)
        target.write(source.read(start))
        target.write(vm_program.adjust_lengths(b"".join(pieces), size, growth))
        # The rest of the file keeps its place. The hole before it takes no space.
        target.seek(start + size)
        source.seek(start + size)
        shutil.copyfileobj(source, target)
    return weights


def _pieces(file: BinaryIO, start: int, size: int) -> Iterator[bytes | StoredWeight]:
    """The program piece by piece, with its large weights located but not read."""
    end = start + size
    while start < end:
        file.seek(start)
        window = file.read(min(_WINDOW, end - start))
        found = window.find(vm_program.TENSOR)
        if found < 0:
            # The next tensor may start with the last bytes of this window.
            last = start + len(window) >= end
            found = len(window) - (0 if last else len(vm_program.TENSOR) - 1)
            yield window[:found]
            start += found
            continue
        yield window[:found]
        start += found
        file.seek(start)
        dtype, shape, length = vm_program.read_tensor_header(file)
        values = file.tell()
        if not 0 <= length <= end - values:
            raise vm_program.unexpected_form("serializes tensors")
        if dtype is None or length < embedded_weights.LARGE:
            file.seek(start)
            yield file.read(values + length - start)
        else:
            weight = StoredWeight(values, dtype, shape)
            if weight.size != length:
                raise vm_program.unexpected_form("serializes tensors")
            yield weight
        start = values + length


def _load(whole: Path, weights: Sequence[StoredWeight]) -> list[Any]:
    """The weights as tensors of TVM, aligned as its kernels expect."""
    import tvm

    tensors = []
    with whole.open("rb") as file:
        for weight in weights:
            tensor = tvm.runtime.empty(weight.shape, str(weight.dtype))
            file.seek(weight.start)
            if file.readinto(np.from_dlpack(tensor).reshape(-1).view(np.uint8).data) != weight.size:
                raise TvmtuneError(f"{whole} is truncated. Copy or compile it again.")
            tensors.append(tensor)
    return tensors


def _weight_index(argument: Any) -> int | None:
    """The index of the weight that an argument is a placeholder for; None if it is none."""
    import tvm

    if not isinstance(argument, tvm.runtime.Tensor) or str(argument.dtype) != "int64":
        return None
    if tuple(argument.shape) != (4,):
        return None
    return vm_program.placeholder_index(argument.numpy())
