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
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree  # there is no public name for it
from tvm import relax

from tvmtune.networks.relax_operators import Operators, dtype, shape
from tvmtune.networks.torch.converters.arithmetic import dtype_name, magnitude
from tvmtune.networks.torch.program import arguments

_aten = torch.ops.aten


@dataclass(frozen=True)
class Complex:
    """The Relax values of both parts, which are tuples for several results."""

    real: Any
    imag: Any


def is_complex(node: Any) -> bool:
    """Whether a node's value, or the first of its values, is complex."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return bool(values) and isinstance(values[0], torch.Tensor) and values[0].is_complex()


def part_dtype(dtype: torch.dtype) -> str:
    """``float32`` of ``torch.complex64``; of real dtypes their own name."""
    return dtype_name(torch.empty((), dtype=dtype).real.dtype)


def takes_part(node: Any) -> bool:
    """Whether a node takes or returns complex tensors, and returns anything: assertions do not."""
    return node.meta.get("val") is not None and any(map(is_complex, (node, *node.all_input_nodes)))


def by_parts(node: Any, importer: Any, convert: Callable[[Any], Any]) -> Complex:
    """The value of a node whose operator moves or adds elements: ``convert`` makes each of its parts.

    Raises NotImplementedError for other operators.
    """
    name = str(node.target.__name__)
    if name not in BY_PARTS:
        raise NotImplementedError("complex numbers are not supported by this operator")
    joined = pytree.tree_leaves(node.args[: _JOINED.get(name, 1)])
    if not all(map(is_complex, joined)):
        raise NotImplementedError("it joins real and complex tensors, which is not supported")
    if name == "constant_pad_nd.default" and arguments(node)["value"] != 0:
        raise NotImplementedError("complex padding other than 0 is not supported")
    results = []
    for part in ("real", "imag"):
        with _as_real(node, importer, part):
            results.append(convert(node))
    return Complex(*results)


@contextlib.contextmanager
def _as_real(node: Any, importer: Any, part: str) -> Iterator[None]:
    """In this context the node and its complex operands are real and have one part of their values."""
    kept = {each: each.meta["val"] for each in (node, *node.all_input_nodes) if is_complex(each)}
    values = {each: importer.env[each] for each in kept if each is not node}
    try:
        for each, meta in kept.items():
            each.meta["val"] = pytree.tree_map_only(torch.Tensor, real_like, meta)
        importer.env.update({each: getattr(found, part) for each, found in values.items()})
        yield
    finally:
        importer.env.update(values)
        for each, meta in kept.items():
            each.meta["val"] = meta


def real_like(tensor: torch.Tensor) -> torch.Tensor:
    """One part of a (fake) tensor, with the strides of the whole."""
    if not tensor.is_complex():
        return tensor
    dtype = getattr(torch, part_dtype(tensor.dtype))
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)


def split_weights(program: Any) -> None:
    """Replace complex weights by real ones with the parts as last axis, in place."""
    tensors = {**program.state_dict, **program.constants}
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for place, spec in enumerate(signature.input_specs):
        tensor = tensors.get(spec.target)
        if not isinstance(tensor, torch.Tensor) or not tensor.is_complex():
            continue
        node = nodes[spec.arg.name]
        parts = torch.view_as_real(tensor.detach().resolve_conj().contiguous())
        with program.graph.inserting_after(node):
            whole = program.graph.call_function(_aten.view_as_complex.default, (node,))
        whole.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(whole, delete_user_cb=lambda user, made=whole: user is not made)
        node.meta["val"] = node.meta["val"].new_empty(parts.shape, dtype=parts.dtype)
        target = f"tvmtune_parts_{place}"
        program.constants.pop(spec.target, None)
        program.constants[target] = parts
        argument = TensorArgument(name=node.name)
        signature.input_specs[place] = InputSpec(InputKind.CONSTANT_TENSOR, argument, target)
    program.graph_module.recompile()


def read_parts(program: Any) -> None:
    """Replace ``z.real``, which PyTorch exports as an element of a pair of both parts, by that part, in
    place: the other need not be computed."""
    graph = program.graph
    for pair in graph.find_nodes(op="call_function", target=_aten.view_as_real.default):
        axis = pair.meta["val"].dim() - 1
        for node in list(pair.users):
            if node.target is _aten.select.int and node.args[1] % (axis + 1) == axis:
                node.target = (_aten.real if node.args[2] in (0, -2) else _aten.imag).default
                node.args = pair.args
    graph.eliminate_dead_code()
    program.graph_module.recompile()


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
    return Complex(*(importer.env[argument] for argument in node.args))


def _polar(node: Any, importer: Any) -> Complex:
    op = Operators(importer.block_builder)
    size, angle = (importer.env[argument] for argument in node.args)
    return Complex(op.multiply(size, op.cos(angle)), op.multiply(size, op.sin(angle)))


def _abs(node: Any, importer: Any) -> Any:
    z = importer.env[node.args[0]]
    return importer.block_builder.emit(magnitude(z.real, z.imag))


def _angle(node: Any, importer: Any) -> Any:
    op, z = Operators(importer.block_builder), _operand(node.args[0], importer, torch.complex64)
    return op.atan2(_whole(op, z).imag, z.real)


def _conjugate(node: Any, importer: Any) -> Complex:
    z = importer.env[node.args[0]]
    return Complex(z.real, Operators(importer.block_builder).negative(z.imag))


def _cast(node: Any, importer: Any) -> Complex:
    op, wanted = Operators(importer.block_builder), node.meta["val"]
    if not wanted.is_complex():
        raise NotImplementedError("a complex tensor has no real dtype; take its real part (z.real)")
    z = _whole(op, _operand(node.args[0], importer, wanted.dtype))
    part = part_dtype(wanted.dtype)
    return Complex(op.astype(z.real, part), op.astype(z.imag, part))


def _add(node: Any, importer: Any) -> Complex:
    op = Operators(importer.block_builder)
    return _sum(node, importer, op.add)


def _subtract(node: Any, importer: Any) -> Complex:
    op = Operators(importer.block_builder)
    return _sum(node, importer, op.subtract)


def _sum(node: Any, importer: Any, combine: Callable[[Any, Any], Any]) -> Complex:
    if arguments(node)["alpha"] != 1:
        raise NotImplementedError("alpha is not supported for complex numbers")
    op, operands = Operators(importer.block_builder), _operands(node, importer)
    a, b = (_whole(op, operand) for operand in operands)
    return Complex(combine(a.real, b.real), combine(a.imag, b.imag))


def _multiply(node: Any, importer: Any) -> Complex:
    return _products(node, importer, Operators(importer.block_builder).multiply)


def _matmul(node: Any, importer: Any) -> Complex:
    return _products(node, importer, Operators(importer.block_builder).matmul)


def _products(node: Any, importer: Any, multiply: Callable[[Any, Any], Any]) -> Complex:
    op, (a, b) = Operators(importer.block_builder), _operands(node, importer)
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
    return _quotient(op, _whole(op, a), b)


def _reciprocal(node: Any, importer: Any) -> Complex:
    op, b = Operators(importer.block_builder), importer.env[node.args[0]]
    one, zero = (relax.const(number, dtype(b.real)) for number in (1.0, 0.0))
    return _quotient(op, Complex(one, zero), b)


def _quotient(op: Operators, a: Complex, b: Complex) -> Complex:
    square = op.add(op.square(b.real), op.square(b.imag))
    real = op.add(op.multiply(a.real, b.real), op.multiply(a.imag, b.imag))
    imag = op.subtract(op.multiply(a.imag, b.real), op.multiply(a.real, b.imag))
    return Complex(op.divide(real, square), op.divide(imag, square))


def _exp(node: Any, importer: Any) -> Complex:
    op, z = Operators(importer.block_builder), importer.env[node.args[0]]
    size = op.exp(z.real)
    return Complex(op.multiply(size, op.cos(z.imag)), op.multiply(size, op.sin(z.imag)))


def _full_like(node: Any, importer: Any) -> Complex:
    op, result, number = Operators(importer.block_builder), node.meta["val"], complex(node.args[1])
    extents, part = list(result.shape), part_dtype(result.dtype)
    return Complex(*(op.full(extents, relax.const(x, part)) for x in (number.real, number.imag)))


def _operands(node: Any, importer: Any) -> tuple[Complex, Complex]:
    """Both operands, of which at least one is complex."""
    dtype = node.meta["val"].dtype
    first, second = (_operand(argument, importer, dtype) for argument in node.args[:2])
    return first, second


def _operand(argument: Any, importer: Any, dtype: torch.dtype) -> Complex:
    """A node or a number, with parts of those of the complex ``dtype``; the imaginary part of a real
    one is None."""
    part = part_dtype(dtype)
    if isinstance(argument, fx.Node):
        found = importer.env[argument]
        if isinstance(found, Complex):
            return found
        return Complex(Operators(importer.block_builder).astype(found, part), None)
    if isinstance(argument, complex):
        return Complex(relax.const(argument.real, part), relax.const(argument.imag, part))
    return Complex(relax.const(argument, part), None)


def _whole(op: Operators, z: Complex) -> Complex:
    """With zeros as the imaginary part of a real operand."""
    if z.imag is not None:
        return z
    return Complex(z.real, op.full(shape(z.real), relax.const(0.0, dtype(z.real))))


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
    "matmul.default": _matmul,
    "mm.default": _matmul,
    "mul.Tensor": _multiply,
    "polar.default": _polar,
    "real.default": _real,
    "reciprocal.default": _reciprocal,
    "sub.Tensor": _subtract,
    "view_as_complex.default": _view_as_complex,
    "view_as_real.default": _view_as_real,
}
"""By operator and overload, of nodes that take or return complex tensors."""

_JOINED = {"copy.default": 2, "select_scatter.default": 2, "slice_scatter.default": 2}
"""How many of an operator's arguments are complex if its result is; one of others."""

BY_PARTS = {
    "alias.default",
    "cat.default",
    "clone.default",
    "constant_pad_nd.default",
    "copy.default",
    "expand.default",
    "flip.default",
    "gather.default",
    "getitem",
    "index.Tensor",
    "index_put.default",
    "index_select.default",
    "mean.dim",
    "neg.default",
    "permute.default",
    "repeat.default",
    "select.int",
    "select_scatter.default",
    "slice.Tensor",
    "slice_scatter.default",
    "split_with_sizes.default",
    "squeeze.dim",
    "squeeze.dims",
    "sum.default",
    "sum.dim_IntList",
    "unfold.default",
    "unsqueeze.default",
    "view.default",
}
"""Operators whose result has the parts that result from those of the operands."""
