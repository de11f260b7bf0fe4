"""How often the class of ``--dtype int8`` is that of float32, and how far the scores are apart.

    python benchmarks/int8_agreement.py [NETWORK ...] [--inputs 256] [--method minmax,entropy]

Calibrates each network of the zoo on eight seeded inputs, compiles it for this CPU, which must have
integer instructions, and runs the library on as many other seeded inputs as ``--inputs`` says. These
networks have random weights, whose scores are close together, so classes change more easily than in
trained ones (``tests/quantize/test_digits.py`` has one).
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np

from tvmtune import api
from tvmtune.networks.inputs import random_inputs, ranges_of
from tvmtune.networks.int8 import Int8Network
from tvmtune.networks.quantization import METHODS, Calibration
from tvmtune.runtime.library import Library
from tvmtune.types import Network

NETWORKS = ("resnet-18", "resnet-50", "mobilenet", "mobilenet-v2", "bert-base", "vit-b-16", "gpt2")
CALIBRATION_SEEDS = range(1000, 1008)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--inputs", type=int, default=256)
    parser.add_argument("--method", default="minmax", help="of " + ",".join(METHODS))
    args = parser.parse_args()
    print("| network | calibration | same class | SQNR dB of the outputs |")
    print("|---|---|---|---|")
    for name in args.networks:
        for method in args.method.split(","):
            same, sqnr = compared(api.load(name), Calibration(method), args.inputs)
            print(f"| {name} | {method} | {100 * same:.1f}% | {sqnr:.1f} |", flush=True)


def compared(network: Network, options: Calibration, count: int) -> tuple[float, float]:
    """The share of inputs with the same largest score in the first output, per row of it, and the
    signal-to-quantization-noise ratio of all of its scores."""
    ranges = ranges_of(network)
    samples = [random_inputs(network.inputs, seed, ranges) for seed in CALIBRATION_SEEDS]
    stacked = {key: np.concatenate([each[key] for each in samples]) for key in samples[0]}
    plan = api.plan(Int8Network(network, options=options), "cpu", calibration=stacked)
    if getattr(plan.network, "computes", "") != "int8":
        raise SystemExit("this CPU has no integer instructions that are used")
    inputs = [random_inputs(network.inputs, seed, ranges) for seed in range(count)]
    same, rows, signal, noise = 0, 0, 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = api.compile(plan, Path(folder) / "int8.so").path
        library = Library.open(path)
        for each, wanted in zip(inputs, network.references(inputs), strict=True):
            got, other = library.run(each)[0], wanted[0]
            classes = [scores.reshape(-1, scores.shape[-1]).argmax(-1) for scores in (got, other)]
            same += int((classes[0] == classes[1]).sum())
            rows += len(classes[0])
            signal += float((other.astype(np.float64) ** 2).sum())
            noise += float(((got.astype(np.float64) - other) ** 2).sum())
    return same / rows, 10 * float(np.log10(signal / noise))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
