"""The weights of a library, written into its image without being copied around.

TVM keeps weights in the program of its virtual machine, serialises that into a string and lets LLVM
emit the string as data: four copies at the same time. Here the program is compiled with a small
placeholder for each weight, and the object file that the linker gets is written weight by weight.
:mod:`tvmtune.deploy.program` knows the form, :mod:`tvmtune.deploy.light` reads it.
"""

from __future__ import annotations

import math
import platform
import re
import sys
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tvmtune.deploy import program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import tvm

Change = Callable[[Any, bytes], bytes]

LARGE = 1 << 14
"""Bytes from which on a constant is taken out."""

KEPT = 1 << 28
"""Bytes of weights up to which a module keeps them, and a library is loaded whole to be checked."""

_ALIGNMENT = 64
_BLOCK = 1 << 24


def take_weights(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Any]]:
    """The module with placeholders for the large constants of ``main``, and these in their order.

    Where there are more than 256 MB of them, the module itself loses them, so that they can be freed
    one by one as they are written.
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
            # It keeps the type of what it stands for.
            return tvm.ir.GenericConst(tvm.runtime.tensor(program.placeholder(index)), constant.ty)

    main = Taker(mod).visit_expr(mod["main"])
    if sum(_bytes(weight) for weight in weights) <= KEPT:
        mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    mod.update_func(mod.get_global_var("main"), main)
    return mod, weights


def can_imitate(mtriple: str) -> bool:
    """Whether objects for an LLVM triple, this machine's where it is empty, are of the form that
    :func:`write_object` writes: ELF of 64 bits, low byte first."""
    system = mtriple or f"{platform.machine()}-{sys.platform}"
    return "linux" in system and system.split("-")[0] in ("x86_64", "aarch64", "arm64")


def write_object(
    library: Any, weights: list[Any], like: Path, path: Path, change: Change | None = None
) -> int:
    """Write the ELF object file with the program of ``library`` and its ``weights`` in their places.

    ``like`` is another object file for the same machine. ``change(library, program)`` makes another
    program of the library's, before its weights come in. ``weights`` is empty afterwards. Returns the
    CRC-32 of the program with its weights.
    """
    from tvm.runtime import _ffi_api

    blob = _ffi_api.ModulePackImportsToTensor(library).numpy().tobytes()
    if change is not None:
        blob = change(library, blob)
    parts = _parts(blob, weights)
    size = sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in parts)
    with like.open("rb") as file:
        header = program.ELF.unpack(file.read(program.ELF.size))
    with path.open("wb") as file:
        file.write(b"\0" * _ALIGNMENT)  # the header's place
        weights.clear()
        crc = 0
        while parts:
            crc = _write(file, parts.pop(0), crc)
        _write_tables(file, header, size)
    return crc


def read_crc(path: Path) -> int:
    """The CRC-32 of the program in the library at ``path``."""
    start, left = program.find(path)
    crc = 0
    with path.open("rb") as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, _BLOCK))):
            crc, left = zlib.crc32(block, crc), left - len(block)
    return crc


def _is_large(tensor: Any) -> bool:
    kind = re.fullmatch(r"(float|int|uint)(8|16|32|64)", str(tensor.dtype))
    return kind is not None and _bytes(tensor) >= LARGE


def _bytes(tensor: Any) -> int:
    return math.prod(tensor.shape) * np.dtype(str(tensor.dtype)).itemsize


def _parts(blob: bytes, weights: Sequence[Any]) -> list[bytes | np.ndarray]:
    """The serialised program with the weights in the place of their placeholders, piece by piece."""
    places = []
    for index in range(len(weights)):
        old = program.stand_in(index)
        if blob.count(old) != 1:
            raise program.unexpected("serialises tensors")
        places.append((blob.index(old), len(old), np.from_dlpack(weights[index])))
    if not places:
        return [blob]
    pieces: list[bytes | np.ndarray] = []
    grown, last = 0, 0
    for start, length, array in sorted(places, key=lambda place: place[0]):
        new = blob[last:start] + program.record(array.dtype, array.shape, array.nbytes)
        pieces += [new, array]
        grown += len(new) - (start - last) + array.nbytes - length
        last = start + length
    first, *rest = [*pieces, blob[last:]]
    assert isinstance(first, bytes)
    return [program.lengthened(first, len(blob), grown), *rest]


def _write(file: BinaryIO, part: bytes | np.ndarray, crc: int) -> int:
    """Write the part; returns the CRC-32 of it and what is before it, which is ``crc``."""
    if isinstance(part, bytes):
        file.write(part)
        return zlib.crc32(part, crc)
    values = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK].data
        file.write(block)
        crc = zlib.crc32(block, crc)
    return crc


def _write_tables(file: BinaryIO, like: tuple[Any, ...], size: int) -> None:
    """What makes the ``size`` bytes behind the header's place an object file with one symbol."""
    names = b"\0.rodata\0.symtab\0.strtab\0.note.GNU-stack\0"
    strings = b"\0" + program.SYMBOL + b"\0"
    symbols = program.SYMBOLS.pack(0, 0, 0, 0, 0, 0) + program.SYMBOLS.pack(1, 0x11, 0, 1, 0, size)
    file.write(b"\0" * (-size % 8))
    offset = _ALIGNMENT + size + -size % 8
    file.write(symbols + names + strings)
    at_names, at_strings = offset + len(symbols), offset + len(symbols) + len(names)
    end = at_strings + len(strings)
    file.write(b"\0" * (-end % 8))
    name = {n: names.index(n) for n in (b".rodata", b".symtab", b".strtab", b".note.GNU-stack")}
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (name[b".rodata"], 1, 2, 0, _ALIGNMENT, size, 0, 0, _ALIGNMENT, 0),
        (name[b".symtab"], 2, 0, 0, offset, len(symbols), 3, 1, 8, program.SYMBOLS.size),
        (name[b".strtab"], 3, 0, 0, at_strings, len(strings), 0, 0, 1, 0),
        (name[b".strtab"], 3, 0, 0, at_names, len(names), 0, 0, 1, 0),
        (name[b".note.GNU-stack"], 1, 0, 0, end, 0, 0, 0, 1, 0),
    ]
    file.write(b"".join(program.SECTION.pack(*section) for section in sections))
    ident, _, machine, version, _, _, _, flags, *_ = like
    header = (ident, 1, machine, version, 0, 0, end + -end % 8, flags, program.ELF.size, 0, 0)
    file.seek(0)
    file.write(program.ELF.pack(*header, program.SECTION.size, len(sections), 4))
