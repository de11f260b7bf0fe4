"""Reads the lines of a log, which may be compressed, within limits."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from tvmtune import bounded
from tvmtune.errors import TvmtuneError
from tvmtune.types import JSON

COMPRESSED = {".gz": "gzip", ".xz": "xz"}
"""Suffixes of compressed files, and what decompresses them."""

LONGEST = 1 << 24
"""Bytes of a line; the longest, of tasks with many implementations, have some 150 KB."""
_FLOOR, _RATIO = 1 << 24, 100
"""A compressed log may have this many bytes, or these times its own size; xz packs logs 25 to 1."""
_FIRST_BYTES = b'{"type":"header",'
"""What every log that tvmtune wrote begins with."""


def read(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line that is not blank.

    Raises :class:`TvmtuneError` if the file cannot be read or exceeds a limit.
    """
    try:
        limit = max(_FLOOR, _RATIO * path.stat().st_size)
        with _open(path) as file:
            total = number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                total += len(line)
                if len(line) > LONGEST:
                    raise TvmtuneError(
                        f"{path} is not a tvmtune log, or is damaged: line {number} is longer than "
                        f"{LONGEST >> 20} MiB"
                    )
                if path.suffix in COMPRESSED and total > limit:
                    raise TvmtuneError(
                        f"{path} is not a tvmtune log, or is damaged: it unpacks to more than "
                        f"{limit >> 20} MiB. If it is one, unpack it with "
                        f"{COMPRESSED[path.suffix]} -d first."
                    )
                if not line.isspace():
                    yield number, line
    except FileNotFoundError:
        raise TvmtuneError(f"there is no log at {path}") from None
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError, zlib.error):
        raise TvmtuneError(
            f"{path} is truncated, damaged or, in spite of its name, not compressed with "
            f"{COMPRESSED[path.suffix]}: restore the file, or give a plain log a name without "
            f"{path.suffix}"
        ) from None
    except OSError as error:
        raise TvmtuneError(f"cannot read the log {path}: {error.strerror}") from None


def parse(line: bytes) -> JSON | None:
    """The record on a line; None if it is not one."""
    try:
        record = bounded.parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def begins_log(torn: bytes) -> bool:
    """Whether an incomplete first line is the start of a header that a power cut, a full disk or
    ``kill -9`` left: nothing but that was ever in the file."""
    start = torn[: len(_FIRST_BYTES)]
    return _FIRST_BYTES.startswith(start) or not torn.strip(b"\0")


def _open(path: Path) -> gzip.GzipFile | lzma.LZMAFile | BufferedReader:
    if path.suffix == ".gz":
        return gzip.open(path)
    return lzma.open(path) if path.suffix == ".xz" else path.open("rb")
