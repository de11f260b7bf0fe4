"""Write files atomically: they appear whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; at the end of the block that file replaces ``path``.

    If the block raises, ``path`` is unchanged. The new file has the same name, in a temporary
    directory beside ``path``. Raises TvmtuneError if ``path`` cannot be written, before the block if
    possible.
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
            (folder / path.name).replace(path)
        except OSError as exc:
            raise cannot_write(path, exc) from exc
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
