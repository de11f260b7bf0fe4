"""A JSON document after the end of an ELF file.

The loader maps what the ELF headers name and never looks further, so a library with a trailer loads
like one without, and a reader needs neither the loader nor a machine that could run the code. The
format is tvmtune's own. All numbers are little-endian::

    code     the ELF file
    head     8 bytes "tvmtune{", u32 format, u64 size of the code, u32 CRC-32 of the code,
             u64 size of the body, u64 size of the JSON text, u32 CRC-32 of the body
    body     the JSON text in UTF-8, compressed by zlib
    tail     u64 size of head, body and tail, 8 bytes "}tvmtune"

The magic words, the format and the tail keep their places in every later format. ``strip`` removes
the trailer.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tvmtune import bounded
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import elf

if TYPE_CHECKING:
    import os

FORMAT = 1

_OPEN, _CLOSE = b"tvmtune{", b"}tvmtune"
_HEAD = struct.Struct("<8sIQIQQI")
_TAIL = struct.Struct("<Q8s")
_LARGEST = 1 << 24
"""Most bytes of JSON text, which has some 100 KB: a damaged size must not allocate all memory."""


@dataclass(frozen=True)
class Trailer:
    """A trailer that was read."""

    data: dict[str, Any]
    """The JSON document."""
    code_size: int
    """Bytes of the ELF file, which is where the trailer starts."""
    code_crc: int


def append(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    """Append ``data`` to the ELF file at ``path``, or replace the trailer that it has.

    Raises TvmtuneError if the file is not an ELF file or cannot be written; it is then unchanged.
    """
    path = Path(path)
    _check_is_file(path)
    if elf.read_header(path) is None:
        raise TvmtuneError(f"{path} is not an ELF library: metadata can only be added to one")
    try:
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            start = _start(file, size)
            if start is None:
                start = size
            file.seek(start)
            old = file.read()
            text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
            body = zlib.compress(text, 9)
            head = _HEAD.pack(
                _OPEN,
                FORMAT,
                start,
                _crc(file, start),
                len(body),
                len(text),
                zlib.crc32(body),
            )
            tail = _TAIL.pack(_HEAD.size + len(body) + _TAIL.size, _CLOSE)
            try:
                file.seek(start)
                file.write(head + body + tail)
                file.truncate()
                file.flush()
            except OSError:
                with contextlib.suppress(OSError):
                    file.seek(start)
                    file.truncate()
                    file.write(old)
                    file.flush()
                raise
    except OSError as exc:
        raise TvmtuneError(f"cannot write the metadata of {path}: {exc.strerror or exc}") from exc


def read(path: str | os.PathLike[str]) -> Trailer:
    """Read the trailer of the file at ``path``; the code is not read.

    Raises UsageError if there is no such file, TvmtuneError if it is damaged, not a library of tvmtune,
    or has a later format.
    """
    path = Path(path)
    _check_is_file(path)
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as exc:
        raise TvmtuneError(f"cannot read {path}: {exc.strerror or exc}") from exc


def check_code(path: str | os.PathLike[str], trailer: Trailer) -> None:
    """Raise TvmtuneError unless the code is byte for byte the one that the trailer was written for.

    Loading a truncated or changed library raises no error: it crashes (SIGBUS, SIGSEGV).
    """
    try:
        with Path(path).open("rb") as file:
            same = _crc(file, trailer.code_size) == trailer.code_crc
    except OSError as exc:
        raise TvmtuneError(f"cannot read {path}: {exc.strerror or exc}") from exc
    if not same:
        raise TvmtuneError(
            f"{path} is damaged: its code is not the code that was compiled. Compile it again."
        )


def _check_is_file(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory, not a library")
    try:
        exists = path.exists()
    except OSError as exc:
        raise TvmtuneError(f"cannot read {path}: {exc.strerror or exc}") from exc
    if not exists:
        raise UsageError(f"there is no library {path}")


def _read(path: Path, file: BinaryIO) -> Trailer:
    size = file.seek(0, 2)
    start = _start(file, size)
    if start is None:
        raise TvmtuneError(_why_no_trailer(path, file, size))
    file.seek(start)
    head = file.read(_HEAD.size)
    version = struct.unpack_from("<I", head, len(_OPEN))[0]
    if version > FORMAT:
        raise TvmtuneError(
            f"{path} was written by a newer tvmtune (metadata format {version}; "
            f"this one reads up to {FORMAT}): update tvmtune"
        )
    _, _, code_size, code_crc, body_size, text_size, body_crc = _HEAD.unpack(head)
    body = file.read(body_size) if body_size <= size else b""
    if code_size != start or zlib.crc32(body) != body_crc or text_size > _LARGEST:
        raise TvmtuneError(f"the metadata of {path} is damaged. Compile it again.")
    try:
        text = bounded.inflate(body, text_size)
        data = bounded.parse_json(text)
    except ValueError as exc:
        raise TvmtuneError(f"the metadata of {path} is damaged ({exc}). Compile it again.") from exc
    if not isinstance(data, dict) or len(text) != text_size:
        raise TvmtuneError(f"the metadata of {path} is damaged. Compile it again.")
    return Trailer(data, code_size, code_crc)


def _start(file: BinaryIO, size: int) -> int | None:
    """The offset of a whole trailer; None if the file does not end in one."""
    if size < _HEAD.size + _TAIL.size:
        return None
    file.seek(size - _TAIL.size)
    length, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != _CLOSE or not _HEAD.size + _TAIL.size <= length <= size:
        return None
    file.seek(size - length)
    return size - length if file.read(len(_OPEN)) == _OPEN else None


def _why_no_trailer(path: Path, file: BinaryIO, size: int) -> str:
    if size == 0:
        return f"{path} is empty"
    file.seek(0)
    if file.read(len(elf.MAGIC)) != elf.MAGIC:
        return f"{path} is not a library of tvmtune: it is not an ELF file"
    header = elf.read_header(path)
    if header is None or size < header.end:
        return f"{path} is truncated. Copy or compile it again"
    file.seek(-len(_CLOSE), 2)
    if file.read() == _CLOSE:
        return f"the metadata of {path} is damaged. Compile it again"
    file.seek(header.end)
    rest = file.read(len(_OPEN))
    if rest and _OPEN.startswith(rest):
        return f"{path} is truncated. Copy or compile it again"
    return (
        f"{path} is not a library of tvmtune: it carries no metadata "
        "(another program made it, or strip removed it)"
    )


def _crc(file: BinaryIO, size: int) -> int:
    """CRC-32 of the first ``size`` bytes, or of all if the file is shorter."""
    file.seek(0)
    value, left = 0, size
    while left > 0:
        block = file.read(min(left, 1 << 20))
        if not block:
            break
        value, left = zlib.crc32(block, value), left - len(block)
    return value
