"""Write files atomically: they appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; at the end of the block that file replaces ``path``.

    If the block raises, ``path`` is unchanged; after a power cut it is the old file or the new one.
    The new file has the same name, in a temporary directory beside ``path``. Raises TvmtuneError if
    ``path`` cannot be written, before the block if possible.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path} is a directory: give a file name")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as exc:
        raise cannot_write(path, exc) from exc
    try:
        yield folder / path.name
        try:
            replace(folder / path.name, path)
        except OSError as exc:
            raise cannot_write(path, exc) from exc
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def replace(new: Path, path: Path) -> None:
    """Rename a file that was just written, so that a power cut leaves the old one or all of the new.

    Without the first of the two waits, the name may be on disk before the content is.
    """
    with new.open("rb") as file:
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Make new and renamed entries of a directory survive a power cut."""
    with contextlib.suppress(OSError):  # not every file system supports it
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole or not at all. Raises TvmtuneError if it cannot be written."""
    with replacing(path) as temporary:
        try:
            temporary.write_text(text)
        except OSError as exc:
            raise cannot_write(Path(path), exc) from exc


def cannot_write(path: Path, exc: OSError) -> TvmtuneError:
    """The error to raise when writing ``path`` raised ``exc``."""
    if isinstance(exc, FileNotFoundError) and not path.parent.exists():
        return TvmtuneError(f"cannot write {path}: there is no directory {path.parent}")
    return TvmtuneError(f"cannot write {path}: {exc.strerror or exc}")
