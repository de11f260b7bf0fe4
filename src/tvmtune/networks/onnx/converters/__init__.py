"""Converters of ONNX operators that the importer lacks, or gets wrong, refuses or crashes on.

Operators of ONNX Runtime are named with their domain, ``com.microsoft.Attention``. Docstrings of those
that replace the importer's say what the importer of TVM 0.27 gets wrong. A converter raises ValueError
for what it does not support; the caller names the node.
"""

from __future__ import annotations

from tvmtune.networks.onnx.converters import (
    activations,
    arithmetic,
    attention_grouped,
    attention_microsoft,
    attention_standard,
    block_quantized,
    fourier,
    fused,
    indexing,
    normalization,
    quantized,
    recurrent,
    resize,
    rotary,
    skip_normalization,
    structure,
    windows,
)
from tvmtune.networks.onnx.converters.request import Converter, Node

__all__ = ["CONVERTERS", "LIMITS", "Converter", "Node"]

CONVERTERS: dict[str, Converter] = {
    **activations.CONVERTERS,
    **arithmetic.CONVERTERS,
    **attention_grouped.CONVERTERS,
    **attention_microsoft.CONVERTERS,
    **attention_standard.CONVERTERS,
    **block_quantized.CONVERTERS,
    **fourier.CONVERTERS,
    **fused.CONVERTERS,
    **indexing.CONVERTERS,
    **normalization.CONVERTERS,
    **quantized.CONVERTERS,
    **recurrent.CONVERTERS,
    **resize.CONVERTERS,
    **rotary.CONVERTERS,
    **skip_normalization.CONVERTERS,
    **structure.CONVERTERS,
    **windows.CONVERTERS,
}
"""Converters by operator."""

LIMITS: dict[str, str] = {
    **arithmetic.LIMITS,
    **attention_grouped.LIMITS,
    **attention_microsoft.LIMITS,
    **attention_standard.LIMITS,
    **block_quantized.LIMITS,
    **fourier.LIMITS,
    **fused.LIMITS,
    **indexing.LIMITS,
    **normalization.LIMITS,
    **quantized.LIMITS,
    **recurrent.LIMITS,
    **rotary.LIMITS,
    **skip_normalization.LIMITS,
    **structure.LIMITS,
    **windows.LIMITS,
}
"""What converters do not support, by operator, for docs/operators.md."""
