"""What a PyTorch program changes in place are inputs and outputs of its network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from networks.in_tvm import assert_tvm_agrees
from tvmtune.errors import TvmtuneError
from tvmtune.networks.torch.network import TorchNetwork

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from networks.torch_models import Accumulator, Function  # noqa: E402

LENGTH, WIDTH = 6, 4


class Cache(nn.Module):
    """Stores each row at its position, and returns the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, LENGTH, WIDTH))

    def forward(self, x: Any, position: Any) -> Any:
        self.rows.index_copy_(1, position, x)
        return self.rows.mean(dim=1)


class ByAssignment(Cache):
    def forward(self, x: Any, position: Any) -> Any:
        self.rows[:, position] = x
        return self.rows.mean(dim=1)


class InAList(Cache):
    """As transformers' caches, which are in objects that are no modules, beside buffers of the same
    memory. Without ``strict``, PyTorch exports constants."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [self.rows]

    def forward(self, x: Any, position: Any) -> Any:
        self.layers[0].index_copy_(1, position, x)
        return self.layers[0].mean(dim=1)


def network(module: nn.Module, *args: Any, **options: Any) -> TorchNetwork:
    return TorchNetwork(torch.export.export(module.eval(), args, **options), name="net")


def specs(values: Any) -> list[str]:
    return [str(spec) for spec in values]


def test_a_buffer_that_is_changed_is_the_last_input_and_output():
    made = network(Accumulator(), torch.zeros(3))
    assert specs(made.inputs) == ["x: 3 float32", "total: 3 float32"]
    assert specs(made.outputs) == ["output: 3 float32", "total: 3 float32"]
    assert made.state.keys() == {"total"}
    x, total = np.float32([1, 2, 3]), np.float32([10, 20, 30])
    given = {"x": x, "total": total.copy()}
    output, after = made.reference(given)
    assert (after == x + total).all()
    assert (output == 2 * after).all()
    assert (given["total"] == total).all()
    assert_tvm_agrees(made)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize(
    "cache",
    [Cache, *(pytest.param(each, marks=pytest.mark.slow) for each in (ByAssignment, InAList))],
)
def test_a_cache_is_changed_at_positions_that_are_data(cache: type[nn.Module], strict: bool):
    example = (torch.randn(2, 2, WIDTH), torch.tensor([0, 1]))
    made = network(cache(), *example, strict=strict)
    assert len(made.state) == 1
    assert made.ranges == {"position": (0, LENGTH - 1)}
    assert_tvm_agrees(made)
    (name,) = made.state
    rows = np.random.default_rng(0).standard_normal((2, LENGTH, WIDTH), "float32")
    x = np.ones((2, 2, WIDTH), "float32")
    position = np.array([5, 2])
    _, after = made.reference({"x": x, "position": position, name: rows})
    expected = rows.copy()
    expected[:, position] = 1
    assert (after == expected).all()


def test_an_input_that_is_changed_is_an_output_too_and_no_state():
    made = network(Function(lambda x: x.sub_(1) * 2), torch.zeros(3))
    assert specs(made.outputs) == ["output: 3 float32", "x_0: 3 float32"]
    assert not made.state
    assert_tvm_agrees(made)


def test_a_buffer_that_is_written_before_it_is_read_is_no_state():
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.last.copy_(x)
            return self.last + 1

    made = network(Remembers(), torch.zeros(3))
    assert specs(made.inputs) == ["x: 3 float32"]
    assert specs(made.outputs) == ["output: 3 float32"]
    assert_tvm_agrees(made)


def test_state_has_names_of_its_own_and_begins_with_the_values_of_the_file():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Accumulator()
            self.inner.total += torch.tensor([1.0, 2.0, 3.0])

        def forward(self, inner_total: Any) -> Any:
            return self.inner(inner_total)

    made = network(Outer(), torch.zeros(3))
    assert specs(made.inputs) == ["inner_total: 3 float32", "inner_total_: 3 float32"]
    assert made.state["inner_total_"].initial.tolist() == [1, 2, 3]


def test_a_change_through_a_view_is_one_of_the_buffer():
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(4, 3))

        def forward(self, x: Any) -> Any:
            self.rows[1].add_(x)
            return self.rows.sum(0)

    made = network(Row(), torch.zeros(3))
    assert made.state.keys() == {"rows"}
    assert_tvm_agrees(made)


class Changed(nn.Module):
    """Changes a buffer and a parameter by ``function``."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("total", torch.ones(4))
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def literal(module: Any, x: Any) -> Any:
    return module.total.add_(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


def to_a_result(module: Any, x: Any) -> Any:
    return torch.add(module.total, x, out=module.total) * 2


def of_a_weight(module: Any, x: Any) -> Any:
    return module.weight.mul_(x) + 1


@pytest.mark.parametrize(
    "function", [literal, pytest.param(to_a_result, marks=pytest.mark.slow), of_a_weight]
)
def test_ways_to_change_a_tensor(function: Any):
    made = network(Changed(function), torch.zeros(4))
    assert len(made.state) == 1
    assert_tvm_agrees(made)


def test_what_pytorch_cannot_express_without_side_effects_is_named():
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("now", torch.zeros(3))
            self.register_buffer("before", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.now.add_(x)
            difference = self.now - self.before
            self.before.copy_(self.now)
            return difference

    with pytest.raises(TvmtuneError, match="net changes its buffers in a way that PyTorch cannot"):
        network(Same(), torch.zeros(3))


def test_negative_zeros_are_initial_values():
    module = Accumulator()
    module.total.neg_()
    made = network(module, torch.zeros(3))
    initial = made.state["total"].initial
    assert initial is not None
    assert np.signbit(initial).all()


def test_weights_of_torchao_are_to_be_unwrapped():
    torchao = pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    from torchao.utils import unwrap_tensor_subclass

    del torchao
    module = nn.Sequential(nn.Linear(64, 32)).eval()
    quantize_(module, Int8WeightOnlyConfig())
    with pytest.raises(TvmtuneError, match="call torchao.utils.unwrap_tensor_subclass"):
        network(module, torch.zeros(1, 64))
    assert_tvm_agrees(network(unwrap_tensor_subclass(module), torch.zeros(1, 64)))


def test_an_open_batch_is_bound_with_state():
    dims = {"x": {0: torch.export.Dim("n", min=2, max=8)}}

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.total.add_(x.sum(0))
            return x + self.total

    program = torch.export.export(Sum().eval(), (torch.zeros(4, 3),), dynamic_shapes=dims)
    made = TorchNetwork(program, name="net", batch=2)
    assert specs(made.inputs) == ["x: 2x3 float32", "total: 3 float32"]
    assert_tvm_agrees(made)
