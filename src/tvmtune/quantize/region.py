"""The part of a network that int8 quantization covers, bounded by a start and a stop operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune.quantize.graph import GLOBAL_POOL, operator_calls, operator_names
from tvmtune.quantize.layer_finder import LayerFinder
from tvmtune.quantize.layers import Layer

if TYPE_CHECKING:
    import tvm

START, STOP = "max_pool2d", GLOBAL_POOL
"""Default bounds, those of TVM's tutorial for VTA: after the one, before the other."""
_FIRST_CONVOLUTION = "conv2d"
"""Start of the region in a network without :data:`START`."""


@dataclass(frozen=True)
class QuantizedRegion:
    """The layers between start and stop in program order, and the other operators there."""

    layers: tuple[Layer, ...]
    others: tuple[tuple[str, str], ...]
    """Variables that stay in float, and their operators."""


def find_region(
    graph: tvm.IRModule,
    start: str | None = None,
    stop: str | None = None,
    *,
    name: str = "",
    widest: bool = False,
) -> QuantizedRegion:
    """The layers after the first operator ``start`` and before the first ``stop`` that follows it.

    Operators go by TVM's names without ``nn.``; ``global_avg_pool2d`` stands for all of its forms.
    The defaults are :data:`START` and :data:`STOP`, or where the network has no such operator the
    first convolution, and the first flattening or the network's end. ``widest`` ignores both: the
    region lies between the first convolution and the last pooling over the whole image, if any.
    ``name`` is the network's, for messages.

    Raises :class:`UsageError` if the network has no such operator, :class:`TvmtuneError` if no layer
    lies between them.
    """
    bindings = [b for block in graph["main"].body.blocks for b in block.bindings]
    names = [operator_names(b.value) for b in bindings]
    begin: int
    end: int | None
    if widest:
        begin = next((n for n, each in enumerate(names) if _FIRST_CONVOLUTION in each), len(names))
        end = next((n for n in reversed(range(len(names))) if STOP in names[n]), None)
    else:
        first = _position(names, start, (START, _FIRST_CONVOLUTION), 0)
        if first is None:
            raise _no_operator(names, start or START, 0, "start-op")
        begin = first
        end = _position(names, stop, (STOP, "reshape", "flatten"), begin + 1)
        if end is None and stop is not None:
            raise _no_operator(names, stop, begin + 1, "stop-op")
    finder = LayerFinder(bindings[: len(bindings) if end is None else end], begin + 1, graph)
    layers = tuple(finder.layers())
    if not layers and widest:
        raise TvmtuneError(
            f"{name} has no convolution after its first that int8 could compute: omit --dtype int8"
        )
    if not layers:
        raise TvmtuneError(
            f"{name or 'the network'} has no convolution between {start or START} and {stop or STOP} "
            "that could be packed: choose others with --target-attr start-op= and stop-op=."
        )
    covered = {each for layer in layers for each in layer.covers}
    within = {str(b.var.name) for b in finder.bindings[finder.first :]} - covered
    others = tuple((name, operator) for name, operator in operator_calls(graph) if name in within)
    return QuantizedRegion(layers, others)


def _position(
    names: list[set[str]], wanted: str | None, defaults: tuple[str, ...], first: int
) -> int | None:
    """The index of the first operator called ``wanted``, or else called as one of the defaults, the
    first default winning."""
    for each in defaults if wanted is None else (wanted,):
        for position in range(first, len(names)):
            if each in names[position]:
                return position
    return None


def _no_operator(names: list[set[str]], wanted: str, first: int, attribute: str) -> UsageError:
    known = sorted(set().union(*names[first:])) if names[first:] else []
    where = "" if first == 0 else " after its start"
    return UsageError(
        f"the network has no operator '{wanted}' for {attribute}{where}.{nearest(wanted, known)}"
    )
