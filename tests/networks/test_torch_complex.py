"""Complex numbers within PyTorch programs, compared with PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels import this_machine
from networks.in_tvm import assert_tvm_agrees, run_in_tvm
from tvmtune.errors import TvmtuneError
from tvmtune.passes.pipeline import legalize

torch = pytest.importorskip("torch")

from networks.torch_models import TorchNetwork, function_network  # noqa: E402
from tvmtune.networks.torch.converters import complex_numbers  # noqa: E402

PAIR = (2, 3, 4, 2)
"""The shape of a tensor whose last axis has the parts of complex numbers."""
WEIGHTS = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))


def on_complex(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of complex tensors, as one of both parts."""

    def call(*pairs: Any) -> Any:
        results = function(*map(torch.view_as_complex, pairs))
        results = results if isinstance(results, tuple) else (results,)
        return tuple(torch.view_as_real(z) if z.is_complex() else z for z in results)

    return call


def patched(x: Any, y: Any) -> Any:
    image = torch.zeros(2, 3, 9, dtype=torch.complex64)
    image[:, :, :4] = x
    image[:, 1:, -3:] = y[:, 1:, :3] * 2
    return image


def filled(x: Any, y: Any) -> Any:
    z = x.clone()
    z[:, 0] = 0
    z[..., 1] = 2 + 1j
    z[:, 1] *= 3
    z[1, :, :2] = y.real[1, :, :2]
    return z


