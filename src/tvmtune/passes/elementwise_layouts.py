"""Elementwise operators that TVM's layout conversion does not know keep their input's layout.

Without this, TVM surrounds each of them by two transposes, and no convolution fuses with what follows:
MobileNet v3's hard swish is such an operator, and YOLO's leaky ReLU.
"""

from __future__ import annotations

import functools

OPERATORS = ("relax.clip", "relax.nn.leakyrelu", "relax.nn.softplus")
"""Of one tensor; their other arguments and attributes do not depend on the layout."""
_ATTRIBUTE = "FRelaxInferLayout"


@functools.cache
def register() -> None:
    """Register the rule that TVM has for its other elementwise operators, once in a process."""
    from tvm.ir import Op, register_op_attr

    rule = Op.get("relax.abs").get_attr(_ATTRIBUTE)
    for name in OPERATORS:
        if Op.get(name).get_attr(_ATTRIBUTE) is None:
            register_op_attr(name, _ATTRIBUTE, rule)
