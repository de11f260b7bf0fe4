"""Sample inputs for calibration, and the values that a graph's variables take on them, in float."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.quantize import execute
from tvmtune.quantize.layers import FloatArray
from tvmtune.types import Network, Prepared

if TYPE_CHECKING:
    import tvm

RANDOM_SAMPLES = 4
"""Number of random inputs that stand in for missing calibration data."""


def record_tensors(
    prepared: Prepared, names: Sequence[str], samples: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, FloatArray]:
    """The values (samples x N, C, H, W) of variables of the prepared graph, by name.

    Each of ``samples`` holds the inputs of one run, by name.
    """
    run = execute.compile_graph(prepared, _with_outputs(prepared.graph, names))
    values: dict[str, list[FloatArray]] = {name: [] for name in names}
    for sample in samples:
        for name, value in zip(names, run(sample), strict=True):
            values[name].append(value.astype(np.float32))
    return {name: np.concatenate(each) for name, each in values.items()}


def split_runs(
    network: Network, data: Mapping[str, np.ndarray], origin: str
) -> list[dict[str, np.ndarray]]:
    """Calibration data as the inputs of single runs.

    ``data`` maps each input's name to (M x N, ...) values for M runs of a network of batch N;
    ``origin`` names it in messages. Raises :class:`UsageError` if names, shapes or values do not fit.
    """
    runs = []
    for spec in network.inputs:
        if spec.name not in data:
            known = ", ".join(sorted(data))
            raise UsageError(f"{origin} has no array '{spec.name}': it has {known or 'none'}")
        values = np.asarray(data[spec.name])
        batch = spec.shape[0] if spec.shape else 1
        fits = values.ndim > 0 and values.shape[1:] == spec.shape[1:]
        if not fits or not len(values) or len(values) % batch:
            wanted = "x".join(map(str, spec.shape))
            several = f": give a multiple of {batch} of them" if batch > 1 else ""
            raise UsageError(
                f"{origin}: '{spec.name}' is {'x'.join(map(str, values.shape))}, and the network takes "
                f"{wanted}{several}"
            )
        kinds = "fiub" if spec.dtype == "bool" else "fiu"
        sound = values.dtype.kind in kinds and np.all(np.isfinite(values))
        if sound:
            with np.errstate(over="ignore"):
                values = values.astype(spec.dtype)
        if not sound or not np.all(np.isfinite(values)):
            raise UsageError(
                f"{origin}: '{spec.name}' holds values that are not finite numbers of {spec.dtype}"
            )
        if np.dtype(spec.dtype).kind == "f" and not np.any(values):
            raise UsageError(
                f"{origin}: '{spec.name}' holds only zeros, from which no scale follows"
            )
        runs.append((spec, values, len(values) // batch))
    counts = {count for _, _, count in runs}
    if len(counts) != 1:
        raise UsageError(
            f"{origin}: its arrays are for different numbers of runs; save as many of each input"
        )
    return [
        {
            spec.name: np.ascontiguousarray(np.split(values, count)[n]).reshape(spec.shape)
            for spec, values, count in runs
        }
        for n in range(counts.pop())
    ]


def random_samples(network: Network) -> list[dict[str, np.ndarray]]:
    """Seeded inputs of unit variance, for use without calibration data."""
    from tvmtune.networks.inputs import inputs_of

    return [inputs_of(network, seed) for seed in range(RANDOM_SAMPLES)]


def warn_of_random_samples(network: Network) -> None:
    """Say that :func:`random_samples` set the scales."""
    warnings.warn(
        f"{network.name} is calibrated with {RANDOM_SAMPLES} random inputs: give real ones with "
        "--calibration FILE.npz",
        stacklevel=3,
    )


def _with_outputs(graph: tvm.IRModule, names: Sequence[str]) -> tvm.IRModule:
    """The graph with these variables as its outputs, and nothing that they do not need."""
    import tvm
    from tvm import relax

    main = relax.transform.ToNonDataflow()(graph)["main"]
    variables = dict(_variables(main))
    outputs = [variables[name] for name in names]
    body = relax.SeqExpr(main.body.blocks, relax.Tuple(outputs))
    types = relax.TupleType([variable.ty for variable in outputs])
    mod = tvm.IRModule({"main": relax.Function(main.params, body, types, True, main.attrs)})
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
