"""Splits as slices, which fuse into the kernels that read them.

TVM's kernel of a split copies all parts. Two splits with parts read by the same fused kernel, such as
the step of an LSTM that is written out, can also make TVM's ``FuseOps`` drop another of its operands:
it replaces each tuple of operands by several, and finds the next one at its former position. Whether
it does depends on the addresses of expressions, so some runs fail (``buffer_idx == buffers.size()``).
"""

from __future__ import annotations

from typing import Any

from tvmtune.passes import repeated_calls
from tvmtune.static_shapes import static_shape


def _split(builder: Any, call: Any) -> Any:
    from tvm import relax

    (data,) = call.args
    shape = static_shape(data)
    if shape is None or not isinstance(call.ty, relax.TupleType):  # a tensor if there is one part
        return repeated_calls.legalized(builder, call)
    axis = int(call.attrs.axis) % len(shape)
    parts, begin = [], 0
    for part in call.ty.fields:
        end = begin + int(part.shape[axis])
        cut = builder.normalize(relax.op.strided_slice(data, [axis], [begin], [end]))
        parts.append(builder.emit(repeated_calls.legalized(builder, cut)))
        begin = end
    return relax.Tuple(parts)


LEGALIZERS = {"relax.split": _split}
