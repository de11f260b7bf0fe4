"""ONNX to Relax through TVM's importer, with errors that name the node.

The importer looks up converters by operator regardless of the domain, and reports operators without
their nodes; both are fixed here. :mod:`tvmtune.networks.onnx.converters` replaces its wrong converters.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import onnx
from onnx import AttributeProto, defs

from tvmtune.errors import TvmtuneError
from tvmtune.networks.importer_helpers import check_signature, local_in, quiet
from tvmtune.networks.model_file import one_line
from tvmtune.networks.onnx.batch_norm import fold_batch_norms
from tvmtune.networks.onnx.fold import decide_branches, fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import tvm

    from tvmtune.networks.onnx.weights import Weights
    from tvmtune.types import TensorSpec

_STANDARD = ("", "ai.onnx")

_MICROSOFT = {
    "Attention",
    "BiasGelu",
    "DequantizeLinear",
    "EmbedLayerNormalization",
    "FastGelu",
    "Gelu",
    "GridSample",
    "MatMulInteger16",
    "QuantizeLinear",
    "SkipLayerNormalization",
}
"""Operators of ONNX Runtime's domain for which the importer has converters."""

_RECURRENT = "export its cells step by step as MatMul, Add, Sigmoid and Tanh, for a fixed length"
_QUANTIZED = "give the network in float32, or with QuantizeLinear and DequantizeLinear pairs"

_REMEDIES = {
    "GRU": _RECURRENT,
    "LSTM": _RECURRENT,
    "RNN": _RECURRENT,
    "Loop": "export the network with the loop unrolled",
    "Scan": "export the network with the loop unrolled",
    "If": "its condition depends on the data: export the network with the branch decided",
    "ConvInteger": _QUANTIZED,
    "QLinearConv": _QUANTIZED,
    "QLinearMatMul": _QUANTIZED,
}
"""Remedies for operators without a converter."""

_OTHER_SEMANTICS = {"Attention"}
"""Standard operators whose converter implements ONNX Runtime's operator of the same name."""


def to_relax(
    model: onnx.ModelProto,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    label: str,
    weights: Weights | None = None,
) -> tvm.IRModule:
    """Import ``model``: weights as constants, and one function ``main`` with ``inputs`` in order.

    ``weights`` holds those that the model only declares; the result uses them in place.

    Operators that the importer lacks are expanded if the standard defines them in terms of others;
    constants and batch normalizations are folded. Raises :class:`TvmtuneError` that names the node if
    an operator is still missing or its conversion fails.
    """
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    from tvmtune.networks.onnx.converters import CONVERTERS
    from tvmtune.networks.onnx.importer import Importer

    convertible = set(_get_convert_map()) | set(CONVERTERS) | {"Constant"}
    arrays = dict(weights or {})
    model = fold_batch_norms(decide_branches(fold(_expand(fold(model), convertible))), arrays)
    versions = {o.domain: o.version for o in model.opset_import}
    for node in _nodes(model.graph):
        if not _supported(node, convertible):
            raise TvmtuneError(
                f"{describe(node, versions)} of {label} is not supported by the importer; "
                f"{_remedy(node)}"
            )
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise TvmtuneError(
            f"weight '{name}' of {label} is sparse, which the importer does not support; "
            "export it as a dense tensor"
        )
    try:
        # It prints what it fails on, and warns of renamed inputs, which we identify by position.
        with quiet():
            version = next((versions[d] for d in _STANDARD if d in versions), 1)
            module = Importer(arrays).from_onnx(model.graph, version)
    except Exception as error:
        culprit = local_in(error.__traceback__, "node", onnx.NodeProto)
        where = f"{describe(culprit, versions)} of {label}" if culprit is not None else label
        raise TvmtuneError(
            f"{where} cannot be imported: {type(error).__name__}: {one_line(error)}; "
            "simplify or replace that part of the network and export it again"
        ) from error
    check_signature(module, inputs, outputs, label)
    return module


def describe(node: onnx.NodeProto, versions: dict[str, int]) -> str:
    """``node 'attn_3' (com.microsoft.FusedMatMul, opset 1)``."""
    standard = node.domain in _STANDARD
    version = next((versions[d] for d in (node.domain, *_STANDARD) if d in versions), 0)
    operator = node.op_type if standard else f"{node.domain}.{node.op_type}"
    name = node.name or next((f"-> {output}" for output in node.output if output), "unnamed")
    return f"node '{name}' ({operator}, opset {version})"


def check_operators(model: onnx.ModelProto, label: str) -> None:
    """Raise :class:`TvmtuneError` for the first node whose operator no version of ONNX knows."""
    versions = {o.domain: o.version for o in model.opset_import}
    for node in _nodes(model.graph):
        if node.domain in _STANDARD and not defs.has(node.op_type):
            raise TvmtuneError(
                f"{describe(node, versions)} of {label} is not supported: ONNX has no such "
                f"operator; {_remedy(node)}"
            )


def check_domains(model: onnx.ModelProto, label: str) -> None:
    """Raise :class:`TvmtuneError` for the first node whose operator is not of the standard."""
    versions = {o.domain: o.version for o in model.opset_import}
    for node in _nodes(model.graph):
        if node.domain not in _STANDARD:
            raise TvmtuneError(
                f"{describe(node, versions)} of {label} is not supported: nothing here can run it; "
                f"{_remedy(node)}"
            )


def _supported(node: onnx.NodeProto, convertible: set[str]) -> bool:
    if node.domain in _STANDARD:
        return node.op_type in convertible and node.op_type not in _OTHER_SEMANTICS
    if node.domain == "com.microsoft":
        return node.op_type in convertible and node.op_type in _MICROSOFT
    return False


def _remedy(node: onnx.NodeProto) -> str:
    if node.domain in _STANDARD and node.op_type in _REMEDIES:
        return _REMEDIES[node.op_type]
    if node.domain == "com.microsoft":
        return "give the network as it was before ONNX Runtime's optimizer fused its operators"
    return "replace it by other operators of the ONNX standard and export the network again"


def _expand(model: onnx.ModelProto, convertible: set[str]) -> onnx.ModelProto:
    """Replace standard operators that the importer lacks by their definitions, if any."""
    from onnx import inliner

    expanded: set[str] = set()
    # A definition may use operators that need expansion in turn, but never itself.
    while missing := _definable(model, convertible) - expanded:
        expanded |= missing
        with contextlib.suppress(Exception):  # the caller reports what stays unexpanded
            functions = [("", operator) for operator in sorted(missing)]
            model = inliner.inline_selected_functions(
                model, functions, inline_schema_functions=True
            )
    return model


def _definable(model: onnx.ModelProto, convertible: set[str]) -> set[str]:
    """Standard operators of ``model`` that have no converter but a definition."""
    versions = {o.domain: o.version for o in model.opset_import}
    version = next((versions[d] for d in _STANDARD if d in versions), 1)
    definable = set()
    for node in _nodes(model.graph):
        if node.domain in _STANDARD and not _supported(node, convertible):
            with contextlib.suppress(defs.SchemaError):
                schema: Any = defs.get_schema(node.op_type, version, "")
                if schema.has_function or schema.has_context_dependent_function:
                    definable.add(node.op_type)
    return definable


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, including those of branches and loop bodies."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g)
