"""Quantize networks of the zoo with ONNX Runtime's tools, for ``peers.py --files``.

    python benchmarks/quantize_zoo.py --out DIR [NETWORK ...]
    python benchmarks/peers.py --out DIR/peers --files DIR/*.onnx --kinds untuned

Writes DIR/NETWORK-int8.onnx: QDQ, uint8 activations, int8 weights per channel, scales from the extremes
of seeded random inputs. Networks of the kind of BERT are quantized dynamically (``--dynamic``): their
products only, with scales that follow from the values at run time.

Then prints for each how often the class with the largest score is that of the float network, by ONNX
Runtime, for as many other random inputs as ``--inputs`` says.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from tvmtune import networks
from tvmtune.networks.inputs import inputs_of
from tvmtune.types import Network

NETWORKS = (
    "resnet-18",
    "resnet-50",
    "mobilenet",
    "mobilenet-v2",
    "squeezenet_v1.1",
    "densenet-121",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--dynamic", action="store_true", help="quantize products dynamically")
    parser.add_argument("--samples", type=int, default=8, help="for the scales (default: 8)")
    parser.add_argument("--inputs", type=int, default=256, help="to compare (default: 256)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print("| network | same largest score |\n|---|---|")
    for name in options.networks:
        network = networks.load(name)
        path = options.out / f"{name}-int8.onnx"
        write(network, path, options.samples, dynamic=options.dynamic)
        print(f"| {name} | {agreement(network, path, options.inputs)} of {options.inputs} |")


class Samples(quantization.CalibrationDataReader):
    """Seeded random inputs."""

    def __init__(self, network: Network, count: int) -> None:
        self._samples = (inputs_of(network, 1000 + seed) for seed in range(count))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def write(network: Network, path: Path, samples: int, *, dynamic: bool = False) -> None:
    """Write the quantized network."""
    with tempfile.TemporaryDirectory() as folder:
        plain, ready = Path(folder, "plain.onnx"), Path(folder, "ready.onnx")
        plain.write_bytes(network.to_onnx() or b"")
        quant_pre_process(plain, ready, skip_symbolic_shape=dynamic)
        if dynamic:
            quantization.quantize_dynamic(
                ready, path, per_channel=True, op_types_to_quantize=["MatMul"]
            )
            return
        quantization.quantize_static(
            ready,
            path,
            Samples(network, samples),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )


def agreement(network: Network, path: Path, count: int) -> int:
    """How many of so many inputs get the class of the float network."""
    options = onnxruntime.SessionOptions()
    # Without VNNI, sums of two products of bytes would saturate.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options)
    plain = onnxruntime.InferenceSession(network.to_onnx())

    def classes(of: Any, inputs: dict[str, np.ndarray]) -> list[int]:
        return np.argmax(of.run(None, inputs)[0], axis=-1).tolist()

    seeds = (inputs_of(network, seed) for seed in range(count))
    return sum(classes(session, inputs) == classes(plain, inputs) for inputs in seeds)


if __name__ == "__main__":
    main()
