"""Scatters into a network's state, such as the cache of a language model, change it in place.

A scatter copies its data before it applies the updates: for one more token, the whole cache. A run may
overwrite the inputs that are state, since its outputs take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmtune.passes import scatters
from tvmtune.passes.bindings import bindings, operator_of, reads, rebind
from tvmtune.passes.blocks import blocks, with_body
from tvmtune.types import product

if TYPE_CHECKING:
    import tvm

_SMALL = 1 << 14
"""Elements of updates that one thread handles in the time that it takes to start others."""


def in_place(mod: tvm.IRModule, state: Mapping[int, int]) -> tvm.IRModule:
    """``mod``, with kernels, in which scatters into state change it in place where nothing else reads
    the old values. ``state``: positions of outputs by those of the parameters of ``main`` that they are
    in the next run.

    Left alone is state whose memory may be another tensor's in the next run: that of a constant, of an
    input that is not state, or of two of the outputs.
    """
    owned = _owned(mod, state)
    count = reads(mod) if owned else {}
    kernels: dict[str, Any] = {}
    made: dict[Any, Callable[[Any], Any]] = {}
    for binding in bindings(mod):
        call = binding.value
        if operator_of(call) != "call_tir":
            continue
        variable, arguments = call.args[0], list(call.args[1].fields)
        name = f"{variable.name_hint}_in_place"
        if not arguments or arguments[0] not in owned or count[arguments[0]] > 1:
            continue
        if any(each.same_as(arguments[0]) for each in arguments[1:]):
            continue
        kernel = kernels.get(name) or _without_copy(mod[variable])
        if kernel is not None:
            kernels[name] = kernel
            owned.add(binding.var)
            made[binding.var] = partial(_call, mod, kernel.with_attr("global_symbol", name), call)
    return rebind(mod, made)


def _owned(mod: tvm.IRModule, state: Mapping[int, int]) -> set[Any]:
    """The parameters of ``main`` whose memory, in each run, is that of no other tensor."""
    from tvm import relax

    parameters, memory = [*mod["main"].params], _memory(mod)
    bound = {binding.var: binding.value for binding in bindings(mod)}
    result = mod["main"].body.body
    result = bound.get(result, result)
    outputs = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    after = {place: memory.get(outputs[number]) for place, number in state.items()}
    taken = [*after.values(), *(p for place, p in enumerate(parameters) if place not in state)]
    return {
        parameters[place]
        for place, each in after.items()
        if each is not None
        and sum(each.same_as(other) for other in taken if other is not None) == 1
    }


def _memory(mod: tvm.IRModule) -> dict[Any, Any]:
    """For each variable the one whose memory it has: itself, unless it is a view. Those of constants
    are left out."""
    from tvm import relax

    found = {parameter: parameter for parameter in mod["main"].params}
    for binding in bindings(mod):
        value, source = binding.value, None
        if isinstance(value, relax.Var):
            source = value
        elif operator_of(value) == "reshape":
            source = value.args[0]
        elif operator_of(value) == "call_tir" and len(value.args[1].fields) == 1:
            if relax.analysis.has_reshape_pattern(mod[value.args[0]]):
                source = value.args[1].fields[0]
        elif not isinstance(value, relax.Call):
            continue
        whole = binding.var if source is None else found.get(source)
        if whole is not None:
            found[binding.var] = whole
    return found


def _call(mod: tvm.IRModule, kernel: Any, call: Any, mutator: Any) -> Any:
    """``call`` of a scatter as one of ``kernel``, which changes its first argument."""
    from tvm import relax

    variable = mutator.builder_.add_func(kernel, str(kernel.attrs["global_symbol"]))
    arguments = [mutator.visit_expr(each) for each in call.args[1].fields]
    return relax.call_tir_inplace(variable, relax.Tuple(arguments), [0], call.ty)


def _without_copy(kernel: Any) -> Any | None:
    """A scatter without its first step, the copy of the data, and with the data as its result; None for
    other kernels."""
    from tvm import ir, tirx
    from tvm_ffi import structural_map

    found = [block for block in blocks(kernel) if str(block.name_hint) != "root"]
    if [str(block.name_hint) for block in found] != [scatters.NAME]:
        return None
    threads = found[0].body
    data, _, updates, result = kernel.params
    _, *rest = threads.body.seq
    is_small = product([int(extent) for extent in updates.shape]) <= _SMALL
    kind = tirx.ForKind.SERIAL if is_small else threads.kind
    body = tirx.SeqStmt(rest) if len(rest) > 1 else rest[0]
    loop = tirx.For(threads.loop_var, threads.min, threads.extent, kind, body)

    def renamed(variable: Any) -> Any:
        return data if variable.same_as(result) else variable

    changed = structural_map(with_body(kernel, scatters.NAME, loop).body, (ir.Var, renamed))
    return tirx.PrimFunc([*kernel.params][:-1], changed, kernel.ret_type, kernel.attrs)
