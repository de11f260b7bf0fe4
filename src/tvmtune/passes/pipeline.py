"""The passes from a network to fused kernels, shared by all backends.

:func:`prepare` stops before legalization, because tuning chooses the algorithm of each operator;
:func:`legalize` takes that choice and continues to fused PrimFuncs.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmtune import dot_instructions
from tvmtune.errors import UsageError, first_line, nearest
from tvmtune.passes import (
    attention,
    block_names,
    clamp_chains,
    concatenations,
    constants,
    elementwise_layouts,
    few_queries,
    folding,
    fusable_calls,
    group_norm,
    low_bit_weights,
    packed_products,
    pads,
    quantized_moves,
    quantized_operators,
    quantized_sums,
    repeated_calls,
    resizes,
    rounding,
    scans_and_sorts,
    scatters,
    seldom_read_taps,
    softmax,
    special_values,
    splits,
    squeeze_axes,
    transposed_convolutions,
    transposes,
    unread_taps,
    unsigned_activations,
)
from tvmtune.passes.blocks import REORDERS, blocks, reduces
from tvmtune.passes.precision import sum_in_float32
from tvmtune.types import Device, Network, Prepared

if TYPE_CHECKING:
    import tvm

    from tvmtune.passes.repeated_calls import Legalizer

LAYOUTS: dict[str, dict[str, list[str]]] = {
    "NCHW": {
        "relax.nn.conv1d": ["NCW", "OIW"],
        "relax.nn.conv2d": ["NCHW", "OIHW"],
        "relax.nn.conv3d": ["NCDHW", "OIDHW"],
    },
    "NHWC": {
        "relax.nn.conv1d": ["NWC", "WIO"],
        "relax.nn.conv2d": ["NHWC", "HWIO"],
        "relax.nn.conv3d": ["NDHWC", "DHWIO"],
        # TVM has kernels for these in one layout only; if not listed, they follow their input.
        "relax.nn.conv1d_transpose": ["NCW", "IOW"],
        "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
        "relax.nn.conv3d_transpose": ["NCDHW", "IODHW"],
    },
}
"""Layouts of data and weights to which convolutions are converted."""


def prepare(
    network: Network,
    device: Device,
    layout: str | None = None,
    *,
    keep_convolutions: bool = False,
) -> Prepared:
    """Simplify the network, fold what is constant, and convert convolutions to ``layout``.

    The network's inputs and outputs keep their layout; conversions happen inside. With
    ``keep_convolutions``, none is replaced by others, so that hardware can compute whole ones. Raises
    :class:`UsageError` for an unknown layout.
    """
    from tvm import relax

    chosen = (layout or "NHWC").upper()
    if chosen not in LAYOUTS:
        raise UsageError(f"layout '{layout}' is not known.{nearest(chosen, list(LAYOUTS))}")
    graph = unread_taps.drop(pads.fold(network.to_relax()))
    graph = special_values.in_float32(graph)
    graph = concatenations.share(concatenations.drop_empty(resizes.drop(graph)))
    quantized = quantized_operators.exist(graph)
    instruction = dot_instructions.for_bytes(device.target)
    if quantized and instruction is not None:
        if instruction.data == "uint8":
            graph = unsigned_activations.shift(graph)
        graph = quantized_sums.fold_scales(quantized_moves.reshape_integers(graph))
        graph = quantized_operators.lower(graph, instruction)
    graph = constants.fold_moves(sum_in_float32(graph))
    graph = _run(
        graph,
        device,
        [
            relax.transform.DecomposeOpsForInference(),
            relax.transform.FoldConstant(),
            relax.transform.CanonicalizeBindings(),
        ],
    )
    if not keep_convolutions:
        graph = transposed_convolutions.rewrite(graph)
    if constants.has_convolutions(graph):
        graph = _convert(graph, device, LAYOUTS[chosen], network.name)
    elif quantized:
        graph = transposes.remove(graph)
    if device.runtime == "cpu" and not keep_convolutions:
        cores = int(device.target.get("num-cores") or 1)
        graph = attention.fuse(seldom_read_taps.split(graph), device.target, cores)
        graph = few_queries.fuse(graph, device.target)
        graph = low_bit_weights.pack(graph, device.target)
    graph = _run(graph, device, [relax.transform.DeadCodeElimination()])
    return Prepared(network=network, device=device, layout=chosen, graph=graph)


def graph_of(prepared: Prepared) -> tvm.IRModule:
    """The prepared graph, rebuilt if it was released."""
    if prepared.graph is None:
        prepared.graph = prepare(prepared.network, prepared.device, prepared.layout).graph
    return prepared.graph


def release(prepared: Prepared) -> None:
    """Free the graph of a network that does not keep its weights in memory either.

    Between lowering and the end of a compilation the weights would otherwise be in memory twice.
    """
    if getattr(prepared.network, "releases_weights", False):
        prepared.graph = None
        gc.collect()  # TVM's passes in Python leave cycles behind


def _convert(
    graph: tvm.IRModule, device: Device, layouts: dict[str, list[str]], name: str
) -> tvm.IRModule:
    from tvm import relax

    elementwise_layouts.register()
    try:
        converted = _run(
            squeeze_axes.count_from_start(constants.widen(graph)),
            device,
            [relax.transform.ConvertLayout(layouts), relax.transform.Normalize()],
        )
    except Exception as error:  # an operator that the pass does not support
        warnings.warn(
            f"{name} keeps its own layout, because TVM cannot convert it: {first_line(error)}",
            stacklevel=3,
        )
        return graph
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.FoldConstant()]
    return transposes.remove(_run(constants.fold_moves(converted), device, passes))


_CPU_LEGALIZERS: dict[str, Legalizer] = {
    **scans_and_sorts.CPU_LEGALIZERS,
    **scatters.LEGALIZERS,
    **softmax.LEGALIZERS,
}


def legalize(
    graph: tvm.IRModule, device: Device, custom: Mapping[str, Legalizer] | None = None
) -> tvm.IRModule:
    """Lower operators to TensorIR and fuse them; ``custom`` overrides single operators.

    Constant arguments are marked layout-free, so that schedules may re-order weights.
    """
    from tvm import relax

    own = {str(variable.name_hint) for variable in graph.get_global_vars()}
    legalizers = {
        **repeated_calls.legalizers(graph),
        **scans_and_sorts.LEGALIZERS,
        **rounding.LEGALIZERS,
        **group_norm.LEGALIZERS,
        **splits.LEGALIZERS,
        **(_CPU_LEGALIZERS if device.runtime == "cpu" else {}),
        **(custom or {}),
    }
    lowered = _run(
        graph,
        device,
        [relax.transform.LegalizeOps(legalizers), relax.transform.CanonicalizeBindings()],
    )
    annotated = _run(
        block_names.neutralize(lowered, own), device, [relax.transform.AnnotateTIROpPattern()]
    )
    fused = _run(
        clamp_chains.cut(fusable_calls.correct_patterns(annotated)),
        device,
        [
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
            relax.transform.AttachAttrLayoutFreeBuffers(),
        ],
    )
    return _keep_layouts_of_parameters(fused)


def _keep_layouts_of_parameters(mod: tvm.IRModule) -> tvm.IRModule:
    """Unmark kernels in which no reduction reads a constant: re-ordering gains nothing there, and fails
    on constants that are read through a reshape. Unmark constants of which a reduction reads several
    elements at a time, such as the corners of a region: they are re-ordered for one of its reads.

    Of kernels whose weights are packed already, unmark all constants that no reduction reads, such as a
    bias: TVM would load the values of a vector that crosses blocks one by one. Others keep the mark,
    because workload keys hash it.
    """
    from tvm import tirx

    for variable, function in mod.functions_items():
        free = isinstance(function, tirx.PrimFunc) and function.attrs.get("layout_free_buffers")
        if not free:
            continue
        reads = _reads_of_reductions(function, [*map(int, free)])
        reduced = [position for position in reads if reads[position] == 1]
        if not reduced or len(reduced) < len(reads) or _is_packed(function):
            mod.update_func(variable, function.with_attr("layout_free_buffers", reduced))
    return mod


def _reads_of_reductions(function: Any, positions: Sequence[int]) -> dict[int, int]:
    """Of the parameters at these positions those that a reduction reads, and how many different
    elements it reads of each at a time, at most."""
    from tvm.ir import TensorLoad
    from tvm_ffi import structural_hash, structural_walk

    found: dict[int, int] = {}
    for block in blocks(function):
        if not reduces(block):
            continue
        loads: list[Any] = []
        structural_walk(block.body, (TensorLoad, loads.append))
        for position in positions:
            buffer = function.params[position]
            places = {structural_hash(each) for each in loads if each.source.same_as(buffer)}
            if places:
                found[position] = max(len(places), found.get(position, 0))
    return dict(sorted(found.items()))


def _is_packed(function: Any) -> bool:
    return any(str(b.name_hint).startswith(packed_products.NAME) for b in blocks(function))


def pack_weights(mod: tvm.IRModule, device: Device) -> tvm.IRModule:
    """Apply the weight re-ordering that the schedules request, at compile time.

    Only the kernels that the program calls remain: those that re-ordered weights have run, and a kernel
    that reads re-ordered weights has replaced the original.
    """
    import tvm
    from tvm import relax, tirx

    functions = dict(mod.functions_items())
    # The pass asserts a form that kernels with hand-written loops do not have.
    others = {
        variable: function
        for variable, function in functions.items()
        if isinstance(function, tirx.PrimFunc) and not _reorders(function)
    }
    asking = {v: f for v, f in functions.items() if v not in others}
    mod = tvm.IRModule(asking, attrs=mod.attrs)
    mod = _run(mod, device, [relax.transform.SplitLayoutRewritePreproc()])
    for variable, function in others.items():
        mod.update_func(variable, function)
    mod = folding.fold(mod)
    passes = [
        relax.transform.FoldConstant(),
        # Without it the program builds and unpacks tuples of weights on every run.
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    return _without_unused_kernels(_run(mod, device, passes))


def _without_unused_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's DeadCodeElimination keeps kernels that have a symbol, even if the program calls none of
    them."""
    import tvm
    from tvm import ir, relax, tirx
    from tvm_ffi import structural_walk

    used: set[str] = set()
    todo = [f for f in mod.functions.values() if isinstance(f, relax.Function)]
    while todo:
        found: list[Any] = []
        structural_walk(todo.pop().body, (ir.GlobalVar, found.append))
        for variable in found:
            if (name := str(variable.name_hint)) not in used:
                used.add(name)
                todo.append(mod[variable])
    kept = {
        variable: function
        for variable, function in mod.functions_items()
        if not isinstance(function, tirx.PrimFunc) or str(variable.name_hint) in used
    }
    return tvm.IRModule(kept, attrs=mod.attrs)


def _reorders(function: Any) -> bool:
    """Whether one of its blocks re-orders a weight."""
    return any(REORDERS in block.annotations for block in blocks(function))


def _run(mod: tvm.IRModule, device: Device, passes: list[Any]) -> tvm.IRModule:
    import tvm

    with tvm.target.Target(device.target), tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod)
