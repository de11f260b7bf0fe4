"""Complex numbers within PyTorch programs, compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from networks.in_tvm import assert_tvm_agrees
from tvmtune.errors import TvmtuneError

torch = pytest.importorskip("torch")

from networks.torch_models import function_network  # noqa: E402

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


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sums": lambda x, y: (x + y, x - y, -x),
    "sums with real values": lambda x, y: (x + y.real, y.imag - x, x + 2, 1 - x, x + 2j),
    "products": lambda x, y: (x * y, x * WEIGHTS),
    "products with real values": lambda x, y: (x * y.real, y.imag * x, 2 * x, x * 1j),
    "quotients": lambda x, y: (x / (y + 3), 1 / (x + 3), x / 2, x / (y.real + 3)),
    "conjugates": lambda x, y: (x.conj() * y, torch.conj_physical(x)),
    "parts": lambda x, y: (x.real, x.imag, torch.complex(x.imag, y.real)),
    "sizes": lambda x, y: (x.abs(), torch.abs(x - x).sum() + y.abs()),
    "angles": lambda x, y: (x + 3).angle(),
    "angles of real values": lambda x, y: x + y.real.angle(),
    "polar": lambda x, y: torch.polar(x.real, y.real),
    "exponentials": lambda x, y: torch.exp(x) + y,
    "matrices": lambda x, y: (x @ y.mT, torch.einsum("bij,ij->bj", x, WEIGHTS)),
    "matrices, one real": lambda x, y: x @ torch.complex(y.real, 0 * y.real).mT,
    "moves": lambda x, y: (x.permute(2, 0, 1).reshape(4, 6), x[:, 1:, ::2], x.flip(1), x[1]),
    "more moves": lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y]), x.roll(1, 2)),
    "splits": lambda x, y: tuple(x.split([1, 3], 2)) + tuple(y.chunk(2, 0)),
    "lookups": lambda x, y: (x[:, [2, 0]], x[..., None].expand(2, 3, 4, 2) + y[..., None]),
    "reductions": lambda x, y: (x.sum(1), x.sum(), y.mean((0, 2))),
    "zeros around": lambda x, y: torch.nn.functional.pad(x, (1, 2)) + y.sum(),
    "assignments": patched,
    "casts": lambda x, y: (x.real.to(torch.complex64) + y, x.to(torch.complex128)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_those_of_pytorch(function: Callable[..., Any]):
    examples = torch.zeros(PAIR), torch.zeros(PAIR)
    assert_tvm_agrees(function_network(on_complex(function), *examples))


@pytest.mark.slow
def test_sizes_neither_overflow_nor_vanish():
    def sizes(x: Any) -> Any:
        z = torch.view_as_complex(x)
        return torch.stack([(z * 1e25).abs() / 1e25, (z * 1e-25).abs() * 1e25])

    assert_tvm_agrees(function_network(sizes, torch.zeros(PAIR)))


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
        (lambda x: torch.tan(x).real, "'tan'.*complex numbers are not supported by this operator"),
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
