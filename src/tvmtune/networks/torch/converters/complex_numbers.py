"""Complex tensors, which Relax lacks, as two real ones.

A program may compute with them, but it takes and returns real ones. Most converters of real tensors
serve for both parts, one after the other; what is different for complex numbers is here, Fourier
transforms in :mod:`tvmtune.networks.torch.converters.fourier`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree  # there is no public name for it
from tvm import relax

from tvmtune.networks.relax_operators import Operators, dtype, shape
from tvmtune.networks.torch.converters.arithmetic import dtype_name, magnitude
from tvmtune.networks.torch.program import arguments


@dataclass(frozen=True)
class Complex:
    """The Relax values of both parts, which are tuples for several results."""

    real: Any
    imag: Any


def is_complex(node: Any) -> bool:
    """Whether a node's value, or the first of its values, is complex."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return bool(values) and isinstance(values[0], torch.Tensor) and values[0].is_complex()


def part_dtype(whole: torch.dtype) -> str:
    """``float32`` of ``torch.complex64``; of real dtypes their own name."""
    return dtype_name(torch.empty((), dtype=whole).real.dtype)


def takes_part(node: Any) -> bool:
    """Whether a node takes or returns complex tensors, and returns anything: assertions do not."""
    return node.meta.get("val") is not None and any(map(is_complex, (node, *node.all_input_nodes)))


def by_parts(node: Any, importer: Any, convert: Callable[[Any], Any]) -> Complex:
    """The value of a node whose operator moves or adds elements: ``convert`` makes each of its parts.

    Raises NotImplementedError for other operators.
    """
    name = str(node.target.__name__)
    if name not in BY_PARTS:
        raise NotImplementedError(
            "it is not among the operators for complex tensors that docs/operators.md lists"
        )
    if name == "constant_pad_nd.default" and arguments(node)["value"] != 0:
        raise NotImplementedError("complex padding other than 0 is not supported")
    results = []
    for part in ("real", "imag"):
        with _as_real(node, importer, part):
            results.append(convert(node))
    return Complex(*results)


@contextlib.contextmanager
def _as_real(node: Any, importer: Any, part: str) -> Iterator[None]:
    """In this context the node and its operands are real and have one part of their values. Operands
    that are joined to complex ones may be real."""
    joined = pytree.tree_leaves(node.args[: _JOINED.get(node.target.__name__, 1)])
    operands = {*joined, *filter(is_complex, node.all_input_nodes)}
    kept = {each: each.meta["val"] for each in (node, *operands)}
    values = {each: importer.env[each] for each in operands}
    try:
        for each, meta in kept.items():
            each.meta["val"] = pytree.tree_map_only(torch.Tensor, real_like, meta)
        for each in operands:
            importer.env[each] = _part(importer, values[each], part)
        yield
    finally:
        importer.env.update(values)
        for each, meta in kept.items():
            each.meta["val"] = meta


def _part(importer: Any, found: Any, part: str) -> Any:
    if isinstance(found, Complex):
        return getattr(found, part)
    op = Operators(importer.block_builder)
    return found if part == "real" else op.zeros_like(found)


def real_like(tensor: torch.Tensor) -> torch.Tensor:
    """One part of a (fake) tensor, with the strides of the whole."""
    if not tensor.is_complex():
        return tensor
    part = getattr(torch, part_dtype(tensor.dtype))
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=part, device=tensor.device)


def _view_as_complex(node: Any, importer: Any) -> Complex:
    op, pairs = Operators(importer.block_builder), importer.env[node.args[0]]
    axis = len(shape(pairs)) - 1
    parts = (op.strided_slice(pairs, [axis], [part], [part + 1]) for part in (0, 1))
    return Complex(*(op.squeeze(part, [axis]) for part in parts))


def _view_as_real(node: Any, importer: Any) -> Any:
    z = importer.env[node.args[0]]
    return Operators(importer.block_builder).stack([z.real, z.imag], axis=-1)


def _real(node: Any, importer: Any) -> Any:
    return importer.env[node.args[0]].real


def _imag(node: Any, importer: Any) -> Any:
    return importer.env[node.args[0]].imag


def _from_parts(node: Any, importer: Any) -> Complex:
    return _spread(node, importer, *(importer.env[argument] for argument in node.args))


def _polar(node: Any, importer: Any) -> Complex:
    op = Operators(importer.block_builder)
    size, angle = (importer.env[argument] for argument in node.args)
    return _of_polar(op, size, angle)


def _of_polar(op: Operators, size: Any, angle: Any) -> Complex:
    return Complex(op.multiply(size, op.cos(angle)), op.multiply(size, op.sin(angle)))


