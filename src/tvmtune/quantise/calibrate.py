"""What the tensors of a network are for sample inputs, computed in float on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.quantise import execute
from tvmtune.quantise.region import Floats
from tvmtune.types import Network, Prepared

if TYPE_CHECKING:
    import tvm

SAMPLES = 4
"""Synthetic inputs where none are given."""


def tensors(
    prepared: Prepared, names: Sequence[str], samples: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, Floats]:
    """The values (samples x N, C, H, W) of variables of the prepared graph, by their names.

    ``samples`` are inputs by their names, each for one run of the network.
    """
    run = execute.compiled(prepared, _showing(prepared.graph, names))
    found: dict[str, list[Floats]] = {name: [] for name in names}
    for sample in samples:
        for name, value in zip(names, run(sample), strict=True):
            found[name].append(value.astype(np.float32))
    return {name: np.concatenate(values) for name, values in found.items()}


def check(
    network: Network, data: Mapping[str, np.ndarray], where: str
) -> list[dict[str, np.ndarray]]:
    """Calibration data as inputs, one for each run of the network.

    ``data`` maps each input's name to (M x N, ...) values, for M runs. Raises :class:`UsageError` for
    names, shapes and values that cannot be.
    """
    runs = []
    for spec in network.inputs:
        if spec.name not in data:
            known = ", ".join(sorted(data))
            raise UsageError(f"{where} has no array '{spec.name}': it has {known or 'none'}.")
        values = np.asarray(data[spec.name])
        batch = spec.shape[0] if spec.shape else 1
        if values.shape[1:] != spec.shape[1:] or not len(values) or len(values) % batch:
            wanted = "x".join(map(str, spec.shape))
            several = f": give a multiple of {batch} of them" if batch > 1 else ""
            raise UsageError(
                f"{where}: '{spec.name}' is {'x'.join(map(str, values.shape))}, and the network takes "
                f"{wanted}{several}."
            )
        if values.dtype.kind in "fiu":
            with np.errstate(over="ignore"):
                values = values.astype(spec.dtype)
        if values.dtype.kind not in "fiu" or not np.all(np.isfinite(values)):
            raise UsageError(
                f"{where}: '{spec.name}' holds what is no finite number of {spec.dtype}."
            )
        if np.dtype(spec.dtype).kind == "f" and not np.any(values):
            raise UsageError(f"{where}: '{spec.name}' holds nothing but zeros: no scale follows.")
        runs.append((spec, values, len(values) // batch))
    counts = {count for _, _, count in runs}
    if len(counts) != 1:
        raise UsageError(f"{where}: its arrays are for different numbers of runs.")
    return [
        {
            spec.name: np.ascontiguousarray(values[n * spec.shape[0] : (n + 1) * spec.shape[0]])
            for spec, values, _ in runs
        }
        for n in range(counts.pop())
    ]


def synthetic(network: Network) -> list[dict[str, np.ndarray]]:
    """Seeded inputs of unit variance, for networks of which nobody gave any."""
    from tvmtune.networks.inputs import random_inputs

    return [random_inputs(network.inputs, seed) for seed in range(SAMPLES)]


def _showing(graph: tvm.IRModule, names: Sequence[str]) -> tvm.IRModule:
    """The graph with these variables for outputs."""
    import tvm
    from tvm import relax

    main = relax.transform.ToNonDataflow()(graph)["main"]
    variables = dict(_variables(main))
    # What follows the last of them is dead.
    chosen = [variables[name] for name in names]
    body = relax.SeqExpr(main.body.blocks, relax.Tuple(chosen))
    kinds = relax.TupleType([variable.ty for variable in chosen])
    shown = relax.Function(main.params, body, kinds, True, main.attrs)
    mod = tvm.IRModule({"main": shown})
    return tvm.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.ConvertToDataflow(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    for parameter in function.params:
        yield str(parameter.name), parameter
    for block in function.body.blocks:
        for binding in block.bindings:
            yield str(binding.var.name), binding.var
