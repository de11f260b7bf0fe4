"""Turns an exported PyTorch program into one with static shapes that takes and returns only tensors.

Arguments in the file may be nested, constant (a flag, None) or of open shape. If any is, the program is
exported again, as called with only the tensors of the bound shapes.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree  # there is no public name for it
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tvmtune.errors import TvmtuneError, UsageError, one_line
from tvmtune.networks.importer_helpers import quiet
from tvmtune.networks.shapes import check_size, resolve
from tvmtune.networks.torch.state import NOTHING, Changes, changes
from tvmtune.types import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tvmtune.networks.shapes import Dim

_DTYPES = {
    **{
        getattr(torch, name): name for name in ("float16", "bfloat16", "float32", "float64", "bool")
    },
    **{getattr(torch, f"int{bits}"): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"uint{bits}"): f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""NumPy's names of the dtypes that inputs and outputs may have."""


_TAKE_PARTS = "take both parts, and make it complex with torch.view_as_complex"
_RETURN_PARTS = "return torch.view_as_real of it"


class Bound(NamedTuple):
    """A static program without side effects, which takes and returns only tensors."""

    program: ExportedProgram
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state: dict[str, torch.Tensor]
    """The values with which the buffers begin that the original program reads and changes, by name:
    its last inputs and outputs, in this order."""


def bind(
    program: ExportedProgram,
    *,
    batch: int,
    shapes: Mapping[str, Sequence[int]] | None,
    label: str,
) -> Bound:
    """Return a static program, and the specs of its inputs and outputs.

    Inputs have the names that PyTorch gave them (``x`` for an argument, ``x_key`` or ``x_0`` for what
    is nested in it), outputs the keys of a returned dictionary, else ``output`` or ``output_0``.
    Results other than tensors are left out. Inputs that the program changes in place are outputs as
    well, under the same names, as are the buffers that it reads and changes. Raises
    :class:`UsageError` if dimensions stay open or ``batch`` or ``shapes`` do not fit,
    :class:`TvmtuneError` if the program depends on more than its inputs or its shapes on their values.
    """
    _check_sizes(program, label)
    _check_classes(program, label)
    _check_device(program, label)
    _check_mode(program, label)
    changed = changes(program, label)
    inputs = _tensor_inputs(program, label)
    declared = {name: _declared(value) for name, value in inputs.items()}
    static, symbols = resolve(declared, batch=batch, shapes=shapes, label=label)
    _check_ranges(program, symbols, declared, label)
    returned = _output_names(program)
    state = _state(program, changed.kept, [*inputs, *returned])
    shapes_of = static | {name: tuple(tensor.shape) for name, tensor in state.items()}
    specs = tuple(
        TensorSpec(name, shapes_of[name], _dtype(value, name, label, _TAKE_PARTS))
        for name, value in (inputs | state).items()
    )
    names = [*returned, *(_untaken(name, returned) for name in changed.inputs), *state]
    is_functional = changed == NOTHING
    if is_functional and _is_plain(program) and all(map(_is_static, inputs.values())):
        bound = program
    else:
        examples = [*inputs.values(), *state.values()]
        bound = _export_again(program, changed, specs, examples, label)
    values = _output_values(bound)
    for name, value in zip(names, values, strict=True):
        if not _is_static(value):
            raise TvmtuneError(
                f"the shape of output '{name}' of {label} depends on the data: "
                f"{list(map(str, value.shape))}; only static shapes are supported"
            )
    outputs = tuple(
        TensorSpec(name, tuple(map(int, value.shape)), _dtype(value, name, label, _RETURN_PARTS))
        for name, value in zip(names, values, strict=True)
    )
    return Bound(bound, specs, outputs, state)


