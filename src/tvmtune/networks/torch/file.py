"""Reading a file of ``torch.export.save``, and saying plainly what is wrong with another.

The format keeps weights as plain bytes; what it pickles beside them is read by PyTorch under its own
rules (``torch.export.load``), so a file deserves the trust that a program deserves.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import zipfile
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.imported import quiet
from tvmtune.networks.model_file import Format, one_line

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
"""Members that an exported program has: since PyTorch 2.8, and before."""

_OTHER_ARCHIVES = (
    ("constants.pkl", "a TorchScript program"),
    ("data.pkl", "a PyTorch checkpoint of torch.save"),
)


def read(path: Path) -> ExportedProgram:
    """Load the program at ``path``.

    Raises :class:`UsageError` if there is no such file or no PyTorch, :class:`TvmtuneError` if the
    file is none of ``torch.export.save``.
    """
    _check_archive(path, FORMAT.read(path))
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"{path} needs PyTorch, which is not installed: pip install torch")
    import torch

    with _logged("torch.export") as causes, quiet():
        try:
            return torch.export.load(path)
        except Exception as error:  # whatever it meets: no class of its own
            cause = causes[0] if causes else error
            raise TvmtuneError(
                f"{path} cannot be loaded by PyTorch {torch.__version__}: {one_line(cause)}; "
                "export the network again with this version, on the CPU"
            ) from error


def _check_archive(path: Path, content: bytes) -> None:
    """Raise :class:`TvmtuneError` unless the file is an archive with a program in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if min((entry.header_offset for entry in archive.infolist()), default=0) > 0:
                raise zipfile.BadZipFile("the index found is that of an archive inside of it")
            # Everything stands in a folder that is called like the file once was.
            members = {name.partition("/")[2] or name for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        if content.startswith(b"PK\x03\x04"):  # then it was cut short: its index is at the end
            raise TvmtuneError(f"{path} is damaged; export or download it again") from error
        raise FORMAT.mistaken(path, content) from error
    if any(member.startswith("data/aotinductor/") for member in members):
        raise TvmtuneError(
            f"{path} is a library that AOTInductor compiled; give the program that it was compiled "
            "from, as torch.export.save writes it"
        )
    if members.isdisjoint(_PROGRAMS):
        kinds = (kind for member, kind in _OTHER_ARCHIVES if member in members)
        kind = next(kinds, "another zip archive")
        raise TvmtuneError(f"{path} is no {FORMAT.name} file but {kind}; {FORMAT.export}")


@contextlib.contextmanager
def _logged(name: str) -> Iterator[list[BaseException]]:
    """The exceptions that a logger is told of, which then do not reach the terminal."""
    causes: list[BaseException] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                causes.append(record.exc_info[1])

    logger, keep = logging.getLogger(name), Keep()
    before = logger.propagate, logger.handlers
    logger.propagate, logger.handlers = False, [keep]
    try:
        yield causes
    finally:
        logger.propagate, logger.handlers = before
