"""Operators of PyTorch that have no converter, computed by their definitions, and views of memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from networks.torch_models import assert_correct, function_network  # noqa: E402
from tvmtune.errors import TvmtuneError  # noqa: E402


@pytest.mark.slow
def test_operators_that_core_aten_keeps_are_replaced_by_their_definitions():
    def definitions(x: Any, image: Any) -> Any:
        product = torch.addmv(x[:, 0], x, x[0])
        least, most = torch.aminmax(x, dim=1)
        return product, least, most, torch.nn.functional.adaptive_max_pool2d(image, (2, 3))

    assert_correct(definitions, torch.randn(4, 5), torch.randn(1, 3, 8, 6))


@pytest.mark.slow
def test_an_operator_without_such_a_definition_is_named():
    def mixed(x: Any, y: Any) -> Any:
        return torch.addmv(x[:, 0], x, x[0]), torch.nextafter(x, y)

    network = function_network(mixed, torch.zeros(4, 4), torch.zeros(4, 4))
    with pytest.raises(TvmtuneError, match=r"node 'nextafter' \(aten.nextafter.default\) of net"):
        network.to_relax()


@pytest.mark.slow
def test_windows_overlap():
    def windows(x: Any) -> Any:
        patches = x.unfold(0, 2, 1).unfold(1, 3, 3)
        views = x.as_strided((3, 2), (1, 5), 4), x[1:].as_strided((2, 2), (1, 1), 12)
        return x.unfold(1, 4, 2), x.unfold(1, 5, 5), patches, x[0, 0].unfold(0, 1, 1), *views

    assert_correct(windows, torch.randn(5, 12))


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (lambda x: x.t().as_strided((2, 2), (1, 2)), "a tensor that is not contiguous"),
        (lambda x: x[:1].as_strided((2, 4), (4, 1)), "memory outside of its tensor"),
    ],
)
def test_a_view_of_what_the_tensor_does_not_hold_is_refused(view: Any, reason: str):
    network = function_network(view, torch.zeros(3, 4))
    with pytest.raises(TvmtuneError, match=f"node 'as_strided' .*{reason} is not supported"):
        network.to_relax()