class FlatModule(torch.nn.Module):
    """A program as a function from its tensor inputs, in order, to a tuple of tensors.

    What it changes in place are inputs and outputs of the function, after the others: the outputs are
    first the arguments ``changed.inputs``, then the buffers ``changed.kept``, which are inputs as well.
    """

    def __init__(self, program: ExportedProgram, changed: Changes = NOTHING) -> None:
        super().__init__()
        self.program = program.module()
        self._changed = changed
        self._spec = program.call_spec.in_spec
        self._leaves = [
            None if isinstance(spec.arg, TensorArgument) else getattr(spec.arg, "value", None)
            for spec in _user_inputs(program)
        ]
        self._places = [
            place
            for place, spec in enumerate(_user_inputs(program))
            if isinstance(spec.arg, TensorArgument)
        ]
        names = [_user_inputs(program)[place].arg.name for place in self._places]
        self._given = [names.index(name) for name in changed.inputs]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves, given, count = list(self._leaves), list(tensors), len(self._places)
        for place in (*self._given, *range(count, len(given))):
            given[place] = given[place].clone()
        for place, tensor in zip(self._places, given[:count], strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        kept = dict(zip(self._changed.kept, given[count:], strict=True))
        if self._changed == NOTHING:  # it may be timed
            results = self.program(*args, **kwargs)
        else:
            own = dict(self.program.named_buffers()) | dict(self.program.named_parameters())
            written = {path: own[path].detach().clone() for path in self._changed.written}
            results = torch.func.functional_call(self.program, kept | written, args, kwargs)
        flat = [each for each in pytree.tree_leaves(results) if isinstance(each, torch.Tensor)]
        return (*flat, *(given[place] for place in self._given), *kept.values())


def describe(node: Any) -> str:
    """``node 'linalg_det' (aten.linalg_det.default, layer 'head.0')``."""
    if node.target is operator.getitem:  # one of the results of the operator
        node = node.args[0]
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0].removeprefix("program.") if stack else ""
    layer = f", layer '{path}'" if path and path != "program" else ""
    return f"node '{node.name}' ({node.target}{layer})"


def arguments(node: Any) -> dict[str, Any]:
    """The arguments of a call of an operator by their names, with the defaults of those left out."""
    return {
        argument.name: node.args[position]
        if position < len(node.args)
        else node.kwargs.get(argument.name, argument.default_value)
        for position, argument in enumerate(node.target._schema.arguments)
    }


def _state(
    program: ExportedProgram, kept: Sequence[str], taken: Sequence[str]
) -> dict[str, torch.Tensor]:
    """The buffers of these paths, by names that are not ``taken``."""
    tensors = {**program.state_dict, **program.constants}
    state: dict[str, torch.Tensor] = {}
    for path in kept:
        state[_untaken(path.replace(".", "_"), [*taken, *state])] = tensors[path].detach()
    return state


def _untaken(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _export_again(
    program: ExportedProgram,
    changed: Changes,
    specs: Sequence[TensorSpec],
    values: Sequence[torch.Tensor],
    label: str,
) -> ExportedProgram:
    examples = tuple(
        torch.zeros(spec.shape, dtype=value.dtype)
        for spec, value in zip(specs, values, strict=True)
    )
    failures: list[Exception] = []
    for prepare in (lambda each: each, lambda each: each.run_decompositions({})):
        # PyTorch does not export some changes of constants in place again, such as those of a list of
        # numbers that became a tensor.
        try:
            with quiet():
                module = FlatModule(prepare(program), changed)
                return torch.export.export(module, examples, strict=False)
        except Exception as error:  # a guard of the program, or any error of an operator
            failures.append(error)
    raise UsageError(
        f"{label} cannot take the inputs {', '.join(map(str, specs))}: {one_line(failures[0])}; "
        "choose another --shape or --batch"
    ) from failures[0]


def _user_inputs(program: ExportedProgram) -> list[Any]:
    specs = program.graph_signature.input_specs
    return [spec for spec in specs if spec.kind is InputKind.USER_INPUT]


def _user_outputs(program: ExportedProgram) -> list[Any]:
    specs = program.graph_signature.output_specs
    return [s for s in specs if s.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)]


