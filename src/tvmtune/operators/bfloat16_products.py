"""Convolutions and products in bfloat16 by dot-product instructions, with sums in float32.

A sum of two products rounds once, and denormal numbers count as zero; see Intel, "Architecture
Instruction Set Extensions Programming Reference", VDPBF16PS, and Arm, "Architecture Reference Manual",
BFDOT.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmtune.arrays import empty, numpy_dtype
from tvmtune.dot_instructions import DotInstruction
from tvmtune.passes import constants, packed_products
from tvmtune.passes.fusable_calls import call_fusable
from tvmtune.passes.packed_products import Storage, Window, blocked_weights
from tvmtune.static_shapes import has_static_shapes, static_shape

_DTYPE = "bfloat16"


def applies_to_conv2d(call: Any) -> bool:
    """One group, constant weights, NHWC, bfloat16 with sums in float32."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    return _applies(call) and int(attrs.groups) == 1 and layouts == ("NHWC", "HWIO", "NHWC")


def applies_to_matmul(call: Any) -> bool:
    """The second operand a constant matrix, bfloat16 with sums in float32."""
    return _applies(call) and len(call.args[0].ty.shape) > 1 and len(call.args[1].ty.shape) == 2


def applies_to_batched(call: Any) -> bool:
    """Neither operand constant, bfloat16 with sums in float32, the same number of batch axes, each
    equal or 1 in the second operand, and no extent so short that packing would take longer than it
    saves."""
    import tvm

    left, right = (static_shape(argument) for argument in call.args)
    return (
        _has_dtypes(call)
        and not any(isinstance(argument, tvm.ir.GenericConst) for argument in call.args)
        and left is not None
        and right is not None
        and len(left) > 2
        and len(left) == len(right)
        and all(own in (1, other) for own, other in zip(right[:-2], left[:-2], strict=True))
        and min(*left[-2:], right[-1]) >= packed_products.FEWEST
    )


def _applies(call: Any) -> bool:
    import tvm

    return (
        _has_dtypes(call)
        and isinstance(call.args[1], tvm.ir.GenericConst)
        and has_static_shapes(call)
    )


def _has_dtypes(call: Any) -> bool:
    dtypes = [str(each.ty.dtype) for each in (*call.args, call)]
    return dtypes == [_DTYPE, _DTYPE, "float32"]


def replace_conv2d(
    instruction: DotInstruction, builder: Any, call: Any, values: bool = True
) -> Any:
    """The kernel for a ``relax.nn.conv2d`` that :func:`applies_to_conv2d` accepted. Without ``values``
    the weights stay uninitialized."""
    window = Window.of(call.attrs)
    output = tuple(int(n) for n in call.ty.shape)

    def program(x: Any, w: Any) -> Any:
        sums = packed_products.convolution(x, w, window, output, "float32", _storage())
        return _outputs(sums, output)

    weights = _weights(call.args[1], (3, 0, 1, 2), instruction, values)
    return call_fusable(builder, program, call.args[0], weights, name="conv2d_bfloat16")


def replace_matmul(
    instruction: DotInstruction, builder: Any, call: Any, values: bool = True
) -> Any:
    """The kernel for a ``relax.matmul`` that :func:`applies_to_matmul` accepted. Without ``values`` the
    weights stay uninitialized."""
    output = tuple(int(n) for n in call.ty.shape)

    def program(x: Any, w: Any) -> Any:
        sums = packed_products.product(x, w, output, "float32", _storage())
        return _outputs(sums, output)

    weights = _weights(call.args[1], (3, 1, 2, 0), instruction, values)
    return call_fusable(builder, program, call.args[0], weights, name="matmul_bfloat16")


def replace_batched(
    instruction: DotInstruction, builder: Any, call: Any, values: bool = True
) -> Any:
    """The kernel for a ``relax.matmul`` that :func:`applies_to_batched` accepted."""
    output = tuple(int(n) for n in call.ty.shape)

    def program(x: Any, w: Any) -> Any:
        sums = packed_products.batched_product(x, w, output, instruction, _storage())
        return _outputs(sums, output)

    return call_fusable(builder, program, *call.args, name="matmul_bfloat16")


def _weights(
    constant: Any, order: tuple[int, ...], instruction: DotInstruction, values: bool
) -> Any:
    """The bits in blocks, from an array of which ``order`` gives the axes (O, KH, KW, I); a matrix gets
    two of length 1 in the middle."""
    shape = [int(n) for n in constant.ty.shape]
    array = constants.values(constant) if values else empty(shape, numpy_dtype(_DTYPE))
    if array.ndim == 2:
        array = array[:, None, None]
    bits = np.transpose(array.view("uint16"), order)
    return constants.share(blocked_weights(bits, instruction))


def _storage() -> Storage:
    """As bits, because TVM keeps bfloat16 within a kernel in float32."""
    from tvm import tirx

    return Storage(
        tirx.const(0, "uint16"),
        convert=lambda value: tirx.reinterpret("uint16", value),
        value=lambda stored: tirx.reinterpret(_DTYPE, stored),
    )


def _outputs(sums: Any, output: tuple[int, ...]) -> Any:
    """The sums of those outputs that there are."""
    from tvm import te

    return te.compute(output, lambda *at: sums(*at), name="outputs")
