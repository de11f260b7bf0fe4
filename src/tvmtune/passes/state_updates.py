"""Scatters into a network's state, such as the cache of a language model, change it in place.

A scatter copies its data before it applies the updates: for one more token, the whole cache. A run may
overwrite the inputs that are state, since its outputs take their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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


def in_place(mod: tvm.IRModule, state: Collection[int]) -> tvm.IRModule:
    """``mod``, with kernels, in which scatters into the parameters of ``main`` at these positions, and
    into what they become, change them in place where nothing else reads the old values."""

    parameters = mod["main"].params
    owned = {parameters[position] for position in state}
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
