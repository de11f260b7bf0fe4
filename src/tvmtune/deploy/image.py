"""The weights of a library, written into its image without being copied around.

TVM keeps weights in the program of its virtual machine, serialises that into a string and lets LLVM
emit the string as data: four copies at the same time. Here the program is compiled with a small
placeholder for each weight, and the object file that the linker gets is written weight by weight.

The serialised forms are those of TVM 0.27: ``SaveDLTensor`` in ``include/tvm/runtime/tensor.h``, and
``ModuleSerializer`` in ``src/target/codegen.cc``. A form that is not found as expected raises
:class:`TvmtuneError`; nothing is written on a guess.
"""

from __future__ import annotations

import math
import platform
import re
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tvm

_LARGE = 1 << 14
"""Bytes from which on a constant is taken out."""

_KEPT = 1 << 28
"""Bytes of weights up to which a module keeps them."""

_MARK = 0x7476_6D74_756E_6521
_PROGRAM = b"relax.VMExecutable"
_SYMBOL = b"__tvm_ffi__library_bin"
_ALIGNMENT = 64
_ELF = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOLS = struct.Struct("<IBBHQQ")


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
            return tvm.ir.GenericConst(tvm.runtime.tensor(_placeholder(index)), constant.ty)

    main = Taker(mod).visit_expr(mod["main"])
    if sum(_bytes(weight) for weight in weights) <= _KEPT:
        mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    mod.update_func(mod.get_global_var("main"), main)
    return mod, weights


def can_imitate(target: dict[str, Any]) -> bool:
    """Whether objects for this target are of the form that :func:`write_object` writes."""
    host = target.get("host", target)
    triple = str(host.get("mtriple", "")) if isinstance(host, dict) else ""
    machine = triple.split("-")[0] or platform.machine()
    return sys.platform.startswith("linux") and machine in ("x86_64", "aarch64")


def write_object(library: Any, weights: list[Any], like: Path, path: Path) -> None:
    """Write the ELF object file with the program of ``library`` and its ``weights`` in their places.

    ``like`` is another object file for the same machine. ``weights`` is empty afterwards.
    """
    from tvm.runtime import _ffi_api

    blob = _ffi_api.ModulePackImportsToTensor(library).numpy().tobytes()
    parts = _parts(blob, weights)
    size = sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in parts)
    with like.open("rb") as file:
        header = _ELF.unpack(file.read(_ELF.size))
    with path.open("wb") as file:
        file.write(b"\0" * _ALIGNMENT)  # the header's place
        weights.clear()
        while parts:
            _write(file, parts.pop(0))
        _write_tables(file, header, size)


def _is_large(tensor: Any) -> bool:
    kind = re.fullmatch(r"(float|int|uint)(8|16|32|64)", str(tensor.dtype))
    return kind is not None and _bytes(tensor) >= _LARGE


def _bytes(tensor: Any) -> int:
    return math.prod(tensor.shape) * np.dtype(str(tensor.dtype)).itemsize


def _placeholder(index: int) -> np.ndarray:
    return np.array([_MARK, ~_MARK, index, _MARK ^ index], "int64")


def _record(dtype: np.dtype[Any], shape: Sequence[int], size: int) -> bytes:
    """What precedes the values of a serialised tensor."""
    code = {"i": 0, "u": 1, "f": 2}[dtype.kind]
    kind = struct.pack("<BBH", code, dtype.itemsize * 8, 1)
    start = struct.pack("<QQiii", 0xDD5E40F096B4A13F, 0, 1, 0, len(shape)) + kind
    return start + struct.pack(f"<{len(shape)}qq", *shape, size)


def _parts(blob: bytes, weights: Sequence[Any]) -> list[bytes | np.ndarray]:
    """The serialised program with the weights in the place of their placeholders, piece by piece."""
    places = []
    for index in range(len(weights)):
        values = _placeholder(index)
        record = _record(values.dtype, values.shape, values.nbytes) + values.tobytes()
        if blob.count(record) != 1:
            raise TvmtuneError(
                "TVM serialises tensors in another way than tvmtune expects: check the versions "
                "with tvmtune doctor"
            )
        places.append((blob.index(record), len(record), np.from_dlpack(weights[index])))
    parts: list[bytes | np.ndarray] = []
    grown, last = 0, 0
    for start, length, array in sorted(places, key=lambda place: place[0]):
        record = _record(array.dtype, array.shape, array.nbytes)
        parts += [blob[last:start], record, array]
        grown += len(record) + array.nbytes - length
        last = start + length
    parts.append(blob[last:])
    return _lengthen(parts, len(blob), grown)


def _lengthen(parts: list[bytes | np.ndarray], size: int, grown: int) -> list[bytes | np.ndarray]:
    """Correct the two lengths in the first part: that of all, and that of the program."""
    head = bytearray(parts[0])
    where = head.find(_PROGRAM) + len(_PROGRAM)
    (total,), (program,) = struct.unpack_from("<Q", head), struct.unpack_from("<Q", head, where)
    if total != size - 8 or where < len(_PROGRAM) or program > size - where - 8:
        raise TvmtuneError(
            "TVM packs its program in another way than tvmtune expects: check the versions with "
            "tvmtune doctor"
        )
    struct.pack_into("<Q", head, 0, total + grown)
    struct.pack_into("<Q", head, where, program + grown)
    return [bytes(head), *parts[1:]]


def _write(file: BinaryIO, part: bytes | np.ndarray) -> None:
    if isinstance(part, bytes):
        file.write(part)
        return
    values = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    for start in range(0, values.size, 1 << 24):
        file.write(values[start : start + (1 << 24)].data)


def _write_tables(file: BinaryIO, like: tuple[Any, ...], size: int) -> None:
    """What makes the ``size`` bytes behind the header's place an object file with one symbol."""
    names = b"\0.rodata\0.symtab\0.strtab\0.note.GNU-stack\0"
    strings = b"\0" + _SYMBOL + b"\0"
    symbols = _SYMBOLS.pack(0, 0, 0, 0, 0, 0) + _SYMBOLS.pack(1, 0x11, 0, 1, 0, size)
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
        (name[b".symtab"], 2, 0, 0, offset, len(symbols), 3, 1, 8, _SYMBOLS.size),
        (name[b".strtab"], 3, 0, 0, at_strings, len(strings), 0, 0, 1, 0),
        (name[b".strtab"], 3, 0, 0, at_names, len(names), 0, 0, 1, 0),
        (name[b".note.GNU-stack"], 1, 0, 0, end, 0, 0, 0, 1, 0),
    ]
    file.write(b"".join(_SECTION.pack(*section) for section in sections))
    ident, _, machine, version, _, _, _, flags, *_ = like
    header = (ident, 1, machine, version, 0, 0, end + -end % 8, flags, _ELF.size, 0, 0)
    file.seek(0)
    file.write(_ELF.pack(*header, _SECTION.size, len(sections), 4))
