"""The little of ELF that tells whose code a library holds and where it ends."""

from __future__ import annotations

import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

MAGIC = b"\x7fELF"

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
"""The field ``e_machine``, by the names that people use."""

_SPELLINGS = {"amd64": "x86_64", "arm64": "aarch64", "i386": "x86", "i686": "x86"}


@dataclass(frozen=True)
class Header:
    """What the first 64 bytes of an ELF file say."""

    machine: str
    """x86_64, aarch64, arm, ..., or ``machine-N`` for one without a name here."""
    end: int
    """Bytes from the start of the file to the end of what the headers account for."""


def read_header(path: str | os.PathLike[str]) -> Header | None:
    """Parse the header of the file at ``path``; None if it is no ELF file or cut off within it.

    Raises OSError if the file cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(64)
        if len(head) < 52 or not head.startswith(MAGIC):
            return None
        wide, order = head[4] == 2, ">" if head[5] == 2 else "<"
        if wide and len(head) < 64:
            return None
        (code,) = struct.unpack_from(f"{order}H", head, 18)
        layout, at = ("QQ", 0x20) if wide else ("II", 0x1C)
        programs, sections = struct.unpack_from(order + layout, head, at)
        # e_phentsize, e_phnum, e_shentsize, e_shnum
        sizes = struct.unpack_from(f"{order}HHHH", head, 0x36 if wide else 0x2A)
        end = max(sections + sizes[2] * sizes[3], programs + sizes[0] * sizes[1])
        # A stripped section table leaves only the segments to tell where the image ends.
        file.seek(programs)
        table = file.read(sizes[0] * sizes[1])
    for index in range(len(table) // sizes[0] if sizes[0] >= (56 if wide else 32) else 0):
        start = index * sizes[0]
        if wide:
            (offset,) = struct.unpack_from(f"{order}Q", table, start + 8)
            (length,) = struct.unpack_from(f"{order}Q", table, start + 32)
        else:
            (offset,) = struct.unpack_from(f"{order}I", table, start + 4)
            (length,) = struct.unpack_from(f"{order}I", table, start + 16)
        end = max(end, offset + length)
    return Header(_MACHINES.get(code, f"machine-{code}"), end)


def host_machine() -> str:
    """The machine that this very process runs code of, in the names of :class:`Header`.

    The interpreter's own ELF header is asked first: a 32-bit Python on a 64-bit kernel cannot load
    what ``uname`` names.
    """
    try:
        header = read_header("/proc/self/exe")
    except OSError:
        header = None
    if header is not None:
        return header.machine
    return spelling(platform.machine())


def spelling(machine: str) -> str:
    """What ``uname`` calls a machine, in the names of :class:`Header`."""
    name = machine.lower()
    if name.startswith("armv"):
        return "arm" if "64" not in name else "aarch64"
    return _SPELLINGS.get(name, name)
