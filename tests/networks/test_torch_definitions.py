"""Operators of PyTorch that have no converter, computed by their definitions, and views of memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from networks.torch_models import assert_correct  # noqa: E402
from tvmtune.errors import TvmtuneError  # noqa: E402


def test_operators_that_core_aten_keeps_are_replaced_by_their_definitions():
    def definitions(x: Any, image: Any) -> Any:
        product = torch.addmv(x[:, 0], x, x[0])
        least, most = torch.aminmax(x, dim=1)
        return product, least, most, torch.nn.functional.adaptive_max_pool2d(image, (2, 3))

    assert_correct(definitions, torch.randn(4, 5), torch.randn(1, 3, 8, 6))


def test_an_operator_without_such_a_definition_is_named():
    from networks.torch_models import function_network

    network = function_network(torch.cummax, torch.zeros(3, 4), 1)
    with pytest.raises(TvmtuneError, match=r"node 'cummax' \(aten.cummax.default\) of net.pt2"):
        network.to_relax()


def test_windows_overlap():
    def windows(x: Any) -> Any:
        patches = x.unfold(0, 2, 1).unfold(1, 3, 3)
        return x.unfold(1, 4, 2), patches, x[0, 0].unfold(0, 1, 1), x.as_strided((3, 2), (1, 5), 4)

    assert_correct(windows, torch.randn(5, 12))


def test_a_view_of_a_view_with_other_strides_is_refused():
    from networks.torch_models import function_network

    network = function_network(lambda x: x.t().as_strided((2, 2), (1, 2)), torch.zeros(3, 4))
    with pytest.raises(TvmtuneError, match="node 'as_strided' .* not contiguous is not supported"):
        network.to_relax()
