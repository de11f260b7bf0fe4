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

    class LRN(OpRun):
        """Of each channel: onnx's counts as many channels as the batch has images."""

        op_domain = ""

        def _run(
            self,
            x: np.ndarray,
            alpha: float = 1e-4,
            beta: float = 0.75,
            bias: float = 1.0,
            size: int = 1,
        ) -> tuple[np.ndarray]:
            wide = x.astype(np.result_type(x, "float32"))
            sides = [(0, 0)] * x.ndim
            sides[1] = ((size - 1) // 2, size // 2)
            squares = np.pad(wide * wide, sides)
            total = sum(squares[:, first : first + x.shape[1]] for first in range(size))
            return ((wide / (bias + alpha / size * total) ** beta).astype(x.dtype),)

    if not is_old:
        return [LpNormalization, LRN]

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

    return [LpNormalization, LRN, DequantizeLinear]
