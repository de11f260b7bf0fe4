"""What the importers of PyTorch and TFLite files have in common: hashes, and what TVM makes of them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import warnings
from typing import TYPE_CHECKING, Any

from tvmtune.errors import TvmtuneError
from tvmtune.types import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    import numpy as np
    import tvm

    from tvmtune.types import TensorSpec

_SMALL = 64
"""Up to so many integers are taken for axes, shapes or indices, which shape the program."""


class Hasher:
    """Collects the two hashes of a network while its graph is walked."""

    def __init__(self) -> None:
        self._weights = hashlib.sha256()
        self._structure: list[Any] = []

    def add(self, description: Any) -> None:
        """A part of the structure, as JSON has it."""
        self._structure.append(description)

    def constant(self, array: np.ndarray, dtype: str = "") -> list[Any]:
        """Describe a constant for the structure: by its value if that shapes the program.

        Other values go into the hash of the weights, in the order of these calls. ``dtype`` stands
        for the array's own where NumPy has no such type.
        """
        described: list[Any] = [dtype or array.dtype.name, list(array.shape)]
        if array.size <= _SMALL and array.dtype.kind in "iub" and not dtype:
            return [*described, array.tolist()]
        self._weights.update(repr(described).encode())
        self._weights.update(array.tobytes())
        return described

    def hashes(self) -> tuple[str, str]:
        """Structure hash and weights hash, 16 hex digits each."""
        return digest(self._structure), self._weights.hexdigest()[:16]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what a library prints to stdout and warns of."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def local_in(traceback: TracebackType | None, name: str, kind: type) -> Any:
    """The innermost local variable of this name and type on the way to an error, or None."""
    found = None
    while traceback is not None:
        candidate = traceback.tb_frame.f_locals.get(name)
        if isinstance(candidate, kind):
            found = candidate
        traceback = traceback.tb_next
    return found


def check_signature(
    module: tvm.IRModule,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    label: str,
) -> None:
    """Hold an imported ``main`` to the network's inputs and outputs, which are known by position.

    Raises :class:`TvmtuneError` if a shape or a dtype is another, or is not static.
    """
    from tvm import relax

    main = module["main"]
    found = main.ret_ty
    results = list(found.fields) if isinstance(found, relax.TupleType) else [found]
    for what, specs, types in (
        ("inputs", inputs, [parameter.ty for parameter in main.params]),
        ("outputs", outputs, results),
    ):
        seen = [_text(one) for one in types]
        wanted = [f"{'x'.join(map(str, spec.shape)) or 'scalar'} {spec.dtype}" for spec in specs]
        if seen != wanted:
            raise TvmtuneError(
                f"TVM's importer gave {label} the {what} {', '.join(seen)}, but it has "
                f"{', '.join(wanted)}; try the network as an ONNX file"
            )


def _text(tensor_type: Any) -> str:
    """A Relax type as :class:`TensorSpec` puts it; what is no tensor of static shape, as TVM does."""
    try:
        extents = [int(extent) for extent in tensor_type.shape]
    except (AttributeError, TypeError, ValueError):
        return str(tensor_type)
    return f"{'x'.join(map(str, extents)) or 'scalar'} {tensor_type.dtype}"