def _tensor_inputs(program: ExportedProgram, label: str) -> dict[str, torch.Tensor]:
    """The fake tensors of the inputs, by name."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    tensors = {}
    for spec in _user_inputs(program):
        if isinstance(spec.arg, TensorArgument):
            tensors[spec.arg.name] = nodes[spec.arg.name].meta["val"]
        elif not hasattr(spec.arg, "value"):
            raise TvmtuneError(
                f"input '{spec.arg.name}' of {label} is a number that is known only when the "
                "network is run; export it with that number fixed"
            )
    return tensors


def _output_values(program: ExportedProgram) -> list[torch.Tensor]:
    nodes = {node.name: node for node in program.graph.nodes}
    tensors = [s.arg for s in _user_outputs(program) if isinstance(s.arg, TensorArgument)]
    return [nodes[argument.name].meta["val"] for argument in tensors]


def _output_names(program: ExportedProgram) -> list[str]:
    specs = _user_outputs(program)
    tree = pytree.tree_unflatten(range(len(specs)), program.call_spec.out_spec)
    paths, _ = pytree.tree_flatten_with_path(tree)
    names: list[str] = []
    for (path, _), spec in zip(paths, specs, strict=True):
        keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
        if not keys or keys[0].isdigit():
            keys.insert(0, "output")
        name = "_".join(keys)
        if isinstance(spec.arg, TensorArgument):
            names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def _is_plain(program: ExportedProgram) -> bool:
    """Whether it takes and returns only tensors."""
    specs = [*_user_inputs(program), *_user_outputs(program)]
    return all(isinstance(spec.arg, TensorArgument) for spec in specs)


def _declared(value: torch.Tensor) -> list[Dim]:
    """Extents, with symbols for open ones and None for those that depend on others."""
    return [_dim(extent) for extent in value.shape]


def _dim(extent: int | torch.SymInt) -> Dim:
    if isinstance(extent, int):
        return extent
    expression = extent.node.expr
    return (
        int(expression)
        if expression.is_Integer
        else expression.name
        if expression.is_Symbol
        else None
    )


def _check_ranges(
    program: ExportedProgram,
    symbols: Mapping[str, int],
    declared: Mapping[str, Sequence[Dim]],
    label: str,
) -> None:
    """Raise :class:`UsageError` for an extent outside the range that the program was exported for."""
    for symbol, allowed in program.range_constraints.items():
        extent = symbols.get(str(symbol))
        if extent is None or allowed.lower <= extent <= allowed.upper:
            continue
        name = next(name for name, dims in declared.items() if str(symbol) in dims)
        place = declared[name].index(str(symbol))
        raise UsageError(
            f"dimension {place} of input '{name}' of {label} would be {extent}, but the network was "
            f"exported for {allowed.lower} to {allowed.upper}; choose another --shape or --batch"
        )


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(dim, int) for dim in _declared(value))


def _dtype(value: torch.Tensor, name: str, label: str, remedy: str) -> str:
    """NumPy's name of a dtype; ``remedy`` is what to do about a complex one."""
    if value.dtype.is_complex:
        raise TvmtuneError(
            f"'{name}' of {label} is of the dtype {value.dtype}, but a library takes and returns real "
            f"tensors: {remedy}, and export the network again"
        )
    if value.dtype not in _DTYPES:
        raise TvmtuneError(
            f"'{name}' of {label} is of the dtype {value.dtype}, which is not supported"
        )
    return _DTYPES[value.dtype]


def _check_sizes(program: ExportedProgram, label: str) -> None:
    """Raise :class:`UsageError` if a tensor is absurdly large."""
    for node in program.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and _is_static(value):
                check_size(f"{describe(node)} of {label}", [int(extent) for extent in value.shape])


def _check_classes(program: ExportedProgram, label: str) -> None:
    """Raise :class:`TvmtuneError` for weights of a class of its own, as torchao's are."""
    for name, tensor in program.state_dict.items():
        if is_traceable_wrapper_subclass(tensor):
            raise TvmtuneError(
                f"'{name}' of {label} is a {type(tensor).__name__}; call "
                "torchao.utils.unwrap_tensor_subclass(model) and export the network again"
            )


def _check_device(program: ExportedProgram, label: str) -> None:
    for name, tensor in (*program.state_dict.items(), *program.tensor_constants.items()):
        if tensor.device.type != "cpu":
            raise TvmtuneError(
                f"'{name}' of {label} is on the device {tensor.device}; "
                "move the network to the CPU (model.cpu()) and export it again"
            )


def _check_mode(program: ExportedProgram, label: str) -> None:
    """Raise :class:`TvmtuneError` for batch normalization or dropout in training mode. Batch
    normalization without running statistics, and recurrent layers without dropout, compute the same in
    both modes."""
    for node in program.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        given = arguments(node)
        if given.get("running_mean", ...) is None or given.get("dropout") == 0:
            continue
        for name in ("train", "training"):
            if given.get(name) is True:
                raise TvmtuneError(
                    f"{describe(node)} of {label} computes as in training; "
                    "call model.eval() and export the network again"
                )
