"""A network with its packed part on the accelerator, as few programs.

Layers follow one another in one program for as long as nothing between them has to run on the CPU.
Tensors keep VTA's layout from layer to layer; only where the CPU takes over they are unpacked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmtune.quantise import borders, groups
from tvmtune.quantise import region as find
from tvmtune.quantise.groups import Group
from tvmtune.quantise.network import QuantisedNetwork, floats, quantised
from tvmtune.types import Device, Network, Prepared, Trial
from tvmtune_vta import clock, driver, layers, region, rules, target, tasks
from tvmtune_vta.region import Split

if TYPE_CHECKING:
    import tvm


def prepare(
    network: Network,
    device: Device,
    layout: str | None,
    calibration: Mapping[str, np.ndarray] | None,
) -> Prepared:
    """The float graph, the network with its layers in whole numbers, in ``extra["split"]`` which these
    are, and in ``extra["operators"]`` all that the network computes."""
    prepared = floats(network, device, layout)
    start, stop = device.attrs["start_op"], device.attrs["stop_op"]
    split = region.split(prepared.graph, target.of(device), start, stop, network.name)
    extra = {"split": split, "operators": find.called(prepared.graph)}
    whole = quantised(prepared, split.layers, calibration)
    return Prepared(whole, device, prepared.layout, prepared.graph, extra)


def lower(prepared: Prepared, chosen: Mapping[str, Trial], device: Device) -> tvm.IRModule:
    """The network as kernels of the CPU and programs of the accelerator."""
    from tvmtune.graph.lower import MODELLED, RECORD
    from tvmtune.graph.lower import lower as lower_for_cpu

    config, split = target.of(device), prepared.extra["split"]
    assert isinstance(split, Split) and isinstance(prepared.network, QuantisedNetwork)
    network = prepared.network
    wholes = {whole.layer.output: whole for whole in network.wholes}
    knobs, records = layers.choose(split.packed, chosen, config)
    form = layers.form(config)
    known = clock.Constants(**device.attrs["constants"])
    modelled: list[dict[str, Any]] = []

    def call(builder: Any, group: Group, given: dict[str, Any]) -> dict[str, Any]:
        from tvm import relax

        from tvmtune.graph import constants

        packed = [
            builder.emit(borders.pack(builder, value, network.exponents[name], form))
            for name, value in given.items()
        ]
        shapes = {layer.output: layer.out_shape for layer in group.layers}
        types = [relax.TensorType(form.shape(shapes[name]), "int8") for name in group.outputs]
        program = layers.program(group, wholes, split.packed, knobs, config, name=network.name)
        rules.check(program)
        told = {
            "name": group.outputs[-1],
            "function": driver.RUN,
            "borders": list(borders.NAMES),
            "launch_seconds": known.launch_us / 1e6,
        }
        modelled.append(told | clock.model(program, known).to_json())
        blob = constants.share(np.frombuffer(driver.blob(program), np.uint8).copy())
        made = builder.emit(
            relax.op.call_dps_packed(
                driver.RUN, [blob, *packed], out_ty=types[0] if len(types) == 1 else types
            )
        )
        found = {}
        for place, name in enumerate(group.outputs):
            one = made if len(types) == 1 else builder.emit(relax.TupleGetItem(made, place))
            exponent = network.exponents[name]
            found[name] = builder.emit(borders.unpack(builder, one, exponent, shapes[name], form))
        return found

    graph = groups.replace(prepared.graph, groups.cut(prepared.graph, split.layers), call)
    rest = Prepared(network.float, device, prepared.layout, graph)
    module = lower_for_cpu(rest, {}, device).with_attr(RECORD, json.dumps(records))
    return module.with_attr(MODELLED, json.dumps(modelled))


def overview(prepared: Prepared, *, scales: bool = False) -> list[dict[str, Any]]:
    """What the network computes, in its order, a row each: ``name``, ``layer`` and where it is
    computed, ``on``; with ``scales`` what became of it in whole numbers, the fields of
    :class:`tvmtune.quantise.scales.Row`."""
    split, network = prepared.extra["split"], prepared.network
    assert isinstance(split, Split) and isinstance(network, QuantisedNetwork)
    told = {row.name: asdict(row) for row in network.table()} if scales else {}
    layers_by_output = {layer.output: layer for layer in split.region.layers}
    inside = dict(split.region.others)
    covered = {name for layer in split.region.layers for name in layer.covers}
    rows: list[dict[str, Any]] = []
    where = "before the region"
    for name, operator in prepared.extra["operators"]:
        if name in layers_by_output:
            where = "behind the region"
            layer, conv = layers_by_output[name], split.packed.get(name)
            shape = "x".join(map(str, layer.out_shape))
            text = tasks.name(conv) if conv is not None else f"{layer.kind} to {shape}"
            why = split.refused.get(name)
            row = {"name": name, "layer": text, "on": "VTA" if why is None else f"CPU: {why}"}
            rows.append({**told.get(name, {}), **row})
        elif name not in covered:
            why = "no layer" if name in inside else where
            rows.append({"name": name, "layer": operator, "on": f"CPU: {why}"})
    return rows