def _abs(node: Any, importer: Any) -> Any:
    z = importer.env[node.args[0]]
    return importer.block_builder.emit(magnitude(z.real, z.imag))


def _angle(node: Any, importer: Any) -> Any:
    z = importer.env[node.args[0]]
    return Operators(importer.block_builder).atan2(z.imag, z.real)


def _conjugate(node: Any, importer: Any) -> Complex:
    z = importer.env[node.args[0]]
    return Complex(z.real, Operators(importer.block_builder).negative(z.imag))


def _cast(node: Any, importer: Any) -> Any:
    """To a real dtype, as PyTorch does it: the real part."""
    op, wanted = Operators(importer.block_builder), node.meta["val"].dtype
    z = _operand(node.args[0], importer, wanted)
    if not wanted.is_complex:
        return z.real
    return _whole(op, z)


def _add(node: Any, importer: Any) -> Complex:
    return _sum(node, importer, Operators(importer.block_builder).add)


def _subtract(node: Any, importer: Any) -> Complex:
    return _sum(node, importer, Operators(importer.block_builder).subtract)


def _sum(node: Any, importer: Any, combine: Callable[[Any, Any], Any]) -> Complex:
    alpha = arguments(node).get("alpha", 1)
    if isinstance(alpha, complex):
        raise NotImplementedError("a complex alpha is not supported")
    op, (a, b) = Operators(importer.block_builder), _operands(node, importer)
    added = [b.real, _imag_of(b)]
    if alpha != 1:
        added = [op.multiply(part, float(alpha)) for part in added]
    return _spread(node, importer, combine(a.real, added[0]), combine(_imag_of(a), added[1]))


def _where(node: Any, importer: Any) -> Complex:
    op, condition = Operators(importer.block_builder), importer.env[node.args[0]]
    common = node.meta["val"].dtype
    a, b = (_operand(argument, importer, common) for argument in node.args[1:3])
    real = op.where(condition, a.real, b.real)
    return _spread(node, importer, real, op.where(condition, _imag_of(a), _imag_of(b)))


def _power(node: Any, importer: Any) -> Complex:
    """A small whole power, by products."""
    z, exponent = importer.env[node.args[0]], node.args[1]
    if exponent not in (1, 2, 3, 4):
        raise NotImplementedError(
            "of powers of complex numbers, those by 1, 2, 3 and 4 are supported"
        )
    op, result = Operators(importer.block_builder), z
    for _ in range(int(exponent) - 1):
        result = product(op, op.multiply, result, z)
    return result


def _log(node: Any, importer: Any) -> Complex:
    op = Operators(importer.block_builder)
    return Complex(op.log(_abs(node, importer)), _angle(node, importer))


def _multiply(node: Any, importer: Any) -> Complex:
    return _products(node, importer, Operators(importer.block_builder).multiply)


def _matmul(node: Any, importer: Any) -> Complex:
    return _products(node, importer, Operators(importer.block_builder).matmul)


def _root(node: Any, importer: Any) -> Complex:
    op, size, angle = (
        Operators(importer.block_builder),
        _abs(node, importer),
        _angle(node, importer),
    )
    return _of_polar(op, op.sqrt(size), op.multiply(angle, 0.5))


def _products(node: Any, importer: Any, multiply: Callable[[Any, Any], Any]) -> Complex:
    return product(Operators(importer.block_builder), multiply, *_operands(node, importer))


def product(op: Operators, multiply: Callable[[Any, Any], Any], a: Complex, b: Complex) -> Complex:
    """By ``multiply`` of parts, element by element or of matrices. The imaginary part of a real factor
    is None."""
    if b.imag is None:
        return Complex(multiply(a.real, b.real), multiply(a.imag, b.real))
    if a.imag is None:
        return Complex(multiply(a.real, b.real), multiply(a.real, b.imag))
    real = op.subtract(multiply(a.real, b.real), multiply(a.imag, b.imag))
    return Complex(real, op.add(multiply(a.real, b.imag), multiply(a.imag, b.real)))


def _divide(node: Any, importer: Any) -> Complex:
    op, (a, b) = Operators(importer.block_builder), _operands(node, importer)
    if b.imag is None:
        return Complex(op.divide(a.real, b.real), op.divide(a.imag, b.real))
    return _quotient(op, a, b)


def _reciprocal(node: Any, importer: Any) -> Complex:
    op, b = Operators(importer.block_builder), importer.env[node.args[0]]
    return _quotient(op, Complex(relax.const(1.0, dtype(b.real)), None), b)


