"""TFLite to Relax through TVM's importer, with errors that name the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError
from tvmtune.networks.fix_imported_module import fix
from tvmtune.networks.importer_helpers import check_signature, local_in, quiet
from tvmtune.networks.model_file import kind_and_line
from tvmtune.networks.tflite import file as tflite_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tvm

    from tvmtune.types import TensorSpec

_REMEDY = "replace it by other operators and convert the network again, or give it as an ONNX file"


def to_relax(
    content: bytes, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], label: str
) -> tvm.IRModule:
    """Import a static model: weights as constants, and one function ``main`` with ``inputs`` in order.

    Raises :class:`TvmtuneError` that names the operator if the importer lacks it or its conversion
    fails.
    """
    import tflite
    from tvm.relax.frontend.tflite import from_tflite
    from tvm.relax.frontend.tflite.tflite_frontend import ExprTable, OperatorConverter

    model = tflite.Model.GetRootAs(content, 0)
    graph = model.Subgraphs(0)
    converter = OperatorConverter(model, graph, ExprTable(), None)
    names = _names(content)
    for index, name in enumerate(names):
        if name not in converter.convert_map:
            raise TvmtuneError(
                f"{tflite_file.describe(name, index)} of {label} is not supported by the "
                f"importer; {_REMEDY}"
            )
    try:
        with quiet():
            module = from_tflite(model)
    except Exception as error:
        index = local_in(error.__traceback__, "op_idx", int)
        where = label
        if index is not None:
            where = f"{tflite_file.describe(names[index], index)} of {label}"
        raise TvmtuneError(
            f"{where} cannot be imported: {kind_and_line(error)}; {_REMEDY}"
        ) from error
    # An attribute lists the weights again, which would keep them in memory.
    module["main"] = module["main"].without_attr("params")
    module = fix(module)
    check_signature(module, inputs, outputs, label)
    return module


def _names(content: bytes) -> list[str]:
    from ai_edge_litert.schema_py_generated import Model, OperatorCodeT

    model = Model.GetRootAs(content, 0)
    codes = [
        tflite_file.operator_name(OperatorCodeT.InitFromObj(model.OperatorCodes(i)))
        for i in range(model.OperatorCodesLength())
    ]
    graph = model.Subgraphs(0)
    return [codes[graph.Operators(i).OpcodeIndex()] for i in range(graph.OperatorsLength())]
