"""From quantised layers to the one program that computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune.quantise.borders import Form
from tvmtune.quantise.groups import Group
from tvmtune.quantise.integers import Whole
from tvmtune.types import Trial
from tvmtune_vta import addition, compute, convolution, space
from tvmtune_vta.addition import Addition
from tvmtune_vta.chain import Link, chain
from tvmtune_vta.config import Config
from tvmtune_vta.knobs import Knobs
from tvmtune_vta.program import Buffer, Program
from tvmtune_vta.workload import Convolution, Epilogue


def form(config: Config) -> Form:
    """How the accelerator's tensors lie in memory."""
    return Form(config.batch, config.block)


def choose(
    packed: Mapping[str, Convolution], chosen: Mapping[str, Trial], config: Config
) -> tuple[dict[Convolution, Knobs], dict[str, str]]:
    """The knobs of each convolution by the records, else the default ones; and which it was, "exact"
    or "default", by the task's key."""
    import warnings

    from tvmtune.graph import traces
    from tvmtune.records.identity import workload_key

    knobs: dict[Convolution, Knobs] = {}
    records: dict[str, str] = {}
    for conv in dict.fromkeys(packed.values()):
        mod = compute.module(conv, config)
        key = workload_key(mod)
        trial = chosen.get(key)
        if trial is not None and trial.workload == key:
            try:
                found = space.read(traces.apply(mod, trial.trace).mod)
                if found is None or not convolution.fits(conv, compute.EPILOGUE, found, config):
                    raise TvmtuneError("its knobs do not fit")
                knobs[conv], records[key] = found, "exact"
                continue
            except Exception as error:  # a log may hold anything
                warnings.warn(
                    f"a record of {conv} does not apply any more ({error}); the default schedule "
                    "takes its place",
                    stacklevel=2,
                )
        knobs[conv] = space.first(conv, compute.EPILOGUE, config)
        records[key] = "default"
    return knobs, records


def program(
    group: Group,
    wholes: Mapping[str, Whole],
    packed: Mapping[str, Convolution],
    knobs: Mapping[Convolution, Knobs],
    config: Config,
    *,
    name: str = "",
) -> Program:
    """All layers of a group; its buffers begin with the group's inputs and then its outputs."""
    buffers: list[Buffer] = []
    contents: dict[int, npt.NDArray[Any]] = {}
    numbers: dict[str, int] = {}

    def tensor(label: str, role: str, shape: tuple[int, ...]) -> None:
        numbers[label] = len(buffers)
        buffers.append(Buffer(label, role, "int8", form(config).shape(shape)))

    def constant(label: str, array: npt.NDArray[Any]) -> int:
        contents[len(buffers)] = array
        buffers.append(Buffer(label, "constant", str(array.dtype), array.shape))
        return len(buffers) - 1

    shapes = {n: s for x in group.layers for n, s in zip(x.inputs, x.in_shapes, strict=True)}
    for label in group.inputs:
        tensor(label, "input", shapes[label])
    made = {layer.output: layer.out_shape for layer in group.layers}
    for label in group.outputs:
        tensor(label, "output", made[label])
    for label in made:
        if label not in numbers:
            tensor(label, "scratch", made[label])
    links = []
    for layer in group.layers:
        whole = wholes[layer.output]
        given = [numbers[each] for each in layer.inputs]
        if layer.kind == "sum":
            sum_of = Addition(
                form(config).shape(layer.out_shape),
                *whole.factors,
                whole.shift,
                whole.low,
                whole.high,
            )
            part = addition.generate(sum_of, config, name=layer.output)
            weights = constant(f"{layer.output}.factors", part.contents[addition.W])
            operands = (addition.A, addition.B, addition.W, addition.Y)
            places = dict(zip(operands, (*given, weights, numbers[layer.output]), strict=True))
        else:
            conv = packed[layer.output]
            epilogue = Epilogue(True, whole.shift, whole.low, whole.high)
            part = convolution.generate(conv, epilogue, knobs[conv], config, name=layer.output)
            places = {
                convolution.X: given[0],
                convolution.W: constant(f"{layer.output}.weights", _weights(whole, conv, config)),
                convolution.BIAS: constant(f"{layer.output}.bias", _bias(whole, conv, config)),
                convolution.Y: numbers[layer.output],
            }
        links.append(Link(part, places))
    return chain(config, links, buffers, contents, name=name)


def _weights(whole: Whole, conv: Convolution, config: Config) -> npt.NDArray[np.int8]:
    """(O, I / groups, KH, KW) as (CO/c, CI/g/c, KH, KW, c, c), zero beyond the layer's channels."""
    assert whole.weights is not None
    shape = conv.shapes(config)[1]
    out, ins, kernel_h, kernel_w = whole.weights.shape
    c = config.block
    padded = np.zeros((shape[0] * c, shape[1] * c, kernel_h, kernel_w), np.int8)
    padded[:out, :ins] = whole.weights
    tiles = padded.reshape(shape[0], c, shape[1], c, kernel_h, kernel_w)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 5, 1, 3))


def _bias(whole: Whole, conv: Convolution, config: Config) -> npt.NDArray[np.int32]:
    """(O,) as (CO/c, b, c)."""
    assert whole.bias is not None
    padded = np.zeros(conv.out_channels, np.int32)
    padded[: len(whole.bias)] = whole.bias
    rows = padded.reshape(-1, 1, config.block)
    return np.ascontiguousarray(np.repeat(rows, config.batch, axis=1))
