"""Unpack and parse what comes out of files, within limits.

A file may be damaged or made to do harm: a kilobyte can unpack to a megabyte, and a megabyte of
brackets nests deeper than any stack. Everything here raises ValueError where a limit is exceeded, and
its readers name the file.
"""

from __future__ import annotations

import json
import zlib
from itertools import chain
from typing import Any

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
