"""The weights of a library, written straight into its object file.

TVM keeps weights in the program of its virtual machine, serializes that into a string and has LLVM
emit the string as data: four copies at the same time. Here the program is compiled with a small
placeholder for each weight, and the object file for the linker is written weight by weight.
:mod:`tvmtune.library.vm_program` knows the form, :mod:`tvmtune.runtime.low_memory` reads it.
"""

from __future__ import annotations

import platform
import re
import sys
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.arrays import nbytes
from tvmtune.library import elf, vm_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import tvm

ProgramChange = Callable[[Any, bytes], bytes]
"""``change(library, program) -> program``: another program for a compiled library."""

LARGE = 1 << 14
"""Smallest constant that is taken out, in bytes."""

KEPT = 1 << 28
"""Bytes of weights up to which a module keeps them, and a library is loaded whole to be checked."""

_BLOCK = 1 << 24


def take_weights(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Any]]:
    """Replace the large constants of ``main`` by placeholders; returns the module and the constants.

    If these exceed 256 MB, ``mod`` itself loses them, so that they can be freed one by one as they
    are written.
    """
    import tvm
    from tvm import relax

    weights: list[Any] = []

    @relax.expr_functor.mutator
    class Taker(relax.PyExprMutator):
        def visit_generic_const_(self, constant: Any) -> Any:
            tensor = constant.value
            if not _is_large(tensor):
                return constant
            index = next((i for i, w in enumerate(weights) if w.same_as(tensor)), len(weights))
            if index == len(weights):
                weights.append(tensor)
            return stand_in(index, constant.ty)

    main = Taker(mod).visit_expr(mod["main"])
    if sum(map(nbytes, weights)) <= KEPT:
        mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    mod.update_func(mod.get_global_var("main"), main)
    return mod, weights


def stand_in(index: int, ty: Any) -> Any:
    """The constant that stands for weight ``index``, of the weight's type."""
    import tvm

    return tvm.ir.GenericConst(tvm.runtime.tensor(vm_program.placeholder(index)), ty)


def can_write_objects(mtriple: str) -> bool:
    """Whether :func:`write_object` supports an LLVM triple (empty: this machine's): 64-bit
    little-endian ELF, on Linux."""
    system = mtriple or f"{platform.machine()}-{sys.platform}"
    return "linux" in system and system.split("-")[0] in ("x86_64", "aarch64", "arm64")


def write_object(
    library: Any, weights: list[Any], like: Path, path: Path, change: ProgramChange | None = None
) -> int:
    """Write the object file with the program of ``library`` and its ``weights`` in their places.

    ``like`` is another object file for the same machine. ``change`` runs before the weights come in.
    ``weights`` is empty afterwards. Returns the CRC-32 of the program with its weights.
    """
    from tvm.runtime import _ffi_api

    program = _ffi_api.ModulePackImportsToTensor(library).numpy().tobytes()
    if change is not None:
        program = change(library, program)
    pieces = _pieces(program, weights)
    weights.clear()
    crc = 0

    def blocks() -> Iterator[bytes | memoryview]:
        nonlocal crc
        while pieces:
            for block in _blocks(pieces.pop(0)):  # weights are freed as they are written
                crc = zlib.crc32(block, crc)
                yield block

    with path.open("wb") as file:
        elf.write_object(file, like, vm_program.SYMBOL, blocks())
    return crc


def read_crc(path: Path) -> int:
    """The CRC-32 of the program in the library at ``path``."""
    start, left = vm_program.find(path)
    crc = 0
    with path.open("rb") as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, _BLOCK))):
            crc, left = zlib.crc32(block, crc), left - len(block)
    return crc


def _is_large(tensor: Any) -> bool:
    kind = re.fullmatch(r"(float|int|uint)(8|16|32|64)", str(tensor.dtype))
    return kind is not None and nbytes(tensor) >= LARGE


def _pieces(program: bytes, weights: Sequence[Any]) -> list[bytes | np.ndarray]:
    """The program with the weights in place of their placeholders, piece by piece."""
    places = []
    for index in range(len(weights)):
        old = vm_program.serialized_placeholder(index)
        if program.count(old) != 1:
            raise vm_program.unexpected_form("serializes tensors")
        places.append((program.index(old), len(old), np.from_dlpack(weights[index])))
    if not places:
        return [program]
    pieces: list[bytes | np.ndarray] = []
    growth, last = 0, 0
    for start, length, array in sorted(places, key=lambda place: place[0]):
        header = vm_program.tensor_header(array.dtype, array.shape, array.nbytes)
        pieces += [program[last:start] + header, array]
        growth += len(header) + array.nbytes - length
        last = start + length
    first, *rest = [*pieces, program[last:]]
    assert isinstance(first, bytes)
    return [vm_program.adjust_lengths(first, len(program), growth), *rest]


def _blocks(piece: bytes | np.ndarray) -> Iterator[bytes | memoryview]:
    if isinstance(piece, bytes):
        yield piece
        return
    values = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
    for start in range(0, values.size, _BLOCK):
        yield values[start : start + _BLOCK].data
