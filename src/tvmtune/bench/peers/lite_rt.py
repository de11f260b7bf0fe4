"""LiteRT, which was TensorFlow Lite: it reads TFLite files alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvmtune.bench.peers.base import Peer
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tvmtune.types import Network


class LiteRt(Peer):
    """LiteRT's interpreter with XNNPACK, as by default."""

    name = "litert"
    aliases = ("tflite",)
    package = "ai_edge_litert"
    extra = "tflite"

    def load(self, network: Network, threads: int) -> None:
        from tvmtune.networks.tflite import file as tflite_file

        file = Path(network.source.get("file", ""))
        if file.suffix.lower() != ".tflite":
            raise TvmtuneError(f"{network.name} is not from a .tflite file, which is all it reads")
        machine = tflite_file.interpreter(file.read_bytes(), threads=threads, xnnpack=True)
        places = tflite_file.resize(machine, network.inputs)
        self._places = dict(zip((spec.name for spec in network.inputs), places, strict=True))
        self._machine = machine
        self._results = [detail["index"] for detail in machine.get_output_details()]

    def set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        for name, array in inputs.items():
            self._machine.set_tensor(self._places[name], np.asarray(array, order="C"))

    def invoke(self, count: int = 1) -> float:
        run = self._machine.invoke
        start = time.perf_counter()
        for _ in range(count):
            run()
        return time.perf_counter() - start

    def outputs(self) -> list[np.ndarray]:
        # Its recurrent operators go on from the states of the last run; a library's begin with zeros.
        self._machine.reset_all_variables()
        self._machine.invoke()
        return [self._machine.get_tensor(place) for place in self._results]
