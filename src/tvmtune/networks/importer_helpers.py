"""Helpers for TVM's importers: quiet calls, the culprit of an error, powers, a check of the result."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    import tvm

    from tvmtune.types import TensorSpec


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and what a library prints to stdout."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def local_in(traceback: TracebackType | None, name: str, kind: type) -> Any:
    """The innermost local variable of this name and type in a traceback, or None."""
    innermost = None
    while traceback is not None:
        candidate = traceback.tb_frame.f_locals.get(name)
        if isinstance(candidate, kind):
            innermost = candidate
        traceback = traceback.tb_next
    return innermost


def end_block(builder: Any) -> None:
    """End the block that an importer leaves open when it fails; TVM would print a warning about it."""
    with contextlib.suppress(Exception):  # it failed before it opened one
        builder._end_block()


def constant_power(emit: Any, base: Any, exponent: float, *, floating: bool) -> Any | None:
    """Squares, cubes, roots and inverses by cheaper operators; None for other exponents."""
    from tvm import relax

    if exponent in (1, 2, 3):
        result = base
        for _ in range(int(exponent) - 1):
            result = emit(relax.op.multiply(result, base))
        return result
    if floating and exponent == 0.5:
        return emit(relax.op.sqrt(base))
    if floating and exponent == -1:
        return emit(relax.op.divide(relax.const(1.0, str(base.ty.dtype)), base))
    return None


def check_signature(
    module: tvm.IRModule,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    label: str,
) -> None:
    """Check an imported ``main`` against the network's inputs and outputs, by position.

    Raises :class:`TvmtuneError` if a shape or dtype differs, or a shape is not static.
    """
    from tvm import relax

    main = module["main"]
    result = main.ret_ty
    results = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    for what, specs, types in (
        ("inputs", inputs, [parameter.ty for parameter in main.params]),
        ("outputs", outputs, results),
    ):
        imported = [type_text(one) for one in types]
        wanted = [tensor_text(spec.shape, spec.dtype) for spec in specs]
        if imported != wanted:
            raise TvmtuneError(
                f"TVM's importer gave {label} the {what} {', '.join(imported)}, but it has "
                f"{', '.join(wanted)}; try the network as an ONNX file"
            )


def type_text(tensor_type: Any) -> str:
    """A Relax type as :class:`TensorSpec` prints it; TVM's text for all but tensors of static shape."""
    try:
        extents = [int(extent) for extent in tensor_type.shape]
    except (AttributeError, TypeError, ValueError):
        return str(tensor_type)
    return tensor_text(extents, str(tensor_type.dtype))


def tensor_text(shape: Sequence[int], dtype: str) -> str:
    """``1x128 int64``"""
    return f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}"
