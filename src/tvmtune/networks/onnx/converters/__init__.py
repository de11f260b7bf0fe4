"""Converters of ONNX operators that replace the importer's where it is wrong, refuses or crashes.

Each docstring says what the importer of TVM 0.27 gets wrong. A converter raises ValueError for what it
does not support; the caller names the node.
"""

from __future__ import annotations

from tvmtune.networks.onnx.converters import (
    arithmetic,
    indexing,
    normalization,
    resize,
    structure,
    windows,
)
from tvmtune.networks.onnx.converters.request import Converter, Node

__all__ = ["CONVERTERS", "Converter", "Node"]

CONVERTERS: dict[str, Converter] = {
    **arithmetic.CONVERTERS,
    **indexing.CONVERTERS,
    **normalization.CONVERTERS,
    **resize.CONVERTERS,
    **structure.CONVERTERS,
    **windows.CONVERTERS,
}
"""Converters by operator."""
