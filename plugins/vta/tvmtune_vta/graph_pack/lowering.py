"""Quantizing a network, and lowering it to CPU kernels and programs of the accelerator.

Consecutive layers share one program as long as nothing between them has to run on the CPU. Tensors
keep VTA's layout from layer to layer; they are packed and unpacked only where the CPU takes over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.errors import UsageError
from tvmtune.quantize import groups, quantize_dequantize
from tvmtune.quantize.graph import operator_calls
from tvmtune.quantize.groups import Group
from tvmtune.quantize.network import QuantizedNetwork, prepare_float_graph, quantize_network
from tvmtune.types import Device, Network, Prepared, Trial
from tvmtune_vta import target
from tvmtune_vta.device import packed_functions
from tvmtune_vta.graph_pack import partition, programs
from tvmtune_vta.graph_pack.partition import Partition
from tvmtune_vta.hardware import rules
from tvmtune_vta.timing import time_model
from tvmtune_vta.tuning import tasks

if TYPE_CHECKING:
    import tvm


def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
    *,
    may_be_empty: bool = False,
) -> Prepared:
    """Quantize the layers that run on VTA. ``extra["partition"]`` lists them,
    ``extra["operators"]`` all operators of the network.

    Raises :class:`TvmtuneError` if there are none, unless it ``may_be_empty``; the network then stays
    as it is.
    """
    if (dtype := str(network.source.get("dtype", "float32"))) in ("float16", "bfloat16"):
        raise UsageError(
            f"VTA quantizes float32 networks to int8, and this one is {dtype}: omit --dtype {dtype}"
        )
    prepared = prepare_float_graph(network, device, layout)
    start, stop = device.attrs["start_op"], device.attrs["stop_op"]
    parts = partition.partition(
        prepared.graph,
        target.of(device),
        start,
        stop,
        network.name,
        may_be_empty=may_be_empty,
    )
    extra = {"partition": parts, "operators": operator_calls(prepared.graph)}
    if not parts.packed:
        return Prepared(network, device, prepared.layout, prepared.graph, extra)
    network_int8 = quantize_network(prepared, parts.layers, calibration)
    return Prepared(network_int8, device, prepared.layout, prepared.graph, extra)


def lower(prepared: Prepared, chosen: Mapping[str, Trial], device: Device) -> tvm.IRModule:
    """The network as CPU kernels and accelerator programs."""
    from tvmtune.tasks.lower import MODELLED, RECORD
    from tvmtune.tasks.lower import lower as lower_for_cpu

    config, parts = target.of(device), prepared.extra["partition"]
    assert isinstance(parts, Partition) and isinstance(prepared.network, QuantizedNetwork)
    network = prepared.network
    quantized_layers = {each.layer.output: each for each in network.quantized_layers}
    knobs, records = programs.choose_knobs(parts.packed, chosen, config)
    layout = programs.packed_layout(config)
    timing = time_model.TimingConstants(**device.attrs["constants"])
    modelled: list[dict[str, Any]] = []

    def call_program(builder: Any, group: Group, inputs: dict[str, Any]) -> dict[str, Any]:
        from tvm import relax

        from tvmtune.passes import constants

        packed = [
            builder.emit(quantize_dequantize.pack(builder, value, network.exponents[name], layout))
            for name, value in inputs.items()
        ]
        shapes = {layer.output: layer.out_shape for layer in group.layers}
        types = [relax.TensorType(layout.shape(shapes[name]), "int8") for name in group.outputs]
        program = programs.program(
            group, quantized_layers, parts.packed, knobs, config, name=network.name
        )
        rules.check(program)
        call_site = {
            "name": group.outputs[-1],
            "function": packed_functions.RUN,
            "borders": list(quantize_dequantize.NAMES),
            "launch_seconds": timing.launch_us / 1e6,
        }
        modelled.append(call_site | time_model.program_timeline(program, timing).to_json())
        blob = constants.share(np.frombuffer(packed_functions.blob(program), np.uint8).copy())
        result = builder.emit(
            relax.op.call_dps_packed(
                packed_functions.RUN, [blob, *packed], out_ty=types[0] if len(types) == 1 else types
            )
        )
        outputs = {}
        for index, name in enumerate(group.outputs):
            one = result if len(types) == 1 else builder.emit(relax.TupleGetItem(result, index))
            exponent = network.exponents[name]
            outputs[name] = builder.emit(
                quantize_dequantize.unpack(builder, one, exponent, shapes[name], layout)
            )
        return outputs

    graph = groups.replace(
        prepared.graph, groups.partition(prepared.graph, parts.layers), call_program
    )
    rest = Prepared(network.float, device, prepared.layout, graph)
    module = lower_for_cpu(rest, {}, device).with_attr(RECORD, json.dumps(records))
    return module.with_attr(MODELLED, json.dumps(modelled))


def operator_table(prepared: Prepared, *, scales: bool = False) -> list[dict[str, Any]]:
    """The operators of the network in program order, a row each: ``name``, ``layer`` and the
    device, ``on``; with ``scales`` also the fields of :class:`tvmtune.quantize.scales.LayerScales` for
    quantized layers."""
    parts, network = prepared.extra["partition"], prepared.network
    assert isinstance(parts, Partition)
    scale_rows = {}
    if scales and isinstance(network, QuantizedNetwork):
        scale_rows = {row.name: asdict(row) for row in network.table()}
    layers_by_output = {layer.output: layer for layer in parts.region.layers}
    unquantized = dict(parts.region.others)
    covered = {name for layer in parts.region.layers for name in layer.covers}
    rows: list[dict[str, Any]] = []
    where = "before the region"
    for name, operator in prepared.extra["operators"]:
        if name in layers_by_output:
            where = "after the region"
            layer, conv = layers_by_output[name], parts.packed.get(name)
            shape = "x".join(map(str, layer.out_shape))
            text = tasks.task_name(conv) if conv is not None else f"{layer.kind} to {shape}"
            why = parts.refused.get(name)
            row = {"name": name, "layer": text, "on": "VTA" if why is None else f"CPU: {why}"}
            rows.append({**scale_rows.get(name, {}), **row})
        elif name not in covered:
            why = "not a convolution or a sum" if name in unquantized else where
            rows.append({"name": name, "layer": operator, "on": f"CPU: {why}"})
    return rows
