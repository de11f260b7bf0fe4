"""Fourier transforms of PyTorch programs, compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from networks.in_tvm import assert_equal, assert_tvm_agrees, run_in_tvm
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs

torch = pytest.importorskip("torch")

from networks.torch_models import function_network  # noqa: E402
from tvmtune.networks.torch.converters import fourier  # noqa: E402

fft = torch.fft


def parts(transform: Callable[..., Any], *arguments: Any, **keywords: Any) -> Callable[[Any], Any]:
    """A transform of real values to both parts of complex ones."""
    return lambda x: torch.view_as_real(transform(x, *arguments, **keywords))


def of_complex(transform: Callable[..., Any], **keywords: Any) -> Callable[[Any], Any]:
    """A transform of complex values, given and returned as both parts."""
    return lambda x: torch.view_as_real(transform(torch.view_as_complex(x), **keywords))


def to_real(transform: Callable[..., Any], **keywords: Any) -> Callable[[Any], Any]:
    return lambda x: transform(torch.view_as_complex(x), **keywords)


TRANSFORMS = {
    "real values": (parts(fft.rfft), (3, 12)),
    "an odd number of points": (parts(fft.rfft), (3, 11)),
    "one point": (parts(fft.rfft), (3, 1)),
    "both halves": (parts(fft.fft), (3, 12)),
    "along the first axis": (parts(fft.rfft, dim=0), (6, 2, 3)),
    "shorter": (parts(fft.rfft, n=8), (3, 12)),
    "longer": (parts(fft.rfft, n=15), (3, 12)),
    "by the root": (parts(fft.rfft, norm="ortho"), (3, 12)),
    "by the number": (parts(fft.rfft, norm="forward"), (3, 12)),
    "two axes": (parts(fft.rfft2), (2, 6, 8)),
    "two axes, which are not the last": (parts(fft.rfft2, dim=(1, 2), norm="ortho"), (2, 6, 8, 3)),
    "three axes": (parts(fft.fftn), (4, 5, 6)),
    "float64": (parts(fft.rfft), (3, 12), torch.float64),
    "complex values": (of_complex(fft.fft), (3, 12, 2)),
    "inverse": (of_complex(fft.ifft), (3, 12, 2)),
    "inverse, along two axes": (of_complex(fft.ifft2, norm="ortho"), (3, 6, 5, 2)),
    "to real values": (to_real(fft.irfft), (3, 7, 2)),
    "to an odd number of real values": (to_real(fft.irfft, n=13), (3, 7, 2)),
    "to a real image": (to_real(fft.irfft2, s=(6, 9), dim=(0, 1)), (6, 5, 3, 2)),
    "of the conjugates": (to_real(fft.hfft), (3, 7, 2)),
    "two steps": (parts(fft.rfft), (2, 1200)),
    "two steps, padded": (parts(fft.rfft, n=2048), (2, 1000)),
    "two steps, both halves": (parts(fft.fft, norm="ortho"), (2, 1024)),
    "two steps, of complex values": (of_complex(fft.fft), (2, 1035, 2)),
    "two steps, inverse": (of_complex(fft.ifft), (2, 1024, 2)),
    "two steps, to real values": (to_real(fft.irfft), (2, 601, 2)),
    "two steps, to an odd number of real values": (to_real(fft.irfft, n=1035), (2, 518, 2)),
    "a prime number of many points": (parts(fft.rfft), (2, 1031)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_are_those_of_pytorch(case: tuple[Any, ...]):
    transform, shape, *dtype = case
    assert_tvm_agrees(function_network(transform, torch.zeros(shape, dtype=(*dtype, None)[0])))


@pytest.mark.parametrize("points", [64, 400, 1000])
def test_values_that_are_real_by_definition_have_no_imaginary_part(points: int):
    def found(x: Any) -> Any:
        ends = torch.fft.rfft(x)[:, :: points // 2]
        return ends.imag + ends.abs(), ends.angle()

    network = function_network(
        lambda x: (*found(x), fft.rfft(x).imag[:, -1]), torch.zeros(9, points)
    )
    inputs = random_inputs(network.inputs, 1)
    computed, expected = run_in_tvm(network, inputs), network.reference(inputs)
    assert_equal(computed[:2], expected[:2])
    assert not computed[2].any()


@pytest.mark.parametrize(
    ("samples", "results", "parts", "real", "fewest"),
    [
        ("points", "half", 1, False, 224),
        ("points", "points", 1, False, 112),
        ("points", "points", 2, False, 64),
        ("half", "points", 2, True, 224),
    ],
)
def test_many_points_take_two_steps(samples, results, parts, real, fewest):
    """As measured: rows of 128 real values take less time in one step, of 256 in two."""

    def steps(points: int) -> int:
        extents = {"points": points, "half": points // 2 + 1}
        given = extents[samples], extents[results], parts
        return 1 if fourier._split(points, *given, real=real) is None else 2

    found = [points for points in range(16, 1024, 16) if steps(points) == 2]
    assert found[0] == fewest


class Spectrogram(torch.nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = len(self.window)
        z = torch.stft(x, length, length // 4, window=self.window, return_complex=True)
        return z.abs() ** 2


@pytest.mark.slow
def test_a_spectrogram_of_audio():
    assert_tvm_agrees(function_network(Spectrogram(64), torch.zeros(2, 400)))


@pytest.mark.slow
def test_audio_from_a_spectrogram():
    def vocode(size: Any, phase: Any) -> Any:
        return torch.istft(torch.polar(size, phase), 64, 16, window=torch.hann_window(64))

    assert_tvm_agrees(function_network(vocode, torch.zeros(1, 33, 10), torch.zeros(1, 33, 10)))


def test_too_large_a_transform_is_refused_with_the_reason():
    network = function_network(lambda x: fft.rfft(x).abs(), torch.zeros(1, 10_007))
    with pytest.raises(TvmtuneError, match="'_fft_r2c'.*a transform of 10007 points is too large"):
        network.to_relax()
