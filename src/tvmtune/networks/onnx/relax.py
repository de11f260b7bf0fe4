"""ONNX to Relax through TVM's importer, with errors that name the node.

The importer looks up converters by operator regardless of the domain, and reports operators without
their nodes; both are fixed here. :mod:`tvmtune.networks.onnx.converters` replaces its wrong converters.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import onnx
from onnx import defs

from tvmtune.errors import TvmtuneError, one_line
from tvmtune.networks.importer_helpers import check_signature, end_block, local_in, quiet
from tvmtune.networks.onnx import sequences
from tvmtune.networks.onnx.batch_norm import fold_batch_norms
from tvmtune.networks.onnx.control_flow import why_kept, without_control_flow
from tvmtune.networks.onnx.operators import (
    STANDARD,
    convertible,
    describe,
    nodes,
    operator_name,
    opsets,
    remedy,
    standard_version,
)
from tvmtune.networks.onnx.recurrent_weights import fold_recurrent_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tvm

    from tvmtune.networks.onnx.weights import Weights
    from tvmtune.types import TensorSpec


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
    constants, batch normalizations and weights of recurrent operators are folded. Raises
    :class:`TvmtuneError` that names the node if an operator is still missing or its conversion fails.
    """
    from tvmtune.networks.onnx.importer import Importer

    supported = convertible()
    arrays = dict(weights or {})
    model = _expand(without_control_flow(model), supported)
    model = fold_batch_norms(without_control_flow(model), arrays)
    model = fold_recurrent_weights(model, arrays)
    versions = opsets(model)
    unsupported = [node for node in model.graph.node if operator_name(node) not in supported]
    if unsupported:
        node, reason = _culprit(model, unsupported)
        raise TvmtuneError(
            f"{describe(node, versions)} of {label} is not supported by the importer; "
            f"{f'{reason}; ' if reason else ''}{remedy(node)}"
        )
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise TvmtuneError(
            f"weight '{name}' of {label} is sparse, which the importer does not support; "
            "export it as a dense tensor"
        )
    importer = Importer(arrays)
    try:
        # It prints what it fails on, and warns of renamed inputs, which we identify by position.
        with quiet():
            module = importer.from_onnx(_with_full_names(model).graph, standard_version(model))
    except Exception as error:
        end_block(importer.bb)
        culprit = local_in(error.__traceback__, "node", onnx.NodeProto)
        where = f"{describe(culprit, versions)} of {label}" if culprit is not None else label
        raise TvmtuneError(
            f"{where} cannot be imported: {type(error).__name__}: {one_line(error)}; "
            "simplify or replace that part of the network and export it again"
        ) from error
    check_signature(module, inputs, outputs, label)
    return module


def _culprit(model: onnx.ModelProto, unsupported: Sequence[onnx.NodeProto]) -> tuple[Any, str]:
    """The node to report, and a reason or an empty text. Sequences stay because of a loop that fills
    them, or of what reads them."""
    for node in unsupported:
        if reason := why_kept(model, node):
            return node, reason
    return sequences.unknown(model) or (unsupported[0], "")


def _with_full_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with domains as a part of operators: the importer sees only operators."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in nodes(result.graph):
        node.op_type, node.domain = operator_name(node), ""
    return result


def _expand(model: onnx.ModelProto, supported: set[str]) -> onnx.ModelProto:
    """Replace standard operators that the importer lacks by their definitions, if any."""
    from onnx import inliner

    expanded: set[str] = set()
    # A definition may use operators that need expansion in turn, but never itself.
    while missing := _definable(model, supported) - expanded:
        expanded |= missing
        model = _with_defaults(model, missing)
        with contextlib.suppress(Exception):  # the caller reports what stays unexpanded
            functions = [("", operator) for operator in sorted(missing)]
            model = inliner.inline_selected_functions(
                model, functions, inline_schema_functions=True
            )
    return model


def _with_defaults(model: onnx.ModelProto, operators: set[str]) -> onnx.ModelProto:
    """The model whose nodes of these operators have the attributes that they left out. onnx's inliner
    leaves references to such attributes in the definitions."""
    version, result = standard_version(model), onnx.ModelProto()
    result.CopyFrom(model)
    for node in nodes(result.graph):
        if node.domain in STANDARD and node.op_type in operators:
            given = {attribute.name for attribute in node.attribute}
            attributes = defs.get_schema(node.op_type, version, "").attributes
            node.attribute.extend(
                each.default_value
                for name, each in attributes.items()
                if name not in given and each.default_value.name
            )
    return result


def _definable(model: onnx.ModelProto, supported: set[str]) -> set[str]:
    """Standard operators of ``model`` that have no converter but a definition."""
    version = standard_version(model)
    definable = set()
    for node in nodes(model.graph):
        if node.domain in STANDARD and node.op_type not in supported:
            with contextlib.suppress(defs.SchemaError):
                schema: Any = defs.get_schema(node.op_type, version, "")
                if schema.has_function or schema.has_context_dependent_function:
                    definable.add(node.op_type)
    return definable
