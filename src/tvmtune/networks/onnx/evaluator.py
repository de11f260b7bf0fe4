"""ONNX's evaluator in Python, with the operators that it lacks or gets wrong."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.networks.onnx.operators import standard_version

if TYPE_CHECKING:
    import onnx
    from onnx.reference import ReferenceEvaluator


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """For the model, whose weights must be attached."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model, new_ops=_operators(standard_version(model) < 19))


@functools.cache
def _operators(is_old: bool) -> list[type]:
    """Those that onnx's evaluator does not compute as the standard says and, for an old model, one that
    it has for later versions alone."""
    from onnx.reference.op_run import OpRun

    class LpNormalization(OpRun):
        """With magnitudes, and zeros where the norm is 0."""

        op_domain = ""

        def _run(self, x: np.ndarray, axis: int = -1, p: int = 2) -> tuple[np.ndarray]:
            wide = x.astype(np.result_type(x, "float32"))
            norm = np.linalg.norm(wide, ord=p, axis=axis, keepdims=True)
            return (
                np.divide(wide, norm, out=np.zeros_like(wide), where=norm != 0).astype(x.dtype),
            )

    if not is_old:
        return [LpNormalization]

    class DequantizeLinear(OpRun):
        op_domain = ""

        def _run(
            self,
            x: np.ndarray,
            scale: np.ndarray,
            zero: np.ndarray | None = None,
            axis: int = 1,
            **later: object,
        ) -> tuple[np.ndarray]:
            shape = [1] * x.ndim
            if scale.size > 1:
                shape[axis] = -1
            steps = x.astype("int32") - (0 if zero is None else zero.astype("int32").reshape(shape))
            return ((steps * scale.reshape(shape)).astype(scale.dtype),)

    return [LpNormalization, DequantizeLinear]
