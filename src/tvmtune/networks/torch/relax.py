"""PyTorch to Relax through TVM's importer, with errors that name the node.

The importer takes core ATen operators, looks up converters by bare name regardless of the library,
ignores state, and fills results that it cannot compute with zeros. All of this is checked before it
is called.
"""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.nn.utils.fusion import fuse_conv_bn_weights

from tvmtune.errors import TvmtuneError
from tvmtune.networks.fix_imported_module import fix
from tvmtune.networks.importer_helpers import check_signature, end_block, local_in, quiet
from tvmtune.networks.model_file import kind_and_line
from tvmtune.networks.torch import complex_tensors
from tvmtune.networks.torch.converters import (
    ON_COMPLEX,
    attention,
    complex_numbers,
    indexing,
    quantized,
    recurrent,
    resize,
    views,
)
from tvmtune.networks.torch.fold import fold
from tvmtune.networks.torch.program import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tvm
    from torch.export import ExportedProgram

    from tvmtune.types import TensorSpec

_aten = torch.ops.aten

_NAMESPACES = ("aten", quantized.NAMESPACE)
"""Of operators that have converters."""

_WITHOUT_DROPOUT = {*attention.CONVERTERS, *recurrent.CONVERTERS}
"""Operators that PyTorch tags as random for their dropout. Calls that have it are decomposed."""

_REMEDY = "replace that part of the network by other operators and export it again"


def to_relax(
    program: ExportedProgram,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    label: str,
) -> tvm.IRModule:
    """Import ``program``: weights as constants, and one function ``main`` with ``inputs`` in order.

    All but products, resizes, windows, attention and recurrent layers is decomposed into core ATen
    operators first, batch normalization is folded into the convolution before it, and what does not
    depend on the inputs is computed. Raises :class:`TvmtuneError` that names the node if an operator is
    missing, random or has side effects, or if its conversion fails.
    """
    from tvmtune.networks.torch.importer import Importer

    _check_layouts(program, label)
    decompositions = torch.export.default_decompositions()
    wholes = {
        _aten.matmul.default,
        *resize.WHOLE,
        *views.WHOLE,
        *indexing.WHOLE,
        *attention.whole_calls(program),
        *recurrent.whole_layers(program, _weights(program)),
    }
    for whole in wholes:
        decompositions.pop(whole, None)
    with quiet():
        program = program.run_decompositions(decompositions)
    # What follows changes them in place, and the program that was given has the same ones.
    program._constants = {**program.constants}
    _check_state(program, label)
    convertible = {*Importer().convert_map}
    program = _expand(program, convertible)
    fold_batch_norms(program)
    fold(program)
    complex_tensors.split_weights(program)
    complex_tensors.read_parts(program)
    importer = Importer(_weights(program))
    _check_operators(program, convertible, label)
    try:
        with quiet():
            module = importer.from_exported_program(
                program,
                keep_params_as_input=False,
                unwrap_unit_return_tuple=True,
                no_bind_return_tuple=False,
                custom_convert_map=None,
            )
    except Exception as error:
        end_block(importer.block_builder)
        culprit = local_in(error.__traceback__, "node", fx.Node)
        where = f"{describe(culprit)} of {label}" if culprit is not None else label
        raise TvmtuneError(
            f"{where} cannot be imported: {kind_and_line(error)}; {_REMEDY}"
        ) from error
    module = fix(module)
    check_signature(module, inputs, outputs, label)
    return module


def _expand(program: ExportedProgram, convertible: set[str]) -> ExportedProgram:
    """Replace operators that have no converter by PyTorch's definitions of them, where these consist of
    operators of ATen. Core ATen keeps some that have one, such as ``addmv`` and ``aminmax``."""
    tried = set[Any]()
    while missing := _definable(program, convertible) - tried:
        target = min(missing, key=str)
        tried.add(target)
        with contextlib.suppress(Exception), quiet():  # the caller reports what is left
            expanded = program.run_decompositions({target: decomposition_table[target]})
            if all(each.namespace in _NAMESPACES for each in _called(expanded)):
                program = expanded
    return program


