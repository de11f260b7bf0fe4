"""The program of TVM's virtual machine, as it stands in a library: its form, and where it is.

A library exports one symbol for it: two words for lengths, names, weights and instructions. The forms
are those of TVM 0.27: ``SaveDLTensor`` in ``include/tvm/runtime/tensor.h``, and ``ModuleSerializer`` in
``src/target/codegen.cc``. A form that is not found as expected raises :class:`TvmtuneError`; nothing is
written or run on a guess.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SYMBOL = b"__tvm_ffi__library_bin"
"""What the program is called in a library."""
KIND = b"relax.VMExecutable"
"""What stands before the length of the VM's part of it."""
TENSOR = struct.pack("<QQii", 0xDD5E40F096B4A13F, 0, 1, 0)
"""What a tensor starts with: two fixed words, and the CPU as its device."""

ELF = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOLS = struct.Struct("<IBBHQQ")

_REST = struct.Struct("<iBBH")
_CODES = "iuf"
_DIMENSIONS = 64
"""More than any tensor has."""
_MARK = 0x7476_6D74_756E_6521
_DYNAMIC_SYMBOLS = 11


def unexpected(what: str) -> TvmtuneError:
    """The error to raise where TVM does ``what`` in another form than that of the version above."""
    return TvmtuneError(
        f"TVM {what} in another way than tvmtune expects: check the versions with tvmtune doctor"
    )


def record(dtype: np.dtype[Any], shape: Sequence[int], size: int) -> bytes:
    """What precedes the ``size`` bytes of a tensor's values."""
    kind = _REST.pack(len(shape), _CODES.index(dtype.kind), dtype.itemsize * 8, 1)
    return TENSOR + kind + struct.pack(f"<{len(shape)}qq", *shape, size)


def read_record(file: BinaryIO) -> tuple[np.dtype[Any] | None, tuple[int, ...], int]:
    """The arguments of the :func:`record` that ``file`` is at; it is at the values afterwards.

    There is no dtype where NumPy has none of that kind.
    """
    if file.read(len(TENSOR)) != TENSOR:
        raise unexpected("serialises tensors")
    rank, code, bits, lanes = _REST.unpack(file.read(_REST.size))
    if not 0 <= rank <= _DIMENSIONS:
        raise unexpected("serialises tensors")
    *shape, size = struct.unpack(f"<{rank}qq", file.read(8 * (rank + 1)))
    plain = code < len(_CODES) and lanes == 1 and bits >= 8
    return np.dtype(f"{_CODES[code]}{bits // 8}") if plain else None, tuple(shape), size


def placeholder(index: int) -> np.ndarray:
    """What stands for the weight of this index in a program without its weights."""
    return np.array([_MARK, ~_MARK, index, _MARK ^ index], "int64")


def stand_in(index: int) -> bytes:
    """:func:`placeholder`, as it stands in a program."""
    values = placeholder(index)
    return record(values.dtype, values.shape, values.nbytes) + values.tobytes()


def index_of(values: np.ndarray) -> int | None:
    """The index of the weight that ``values`` stand for; None if they are no placeholder."""
    if values.shape != (4,) or values.dtype != np.int64 or values[0] != _MARK:
        return None
    index = int(values[2])
    return index if np.array_equal(values, placeholder(index)) else None


def lengthened(head: bytes, size: int, grown: int) -> bytes:
    """The first part of a program of ``size`` bytes, with its two lengths (that of all, and that of the
    VM's part) those of one that is ``grown`` bytes longer."""
    changed = bytearray(head)
    where = changed.find(KIND) + len(KIND)
    if where < len(KIND) or where + 8 > len(changed):
        raise unexpected("packs its program")
    (total,), (own,) = struct.unpack_from("<Q", head), struct.unpack_from("<Q", head, where)
    if total != size - 8 or own > size - where - 8:
        raise unexpected("packs its program")
    struct.pack_into("<Q", changed, 0, total + grown)
    struct.pack_into("<Q", changed, where, own + grown)
    return bytes(changed)


def recoded(blob: bytes, kind: str, form: str, code: bytes, other_form: str, other: bytes) -> bytes:
    """A whole program with ``other`` in the place of the ``code`` of an accelerator, which stands there
    in a module of this ``kind`` as ``form``, e.g. as CUDA's source.

    Such a module is its kind, its length, and then the form, what is known of its functions, and the
    code: texts with their lengths before them.
    """
    told, name = _text(code), _text(kind.encode())
    end = blob.find(told) + len(told)
    if end < len(told) or blob.find(told, end) >= 0:
        raise unexpected("packs an accelerator's code")
    at = blob.rfind(name, 0, end)
    while at >= 0:
        inner = at + len(name) + 8
        (own,) = struct.unpack_from("<Q", blob, inner - 8)
        if inner + own == end and blob.startswith(_text(form.encode()), inner):
            break
        at = blob.rfind(name, 0, at + len(name) - 1)
    else:
        raise unexpected("packs an accelerator's code")
    (total,) = struct.unpack_from("<Q", blob)
    if total != len(blob) - 8:
        raise unexpected("packs its program")
    between = blob[inner + len(_text(form.encode())) : end - len(told)]
    module = _text(other_form.encode()) + between + _text(other)
    changed = blob[8:at] + name + _text(module) + blob[end:]
    return struct.pack("<Q", len(changed)) + changed


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def find(path: Path) -> tuple[int, int]:
    """Where the program is in the library at ``path``: its first byte, and its size in bytes.

    Raises TvmtuneError if that is no ELF file of 64 bits, low byte first, with a program.
    """
    with path.open("rb") as file:
        head = file.read(ELF.size)
        if head[:6] == b"\x7fELF\2\1":
            *_, at, _, _, _, _, length, count, _ = ELF.unpack(head)
            raw = _read(file, at, length * count)
            table = [SECTION.unpack_from(raw, length * index) for index in range(count)]
            for _, kind, _, _, start, size, link, *_ in table:
                if kind != _DYNAMIC_SYMBOLS:
                    continue
                names = _read(file, *table[link][4:6])
                for name, _, _, section, address, extent in SYMBOLS.iter_unpack(
                    _read(file, start, size)
                ):
                    if names.startswith(SYMBOL + b"\0", name) and 0 < section < count:
                        return table[section][4] + address - table[section][3], extent
    raise unexpected("exports its program")


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
