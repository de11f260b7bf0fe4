"""Check output paths before hours of work."""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path

from tvmtune.errors import UsageError
from tvmtune.library import SHARED

_STARTS = {".so": b"\x7fELF", ".o": b"\x7fELF", ".a": b"!<arch>\n"}


def check_library(
    option: str, path: Path, *others: Path | str | None, suffixes: tuple[str, ...] = SHARED
) -> None:
    """Like :func:`check_writable`; also refuse to overwrite anything but a library."""
    check_writable(option, path, *others)
    if path.suffix not in suffixes:
        raise UsageError(
            f"{option} {path}: libraries end in {' or '.join(suffixes)}; choose another name"
        )
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            start = _STARTS.get(path.suffix)
            is_library = file.read(8).startswith(start) if start else tarfile.is_tarfile(path)
            if not is_library:
                raise UsageError(
                    f"{option} {path} exists and is not a library: choose another name"
                )


def check_writable(option: str, path: Path, *others: Path | str | None) -> None:
    """Refuse a path in a missing or read-only directory, and one of the command's ``others`` files."""
    for other in others:
        if other is not None and path.resolve() == Path(other).resolve():
            raise UsageError(f"{option} {path} is a file that this command needs: choose another")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no directory {path.parent}")
    try:
        handle, name = tempfile.mkstemp(prefix=".tvmtune-", dir=path.parent)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from None
    os.close(handle)
    Path(name).unlink()
