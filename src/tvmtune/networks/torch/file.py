"""Reads files of ``torch.export.save`` and explains what is wrong with others.

Weights are plain bytes in the format, but PyTorch unpickles other members (``torch.export.load``),
which can execute code: load only files you trust.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import zipfile
from typing import TYPE_CHECKING

from tvmtune.bounded import archive_limit, check_archive
from tvmtune.errors import TvmtuneError, UsageError, one_line
from tvmtune.networks.importer_helpers import quiet
from tvmtune.networks.model_file import Format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.export import ExportedProgram

FORMAT = Format(
    name="PyTorch .pt2",
    suffix=".pt2",
    export="make one with torch.export.save(torch.export.export(model.eval(), inputs), PATH)",
)

_PROGRAMS = ("archive_format", "serialized_exported_program.json")
"""Members of an exported program: since PyTorch 2.8, and before."""

_OTHER_ARCHIVES = (
    ("constants.pkl", "a TorchScript program"),
    ("data.pkl", "a PyTorch checkpoint of torch.save"),
)


def read(path: Path) -> ExportedProgram:
    """Load the program at ``path``.

    Raises :class:`UsageError` if the file or PyTorch is missing or if it unpacks to too much,
    :class:`TvmtuneError` if the file was not written by ``torch.export.save``.
    """
    _check_archive(path, FORMAT.start(path))
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"{path} needs PyTorch, which is not installed: pip install torch")
    import torch

    # Operators around quantized layers are registered by this import.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    with _logged("torch.export") as causes, quiet():
        try:
            return torch.export.load(path)
        except Exception as error:  # PyTorch has no class of its own for this
            cause = causes[0] if causes else error
            raise TvmtuneError(
                f"{path} cannot be loaded by PyTorch {torch.__version__}: {one_line(cause)}; "
                "export the network again with this version, on the CPU"
            ) from error


def _check_archive(path: Path, start: bytes) -> None:
    """Raise :class:`TvmtuneError` unless the file, which begins with ``start``, is an archive with a
    program in it, UsageError if it unpacks to too much."""
    try:
        with zipfile.ZipFile(path) as archive:
            if min((entry.header_offset for entry in archive.infolist()), default=0) > 0:
                raise zipfile.BadZipFile("the index found is that of an archive inside of it")
            check_archive(archive, archive_limit(path.stat().st_size))
            # All members are in a folder with the file's original name.
            members = {name.partition("/")[2] or name for name in archive.namelist()}
    except ValueError as error:
        raise UsageError(f"{path}: {error}; export the network again") from error
    except (zipfile.BadZipFile, NotImplementedError) as error:
        if start.startswith(b"PK\x03\x04"):  # truncated: the index is at the end
            raise TvmtuneError(f"{path} is damaged; export or download it again") from error
        raise FORMAT.wrong_format(path, start) from error
    if any(member.startswith("data/aotinductor/") for member in members):
        raise TvmtuneError(
            f"{path} is a library that AOTInductor compiled; give the program that it was compiled "
            "from, as torch.export.save writes it"
        )
    if members.isdisjoint(_PROGRAMS):
        kinds = (kind for member, kind in _OTHER_ARCHIVES if member in members)
        kind = next(kinds, "another zip archive")
        raise TvmtuneError(f"{path} is not {FORMAT.a_file} but {kind}; {FORMAT.export}")


@contextlib.contextmanager
def _logged(name: str) -> Iterator[list[BaseException]]:
    """Collect the exceptions that a logger receives instead of printing them."""
    causes: list[BaseException] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                causes.append(record.exc_info[1])

    logger, keep = logging.getLogger(name), Collect()
    before = logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [keep]
    try:
        yield causes
    finally:
        logger.propagate, logger.handlers = before
