"""Which ONNX operators can be imported, how messages name their nodes, and what to do about others."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import onnx
from onnx import AttributeProto, defs

from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Iterator

STANDARD = ("", "ai.onnx")
"""Names of the domain of the standard's operators."""

MICROSOFT = "com.microsoft"
"""ONNX Runtime's domain."""

UNOFFICIAL = {"SimplifiedLayerNormalization"}
"""Operators that ONNX Runtime writes into the standard's domain although the standard lacks them."""

_IMPORTER_MICROSOFT = {"GridSample", "MatMulInteger16", "QuantizeLinear"}
"""Operators of ONNX Runtime's domain that are left to the importer's converters."""

_QUANTIZED = "give the network in float32, or with QuantizeLinear and DequantizeLinear pairs"
_LOOP = "export the network with a fixed, small number of iterations"
_SEQUENCE = (
    "export the network with sequences whose lengths and positions do not depend on the data"
)
_SCAN = "export the network with the loop unrolled"
_BOXES = "export the network without its postprocessing: the number of boxes depends on the data"
_LAYOUT = (
    "ONNX Runtime makes it for one machine's layout of weights: save the optimized model at the level "
    "ORT_ENABLE_EXTENDED or ORT_ENABLE_BASIC, or give the network as it was before"
)

SEQUENCE_MAKERS = (
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SplitToSequence",
)
SEQUENCE_READERS = ("ConcatFromSequence", "SequenceAt", "SequenceLength")

_REMEDIES = {
    "Loop": _LOOP,
    "Scan": _SCAN,
    "If": "export the network with the branch decided",
    "NonMaxSuppression": _BOXES,
    **dict.fromkeys((*SEQUENCE_MAKERS, *SEQUENCE_READERS), _SEQUENCE),
}
"""Remedies for operators of the standard without a converter."""

_QUANTIZED_PREFIXES = (
    "QLinear",
    "QGemm",
    "QAttention",
    "QEmbed",
    "DynamicQuantize",
    "MatMulInteger",
)
"""Of ONNX Runtime's quantized operators."""

_LAYOUT_DOMAINS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")


def operator_name(node: onnx.NodeProto) -> str:
    """``Conv``, or with another domain than the standard's ``com.microsoft.FusedConv``."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def convertible() -> set[str]:
    """Names of the operators that have a converter, as :func:`operator_name` gives them."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    from tvmtune.networks.onnx.converters import CONVERTERS

    # The importer lists operators of both domains by bare name. Sequences are replaced before, and
    # its boxes without overlap have another shape than ONNX's.
    theirs = {name for name in _get_convert_map() if defs.has(name)} - {
        *SEQUENCE_MAKERS,
        *SEQUENCE_READERS,
        "NonMaxSuppression",
    }
    return (
        theirs | {f"{MICROSOFT}.{name}" for name in _IMPORTER_MICROSOFT} | {*CONVERTERS, "Constant"}
    )


def describe(node: onnx.NodeProto, versions: dict[str, int]) -> str:
    """``node 'attn_3' (com.microsoft.FusedMatMul, opset 1)``."""
    operator = operator_name(node)
    domains = (operator.rpartition(".")[0], *STANDARD)
    version = next((versions[d] for d in domains if d in versions), 0)
    name = node.name or next((f"-> {output}" for output in node.output if output), "unnamed")
    return f"node '{name}' ({operator}, opset {version})"


def remedy(node: onnx.NodeProto) -> str:
    """What to do about a node that is not supported."""
    if node.domain in STANDARD and node.op_type in _REMEDIES:
        return _REMEDIES[node.op_type]
    if node.domain in _LAYOUT_DOMAINS or node.op_type.startswith("Nhwc"):
        return _LAYOUT
    if node.domain == MICROSOFT and node.op_type.startswith(_QUANTIZED_PREFIXES):
        return _QUANTIZED
    if node.domain == MICROSOFT:
        return "give the network as it was before ONNX Runtime's optimizer fused its operators"
    return "replace it by other operators of the ONNX standard and export the network again"


def check_operators(model: onnx.ModelProto, label: str) -> None:
    """Raise :class:`TvmtuneError` for the first node whose operator no version of ONNX knows."""
    versions = opsets(model)
    for node in nodes(model.graph):
        known = defs.has(node.op_type) or node.op_type in UNOFFICIAL
        if node.domain in STANDARD and not known:
            raise TvmtuneError(
                f"{describe(node, versions)} of {label} is not supported: ONNX has no such "
                f"operator; {remedy(node)}"
            )


def check_domains(model: onnx.ModelProto, label: str) -> None:
    """Raise :class:`TvmtuneError` for the first node of a domain that nothing here can run."""
    versions = opsets(model)
    for node in nodes(model.graph):
        if node.domain in STANDARD:
            continue
        where = f"{describe(node, versions)} of {label}"
        if node.domain != MICROSOFT:
            raise TvmtuneError(f"{where} is not supported: nothing here can run it; {remedy(node)}")
        if importlib.util.find_spec("onnxruntime") is None:
            raise TvmtuneError(
                f"{where} needs ONNX Runtime, which is not installed: pip install onnxruntime"
            )


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    """Versions by domain."""
    return {opset.domain: opset.version for opset in model.opset_import}


def standard_version(model: onnx.ModelProto) -> int:
    """The version of the standard's operators."""
    versions = opsets(model)
    return next((versions[domain] for domain in STANDARD if domain in versions), 1)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, including those of branches and loop bodies."""
    for node in graph.node:
        yield node
        for inner in graphs_in(node):
            yield from nodes(inner)


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The branches or the body of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def names_read(graph: onnx.GraphProto) -> set[str]:
    """What the nodes of a graph read, and the graph's results."""
    results = {info.name for info in graph.output}
    return results.union(*map(names_read_by, graph.node))


def names_read_by(node: onnx.NodeProto) -> set[str]:
    """What a node reads, and what the graphs inside it do."""
    return {*node.input}.union(*map(names_read, graphs_in(node)))


def names_defined(graph: onnx.GraphProto) -> list[str]:
    """The inputs, weights and results of a graph and of those inside it, sorted."""
    return sorted(set(_definitions(graph)))


def _definitions(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (each.name for each in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output
        for inner in graphs_in(node):
            yield from _definitions(inner)
