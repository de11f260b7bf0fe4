"""TFLite to Relax through TVM's importer, with errors that name the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.networks.fix_imported_module import fix
from tvmtune.networks.importer_helpers import check_signature, end_block, local_in, quiet
from tvmtune.networks.model_file import kind_and_line
from tvmtune.networks.tflite import file as tflite_file
from tvmtune.networks.tflite import quantized
from tvmtune.networks.tflite.bind import pack

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
    from tvm import relax
    from tvm.relax.frontend.tflite import from_tflite
    from tvm.relax.frontend.tflite.tflite_frontend import ExprTable

    from tvmtune.networks.tflite.importer import Importer

    parsed = tflite_file.parse(content, label)
    names = _names(parsed)
    origins = list(range(len(names)))
    changed = quantized.check(parsed, label)
    if changed:
        origins = quantized.write_out(parsed, label)
    if _tell_apart(parsed) or changed:
        content = pack(parsed)
    model = tflite.Model.GetRootAs(content, 0)
    converter = Importer(model, model.Subgraphs(0), ExprTable(), None)
    for index, name in enumerate(names):
        if tflite_file.CUSTOM.get(name, name) not in converter.convert_map:
            raise TvmtuneError(
                f"{tflite_file.describe(name, index)} of {label} is not supported by the "
                f"importer; {_REMEDY}"
            )
    try:
        with quiet():
            module = from_tflite(model, op_converter=Importer)
    except Exception as error:
        end_block(local_in(error.__traceback__, "bb", relax.BlockBuilder))
        index = local_in(error.__traceback__, "op_idx", int)
        where = label
        if index is not None:
            place = origins[index]
            where = f"{tflite_file.describe(names[place], place)} of {label}"
        raise TvmtuneError(
            f"{where} cannot be imported: {kind_and_line(error)}; {_REMEDY}"
        ) from error
    # An attribute lists the weights again, which would keep them in memory.
    module["main"] = module["main"].without_attr("params")
    module = fix(module)
    check_signature(module, inputs, outputs, label)
    return module


def _tell_apart(model: Any) -> bool:
    """Give each tensor of a parsed model a name of its own, in place, by which the importer knows it;
    returns whether any had none."""
    seen, changed = {""}, False
    for place, tensor in enumerate(model.subgraphs[0].tensors):
        name = tflite_file.text(tensor.name)
        while name in seen:
            name += f"/{place}"
            tensor.name, changed = name, True
        seen.add(name)
    return changed


def _names(model: Any) -> list[str]:
    """Of the operators of a parsed model."""
    codes = [tflite_file.operator_name(code) for code in model.operatorCodes]
    return [codes[node.opcodeIndex] for node in model.subgraphs[0].operators or ()]
