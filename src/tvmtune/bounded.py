"""Unpack and parse what comes out of files, within limits.

A file may be damaged or made to do harm: a kilobyte can unpack to a megabyte, and a megabyte of
brackets nests deeper than any stack. Everything here raises ValueError where a limit is exceeded, and
its readers name the file.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    import numpy as np

ARCHIVE_FLOOR, ARCHIVE_RATIO = 1 << 28, 20
"""The members of an archive may unpack to this many bytes, plus these times its size. Weights and
images compress to a tenth at best; what is made to do harm, to a thousandth."""

MAX_DEPTH = 100
"""Lists and objects inside of one another; what tvmtune writes has fewer than 20."""

_DECODER = json.JSONDecoder()


class Allowance:
    """Bytes that the parts of a file may unpack to together: ``floor``, and ``ratio`` for each byte
    read."""

    def __init__(self, floor: int, ratio: int) -> None:
        self._left = floor
        self._ratio = ratio

    def earn(self, size: int) -> None:
        """``size`` more bytes of the file were read."""
        self._left += self._ratio * size

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("it unpacks to too much")


def inflate(data: bytes, limit: int, dictionary: bytes = b"") -> bytes:
    """Decompress a whole zlib stream of at most ``limit`` bytes.

    Raises ValueError if it is damaged, truncated or longer.
    """
    decompressor = zlib.decompressobj(zdict=dictionary)
    try:
        # One more, because a limit of 0 means none to zlib.
        result = decompressor.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from None
    if len(result) > limit:
        raise ValueError(f"longer than {limit} bytes")
    if not decompressor.eof:
        raise ValueError("truncated")
    return result


def archive_limit(size: int, floor: int = 0) -> int:
    """How many bytes the members of an archive of ``size`` bytes may unpack to; ``floor`` if that is
    more than :data:`ARCHIVE_FLOOR`."""
    return max(ARCHIVE_FLOOR, floor) + ARCHIVE_RATIO * size


def check_archive(archive: zipfile.ZipFile, limit: int) -> None:
    """Raise ValueError if the members of an archive unpack to more than ``limit`` bytes. Readers unpack
    no more than the index says."""
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > limit:
        raise ValueError(f"it unpacks to {unpacked / 1e6:.0f} MB, more than {limit / 1e6:.0f}")


def read_npz(file: str | os.PathLike[str] | IO[bytes], limit: int) -> dict[str, np.ndarray]:
    """The arrays of a file of ``numpy.savez``, by name.

    Raises OSError if it cannot be read, and ValueError if it is damaged, has other members, or unpacks
    to more than ``limit`` bytes.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            check_archive(archive, limit)
            return {
                member.filename.removesuffix(".npy"): _read_npy(archive, member)
                for member in archive.infolist()
            }
    except (ValueError, OSError):
        raise
    except Exception as error:  # zipfile, its decompressors and Python's parser raise many kinds
        raise ValueError(f"damaged: {error}") from error


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    import math

    from numpy.lib import format as npy

    with archive.open(member) as file:
        if npy.read_magic(file) == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(file)
        else:
            shape, _, dtype = npy.read_array_header_2_0(file)
        # NumPy allocates what the header says.
        left = member.file_size - file.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * max(dtype.itemsize, 1) != left:
            raise ValueError(f"'{member.filename}' is not as long as its header says")
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def parse_json(data: str | bytes) -> Any:
    """Parse UTF-8 JSON, with blanks and a byte-order mark around it.

    Raises ValueError if it is not that, nests deeper than :data:`MAX_DEPTH`, or has a text that is not
    Unicode.
    """
    text = data if isinstance(data, str) else data.decode()
    # json.loads would spend a tenth of the time on guessing the encoding and skipping whitespace.
    text = text.strip("\ufeff \t\r\n")
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if end != len(text):
        raise ValueError("there is something after the JSON")
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
        raise ValueError("it nests too deeply")
    if "\\" in text and ("\\ud" in text or "\\uD" in text):  # the first is quick to rule out
        # Half a surrogate pair can be parsed, but neither printed nor written.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        inner = chain.from_iterable(
            v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list))
        )
        level = [v for v in inner if isinstance(v, (dict, list))]
        if not level:
            return False
    return True
