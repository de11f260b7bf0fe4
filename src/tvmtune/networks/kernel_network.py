"""A network of one operator, declared in a Python file.

The file is executed like any script: load only files you trust.
"""

from __future__ import annotations

import ast
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.arrays import numpy_dtype
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.declaration import Operator, call_with
from tvmtune.networks.inputs import check_inputs
from tvmtune.types import TensorSpec, digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import tvm

    from tvmtune.types import JSON


def read(
    path: Path,
    *,
    label: str,
    source: JSON,
    batch: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> KernelNetwork:
    """The network of the file's operator; see :func:`tvmtune.networks.load`.

    Raises :class:`TvmtuneError` for a faulty file or operator, :class:`UsageError` for a missing file,
    a wrong argument, or a ``batch`` or ``shapes``, which kernel files do not take.
    """
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give the path of a kernel file")
    if batch != 1 or shapes:
        option = "--shape" if shapes else "--batch"
        raise UsageError(
            f"{label} is a kernel file, whose shapes follow from its arguments: give --arg NAME=VALUE "
            f"instead of {option}"
        )
    return KernelNetwork(_declared(path), path, arguments or {}, source)


class KernelNetwork:
    """Implements :class:`tvmtune.types.Network` for one declared operator."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __init__(
        self, declared: Operator, path: Path, arguments: Mapping[str, Any], source: JSON
    ) -> None:
        self.path = path
        self.declared = declared
        self.arguments = declared.bind(arguments)
        self.operator = declared.name
        stem = path.stem
        self.name = stem if stem == declared.name else f"{stem}-{declared.name}"
        self.source = {key: value for key, value in source.items() if key != "batch"}
        self.source["operator"] = self.operator
        if arguments:
            self.source["arguments"] = dict(arguments)
        if len(declared.references) != 1:
            how = "no reference" if not declared.references else "several references"
            raise TvmtuneError(
                f"operator '{self.operator}' of {path} has {how}: decorate one NumPy function "
                f"with @{self.operator}.reference"
            )
        with errors_located_in(path, f"operator '{self.operator}'"):
            self._func = _prim_func(declared.declare(**self.arguments))
        self.inputs, self.outputs = _specs(self._func, path, self.operator)
        unknown = set(declared.ranges) - {spec.name for spec in self.inputs}
        if unknown:
            raise TvmtuneError(
                f"operator '{self.operator}' of {path} has no input '{min(unknown)}', for which "
                "integers() gives a range"
            )
        self.ranges = {
            spec.name: declared.ranges.get(spec.name, (-1000, 1000))
            for spec in self.inputs
            if spec.name in declared.ranges or spec.dtype in ("int32", "int64")
        }
        """Lowest and highest value of random integers, by input."""
        self.structure_hash = digest([_structure(self._func), [str(s) for s in self.inputs]])
        self.weights_hash = digest([])

    def to_relax(self) -> tvm.IRModule:
        """``main`` with one call of the operator."""
        from tvm import relax

        builder = relax.BlockBuilder()
        params = [
            relax.Var(spec.name, relax.TensorType(spec.shape, spec.dtype)) for spec in self.inputs
        ]
        results = [relax.TensorType(spec.shape, spec.dtype) for spec in self.outputs]
        with builder.function("main", params):
            with builder.dataflow():
                function = builder.add_func(self._func, self.operator)
                call = relax.call_tir(function, params, results if len(results) > 1 else results[0])
                output = builder.emit_output(builder.emit(call))
            builder.emit_func_output(output)
        return builder.finalize()

    def to_onnx(self) -> bytes | None:
        """None: no other runtime has the operator."""
        return None

    def reference(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The results of the file's reference, in the declared dtypes.

        Raises :class:`TvmtuneError` if it fails or its results have other shapes.
        """
        check_inputs(inputs, self.inputs)
        function = self.declared.references[0]
        with errors_located_in(self.path, f"the reference of '{self.operator}'"):
            result = call_with(function, [inputs[s.name] for s in self.inputs], self.arguments)
        results = result if isinstance(result, (tuple, list)) else [result]
        arrays = [np.asarray(a) for a in results]
        shapes = [a.shape for a in arrays]
        if shapes != [spec.shape for spec in self.outputs]:
            raise TvmtuneError(
                f"the reference of '{self.operator}' in {self.path} gives the shapes "
                f"{', '.join(map(str, shapes))}, but the operator gives "
                f"{', '.join(str(spec.shape) for spec in self.outputs)}"
            )
        return [self._as_declared(a, spec) for a, spec in zip(arrays, self.outputs, strict=True)]

    def _as_declared(self, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """The array in the declared dtype; another width is converted, another kind is an error."""
        dtype = numpy_dtype(spec.dtype)
        if array.dtype.kind != dtype.kind and not (array.dtype.kind in "iu" and dtype.kind in "iu"):
            raise TvmtuneError(
                f"the reference of '{self.operator}' in {self.path} gives '{spec.name}' as "
                f"{array.dtype.name}, but the operator gives {spec.dtype}"
            )
        return array.astype(dtype)

    def template(self, keys: Sequence[str]) -> Callable[[Any], None] | None:
        """The file's template for a target with these names, as a function that changes a schedule."""
        entry = self.declared.template_for(keys)
        if entry is None:
            if self.declared.templates:
                warnings.warn(
                    f"{self.path} has no template for {keys[0]}, only for "
                    f"{', '.join(sorted(self.declared.templates))}: the general rules are searched",
                    stacklevel=2,
                )
            return None
        key, function = entry

        def apply(schedule: Any) -> None:
            with errors_located_in(self.path, f"the template of '{self.operator}' for '{key}'"):
                call_with(function, [schedule], self.arguments)

        return apply


@contextmanager
def errors_located_in(path: Path, what: str) -> Iterator[None]:
    """Turn an exception of the user's code into one message with the line of the user's file."""
    try:
        yield
    except (TvmtuneError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        raise TvmtuneError(f"{what} fails at {_place(error, path)}: {_summary(error)}") from error


def _declared(path: Path) -> Operator:
    """Run the file, if it names the decorator, and return the one operator that it declares."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
        code = compile(tree, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}, line {line}" if line else str(path)
        raise TvmtuneError(f"{where}: {_summary(error)}") from error
    except OSError as error:
        raise TvmtuneError(f"cannot read {path}: {error.strerror or error}") from error
    if not any(_names_decorator(node) for node in ast.walk(tree)):
        # It may be any script, such as one that exports a network for minutes.
        raise TvmtuneError(
            f"{path} declares no operator, so it was not run: decorate one function with "
            "@tvmtune.operator, or give the file of a network"
        )
    # TVMScript looks up the module of a class in sys.modules. An import would leave bytecode beside the
    # user's file.
    module = types.ModuleType(f"tvmtune_kernel_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    folder = str(path.absolute().parent)
    sys.path.insert(0, folder)
    try:
        with errors_located_in(path, "the kernel file"):
            exec(code, module.__dict__)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    operators = {id(v): v for v in vars(module).values() if isinstance(v, Operator)}
    if len(operators) != 1:
        names = ", ".join(f"'{o.name}'" for o in operators.values())
        raise TvmtuneError(
            f"{path} declares {f'several operators ({names})' if operators else 'no operator'}: "
            "decorate one function with @tvmtune.operator"
        )
    return next(iter(operators.values()))


def _names_decorator(node: ast.AST) -> bool:
    """Whether the node is ``tvmtune.operator``, ``operator``, or an import of that name."""
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "operator" for alias in node.names)
    return "operator" in (getattr(node, "attr", ""), getattr(node, "id", ""))


def _prim_func(declared: Any) -> Any:
    """The PrimFunc for what the user's function returned: TE tensors, a PrimFunc or a module."""
    import tvm
    from tvm import te, tirx

    if isinstance(declared, tvm.IRModule):
        functions = list(declared.functions.values())
        if len(functions) != 1:
            raise ValueError(f"the module has {len(functions)} functions instead of one")
        declared = functions[0]
    if isinstance(declared, (list, tuple)) and all(isinstance(t, te.Tensor) for t in declared):
        declared = te.create_prim_func(list(declared))
    if not isinstance(declared, tirx.PrimFunc):
        raise TypeError(
            "it returns neither TE tensors (inputs, then outputs) nor a PrimFunc but "
            f"{type(declared).__name__}"
        )
    # Its own name would enter its hash, and collide with others.
    return declared.without_attr("global_symbol").with_attr("tirx.noalias", True)


def _specs(
    func: Any, path: Path, name: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs, the parameters that no block writes, and outputs, those that one does."""
    from tvm import tirx

    written = _written(func)
    specs: list[TensorSpec] = []
    for buffer in func.params:
        if not isinstance(getattr(buffer, "ty", None), tirx.BufferType):
            raise TvmtuneError(
                f"parameter '{buffer}' of operator '{name}' of {path} is not a buffer"
            )
        symbolic = [e for e in buffer.shape if not isinstance(e, (int, tirx.IntImm))]
        if symbolic:
            raise TvmtuneError(
                f"operator '{name}' of {path} has the symbolic extent '{symbolic[0]}': only static "
                "shapes are supported; make it an argument of the function"
            )
        shape = tuple(int(e) for e in buffer.shape)
        if any(extent < 1 for extent in shape):
            raise UsageError(
                f"operator '{name}' of {path} would have the buffer '{buffer.name}' of "
                f"{'x'.join(map(str, shape))}: every extent must be at least 1; see --arg"
            )
        specs.append(TensorSpec(str(buffer.name), shape, str(buffer.dtype)))
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise TvmtuneError(f"operator '{name}' of {path} has two buffers of one name: {names}")
    is_output = [any(buffer.same_as(w) for w in written) for buffer in func.params]
    first = is_output.index(True) if True in is_output else len(is_output)
    if first == len(is_output) or not all(is_output[first:]):
        listed = ", ".join(
            f"{n} (output)" if out else n for n, out in zip(names, is_output, strict=True)
        )
        raise TvmtuneError(
            f"operator '{name}' of {path} has the buffers {listed}: inputs have to come before "
            "outputs, and there has to be an output"
        )
    return tuple(specs[:first]), tuple(specs[first:])


def _written(func: Any) -> list[Any]:
    """Buffers that a block of the function writes."""
    from tvm import s_tir
    from tvm_ffi import structural_walk

    buffers: list[Any] = []

    def visit(block: Any) -> None:
        buffers.extend(region.source for region in block.writes)

    structural_walk(func.body, (s_tir.SBlock, visit))
    return buffers


def _structure(func: Any) -> str:
    import tvm_ffi

    return str(tvm_ffi.structural_hash(func))


def _place(error: BaseException, path: Path) -> str:
    """``FILE, line N``: the innermost frame in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _summary(error: BaseException) -> str:
    """Type and last line of the message, which is the informative one in TVM's long messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    return f"{type(error).__name__}: {text}"[:400].rstrip(": ")
