"""Operators of TFLite files that write the diagonals of matrices.

TVM's importer makes of them calls of functions that exist only at compile time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmtune.networks.relax_operators import Operators, dtype, shape


def matrix_diag(converter: Any, op: Any) -> Any:
    """Diagonals (batch..., n) as those of zeros (batch..., n, n)."""
    (source,) = converter.get_input_tensors(op)
    values = converter.get_tensor_expr(source)
    return _on_diagonal(
        converter, values, relax.const(np.zeros((), dtype(values))), shape(values)[-1:] * 2
    )


def matrix_set_diag(converter: Any, op: Any) -> Any:
    """Matrices (batch..., m, n) with the diagonals (batch..., min(m, n))."""
    matrices, values = (converter.get_tensor_expr(each) for each in converter.get_input_tensors(op))
    return _on_diagonal(converter, values, matrices, shape(matrices)[-2:])


def _on_diagonal(converter: Any, values: Any, others: Any, extents: list[int]) -> Any:
    rows, columns = extents
    # Along the rows if there are no fewer columns: then each has an element.
    spread = Operators(converter.bb).expand_dims(values, -1 if rows <= columns else -2)
    return relax.op.where(relax.const(np.eye(rows, columns, dtype=bool)), spread, others)
