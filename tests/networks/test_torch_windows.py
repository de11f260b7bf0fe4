"""Convolutions and poolings in PyTorch programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels import error
from networks.in_tvm import assert_tvm_agrees
from tvmtune import api
from tvmtune.networks.torch.network import TorchNetwork
from tvmtune.runtime.library import Library

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from networks.torch_models import TinyCnn, function_network, image  # noqa: E402


def network(module: nn.Module, *examples: Any) -> TorchNetwork:
    program = torch.export.export(module.eval(), examples)
    return TorchNetwork(program, name="net", label="net.pt2")


def up_and_down(rank: int, dtype: str) -> TorchNetwork:
    """A convolution and a transposed one over ``rank`` axes, with everything but defaults."""
    torch.manual_seed(0)
    down = getattr(nn, f"Conv{rank}d")(4, 6, 3, stride=2, padding=1, groups=2)
    up = getattr(nn, f"ConvTranspose{rank}d")(
        6, 4, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False
    )
    kind = getattr(torch, dtype)
    example = torch.zeros(2, 4, *[5, 6, 7][:rank], dtype=kind)
    return network(nn.Sequential(down, nn.ReLU(), up).to(kind), example)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 5e-3), ("float64", 1e-12)])
def test_convolutions_keep_their_dtype(dtype: str, tolerance: float):
    assert_tvm_agrees(up_and_down(2, dtype), tolerance=tolerance)


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_lines_and_volumes(rank: int):
    assert_tvm_agrees(up_and_down(rank, "float32"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 5e-3), ("bfloat16", 4e-2), ("float64", 1e-12)]
)
def test_a_library_in_another_precision_agrees_with_pytorch(
    dtype: str, tolerance: float, tmp_path: Path
):
    kind = getattr(torch, dtype)
    net = network(TinyCnn().to(kind), image().to(kind))
    library = Library.open(api.compile(api.plan(net), tmp_path / "net.so").path)
    inputs = library.random_inputs(0)
    (found,), (expected,) = library.run(inputs), net.reference(inputs)
    assert found.dtype == expected.dtype == net.outputs[0].dtype
    assert error(np.asarray(found, "float64"), np.asarray(expected, "float64")) < tolerance


@pytest.mark.sweep
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_averages_are_divided_by_the_given_divisor(ceil_mode: bool):
    def averages(x: Any) -> Any:
        options: dict[str, Any] = {"ceil_mode": ceil_mode, "divisor_override": 5}
        return (
            functional.avg_pool2d(x, 3, stride=2, padding=1, **options),
            functional.avg_pool2d(x, (2, 3), count_include_pad=False, **options),
            functional.avg_pool2d(x[0], 2, **options),
            functional.avg_pool3d(x, 2, stride=(1, 2, 2), padding=1, **options),
        )

    assert_tvm_agrees(function_network(averages, torch.zeros(2, 3, 6, 8)))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("shape", "outputs"),
    [((2, 3, 7, 9), (5, 4)), ((1, 3, 8, 6), (4, 4)), ((1, 2, 5, 4, 7), (3, 2, 7)), ((2, 3, 7), 4)],
)
def test_adaptive_maxima(shape: tuple[int, ...], outputs: Any):
    rank = len(shape) - 2
    pool = getattr(torch.nn.functional, f"adaptive_max_pool{rank}d")
    assert_tvm_agrees(function_network(lambda x: pool(x, outputs), torch.zeros(shape)))
