"""Binds the dimensions of inputs that a file leaves open.

A declared dimension is an extent (int), a symbol (str, equal names mean equal extents) or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvmtune import phases
from tvmtune.errors import UsageError
from tvmtune.types import product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Dim = int | str | None

MOST_ELEMENTS = 1 << 31
"""Of any tensor; more would be 8 GiB of float32."""
MOST_INPUT_ELEMENTS = 1 << 28
"""Of an input; importers and checks draw random ones."""


def check_size(what: str, shape: Sequence[int], most: int = MOST_ELEMENTS) -> None:
    """Raise :class:`UsageError` for a tensor of more than ``most`` elements; ``what`` names it."""
    if product(shape) > most:
        extents = "x".join(map(str, shape))
        raise UsageError(f"{what} has the shape {extents}: more than {most} elements")


def resolve(
    declared: Mapping[str, Sequence[Dim] | None],
    *,
    batch: int,
    shapes: Mapping[str, Sequence[int]] | None,
    label: str,
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Return the static shape of each input, and the extent of each symbol that was bound.

    ``declared`` maps each input to its dimensions, or to None where even the rank is open. An input
    takes its shape from ``shapes``, from symbols that other inputs have bound, and from ``batch`` if
    only the first dimension is still open. Raises :class:`UsageError` if one stays open, or
    if ``shapes`` or ``batch`` contradict the declaration; ``label`` names the network in messages.
    """
    shapes = shapes or {}
    for name in shapes:
        if name not in declared:
            known = ", ".join(f"{key} {_text(dims)}" for key, dims in declared.items())
            raise UsageError(f"{label} has no input '{name}'; its inputs are: {known}")
    symbols: dict[str, int] = {}
    result = {name: list(dims) if dims is not None else None for name, dims in declared.items()}
    for name, wanted in shapes.items():
        result[name] = _bind(name, declared[name], list(wanted), symbols, batch, label)
    _substitute(result, symbols)
    is_open = False
    for dims in result.values():
        if dims and not isinstance(dims[0], int) and all(isinstance(d, int) for d in dims[1:]):
            is_open = True
            if isinstance(dims[0], str):
                # An earlier input of this loop may have bound the symbol.
                dims[0] = symbols.setdefault(dims[0], batch)
            else:
                dims[0] = batch
    _substitute(result, symbols)
    static = {name: _require_static(name, dims, batch, label) for name, dims in result.items()}
    for name, extents in static.items():
        check_size(f"input '{name}' of {label}", extents, MOST_INPUT_ELEMENTS)
    if is_open and batch == 1:  # the default, which nobody may have chosen
        phases.note("dynamic batch bound to 1 (--batch N)")
    if batch != 1 and static and not any(dims[:1] == (batch,) for dims in static.values()):
        fixed = ", ".join(f"{name} {_text(dims)}" for name, dims in static.items())
        raise UsageError(
            f"{label} has a fixed batch size ({fixed}), so it cannot run with batch {batch}; omit "
            "--batch, or export the network with a dynamic first dimension"
        )
    return static, symbols


def _bind(
    name: str,
    declared: Sequence[Dim] | None,
    wanted: list[int],
    symbols: dict[str, int],
    batch: int,
    label: str,
) -> list[Dim]:
    """Check a shape that the user gave for one input, and record the symbols that it binds."""
    option = f"--shape {name}:{'x'.join(map(str, wanted))}"
    if any(extent < 1 for extent in wanted):
        raise UsageError(f"{option}: every extent must be at least 1")
    if declared is None:
        return list(wanted)
    if len(wanted) != len(declared):
        raise UsageError(
            f"{option} has {len(wanted)} dimensions, but input '{name}' of {label} has "
            f"{len(declared)}: {_text(declared)}"
        )
    for position, (dim, extent) in enumerate(zip(declared, wanted, strict=True)):
        if isinstance(dim, int):
            if dim != extent:
                raise UsageError(
                    f"{option} contradicts {label}, where input '{name}' is {_text(declared)}: "
                    f"dimension {position} is fixed at {dim}"
                )
            continue
        if position == 0 and batch not in (1, extent):
            raise UsageError(f"{option} contradicts --batch {batch}; give one of the two")
        if isinstance(dim, str) and symbols.setdefault(dim, extent) != extent:
            raise UsageError(
                f"{option} contradicts another --shape: dimension '{dim}' of {label} "
                f"would be both {symbols[dim]} and {extent}"
            )
    return list(wanted)


def _substitute(shapes: dict[str, list[Dim] | None], symbols: Mapping[str, int]) -> None:
    for dims in shapes.values():
        for position, dim in enumerate(dims or ()):
            if dims is not None and isinstance(dim, str):
                dims[position] = symbols.get(dim, dim)


def _require_static(
    name: str, dims: Sequence[Dim] | None, batch: int, label: str
) -> tuple[int, ...]:
    if dims is None:
        raise UsageError(
            f"input '{name}' of {label} has no shape; give it with --shape {name}:{batch}x3x224x224"
        )
    extents = tuple(dim for dim in dims if isinstance(dim, int))
    if len(extents) == len(dims):
        return extents
    example = "x".join(str(_example(dims, i, batch)) for i in range(len(dims)))
    raise UsageError(
        f"input '{name}' of {label} has dynamic dimensions: {_text(dims)}; "
        f"bind them with, for example, --shape {name}:{example}"
    )


def _example(dims: Sequence[Dim], position: int, batch: int) -> int:
    dim = dims[position]
    if isinstance(dim, int):
        return dim
    if position == 0:
        return batch
    if len(dims) < 4:
        return 128
    return 3 if position == 1 else 224


def _text(dims: Sequence[Dim] | None) -> str:
    """``[N, 3, ?]``, which unlike ``Nx3x?`` is unambiguous when symbols are words."""
    if dims is None:
        return "of any shape"
    return f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"