def _quotient(op: Operators, a: Complex, b: Complex) -> Complex:
    """Of numbers whose squares are no finite ones, or vanish, too."""
    large = op.maximum(op.abs(b.real), op.abs(b.imag))
    real, imag = op.divide(b.real, large), op.divide(b.imag, large)
    square = op.add(op.square(real), op.square(imag))
    inverse = Complex(op.divide(real, square), op.divide(op.negative(imag), square))
    quotient = product(op, op.multiply, a, inverse)
    return Complex(op.divide(quotient.real, large), op.divide(quotient.imag, large))


def _exp(node: Any, importer: Any) -> Complex:
    op, z = Operators(importer.block_builder), importer.env[node.args[0]]
    return _of_polar(op, op.exp(z.real), z.imag)


def _full_like(node: Any, importer: Any) -> Any:
    op, result, number = Operators(importer.block_builder), node.meta["val"], node.args[1]
    extents, part = list(result.shape), part_dtype(result.dtype)
    if not result.is_complex():
        return op.full(extents, relax.const(number, part))
    whole = complex(number)
    return Complex(*(op.full(extents, relax.const(x, part)) for x in (whole.real, whole.imag)))


def _operands(node: Any, importer: Any) -> tuple[Complex, Complex]:
    """Both operands, of which at least one is complex."""
    common = node.meta["val"].dtype
    first, second = (_operand(argument, importer, common) for argument in node.args[:2])
    return first, second


def _operand(argument: Any, importer: Any, common: torch.dtype) -> Complex:
    """A node or a number, whose parts have the dtype of those of ``common``. The imaginary part of a
    real one is None."""
    part = part_dtype(common)
    if isinstance(argument, complex):
        return Complex(relax.const(argument.real, part), relax.const(argument.imag, part))
    if not isinstance(argument, fx.Node):
        return Complex(relax.const(argument, part), None)
    op, found = Operators(importer.block_builder), importer.env[argument]
    if isinstance(found, Complex):
        return Complex(op.astype(found.real, part), op.astype(found.imag, part))
    return Complex(op.astype(found, part), None)


def _spread(node: Any, importer: Any, *parts: Any) -> Complex:
    """Both parts in the shape of the node's value: one that was a scalar may lack axes."""
    op, extents = Operators(importer.block_builder), list(node.meta["val"].shape)
    return Complex(*(x if shape(x) == extents else op.broadcast_to(x, extents) for x in parts))


def _imag_of(z: Complex) -> Any:
    """The imaginary part of an operand, a scalar if it is real."""
    return relax.const(0.0, dtype(z.real)) if z.imag is None else z.imag


def _whole(op: Operators, z: Complex) -> Complex:
    """With zeros as the imaginary part of a real operand."""
    return Complex(z.real, op.zeros_like(z.real)) if z.imag is None else z


CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "_conj.default": _conjugate,
    "_conj_physical.default": _conjugate,
    "_to_copy.default": _cast,
    "abs.default": _abs,
    "add.Tensor": _add,
    "angle.default": _angle,
    "bmm.default": _matmul,
    "complex.default": _from_parts,
    "div.Tensor": _divide,
    "exp.default": _exp,
    "full_like.default": _full_like,
    "imag.default": _imag,
    "log.default": _log,
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "mul.Scalar": _multiply,
    "mul.Tensor": _multiply,
    "polar.default": _polar,
    "pow.Tensor_Scalar": _power,
    "real.default": _real,
    "reciprocal.default": _reciprocal,
    "sqrt.default": _root,
    "sub.Tensor": _subtract,
    "view_as_complex.default": _view_as_complex,
    "view_as_real.default": _view_as_real,
    "where.self": _where,
}
"""By operator and overload, of nodes that take or return complex tensors."""

_JOINED = {"copy.default": 2, "select_scatter.default": 2, "slice_scatter.default": 2}
"""How many of an operator's arguments are complex if its result is; one of others."""

BY_PARTS = {
    "alias.default",
    "as_strided.default",
    "cat.default",
    "clone.default",
    "constant_pad_nd.default",
    "copy.default",
    "cumsum.default",
    "expand.default",
    "flip.default",
    "gather.default",
    "getitem",
    "index.Tensor",
    "index_put.default",
    "index_select.default",
    "mean.default",
    "mean.dim",
    "neg.default",
    "permute.default",
    "repeat.default",
    "scatter.src",
    "select.int",
    "select_scatter.default",
    "slice.Tensor",
    "slice_scatter.default",
    "split_with_sizes.default",
    "squeeze.dims",
    "sum.dim_IntList",
    "unfold.default",
    "unsqueeze.default",
    "view.default",
}
"""Operators whose result has the parts that result from those of the operands."""
