"""Default hook implementations, which a backend plugin takes over in one line each.

``export_lib = backend_defaults.export_lib`` in a plugin's module implements that hook; a plugin writes
out only the hooks in which its device differs. Names that end in ``_gpu`` or ``_quantized`` are
variants of one hook, e.g. ``lower = backend_defaults.lower_gpu``.

The functions import what they need when they are called: a board that loads a plugin for ``serve_init``
has neither TVM's compiler nor most of tvmtune's dependencies, and ``tvmtune plugins`` stays quick.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmtune import cpu_features, dot_instructions
from tvmtune.hookspecs import hookimpl
from tvmtune.types import (
    Algorithm,
    BuilderSpec,
    Device,
    ExtraSpace,
    Network,
    Prepared,
    RunnerSpec,
    Task,
    Trial,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import tvm


@hookimpl
def hardware_params(device: Device) -> dict[str, Any]:
    """The parameters that ``make_target`` found."""
    return dict(device.params)


@hookimpl
def prepare(network: Network, device: Device, layout: str | None) -> Prepared:
    """Float networks, in NHWC unless another layout is requested."""
    from tvmtune.passes import pipeline

    return pipeline.prepare(network, device, layout)


@hookimpl
def prepare_quantized(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    """As :func:`prepare`, and int8 networks with kernels for CPUs."""
    from tvmtune.quantize import cpu

    return cpu.prepare(network, device, layout, calibration)


@hookimpl
def implementations(device: Device) -> Sequence[Algorithm | ExtraSpace]:
    """Winograd's convolution."""
    from tvmtune.operators.implementations import DEFAULT

    return DEFAULT


@hookimpl
def implementations_cpu(device: Device) -> Sequence[Algorithm | ExtraSpace]:
    """Winograd's convolutions, convolutions as matrix products or with groups of whole vectors,
    products by Strassen's algorithm, products and convolutions with padded extents, and those in
    bfloat16."""
    from tvmtune.operators.implementations import (
        PADDED,
        WINOGRAD,
        bfloat16,
        bfloat16_batched,
        gemms_cpu,
        groups_cpu,
        padded_channels,
        strassen_cpu,
        winograd_cpu,
    )
    from tvmtune.spaces import cpu_tiles

    unit = cpu_features.vector_unit(device.target)

    columns = partial(cpu_tiles.padded_columns, unit=unit)
    matrix = partial(cpu_tiles.padded_matrix, unit=unit)
    saves_loads = partial(cpu_tiles.saves_loads, unit=unit)
    cores = int(device.target.get("num-cores") or 1)
    winograd = winograd_cpu(cores, cpu_tiles.winograd_lanes(unit))
    groups = [*groups_cpu(partial(cpu_tiles.group_vectors, unit=unit), unit.lanes)]
    if unit.lanes < cpu_features.AVX.lanes:
        # Not measured: with short vectors, transforms need more registers than there are.
        winograd = tuple(replace(algorithm, prefers=None) for algorithm in winograd)
        groups = [replace(algorithm, prefers=None) for algorithm in groups]
    superseded = replace(WINOGRAD, superseded=True)
    instructions = dot_instructions.for_bfloat16(device.target)
    products = bfloat16(instructions[0]) if instructions else ()
    tiles = dot_instructions.for_tiles(device.target)
    if instructions and any(each.meaning == "bfloat16" for each in tiles):
        products = (*products, bfloat16_batched(instructions[0]))
    gemms = gemms_cpu(matrix, saves_loads)
    if unit.lanes == cpu_features.AVX512.lanes:
        # With so many registers, tiles of one line of an image are as good, unless its pixels make none
        # of a few. Frames have short lines, and signals often a prime number of samples.
        images, *_ = gemms_cpu(matrix, partial(cpu_tiles.waits, unit=unit))
        *_, rows = gemms_cpu(
            partial(cpu_tiles.product_matrix, unit=unit),
            partial(cpu_tiles.suits_vectors, unit=unit),
        )
        gemms = (images, *(each for each in gemms if each.name.endswith(("-1d", "-3d"))), rows)
    elif not unit.has_few_registers:
        gemms = ()  # not measured
    if unit.lanes >= cpu_features.AVX.lanes:
        blocks = partial(cpu_tiles.strassen_blocks, unit=unit, cores=cores)
        gemms = (strassen_cpu(blocks, partial(cpu_tiles.suits_strassen, unit=unit)), *gemms)
    return (*products, *winograd, *gemms, *groups, PADDED, padded_channels(columns), superseded)


@hookimpl
def implementations_gpu(device: Device) -> Sequence[Algorithm | ExtraSpace]:
    """Register tiles, Winograd, implicit GEMM and split-K, for GPUs with fast shared memory."""
    from tvmtune.operators.implementations import IMPLICIT_GEMM, SPLIT_K, WINOGRAD
    from tvmtune.spaces import gpu_spaces

    return (gpu_spaces.register_tiles_for(device), WINOGRAD, IMPLICIT_GEMM, SPLIT_K)


@hookimpl
def extract_tasks(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    """Kernels scheduled by TVM's rules for the target."""
    from tvmtune.tasks import extract

    return extract.extract_tasks(prepared, device, implementations=implementations)


@hookimpl
def extract_tasks_quantized(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    """As :func:`extract_tasks`; for an int8 network only its int8 kernels."""
    from tvmtune.quantize import cpu

    return cpu.extract_tasks(prepared, device, implementations)


@hookimpl
def extract_tasks_gpu(
    prepared: Prepared,
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> list[Task]:
    """Kernels scheduled by TVM's rules for GPUs."""
    from tvmtune.spaces import gpu_spaces
    from tvmtune.tasks import extract

    return extract.extract_tasks(
        prepared, device, lambda mod: gpu_spaces.space(mod, device), implementations
    )


@hookimpl
def make_builder(device: Device) -> BuilderSpec:
    """Build with TVM and a linker for the device's system."""
    from tvmtune.measure import specs

    return specs.builder(device)


@hookimpl
def make_runner(device: Device) -> RunnerSpec:
    """Measure on this machine, or on the boards that the device names."""
    from tvmtune.measure import specs

    return specs.runner(device)


@hookimpl
def lower(
    prepared: Prepared,
    chosen: dict[str, Trial],
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> tvm.IRModule:
    """The counterpart of :func:`extract_tasks` and :func:`extract_tasks_quantized`."""
    from tvmtune.quantize.network import QuantizedNetwork
    from tvmtune.tasks import lower as lowering

    if implementations is not None and isinstance(prepared.network, QuantizedNetwork):
        # Its reference has the direct float kernels, and every bit must be the same.
        implementations = [
            replace(each, prefers=None) if isinstance(each, Algorithm) else each
            for each in implementations
        ]
    return lowering.lower(prepared, chosen, device, implementations=implementations)


@hookimpl
def lower_gpu(
    prepared: Prepared,
    chosen: dict[str, Trial],
    device: Device,
    implementations: Sequence[Algorithm | ExtraSpace] | None,
) -> tvm.IRModule:
    """The counterpart of :func:`extract_tasks_gpu`."""
    from tvmtune.spaces import gpu_spaces
    from tvmtune.tasks import lower as lowering

    return lowering.lower(
        prepared, chosen, device, lambda mod: gpu_spaces.space(mod, device), implementations
    )


@hookimpl
def export_lib(lowered: tvm.IRModule, device: Device, path: Path) -> Path:
    """Compile and link for the device's system; the weights become data where possible."""
    from tvmtune.library import export

    return export.export_lib(lowered, device, path)
