"""Converters of PyTorch operators to Relax that the importer lacks or gets wrong.

Each is a function of the node and the importer, whose ``env`` holds the Relax value of each node, and
raises NotImplementedError for what it does not support; the caller names the node. Its docstring, or
that of its module, says what the importer of TVM 0.27 gets wrong.
"""

from __future__ import annotations

from tvmtune.networks.torch.converters import (
    arithmetic,
    attention,
    complex_numbers,
    embedding_bags,
    fourier,
    indexing,
    normalization,
    products,
    quantized,
    recurrent,
    reductions,
    resize,
    results,
    sampling,
    views,
    windows,
)

__all__ = ["COMPLEX_CONVERTERS", "CONVERTERS", "ON_COMPLEX"]

CONVERTERS = {
    **arithmetic.CONVERTERS,
    **attention.CONVERTERS,
    **embedding_bags.CONVERTERS,
    **indexing.CONVERTERS,
    **normalization.CONVERTERS,
    **products.CONVERTERS,
    **quantized.CONVERTERS,
    **recurrent.CONVERTERS,
    **reductions.CONVERTERS,
    **resize.CONVERTERS,
    **results.CONVERTERS,
    **sampling.CONVERTERS,
    **views.CONVERTERS,
    **windows.CONVERTERS,
}
"""Converters by operator and overload."""

COMPLEX_CONVERTERS = {**complex_numbers.CONVERTERS, **fourier.CONVERTERS}
"""Those of nodes that take or return complex tensors."""

ON_COMPLEX = {*COMPLEX_CONVERTERS, *complex_numbers.BY_PARTS}
"""All operators that are supported on complex tensors."""
