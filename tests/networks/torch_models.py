"""Small PyTorch networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from networks.in_tvm import assert_equal, run_in_tvm
from tvmtune.networks.torch.network import TorchNetwork


class TinyCnn(nn.Module):
    """Convolutions with batch normalization, one depthwise, around a shortcut."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm2 = nn.BatchNorm2d(8, affine=False)
        self.head = nn.Linear(8, 10)
        for norm in (self.norm, self.norm2):
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(image)))
        x = x + self.norm2(self.depthwise(x))
        return self.head(x.mean((2, 3)))


class OtherNames(TinyCnn):
    """The same network with other names everywhere."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        for name in ("stem", "norm", "depthwise", "norm2", "head"):
            setattr(self, f"the_{name}", getattr(self, name))
            delattr(self, name)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.the_norm(self.the_stem(picture)))
        y = y + self.the_norm2(self.the_depthwise(y))
        return self.the_head(y.mean((2, 3)))


class TinyEncoder(nn.Module):
    """Token ids and their mask to logits and hidden states, through two attention layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 32)
        self.register_buffer("positions", torch.arange(16), persistent=False)
        self.places = nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(ids) + self.places(self.positions[: ids.shape[1]])
        x = self.layers(x, src_key_padding_mask=mask == 0)
        return {"logits": self.head(x[:, 0]), "hidden": x}


class Nested(nn.Module):
    """Arguments and results in tuples and dictionaries, with flags among them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))
        self.constant = torch.tensor([[4.0, 5.0, 6.0]])

    def forward(self, pair: Any, more: Any, flag: bool = True, *, nothing: Any = None) -> Any:
        x = pair[0] * self.scale - pair[1][0] + more["key"] * self.constant
        return {"sum": x if flag else -x, "list": [x.sum(1), None]}


class Function(nn.Module):
    """``function`` as a module; its inputs are called ``x_0``, ``x_1``, ..."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> Any:
        return self.function(*x)


class Accumulator(nn.Module):
    """Keeps the running sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


def function_network(function: Callable[..., Any], *examples: torch.Tensor) -> TorchNetwork:
    """A network that computes a function of tensors of the examples' shapes."""
    program = torch.export.export(Function(function).eval(), examples)
    return TorchNetwork(program, name="net", label="net.pt2")


def image(batch: int = 1) -> torch.Tensor:
    return torch.zeros(batch, 3, 16, 16)


def tokens(batch: int = 1, length: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(batch, length, dtype=torch.int64), torch.ones(
        batch, length, dtype=torch.int64
    )


def assert_correct(function: Callable[..., Any], *tensors: torch.Tensor, tolerance: float = 1e-5):
    """TVM and PyTorch agree on a function of these tensors."""
    network = function_network(function, *tensors)
    inputs = {
        spec.name: tensor.numpy() for spec, tensor in zip(network.inputs, tensors, strict=True)
    }
    assert_equal(run_in_tvm(network, inputs), network.reference(inputs), tolerance)
