"""ELF files: which machine they are for, where they end, where a symbol is; and writing a small one.

Symbols are looked up with pyelftools. The header is read by hand, because every ``tvmtune run`` reads
it, and boards have no packages but TVM, NumPy, click and pluggy (``docs/farm.md``). Object files are
written by hand, because pyelftools only reads. Layouts are those of the System V ABI, chapter 4
(https://gabi.xinuos.com/).
"""

from __future__ import annotations

import io
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

MAGIC = b"\x7fELF"
ALIGNMENT = 64
"""The first byte of an object's data: the file header, padded to what kernels expect of weights."""

_FIELDS = "16sHHI{word}{word}{word}IHHHHHH"
_SEGMENTS = {32: "IIIIIIII", 64: "IIQQQQQQ"}
_HEADER = struct.Struct("<" + _FIELDS.format(word="Q"))
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_GLOBAL_OBJECT = 0x11
"""``st_info`` of a symbol with global binding that is data."""

_MACHINES = {
    3: "x86",
    8: "mips",
    20: "ppc",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv",
    258: "loongarch",
}
"""Common names of the values of ``e_machine``."""

_SPELLINGS = {"amd64": "x86_64", "arm64": "aarch64", "i386": "x86", "i686": "x86"}


@dataclass(frozen=True)
class Header:
    """The machine and the size of an ELF file, from its headers."""

    machine: str
    """x86_64, aarch64, arm, ..., or ``machine-N`` for one without a name here."""
    end: int
    """Bytes from the start of the file to the end of the last table or segment."""


def read_header(path: str | os.PathLike[str]) -> Header | None:
    """Parse the headers of the file at ``path``; None unless it starts with a whole ELF header.

    Raises OSError if the file cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < 6 or not head.startswith(MAGIC):
            return None
        bits, order = 64 if head[4] == 2 else 32, ">" if head[5] == 2 else "<"
        layout = struct.Struct(order + _FIELDS.format(word="Q" if bits == 64 else "I"))
        if len(head) < layout.size:
            return None
        _, _, machine, _, _, programs, sections, _, _, *counts = layout.unpack(head[: layout.size])
        program_size, program_count, section_size, section_count, _ = counts
        end = max(sections + section_size * section_count, programs + program_size * program_count)
        # Without a section table (strip --strip-section-headers), only segments tell where it ends.
        size = file.seek(0, 2)
        if programs > size:
            return Header(_name(machine), end)
        file.seek(programs)
        table = file.read(min(program_size * program_count, size))
    segment = struct.Struct(order + _SEGMENTS[bits])
    offset, length = (2, 5) if bits == 64 else (1, 4)
    if program_size >= segment.size:
        for start in range(0, len(table) - program_size + 1, program_size):
            fields = segment.unpack_from(table, start)
            end = max(end, fields[offset] + fields[length])
    return Header(_name(machine), end)


def find_symbol(path: Path, name: str) -> tuple[int, int] | None:
    """File offset and size, in bytes, of an exported symbol of a shared library.

    None if the file is not a 64-bit little-endian ELF file or has no such symbol. Raises OSError if
    the file cannot be read.
    """
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        try:
            return _find_symbol(ELFFile(file), name)
        except Exception:  # a damaged file makes pyelftools raise errors of many kinds
            return None


def defined_symbols(path: Path) -> list[str]:
    """The global and weak symbols that an object file defines."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        table: Any = ELFFile(file).get_section_by_name(".symtab")
        return [
            symbol.name
            for symbol in (table.iter_symbols() if table else ())
            if symbol["st_info"]["bind"] != "STB_LOCAL" and isinstance(symbol["st_shndx"], int)
        ]


def symbol_content(content: bytes, name: str) -> tuple[bytes, str] | None:
    """The bytes of a symbol's data in an object file, and the machine that this is for; None if it does
    not define the symbol.

    Raises ValueError if the file is damaged.
    """
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        parsed = ELFFile(io.BytesIO(content))
        if parsed["e_type"] != "ET_REL":
            return None
        table: Any = parsed.get_section_by_name(".symtab")
        for symbol in (table and table.get_symbol_by_name(name)) or ():
            if isinstance(symbol["st_shndx"], int):
                start = parsed.get_section(symbol["st_shndx"])["sh_offset"] + symbol["st_value"]
                machine = _name(_HEADER.unpack(content[: _HEADER.size])[2])
                return content[start : start + symbol["st_size"]], machine
    except (ELFError, struct.error, KeyError, AttributeError) as exc:
        raise ValueError(str(exc)) from None
    return None


