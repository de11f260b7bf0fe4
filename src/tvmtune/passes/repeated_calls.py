"""Legalizes equal calls of operators once.

TVM writes the kernel of each call in Python, 2 ms at a time. Networks repeat their calls, and planning
legalizes a network once for each algorithm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmtune.passes import constants
from tvmtune.passes.bindings import calls_by_operator, is_constant

if TYPE_CHECKING:
    import tvm

Legalizer = Callable[[Any, Any], Any]
"""``(block_builder, call) -> expression``, as ``relax.transform.LegalizeOps`` takes it."""

MOST = 8192
"""Kernels that are remembered; then all are forgotten."""


@dataclass(frozen=True)
class _Kernel:
    """What a legalized call becomes, whatever its arguments are called."""

    function: Any
    """The PrimFunc."""
    hint: str
    """Of its name."""
    sources: tuple[int, ...]
    """For each argument of the kernel, the position of the call's, counting those in tuples."""
    outputs: tuple[Any, ...]
    """Types of the results."""


_kernels: dict[Hashable, _Kernel | None] = {}
"""None for calls that become something else than one kernel of their arguments."""


def legalizers(graph: tvm.IRModule) -> dict[str, Legalizer]:
    """Those of TVM for the operators of ``graph``; they remember their kernels."""
    found = {name: legalizer(name) for name in calls_by_operator(graph)}
    return {name: each for name, each in found.items() if each is not None}


@functools.cache
def legalizer(operator: str) -> Legalizer | None:
    """TVM's legalizer of an operator, which remembers its kernels; None if TVM has none."""
    from tvm import ir

    legalize = ir.Op.get(operator).get_attr("FLegalize")
    if legalize is None:
        return None

    def legalize_or_recall(builder: Any, call: Any) -> Any:
        arguments = _flat(call)
        return _recalled(builder, legalize, call, arguments, _key(operator, call, arguments))

    return legalize_or_recall


def legalized(builder: Any, call: Any) -> Any:
    """What TVM's legalizer of the call's operator, which must have one, makes of it."""
    legalize = legalizer(str(call.op.name))
    assert legalize is not None
    return legalize(builder, call)


def call_te(
    builder: Any,
    name: str,
    program: Callable[..., Any],
    options: tuple[Hashable, ...],
    *arguments: Any,
) -> Any:
    """``builder.call_te`` of ``program(*options, *tensors)``, whose kernel is remembered."""

    made = functools.partial(program, *options)

    def legalize(builder: Any, arguments: Sequence[Any]) -> Any:
        return builder.call_te(made, *arguments, primfunc_name_hint=name)

    key = (program, options, *_arguments_key(arguments))
    return _recalled(builder, legalize, arguments, arguments, key)


def _recalled(
    builder: Any, legalize: Legalizer, call: Any, arguments: Sequence[Any], key: Hashable
) -> Any:
    """``legalize(builder, call)``, whose kernel is made once for each ``key``."""
    from tvm import relax

    if key not in _kernels:
        if len(_kernels) >= MOST:
            _kernels.clear()
        _kernels[key] = _legalized(legalize, call, arguments)
    kernel = _kernels.get(key)
    if kernel is None:
        return legalize(builder, call)
    return relax.call_tir(
        builder.add_func(kernel.function, kernel.hint),
        relax.Tuple([arguments[i] for i in kernel.sources]),
        list(kernel.outputs),
    )


def _flat(call: Any) -> list[Any]:
    """The arguments of a call, with those in tuples."""
    from tvm import relax

    flat: list[Any] = []
    for argument in call.args:
        flat += argument.fields if isinstance(argument, relax.Tuple) else [argument]
    return flat


def _key(operator: str, call: Any, arguments: Sequence[Any]) -> Hashable:
    """Equal for calls that become equal kernels."""
    import tvm_ffi
    from tvm import relax

    structure: Any = tvm_ffi.StructuralKey
    fields = (len(a.fields) if isinstance(a, relax.Tuple) else -1 for a in call.args)
    return (operator, structure(call.attrs), *fields, *_arguments_key(arguments))


def _arguments_key(arguments: Sequence[Any]) -> tuple[Hashable, ...]:
    """What a kernel depends on besides its program: the target, and the arguments' types.

    Which arguments are the same matters: a kernel's parameters are matched to them by identity.
    """
    import tvm
    import tvm_ffi
    from tvm import relax

    structure: Any = tvm_ffi.StructuralKey
    parts: list[Hashable] = [structure(tvm.target.Target.current(allow_none=True))]
    for i, argument in enumerate(arguments):
        if is_constant(argument) and argument.ty.ndim == 0:
            # Its value becomes part of the kernel.
            parts += [str(argument.ty.dtype), constants.values(argument).tobytes()]
        elif isinstance(argument, relax.Var) or is_constant(argument):
            same = next(j for j in range(i + 1) if arguments[j].same_as(argument))
            parts += [same, structure(argument.ty)]
        else:
            parts += [-1, structure(argument)]
    return tuple(parts)


def _legalized(legalize: Legalizer, call: Any, arguments: Sequence[Any]) -> _Kernel | None:
    from tvm import ir, relax

    builder = relax.BlockBuilder()  # in an empty module a kernel's name is its hint
    try:
        result = legalize(builder, call)
    except Exception:  # it needs a function to emit to, or fails: let it do so where it belongs
        return None
    if not isinstance(result, relax.Call) or result.op != ir.Op.get("relax.call_tir"):
        return None
    variable, values = result.args[0], result.args[1]
    (output,) = result.ty_args
    outputs = tuple(output.fields) if isinstance(output, relax.TupleType) else (output,)
    if len(result.args) != 2 or (len(outputs) == 1 and outputs[0] is not output):
        return None
    sources = []
    for value in values.fields:
        places = [i for i, argument in enumerate(arguments) if argument.same_as(value)]
        if not places:
            return None
        sources.append(places[0])
    function = builder.get()[variable].without_attr("global_symbol")
    return _Kernel(function, str(variable.name_hint), tuple(sources), outputs)
