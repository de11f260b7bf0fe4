"""Libraries to link into a program: one object file, an archive, or a tar file of objects.

They hold the same object files as a shared library, and the metadata as a C string. In ``.o`` and
``.a`` a further object registers the functions with tvm-ffi when the program starts, as TVM's own
system libraries do; the objects of a ``.tar`` are meant to be linked into a shared library elsewhere.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, UsageError, last_line
from tvmtune.library import STATIC, elf, embedded_weights, linking, llvm_ir, thread_pool
from tvmtune.machine import linkers, scratch

if TYPE_CHECKING:
    from tvmtune.types import JSON, Device

METADATA = "tvmtune_metadata"
"""The C symbol of the metadata: a string of JSON that ends with NUL."""
_REGISTER = "TVMFFIEnvModRegisterSystemLibSymbol"
_PREFIXES = ("__tvm_ffi_", "__TVM")
"""Of the symbols that TVM's runtime looks up: functions and the program; pointers that it sets."""
_ARCHIVE = b"!<arch>\n"
_MEMBER = struct.Struct("16s12s6s6s8s10s2s")


def is_static(path: Path) -> bool:
    return path.suffix in STATIC


def check_device(path: Path, device: Device) -> None:
    """Raise :class:`UsageError` if there are no static libraries for the device."""
    if device.runtime != "cpu" or device.needs_init:
        raise UsageError(
            f"{path}: static libraries hold kernels for CPUs only, and {device.model} is none: name a "
            ".so file"
        )
    if not embedded_weights.can_write_objects(device.mtriple):
        raise UsageError(f"{path}: static libraries are for Linux on x86-64 and 64-bit ARM only")


def link_shared(objects: Path, output: Path, device: Device) -> None:
    """Link the objects in a tar file into a shared library."""
    with scratch.folder(scratch.WORK) as folder:
        paths = _extract(objects, folder)
        _link([*linkers.find_linker(device.mtriple), "-shared"], paths, output)


def write(objects: Path, metadata: JSON, output: Path, device: Device) -> None:
    """Write the objects in a tar file, and the metadata, in the form that ``output`` names."""
    with scratch.folder(scratch.WORK) as folder:
        paths = _extract(objects, folder)
        described = folder / "metadata.o"
        content = json.dumps(metadata).encode() + b"\0"
        with described.open("wb") as file:
            elf.write_object(file, paths[0], METADATA.encode(), [content])
        if output.suffix == ".tar":
            pack(output, [*paths, described])
            return
        register = folder / "register.o"
        names = sorted({name for path in paths for name in elf.defined_symbols(path)})
        if thread_pool.is_supported(device):
            names.remove(thread_pool.LAUNCH)  # or TVM's runtime would replace the library's pool
        _write_registration([n for n in names if n.startswith(_PREFIXES)], register, device)
        paths += [described, register]
        if output.suffix == ".o":
            _link([*linkers.find_linker(device.mtriple), "-r"], paths, output)
        else:
            _write_archive(paths, output)


def pack(output: Path, objects: Sequence[Path]) -> None:
    """Write the object files among ``objects`` into a tar file, without times and owners."""
    with tarfile.open(output, "w") as archive:
        for path in objects:
            with path.open("rb") as file:  # follows links into memory
                if file.read(len(elf.MAGIC)) != elf.MAGIC:
                    continue  # an empty source file of TVM's
                info = tarfile.TarInfo(path.name)
                info.size = file.seek(0, 2)
                info.mode = 0o644
                file.seek(0)
                archive.addfile(info, file)


def read_metadata(path: Path) -> tuple[JSON, str] | None:
    """The metadata of a static library and the machine that its code is for; None for any other file.
    Raises :class:`TvmtuneError` for a damaged one."""
    try:
        for content in _members(path):
            found = elf.symbol_content(content, METADATA)
            if found is not None:
                parsed = json.loads(found[0].rstrip(b"\0"))
                return (parsed, found[1]) if isinstance(parsed, dict) else None
    except (OSError, ValueError, tarfile.TarError, RecursionError) as error:
        raise TvmtuneError(f"{path} is damaged: {last_line(error)}") from None
    return None