def _definable(program: ExportedProgram, convertible: set[str]) -> set[torch._ops.OpOverload]:
    lacking = {each for each in _called(program) if each.__name__ not in convertible}
    of_complex = {
        node.target
        for node in program.graph.nodes
        if node.op == "call_function" and complex_numbers.takes_part(node)
    }
    lacking |= {each for each in of_complex if each.__name__ not in ON_COMPLEX}
    return {each for each in lacking if each in decomposition_table}


def _called(program: ExportedProgram) -> set[torch._ops.OpOverload]:
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return {each for each in targets if isinstance(each, torch._ops.OpOverload)}


def fold_batch_norms(program: ExportedProgram) -> None:
    """Fold batch normalization into the convolution before it, in place.

    This requires that nothing else uses the convolution's result or its weights. TVM would keep four
    operations on each activation and compute their constants in unscheduled kernels (5 s for
    ResNet-18).
    """
    graph, state = program.graph, program.state_dict
    names = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.target in state
    }
    norm_target = _aten._native_batch_norm_legit_no_training.default
    for norm in graph.find_nodes(op="call_function", target=norm_target):
        conv, gamma, beta, mean, variance, _, epsilon = norm.args
        if conv.target is not _aten.convolution.default or len(conv.users) != 1:
            continue
        weight, bias, transposed = conv.args[1], conv.args[2], conv.args[6]
        parameters = (weight, bias, mean, variance, gamma, beta)
        owned = (weight, mean) if bias is None else (weight, mean, bias)
        if (
            transposed
            or any(p is not None and p.name not in names for p in parameters)
            or any(len(p.users) != 1 for p in owned)
            or any(user.target is not operator.getitem or user.args[1] for user in norm.users)
        ):
            continue
        values: list[Any] = [
            None if p is None else state[names[p.name]].double() for p in parameters
        ]
        kernel, offset, center, spread, scale, shift = values
        fused = fuse_conv_bn_weights(kernel, offset, center, spread, epsilon, scale, shift)
        dtype = state[names[weight.name]].dtype
        # Every norm has a mean, of the shape of a bias and no longer used: it holds the new bias.
        for parameter, tensor in zip((weight, mean), fused, strict=True):
            state[names[parameter.name]] = tensor.detach().to(dtype)
        conv.update_arg(2, mean)
        for result in list(norm.users):
            result.replace_all_uses_with(conv)
            graph.erase_node(result)
        graph.erase_node(norm)
    program.graph_module.recompile()


def _weights(program: ExportedProgram) -> dict[str, torch.Tensor]:
    tensors = {**program.state_dict, **program.constants}
    return {
        spec.arg.name: tensors[spec.target]
        for spec in program.graph_signature.input_specs
        if isinstance(tensors.get(spec.target), torch.Tensor)
    }


def _check_layouts(program: ExportedProgram, label: str) -> None:
    for name, tensor in (*program.state_dict.items(), *program.tensor_constants.items()):
        if tensor.layout is not torch.strided:
            raise TvmtuneError(
                f"'{name}' of {label} is a sparse tensor, which the importer does not support; "
                "make it dense and export the network again"
            )


def _check_state(program: ExportedProgram, label: str) -> None:
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise TvmtuneError(
            f"{label} changes '{changed[0]}' whenever it is run, which is not supported; take it "
            "and return it as an input and an output instead, and export the network after "
            "model.eval()"
        )


def _check_operators(program: ExportedProgram, convertible: set[str], label: str) -> None:
    """Raise :class:`TvmtuneError` for the first node that the importer would get wrong."""
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        where, target = f"{describe(node)} of {label}", node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
            raise TvmtuneError(f"{where} is not one of PyTorch's core operators (ATen); {_REMEDY}")
        is_random = torch.Tag.nondeterministic_seeded in target.tags
        if is_random and target.__name__ not in _WITHOUT_DROPOUT:
            raise TvmtuneError(
                f"{where} draws random numbers; call model.eval() and export the network again, or "
                "make them an input"
            )
        # ATen has operators of the same names, whose values are of PyTorch's quantized dtypes.
        is_ours = target.__name__ not in quantized.CONVERTERS or target.namespace != "aten"
        if target.__name__ not in convertible or not is_ours:
            raise TvmtuneError(f"{where} is not supported by the importer; {_REMEDY}")