def write_object(
    file: BinaryIO, like: Path, symbol: bytes, parts: Iterable[bytes | memoryview]
) -> None:
    """Write an object file whose read-only data are ``parts``, exported as ``symbol``.

    ``like`` is another object file for the same machine, 64-bit and little-endian.
    """
    with like.open("rb") as other:
        ident, _, machine, version, _, _, _, flags, *_ = _HEADER.unpack(other.read(_HEADER.size))
    file.write(b"\0" * ALIGNMENT)  # the header goes here
    size = 0
    for part in parts:
        size += file.write(part)
    section_names = b"\0.rodata\0.symtab\0.strtab\0.note.GNU-stack\0"
    symbol_names = b"\0" + symbol + b"\0"
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(1, _GLOBAL_OBJECT, 0, 1, 0, size)
    file.write(b"\0" * (-size % 8))
    at_symbols = ALIGNMENT + size + -size % 8
    file.write(symbols + section_names + symbol_names)
    at_names = at_symbols + len(symbols)
    at_strings = at_names + len(section_names)
    end = at_strings + len(symbol_names)
    table = end + -end % 8
    file.write(b"\0" * (-end % 8))
    name = section_names.index
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (name(b".rodata"), 1, 2, 0, ALIGNMENT, size, 0, 0, ALIGNMENT, 0),
        (name(b".symtab"), 2, 0, 0, at_symbols, len(symbols), 3, 1, 8, _SYMBOL.size),
        (name(b".strtab"), 3, 0, 0, at_strings, len(symbol_names), 0, 0, 1, 0),
        (name(b".strtab"), 3, 0, 0, at_names, len(section_names), 0, 0, 1, 0),
        (name(b".note.GNU-stack"), 1, 0, 0, end, 0, 0, 0, 1, 0),  # the stack is not executable
    ]
    file.write(b"".join(_SECTION.pack(*section) for section in sections))
    file.seek(0)
    fields = (ident, 1, machine, version, 0, 0, table, flags, _HEADER.size, 0, 0, _SECTION.size)
    file.write(_HEADER.pack(*fields, len(sections), 4))


def host_machine() -> str:
    """The machine that this process runs code of, by the names of :class:`Header`.

    The interpreter's own ELF header counts first: a 32-bit Python on a 64-bit kernel cannot load
    what ``uname`` reports.
    """
    try:
        header = read_header("/proc/self/exe")
    except OSError:
        header = None
    if header is not None:
        return header.machine
    return spelling(platform.machine())


def spelling(machine: str) -> str:
    """The name in :class:`Header` of a machine as ``uname -m`` reports it."""
    name = machine.lower()
    if name.startswith("armv"):
        return "arm" if "64" not in name else "aarch64"
    return _SPELLINGS.get(name, name)


def _name(machine: int) -> str:
    return _MACHINES.get(machine, f"machine-{machine}")


def _find_symbol(parsed: Any, name: str) -> tuple[int, int] | None:
    if parsed.elfclass != 64 or not parsed.little_endian:
        return None
    # A damaged count would keep pyelftools busy with sections that are not there.
    if parsed.num_sections() * _SECTION.size > parsed.stream_len:
        return None
    table = parsed.get_section_by_name(".dynsym")
    for symbol in (table and table.get_symbol_by_name(name)) or ():
        index = symbol["st_shndx"]
        if isinstance(index, int):  # a string for special sections: undefined, absolute
            section = parsed.get_section(index)
            start = section["sh_offset"] + symbol["st_value"] - section["sh_addr"]
            if not 0 <= start <= start + symbol["st_size"] <= parsed.stream_len:
                return None
            return start, symbol["st_size"]
    return None
