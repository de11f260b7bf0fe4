"""The program of a group of quantized layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune.quantize.groups import Group
from tvmtune.quantize.integers import QuantizedConvolution, QuantizedLayer, QuantizedSum
from tvmtune.quantize.quantize_dequantize import BlockedLayout
from tvmtune.types import Trial
from tvmtune_vta.codegen import addition, convolution
from tvmtune_vta.codegen.addition import Addition
from tvmtune_vta.codegen.chain import Link, chain
from tvmtune_vta.codegen.knobs import Knobs
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import Buffer, Program
from tvmtune_vta.tuning import conv2d_packed, space


def packed_layout(config: Config) -> BlockedLayout:
    """The accelerator's tensor layout."""
    return BlockedLayout(config.batch, config.block)


def choose_knobs(
    packed: Mapping[str, Convolution], chosen: Mapping[str, Trial], config: Config
) -> tuple[dict[Convolution, Knobs], dict[str, str]]:
    """The knobs of each convolution, from records or by default; and by task key which of the two,
    "exact" or "default"."""
    import warnings

    from tvmtune.passes.workload_keys import workload_key
    from tvmtune.spaces import traces

    knobs: dict[Convolution, Knobs] = {}
    records: dict[str, str] = {}
    for conv in dict.fromkeys(packed.values()):
        mod = conv2d_packed.module(conv, config)
        key = workload_key(mod)
        trial = chosen.get(key)
        if trial is not None and trial.workload == key:
            try:
                recorded = space.read_knobs(traces.apply(mod, trial.trace).mod)
                if recorded is None or not convolution.is_feasible(
                    conv, conv2d_packed.EPILOGUE, recorded, config
                ):
                    raise TvmtuneError("its knobs do not fit")
                knobs[conv], records[key] = recorded, "exact"
                continue
            except Exception as error:  # a log may contain anything
                warnings.warn(
                    f"a record of {conv} no longer applies ({error}): using the default schedule",
                    stacklevel=2,
                )
        knobs[conv] = space.default_knobs(conv, conv2d_packed.EPILOGUE, config)
        records[key] = "default"
    return knobs, records


def program(
    group: Group,
    quantized_layers: Mapping[str, QuantizedLayer],
    packed: Mapping[str, Convolution],
    knobs: Mapping[Convolution, Knobs],
    config: Config,
    *,
    name: str = "",
) -> Program:
    """The program of all layers of a group; its buffers begin with the group's inputs and then its
    outputs."""
    buffers: list[Buffer] = []
    contents: dict[int, npt.NDArray[Any]] = {}
    indices: dict[str, int] = {}

    def tensor(label: str, role: str, shape: tuple[int, ...]) -> None:
        indices[label] = len(buffers)
        buffers.append(Buffer(label, role, "int8", packed_layout(config).shape(shape)))

    def constant(label: str, array: npt.NDArray[Any]) -> int:
        contents[len(buffers)] = array
        buffers.append(Buffer(label, "constant", str(array.dtype), array.shape))
        return len(buffers) - 1

    shapes = {n: s for x in group.layers for n, s in zip(x.inputs, x.in_shapes, strict=True)}
    for label in group.inputs:
        tensor(label, "input", shapes[label])
    out_shapes = {layer.output: layer.out_shape for layer in group.layers}
    for label in group.outputs:
        tensor(label, "output", out_shapes[label])
    for label in out_shapes:
        if label not in indices:
            tensor(label, "scratch", out_shapes[label])
    links = []
    for layer in group.layers:
        quantized = quantized_layers[layer.output]
        inputs = [indices[each] for each in layer.inputs]
        if isinstance(quantized, QuantizedSum):
            sum_ = Addition(
                packed_layout(config).shape(layer.out_shape),
                *quantized.factors,
                quantized.shift,
                quantized.low,
                quantized.high,
            )
            layer_program = addition.generate(sum_, config, name=layer.output)
            weights = constant(f"{layer.output}.factors", layer_program.contents[addition.W])
            operands = (addition.A, addition.B, addition.W, addition.Y)
            buffer_map = dict(zip(operands, (*inputs, weights, indices[layer.output]), strict=True))
        else:
            assert isinstance(quantized, QuantizedConvolution)
            conv = packed[layer.output]
            epilogue = Epilogue(True, quantized.shift, quantized.low, quantized.high)
            layer_program = convolution.generate(
                conv, epilogue, knobs[conv], config, name=layer.output
            )
            buffer_map = {
                convolution.X: inputs[0],
                convolution.W: constant(
                    f"{layer.output}.weights", _weights(quantized, conv, config)
                ),
                convolution.BIAS: constant(f"{layer.output}.bias", _bias(quantized, conv, config)),
                convolution.Y: indices[layer.output],
            }
        links.append(Link(layer_program, buffer_map))
    return chain(config, links, buffers, contents, name=name)


def _weights(
    quantized: QuantizedConvolution, conv: Convolution, config: Config
) -> npt.NDArray[np.int8]:
    """(O, I / groups, KH, KW) to (CO/c, CI/g/c, KH, KW, c, c), with zeros beyond the layer's
    channels."""
    shape = conv.shapes(config)[1]
    out, ins, kernel_h, kernel_w = quantized.weights.shape
    c = config.block
    padded = np.zeros((shape[0] * c, shape[1] * c, kernel_h, kernel_w), np.int8)
    padded[:out, :ins] = quantized.weights
    tiles = padded.reshape(shape[0], c, shape[1], c, kernel_h, kernel_w)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 5, 1, 3))


def _bias(
    quantized: QuantizedConvolution, conv: Convolution, config: Config
) -> npt.NDArray[np.int32]:
    """(O,) to (CO/c, b, c)."""
    padded = np.zeros(conv.out_channels, np.int32)
    padded[: len(quantized.bias)] = quantized.bias
    rows = padded.reshape(-1, 1, config.block)
    return np.ascontiguousarray(np.repeat(rows, config.batch, axis=1))
