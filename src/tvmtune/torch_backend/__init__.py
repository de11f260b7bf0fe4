"""``torch.compile(model, backend="tvmtune")``: programs with static shapes on tvmtune's kernels.

PyTorch finds the backend through the entry-point group ``torch_dynamo_backends``. What it cannot
compile runs in PyTorch's eager mode, with one warning that names the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvmtune.errors import UsageError
from tvmtune.torch_backend.fallback import EagerFallback, warn

if TYPE_CHECKING:
    import torch

__all__ = ["EagerFallback", "tvmtune"]


def tvmtune(
    graph: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one graph of ``torch.compile``; called by PyTorch, with example ``inputs``.

    ``options`` of ``torch.compile`` and their defaults:

    - ``log``: a path, or a list of them, of logs with records to use (none). A graph that no record
      fits is compiled without, with a warning.
    - ``target``: ``cpu``, or another backend whose libraries run here (``cpu``).
    - ``attrs``: attributes of the target, e.g. ``{"threads": 2}`` (none).
    - ``shipped_records``: whether tasks without a record take one that comes with tvmtune (True).
    - ``cache``: a directory where libraries are kept for later processes; it grows by a file of the
      size of the weights for each graph and is never emptied. None keeps them in memory only (None).

    Weights are constants of the library: it is compiled again when a parameter or buffer is replaced
    or changed in place (but changes through ``tensor.data`` cannot be noticed: call
    ``torch.compiler.reset()`` after them). Outputs are new tensors, with the strides of eager mode's.

    Raises :class:`UsageError` for an unknown option and a ``mode``, and :class:`TvmtuneError` for a log
    that cannot be read. Warns with :class:`EagerFallback` and returns the graph itself if it has
    dynamic shapes, wants gradients, is not on the CPU, changes its inputs, returns views of them, has
    an operator that the importer does not support, or if its compiled outputs are wrong.
    """
    from tvmtune.torch_backend.compiled import CompiledGraph, NoGraph
    from tvmtune.torch_backend.options import parse

    if mode is not None:
        raise UsageError(
            f"backend 'tvmtune' has no mode '{mode}': give options={{...}}, such as log and target"
        )
    parsed = parse(options or {})
    try:
        return CompiledGraph(graph, inputs, parsed)
    except NoGraph as reason:
        if str(reason):
            warn(str(reason))
        return graph.forward
