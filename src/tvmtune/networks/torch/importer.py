"""TVM's importer of PyTorch programs with our converters and checked results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tvmtune.networks.importer_helpers import tensor_text, type_text
from tvmtune.networks.torch.converters import COMPLEX_CONVERTERS, CONVERTERS, complex_numbers
from tvmtune.networks.torch.converters.arithmetic import dtype_name
from tvmtune.networks.torch.converters.complex_numbers import Complex, real_like


class Importer(ExportedProgramImporter):
    """Imports a program of core ATen operators and static shapes."""

    def __init__(self, constants: Mapping[str, torch.Tensor] | None = None) -> None:
        """``constants`` are the weights of the program, by the names of their nodes."""
        super().__init__()
        self.constants = constants or {}
        theirs = self.create_convert_map()
        ours = {n: c for n, c in COMPLEX_CONVERTERS.items() if n not in theirs} | CONVERTERS
        self.ours = {*ours}
        """The operators whose calls on real tensors, or if they have none on such, tvmtune converts."""
        converters = {**theirs, **{name: self._bound(convert) for name, convert in ours.items()}}
        self.convert_map: dict[str, Any] = {
            name: self._checked(convert) for name, convert in converters.items()
        }

    def _check_unsupported_func_type(self, nodes: list[fx.Node]) -> None:
        """Skipped: :mod:`tvmtune.networks.torch.relax` checks them and names the nodes."""

    def _bound(self, convert: Callable[[fx.Node, Any], Any]) -> Callable[[fx.Node], Any]:
        return lambda node: convert(node, self)

    def _checked(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        def call(node: fx.Node) -> Any:
            if complex_numbers.takes_part(node):
                result = self._complex(node, convert)
            else:
                result = convert(node)
            _check_result(node.meta.get("val"), result)
            return result

        return call

    def _complex(self, node: Any, convert: Callable[[fx.Node], Any]) -> Any:
        of_complex = COMPLEX_CONVERTERS.get(node.target.__name__)
        if of_complex is None:
            return complex_numbers.by_parts(node, self, convert)
        return of_complex(node, self)


def _check_result(expected: Any, result: Any) -> None:
    """Raise NotImplementedError if a tensor has another dtype or shape than in PyTorch."""
    if not isinstance(expected, torch.Tensor):
        return
    if expected.is_complex() != isinstance(result, Complex):
        raise NotImplementedError(
            "the importer takes real numbers for complex ones, or the reverse"
        )
    if isinstance(result, Complex):
        for part in (result.real, result.imag):
            _check_result(real_like(expected), part)
    if not isinstance(getattr(result, "ty", None), relax.TensorType):
        return
    found = type_text(result.ty)
    wanted = tensor_text(list(expected.shape), dtype_name(expected.dtype))
    if found != wanted:
        raise NotImplementedError(f"the importer returns {found} instead of {wanted}")
