"""The node that a converter gets, and helpers for its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmtune.networks.relax_operators import Operators


@dataclass(frozen=True)
class Node:
    """One ONNX node to convert."""

    builder: Any
    inputs: list[Any]
    """Relax expressions; None for an omitted optional input."""
    attrs: dict[str, Any]
    opset: int
    standard: Callable[..., Any]
    """The importer's own converter, for these or other inputs."""

    def input(self, position: int) -> Any:
        return self.inputs[position] if position < len(self.inputs) else None

    def text(self, name: str, default: str) -> str:
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    @property
    def outputs(self) -> int:
        return int(self.attrs["tvm_custom"]["num_outputs"])

    def emit(self, expression: Any) -> Any:
        return self.builder.normalize(expression)

    @property
    def op(self) -> Operators:
        return Operators(self.builder)

    def results(self, *values: Any) -> Any:
        """The first of ``values``, as many as the node has results."""
        if self.outputs > len(values):
            raise ValueError(f"of its results only the first {len(values)} are supported")
        return values[0] if self.outputs == 1 else relax.Tuple(list(values[: self.outputs]))

    def refuse(self, defaults: dict[str, Any]) -> None:
        """Raise ValueError for the first attribute whose value is not the one that is supported."""
        for name, default in defaults.items():
            value = self.attrs.get(name, default)
            if value != default:
                raise ValueError(f"its attribute {name}={value} is not supported")


Converter = Callable[[Node], Any]


_RESHAPING = ("relax.reshape", "relax.expand_dims")


def reshaped_from(builder: Any, tensor: Any) -> Any:
    """The tensor that was reshaped or got new axes, perhaps several times, to get this one; itself if
    none was."""
    while True:
        call = builder.lookup_binding(tensor) if isinstance(tensor, relax.Var) else tensor
        if not isinstance(call, tvm.ir.Call) or call.op not in map(tvm.ir.Op.get, _RESHAPING):
            return tensor
        tensor = call.args[0]


def constant(tensor: Any) -> np.ndarray | None:
    """The value of a constant, None for anything else."""
    return tensor.value.numpy() if isinstance(tensor, tvm.ir.GenericConst) else None


def is_constant(*tensors: Any) -> bool:
    return all(isinstance(tensor, tvm.ir.GenericConst) for tensor in tensors)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, not a shape, a sequence or a missing optional input."""
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def required(tensor: Any, what: str) -> np.ndarray:
    """The value of a constant; raises ValueError for anything else."""
    value = constant(tensor)
    if value is None:
        raise ValueError(f"its {what} must be constant")
    return value


def optional(tensor: Any, what: str) -> np.ndarray | None:
    """As :func:`required`, and None for an input that is left out."""
    return None if tensor is None else required(tensor, what)
