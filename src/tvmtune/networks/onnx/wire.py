"""Reading an ONNX file without its large weights, which then go straight into arrays.

Protobuf reads a file as a whole, into a string and from there into a message: two copies, and a third
to get the weights out. The wire format (https://protobuf.dev/programming-guides/encoding) is simple
enough to step over them.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from tvmtune.networks.onnx import weights as onnx_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto, TensorProto
_LARGE = 1 << 16


def read(path: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model in the file with its large weights declared only, and these weights by name.

    Raises whatever comes up if the file is not in the format: the caller finds out what it is.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        places: list[tuple[int, int]] = []
        light = _without_weights(memoryview(data), 0, len(data), (_GRAPH, _INITIALIZER), places)
        model = onnx.ModelProto()
        model.ParseFromString(light)
        weights = {}
        blank = [t for t in model.graph.initializer if _lacks_values(t)]
        for tensor, (start, size) in zip(blank, places, strict=True):
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            if math.prod(tensor.dims) * kind.itemsize != size:
                raise ValueError(f"the weight '{tensor.name}' has {size} bytes for its shape")
            array = onnx_weights.empty(tensor.dims, kind)
            file.seek(start)
            file.readinto(array.reshape(-1).view("uint8").data)
            weights[tensor.name] = array
            onnx_weights.mark(tensor)
    return model, weights


def _lacks_values(tensor: TensorProto) -> bool:
    """Whether its values were left out: they were more than :data:`_LARGE` bytes."""
    return tensor.HasField("raw_data") and not tensor.raw_data and math.prod(tensor.dims) > 0


def _without_weights(
    data: memoryview, start: int, end: int, path: tuple[int, ...], places: list[tuple[int, int]]
) -> bytes:
    """The message between ``start`` and ``end`` with large raw data below ``path`` empty.

    Where these are is appended to ``places``.
    """
    kept: list[bytes | memoryview] = []
    wanted = path[0] if path else _RAW_DATA
    for number, begin, content, stop in _fields(data, start, end):
        if number != wanted:
            kept.append(data[begin:stop])
        elif path:
            inner = _without_weights(data, content, stop, path[1:], places)
            kept += [_varint(number << 3 | 2), _varint(len(inner)), inner]
        elif stop - content > _LARGE:
            places.append((content, stop - content))
            kept += [_varint(number << 3 | 2), _varint(0)]
        else:
            kept.append(data[begin:stop])
    return b"".join(kept)


def _fields(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, start of the content and end of each field of a message."""
    while start < end:
        key, content = _read_varint(data, start)
        kind = key & 7
        if kind == 0:
            _, stop = _read_varint(data, content)
        elif kind == 2:
            size, content = _read_varint(data, content)
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
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])
