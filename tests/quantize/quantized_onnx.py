"""ONNX networks as ONNX Runtime's tools quantize them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.onnx.network import OnnxNetwork


class Samples(CalibrationDataReader):
    def __init__(self, network: OnnxNetwork) -> None:
        self._samples: Iterator[dict[str, np.ndarray]] = (
            random_inputs(network.inputs, seed) for seed in range(8)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def quantized(
    network: OnnxNetwork, folder: Path, form: QuantFormat = QuantFormat.QDQ, **options
) -> Path:
    """The network as ONNX Runtime's tools quantize it."""
    path = folder / "quantized.onnx"
    ready = prepared(network, folder)
    quantize_static(ready, path, Samples(network), quant_format=form, **options)
    return path


def prepared(network: OnnxNetwork, folder: Path) -> Path:
    (folder / "float.onnx").write_bytes(network.to_onnx())
    quant_pre_process(folder / "float.onnx", folder / "ready.onnx")
    return folder / "ready.onnx"
