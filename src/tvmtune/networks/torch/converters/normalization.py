"""Normalizations: the importer's group normalization requires a scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax


def _group_norm(node: Any, importer: Any) -> Any:
    x, dtype = importer.env[node.args[0]], str(importer.env[node.args[0]].ty.dtype)
    channels, groups, epsilon = node.args[4], node.args[6], node.args[7]
    scale, shift = (
        relax.const(np.full(channels, default), dtype)
        if argument is None
        else importer.env[argument]
        for argument, default in zip(node.args[1:3], (1.0, 0.0), strict=True)
    )
    call = relax.op.nn.group_norm(
        x, scale, shift, groups, channel_axis=1, axes=list(range(2, x.ty.ndim)), epsilon=epsilon
    )
    return importer.block_builder.emit(call)


CONVERTERS = {"native_group_norm.default": _group_norm}
