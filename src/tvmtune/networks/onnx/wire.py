"""Reads an ONNX file without its large weights, and these straight into arrays.

``onnx.load`` reads the whole file into a string and parses that into a message: two copies of the
weights, and a third to get them out. The wire format
(https://protobuf.dev/programming-guides/encoding) is simple enough to step over them. For VGG-16
(528 MiB of weights, file in the page cache) this takes 0.07 s with a peak of 0.6 GiB; ``onnx.load`` and
:func:`tvmtune.networks.onnx.weights.detach` take 0.9 to 1.9 s and 1.4 GiB.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmtune import arrays
from tvmtune.networks.onnx import weights as onnx_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto, TensorProto
_LARGE = 1 << 16
_MAX_FIELDS = 1 << 20
"""More nodes and weights than any model has; each takes a microsecond."""
_MAX_RANK = 64
"""More dimensions than any tensor has: their product must not become a number of megabytes."""
_MAX_VARINT = 10
"""Bytes of 64 bits, 7 at a time."""


def read(path: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model in the file with its large weights only declared, and these weights by name.

    Raises exceptions of any class if the file is not in the format; the caller finds out what it is.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        places: list[tuple[int, int]] = []
        with memoryview(data) as view:
            message = _Message(view)
            light_message = message.without_weights(0, len(data), (_GRAPH, _INITIALIZER), places)
        model = onnx.ModelProto()
        model.ParseFromString(light_message)
        weights = {}
        emptied = [t for t in model.graph.initializer if _is_emptied(t)]
        for tensor, (start, size) in zip(emptied, places, strict=True):
            if onnx_weights.stored_bytes(tensor, _count(tensor)) != size:
                raise ValueError(f"the weight '{tensor.name}' has {size} bytes for its shape")
            file.seek(start)
            if onnx_weights.is_packed(tensor):
                tensor.raw_data = file.read(size)
                array = arrays.aligned(numpy_helper.to_array(tensor))
            else:
                kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
                array = arrays.empty(tensor.dims, kind)
                file.readinto(array.reshape(-1).view("uint8").data)
            weights[tensor.name] = array
            onnx_weights.mark_declared(tensor)
    return model, weights


def _is_emptied(tensor: TensorProto) -> bool:
    """Whether its values were left out, being more than :data:`_LARGE` bytes."""
    return tensor.HasField("raw_data") and not tensor.raw_data and _count(tensor) > 0


def _count(tensor: TensorProto) -> int:
    if len(tensor.dims) > _MAX_RANK:
        raise ValueError(f"the weight '{tensor.name}' has {len(tensor.dims)} dimensions")
    return math.prod(tensor.dims)


class _Message:
    """A file in protobuf's format; what it holds need not make sense."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._left = _MAX_FIELDS

    def without_weights(
        self, start: int, end: int, path: tuple[int, ...], places: list[tuple[int, int]]
    ) -> bytes:
        """The message between ``start`` and ``end`` with large raw data below ``path`` emptied.

        Start and size of these data are appended to ``places``.
        """
        data = self._data
        kept: list[bytes] = []
        wanted = path[0] if path else _RAW_DATA
        unchanged = start  # where what is copied as it is begins
        for number, begin, content, stop in self._fields(start, end):
            if number != wanted or not (path or stop - content > _LARGE):
                continue
            kept.append(bytes(data[unchanged:begin]))
            unchanged = stop
            if path:
                inner = self.without_weights(content, stop, path[1:], places)
                kept += [_varint(number << 3 | 2), _varint(len(inner)), inner]
            else:
                places.append((content, stop - content))
                kept += [_varint(number << 3 | 2), _varint(0)]
        kept.append(bytes(data[unchanged:end]))
        return b"".join(kept)

    def _fields(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Number, start, start of the content and end of each field of a message."""
        while start < end:
            self._left -= 1
            if self._left < 0:
                raise ValueError("too many fields")
            key, content = _read_varint(self._data, start)
            kind = key & 7
            if kind == 0:
                _, stop = _read_varint(self._data, content)
            elif kind == 2:
                size, content = _read_varint(self._data, content)
                stop = content + size
            elif kind in (1, 5):
                stop = content + (8 if kind == 1 else 4)
            else:
                raise ValueError("not in the format")
            if stop > end:
                raise ValueError("cut short")
            yield key >> 3, start, content, stop
            start = stop


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_VARINT, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("not in the format")


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])