def of_mixed_dtypes(x: Any, y: Any) -> Any:
    return x * y.real.double(), x + y.to(torch.complex128), torch.complex(x.real[:, :, :1], y.real)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sums": lambda x, y: (
        x + y,
        x - y,
        -x,
        torch.add(x, y, alpha=2),
        torch.sub(x, y.real, alpha=3),
    ),
    "sums with real values": lambda x, y: (x + y.real, y.imag - x, x + 2, 1 - x, x + 2j),
    "products": lambda x, y: (x * y, x * WEIGHTS, x**2, x**3),
    "products with real values": lambda x, y: (x * y.real, y.imag * x, 2 * x, x * 1j),
    "quotients": lambda x, y: (x / y, 1 / x, x / 2, x / y.real, y.real / x),
    "conjugates": lambda x, y: (x.conj() * y, torch.conj_physical(x), x.conj().imag),
    "parts": lambda x, y: (x.real, x.imag, torch.complex(x.imag, y.real)),
    "sizes and angles": lambda x, y: (x.abs(), (x - x).abs() + y.angle(), y.real.angle()),
    "polar": lambda x, y: torch.polar(x.real, y.real),
    "exponentials and logarithms": lambda x, y: (torch.exp(x) + y, torch.log(x), x.sqrt()),
    "matrices": lambda x, y: (x @ y.mT, torch.einsum("bij,ij->bj", x, WEIGHTS)),
    "layers": lambda x, y: (
        torch.nn.functional.linear(x, WEIGHTS, WEIGHTS[:, 0]),
        torch.nn.functional.conv1d(y, WEIGHTS[None, :, :2]),
    ),
    "choices": lambda x, y: (
        torch.where(x.real > 0, x, y),
        torch.where(y.imag > 0, x, 0),
        x.tril(),
    ),
    "moves": lambda x, y: (
        x.permute(2, 0, 1).reshape(4, 6),
        x[:, 1:, ::2],
        x.flip(1),
        x[1],
        x.diagonal(0, 1, 2),
    ),
    "more moves": lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y]), x.roll(1, 2)),
    "repetitions": lambda x, y: (
        x.repeat(2, 1, 1),
        x[:, :1].squeeze(1),
        x.unfold(2, 3, 1),
        y.detach(),
    ),
    "splits": lambda x, y: tuple(x.split([1, 3], 2)) + tuple(y.chunk(2, 0)),
    "lookups": lambda x, y: (x[:, [2, 0]], x[..., None].expand(2, 3, 4, 2) + y[..., None]),
    "more lookups": lambda x, y: (
        x.gather(1, torch.zeros(2, 1, 4, dtype=torch.int64)),
        x.index_put((torch.tensor([1]), torch.tensor([2])), y[0, 0]),
        x.scatter(1, torch.ones(2, 1, 4, dtype=torch.int64), y[:, :1]),
    ),
    "reductions": lambda x, y: (x.sum(1), x.sum(), y.mean((0, 2)), y.cumsum(1), x.mean()),
    "zeros around": lambda x, y: torch.nn.functional.pad(x, (1, 2)) + y.sum(),
    "assignments": patched,
    "assignments to one place": filled,
    "casts": lambda x, y: (
        x.real.to(torch.complex64) + y,
        x.to(torch.complex128),
        y.to(torch.float32),
    ),
    "mixed dtypes": of_mixed_dtypes,
    "constants like a tensor": lambda x, y: (
        torch.ones_like(x),
        torch.full_like(y, 2, dtype=torch.float32),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_those_of_pytorch(function: Callable[..., Any]):
    examples = torch.zeros(PAIR), torch.zeros(PAIR)
    assert_tvm_agrees(function_network(on_complex(function), *examples))


@pytest.mark.slow
def test_all_operators_that_are_computed_by_parts_are_among_them(monkeypatch: pytest.MonkeyPatch):
    seen = set()
    by_parts = complex_numbers.by_parts

    def recorded(node: Any, *others: Any) -> Any:
        seen.add(node.target.__name__)
        return by_parts(node, *others)

    monkeypatch.setattr(complex_numbers, "by_parts", recorded)
    for function in FUNCTIONS.values():
        function_network(on_complex(function), torch.zeros(PAIR), torch.zeros(PAIR)).to_relax()
    assert seen == complex_numbers.BY_PARTS


def test_sizes_and_quotients_neither_overflow_nor_vanish():
    def found(x: Any, y: Any) -> Any:
        x, y = torch.view_as_complex(x), torch.view_as_complex(y)
        quotients = [(x * s) / (y * s) for s in (1e25, 1e-25)]
        inverses = [(1 / (y * s)) * s for s in (1e25, 1e-25)]
        sizes = torch.stack([(x * 1e25).abs() / 1e25, (x * 1e-25).abs() * 1e25])
        return sizes, torch.view_as_real(torch.stack([*quotients, *inverses]))

    assert_tvm_agrees(function_network(found, torch.zeros(PAIR), torch.zeros(PAIR)))


def test_sizes_and_angles_of_special_values():
    inf, nan = math.inf, math.nan
    pairs = [(nan, 1), (1, nan), (inf, inf), (inf, nan), (nan, -inf), (0, 0), (-inf, 2), (3, -4)]
    network = function_network(lambda x: torch.view_as_complex(x).abs(), torch.zeros(len(pairs), 2))
    inputs = {"x_0": np.array(pairs, "float32")}
    np.testing.assert_allclose(run_in_tvm(network, inputs), network.reference(inputs), rtol=1e-6)
    network = function_network(torch.angle, torch.zeros(5, dtype=torch.float64))
    inputs = {"x_0": np.array([-0.0, 0.0, -2.0, inf, nan])}
    np.testing.assert_array_equal(run_in_tvm(network, inputs), network.reference(inputs))


def test_a_part_that_nothing_reads_is_not_computed():
    network = function_network(lambda x: torch.fft.fft(x).real, torch.zeros(3, 8))
    kernels = legalize(network.to_relax(), this_machine()).functions_items()
    assert sum("matmul" in str(variable.name_hint) for variable, _ in kernels) == 1


class Fourier(torch.nn.Module):
    """A layer of a Fourier neural operator: the lowest frequencies times complex weights."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.modes = modes
        shape = 2, channels, channels, modes, modes
        self.weights = torch.nn.Parameter(torch.rand(shape, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, kept = torch.fft.rfft2(x), self.modes
        result = torch.zeros_like(found)
        for weights, rows in zip(self.weights, (slice(kept), slice(-kept, None)), strict=True):
            product = torch.einsum("bixy,ioxy->boxy", found[:, :, rows, :kept], weights)
            result[:, :, rows, :kept] = product
        return torch.fft.irfft2(result, s=x.shape[-2:])


@pytest.mark.slow
def test_a_fourier_neural_operator_with_complex_weights():
    assert_tvm_agrees(function_network(Fourier(4, 3), torch.zeros(2, 4, 10, 12)))


def test_complex_weights_of_all_kinds_remain_when_a_network_is_imported():
    def weights() -> torch.Tensor:
        return torch.randn(
            80, 80, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)
        )

    layer = torch.nn.Module()
    layer.register_buffer("kept", weights())
    layer.register_buffer("passing", 2 * weights(), persistent=False)
    layer.register_parameter("learned", torch.nn.Parameter(3 + weights()))
    constant = 1j + weights()
    layer.forward = lambda x: torch.view_as_real(
        torch.view_as_complex(x) * layer.kept * layer.passing * layer.learned * constant
    )
    network = TorchNetwork(
        torch.export.export(layer, (torch.zeros(80, 80, 2),)), name="net", label="net.pt2"
    )
    assert_tvm_agrees(network)
    assert_tvm_agrees(network, seed=2)


class Rotary(torch.nn.Module):
    """Rotary positions, as Llama's first implementation computes them."""

    def __init__(self, length: int, columns: int) -> None:
        super().__init__()
        rates = 10_000 ** -(torch.arange(0, columns, 2) / columns)
        angles = torch.outer(torch.arange(length), rates)
        self.register_buffer(
            "turns", torch.polar(torch.ones_like(angles), angles), persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[None, :, None]).flatten(3)


@pytest.mark.slow
def test_rotary_positions_by_complex_numbers():
    assert_tvm_agrees(function_network(Rotary(6, 8), torch.zeros(1, 6, 2, 8)))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.tan(x).real, "'tan'.*not among the operators for complex tensors"),
        (
            lambda x: torch.nn.functional.pad(x, (1, 1), value=2.0).real,
            "'constant_pad_nd'.*complex padding other than 0",
        ),
    ],
)
def test_other_operators_are_refused_with_the_reason(function: Callable[..., Any], reason: str):
    network = function_network(lambda x: function(torch.view_as_complex(x)), torch.zeros(PAIR))
    with pytest.raises(TvmtuneError, match=reason):
        network.to_relax()


def test_complex_inputs_and_outputs_are_refused_with_a_remedy():
    with pytest.raises(TvmtuneError, match=r"'x_0' .*torch\.complex64.*torch\.view_as_complex"):
        function_network(torch.abs, torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(TvmtuneError, match=r"'output' .*torch\.complex64.*torch\.view_as_real"):
        function_network(torch.fft.rfft, torch.zeros(8))