def _extract(objects: Path, folder: Path) -> list[Path]:
    """The objects as files, in the order of the tar file."""
    if not tarfile.is_tarfile(objects):
        raise TvmtuneError("this backend writes shared libraries only: name a .so file")
    files = []
    with tarfile.open(objects) as archive:
        # Not extractall: before Python 3.11.4, as in Debian 12, it has no filter.
        for member in archive:
            if (content := archive.extractfile(member)) is not None:
                files.append(folder / Path(member.name).name)
                files[-1].write_bytes(content.read())
    return files


def _write_registration(names: Sequence[str], output: Path, device: Device) -> None:
    """Compile a constructor that registers each symbol."""
    lines = [
        f"declare i32 @{_REGISTER}(ptr, ptr)",
        *(f"@{name} = external global i8" for name in names),
        *(
            f'@.name{i} = private unnamed_addr constant [{len(name) + 1} x i8] c"{name}\\00"'
            for i, name in enumerate(names)
        ),
        "define internal void @register() {",
        *(f"  call i32 @{_REGISTER}(ptr @.name{i}, ptr @{name})" for i, name in enumerate(names)),
        "  ret void",
        "}",
        "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
        "[{ i32, ptr, ptr } { i32 65535, ptr @register, ptr null }]",
    ]
    llvm_ir.write_object("\n".join(lines), output, device)


def _link(command: Sequence[str], objects: Sequence[Path], output: Path) -> None:
    linking.link([*command, "-o", str(output), *map(str, objects)], output)


def _write_archive(objects: Sequence[Path], output: Path) -> None:
    """An ar archive with an index of its symbols, which linkers require (System V's format)."""
    members = [(path.name, path.read_bytes(), elf.defined_symbols(path)) for path in objects]
    symbols = [(name, i) for i, (_, _, names) in enumerate(members) for name in names]
    strings = b"".join(name.encode() + b"\0" for name, _ in symbols)
    index_size = 4 + 4 * len(symbols) + len(strings)
    offset = len(_ARCHIVE) + _MEMBER.size + index_size + index_size % 2
    offsets = []
    for _, content, _ in members:
        offsets.append(offset)
        offset += _MEMBER.size + len(content) + len(content) % 2
    if offset >= 1 << 32:
        raise TvmtuneError(f"{output}: archives hold less than 4 GB: name a .o file")
    index = struct.pack(f">{1 + len(symbols)}I", len(symbols), *(offsets[i] for _, i in symbols))
    with output.open("wb") as file:
        file.write(_ARCHIVE)
        for name, content in [
            ("/", index + strings),
            *((f"{name}/", content) for name, content, _ in members),
        ]:
            fields = (name, "0", "0", "0", "644", str(len(content)))
            widths = (16, 12, 6, 6, 8, 10)
            head = [f.ljust(w).encode() for f, w in zip(fields, widths, strict=True)]
            file.write(_MEMBER.pack(*head, b"`\n") + content + b"\n" * (len(content) % 2))


def _members(path: Path) -> Iterator[bytes]:
    """The object files in a static library that may hold the metadata."""
    with path.open("rb") as file:
        start = file.read(len(_ARCHIVE))
        if start.startswith(elf.MAGIC):
            file.seek(0)
            yield file.read()
        elif start == _ARCHIVE:
            while head := file.read(_MEMBER.size):
                if len(head) < _MEMBER.size:
                    raise ValueError("its last entry is truncated")
                name, *_, size, _ = _MEMBER.unpack(head)
                length = int(size)
                if name.startswith(b"metadata.o"):
                    yield file.read(length)
                else:
                    file.seek(length, io.SEEK_CUR)
                file.seek(length % 2, io.SEEK_CUR)
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                for info in archive:
                    if info.name == "metadata.o" and (member := archive.extractfile(info)):
                        yield member.read()
