"""Operators with several results."""

from __future__ import annotations

from typing import Any

import torch
from tvm import relax

from tvmtune.networks.relax_operators import Operators
from tvmtune.networks.torch.program import arguments

_VALUES_ONLY = (
    torch.ops.aten.max_pool2d_with_indices.default,
    torch.ops.aten.max_pool3d_with_indices.default,
)
"""Operators whose second result the importer fills with zeros."""


def _getitem(node: Any, importer: Any) -> Any:
    """The importer makes up the second result of some operators."""
    maker, index = node.args
    single = isinstance(importer.env[maker].ty, relax.TensorType)
    if index and (single or maker.target in _VALUES_ONLY):  # it would return the first, or zeros
        raise NotImplementedError("of its results only the first is supported")
    return importer._getitem(node)


def _topk(node: Any, importer: Any) -> Any:
    """Sorted, which is one of the orders that ``sorted=False`` allows. The importer refuses that."""
    given = arguments(node)
    return Operators(importer.block_builder).topk(
        importer.env[node.args[0]],
        k=given["k"],
        axis=given["dim"],
        largest=given["largest"],
        ret_type="both",
        dtype="int64",
    )


def _kth_smallest(node: Any, importer: Any) -> Any:
    given, op = arguments(node), Operators(importer.block_builder)
    rank = node.args[0].meta["val"].dim()
    axis, k = given["dim"] % rank, given["k"]
    attributes = {"k": k, "axis": axis, "ret_type": "both", "largest": False, "dtype": "int64"}
    smallest = op.topk(importer.env[node.args[0]], **attributes)
    found = [importer.block_builder.emit(relax.TupleGetItem(smallest, i)) for i in range(2)]
    found = [op.strided_slice(each, [axis], [k - 1], [k]) for each in found]
    return relax.Tuple(found if given["keepdim"] else [op.squeeze(each, [axis]) for each in found])


CONVERTERS = {"getitem": _getitem, "kthvalue.default": _kth_smallest, "topk.default": _topk}
