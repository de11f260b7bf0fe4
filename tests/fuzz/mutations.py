"""Mutations of valid files: of bytes, and of JSON values, so that damage reaches past the checksums.

A mutation is a tuple of integers (what, where, how), which Hypothesis draws and shrinks.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

from hypothesis import strategies as st

Mutation = tuple[int, int, int]

_LARGEST = 1 << 19
_MOST_PLACES = 5000
"""Repeated lists of repeated lists are small in memory, but endless to a reader."""

mutations = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 1 << 20), st.integers(0, 1 << 16)),
    min_size=1,
    max_size=5,
)

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), float("-inf"), 5e-324),
    *("", "x", "\ud800", "\x00", "é" * 10, "A" * 100_000, "../../etc/passwd", "1e3", "=" * 5),
    *([], {}, [[]], [None], [1, "x"], {"": None}, {"type": "header"}),
]
TOKENS = [
    *(
        b"\x00",
        b"\xff" * 16,
        b"\x80" * 16,
        b"\n",
        b"\r\n",
        b'"',
        b"{",
        b"[" * 3000,
        b'{"a":' * 2000,
    ),
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 5000,
        b"\\ud800",
        b"\xef\xbb\xbf",
        b"null",
        b"tvmtune{",
    ),
    *(b"}tvmtune", b"\x1f\x8b\x08", b"\xfd7zXZ\x00", b"PK\x03\x04", b"\x93NUMPY"),
    *((2**n - 1).to_bytes(8, "little") for n in (15, 16, 31, 32, 63, 64)),
]


def mutated(data: bytes, changes: Sequence[Mutation]) -> bytes:
    """``data`` after some changes of bytes."""
    for what, where, how in changes:
        at = where % (len(data) + 1)
        size = 1 + how % 64
        head, part, tail = data[:at], data[at : at + size], data[at + size :]
        match what % 9:
            case 0:
                data = head + bytes([byte ^ 1 << how % 8 for byte in part[:1]]) + part[1:] + tail
            case 1:
                data = head + bytes([how % 256]) + part[1:] + tail
            case 2:
                data = head + tail
            case 3:
                data = head + part + part + tail
            case 4:
                data = head + TOKENS[how % len(TOKENS)] + part + tail
            case 5:
                data = head + TOKENS[how % len(TOKENS)] + tail
            case 6:
                data = head
            case 7:
                data = head + part * 2000 + tail
            case 8:
                other = how * 7919 % (len(data) + 1)
                data = head + data[other : other + size] + tail
    return data


def changed(value: Any, changes: Sequence[Mutation]) -> Any:
    """A JSON value after some changes of its parts."""
    root = [copy.deepcopy(value)]
    for what, where, how in changes:
        places = [*islice(_places(root), _MOST_PLACES)]
        holder, key = places[where % len(places)]
        match what % 8:
            case 0 | 1 | 2:
                holder[key] = VALUES[how % len(VALUES)]
            case 3:
                if holder is not root:
                    del holder[key]
            case 4:
                other, name = places[how % len(places)]
                with contextlib.suppress(RecursionError):  # what case 5 made
                    holder[key] = copy.deepcopy(other[name])
            case 5:
                holder[key] = _nested(holder[key], (20, 99, 101, 300, 5000)[how % 5], how % 2)
            case 6:
                holder[key] = [holder[key]] * (how % 300)
            case 7:
                if isinstance(holder[key], dict):
                    holder[key][f"new-{how}"] = VALUES[how % len(VALUES)]
    return root[0]


def dumped(value: Any) -> bytes:
    """JSON of any depth and with any number, unlike json.dumps; cut off after half a megabyte."""
    parts: list[str] = []
    size = 0
    stack: list[Any] = [value]
    while stack and size < _LARGEST:
        top = stack.pop()
        size += 10 + (len(parts[-1]) if parts else 0)
        if isinstance(top, _Raw):
            parts.append(top)
        elif isinstance(top, dict):
            stack.append(_Raw("}"))
            for place, (key, inner) in enumerate(reversed(top.items())):
                stack += [inner, _Raw(json.dumps(key) + ":")]
                if place + 1 < len(top):
                    stack.append(_Raw(","))
            parts.append("{")
        elif isinstance(top, list):
            stack.append(_Raw("]"))
            for place, inner in enumerate(reversed(top)):
                stack.append(inner)
                if place + 1 < len(top):
                    stack.append(_Raw(","))
            parts.append("[")
        else:
            parts.append(json.dumps(top))
    return "".join(parts).encode()


class _Raw(str):
    """Text that is JSON already."""


def _places(root: Any) -> Any:
    stack = [root]
    while stack:
        top = stack.pop()
        keys = top.keys() if isinstance(top, dict) else range(len(top))
        for key in [*keys][:200]:
            yield top, key
            if isinstance(top[key], (dict, list)) and top[key]:
                stack.append(top[key])


def _nested(value: Any, depth: int, kind: int) -> Any:
    for _ in range(depth):
        value = [value] if kind else {"a": value}
    return value
