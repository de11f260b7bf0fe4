"""The serialized program of TVM's virtual machine, as a library holds it.

This reverse-engineers TVM's private serialization: no public interface documents it, and any release
may change it. It was checked against TVM 0.27.0 (``SaveDLTensor`` in ``include/tvm/runtime/tensor.h``,
``ModuleSerializer`` in ``src/target/codegen.cc``) and is the first thing to check when TVM is upgraded.
Four things detect a change:

- ``tvmtune.machine.package_versions.check_pins`` refuses every version of TVM but the pinned one;
- each function here raises :class:`TvmtuneError` for a form that it does not expect, and nothing is
  written or run on a guess;
- tests/library/test_embedded_weights.py and tests/runtime/test_low_memory.py write programs, have plain
  TVM load them, and compare outputs; tests/cuda_backend/test_build.py does so for GPU code;
- every library's output is checked before it is shipped.

The form: a library exports one symbol, :data:`SYMBOL`. It holds the program's length (u64, without
itself), then modules, each as a kind (text), a length (u64) and content. Texts have a u64 length before
them. The content of :data:`KIND` holds functions, instructions and constants; a tensor among these is
:data:`TENSOR`, a rank, a dtype, a shape, a size in bytes, and the values. Numbers are little-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tvmtune.errors import TvmtuneError
from tvmtune.library import elf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SYMBOL = b"__tvm_ffi__library_bin"
"""The exported symbol that holds the program."""
KIND = b"relax.VMExecutable"
"""The kind of the VM's module, which its length follows."""
TENSOR = struct.pack("<QQii", 0xDD5E40F096B4A13F, 0, 1, 0)
"""The start of a tensor: a magic number, a reserved word, and the CPU as its device."""

_TYPE = struct.Struct("<iBBH")
"""Rank; the dtype's code, bits and lanes."""
_CODES = "iuf"
"""NumPy's kinds, by DLPack's codes of dtypes."""
_MAX_RANK = 64
"""More dimensions than any tensor has."""
_MARK = 0x7476_6D74_756E_6521


def unexpected_form(does: str) -> TvmtuneError:
    """The error to raise where TVM ``does`` something in another form than the one above."""
    return TvmtuneError(
        f"TVM {does} differently than tvmtune expects: check the versions with tvmtune doctor"
    )


def tensor_header(dtype: np.dtype[Any], shape: Sequence[int], size: int) -> bytes:
    """What precedes the ``size`` bytes of a tensor's values."""
    kind = _TYPE.pack(len(shape), _CODES.index(dtype.kind), dtype.itemsize * 8, 1)
    return TENSOR + kind + struct.pack(f"<{len(shape)}qq", *shape, size)


def read_tensor_header(file: BinaryIO) -> tuple[np.dtype[Any] | None, tuple[int, ...], int]:
    """Read a :func:`tensor_header` and return its arguments; ``file`` is then at the values.

    The dtype is None for those that NumPy lacks.
    """
    if file.read(len(TENSOR)) != TENSOR:
        raise unexpected_form("serializes tensors")
    try:
        rank, code, bits, lanes = _TYPE.unpack(file.read(_TYPE.size))
        if not 0 <= rank <= _MAX_RANK:
            raise unexpected_form("serializes tensors")
        *shape, size = struct.unpack(f"<{rank}qq", file.read(8 * (rank + 1)))
    except struct.error:  # the file ends here
        raise unexpected_form("serializes tensors") from None
    plain = code < len(_CODES) and lanes == 1 and bits >= 8
    return np.dtype(f"{_CODES[code]}{bits // 8}") if plain else None, tuple(shape), size


def placeholder(index: int) -> np.ndarray:
    """The small tensor that stands for weight ``index`` in a program without its weights."""
    return np.array([_MARK, ~_MARK, index, _MARK ^ index], "int64")


def serialized_placeholder(index: int) -> bytes:
    """:func:`placeholder` as a program holds it."""
    values = placeholder(index)
    return tensor_header(values.dtype, values.shape, values.nbytes) + values.tobytes()


def placeholder_index(values: np.ndarray) -> int | None:
    """The index of the weight that ``values`` stand for; None if they are not a placeholder."""
    if values.shape != (4,) or values.dtype != np.int64 or values[0] != _MARK:
        return None
    index = int(values[2])
    return index if np.array_equal(values, placeholder(index)) else None


def adjust_lengths(head: bytes, size: int, growth: int) -> bytes:
    """The start of a program of ``size`` bytes, with its lengths changed by ``growth`` bytes.

    ``head`` reaches beyond the two lengths: that of the program and that of the VM's module.
    """
    changed = bytearray(head)
    at = changed.find(KIND) + len(KIND)
    if at < len(KIND) or at + 8 > len(changed):
        raise unexpected_form("packs its program")
    (total,), (module,) = struct.unpack_from("<Q", head), struct.unpack_from("<Q", head, at)
    if total != size - 8 or module > size - at - 8:
        raise unexpected_form("packs its program")
    struct.pack_into("<Q", changed, 0, total + growth)
    struct.pack_into("<Q", changed, at, module + growth)
    return bytes(changed)


def replace_device_code(
    program: bytes, kind: str, form: str, code: bytes, new_form: str, new_code: bytes
) -> bytes:
    """A whole program with ``new_code`` in place of an accelerator's ``code``.

    ``kind`` is the module's, e.g. ``cuda``; ``form`` is how it holds code, e.g. as CUDA's source. Such
    a module holds its form, its functions' metadata, and the code, as texts.
    """
    code_text, kind_text, form_text = _text(code), _text(kind.encode()), _text(form.encode())
    end = program.find(code_text) + len(code_text)
    if end < len(code_text) or program.find(code_text, end) >= 0:
        raise unexpected_form("packs an accelerator's code")
    at = program.rfind(kind_text, 0, end)
    while at >= 0:
        content = at + len(kind_text) + 8
        (length,) = struct.unpack_from("<Q", program, content - 8)
        if content + length == end and program.startswith(form_text, content):
            break
        at = program.rfind(kind_text, 0, at + len(kind_text) - 1)
    else:
        raise unexpected_form("packs an accelerator's code")
    (total,) = struct.unpack_from("<Q", program)
    if total != len(program) - 8:
        raise unexpected_form("packs its program")
    functions = program[content + len(form_text) : end - len(code_text)]
    module = _text(new_form.encode()) + functions + _text(new_code)
    changed = program[8:at] + kind_text + _text(module) + program[end:]
    return struct.pack("<Q", len(changed)) + changed


def find(path: Path) -> tuple[int, int]:
    """File offset and size, in bytes, of the program in the library at ``path``.

    Raises TvmtuneError unless that is a 64-bit little-endian ELF file with a program.
    """
    found = elf.find_symbol(path, SYMBOL.decode())
    if found is None:
        raise unexpected_form("exports its program")
    return found


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value
