"""PyTorch's recurrent layers, imported whole, compared with PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from networks.in_tvm import assert_tvm_agrees
from tvmtune.errors import TvmtuneError
from tvmtune.networks import recurrent
from tvmtune.networks.torch.network import TorchNetwork

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")  # of nn.RNNBase, by export

STEPS, FEATURES, HIDDEN = 5, 6, 8


class Recurrent(torch.nn.Module):
    """Returns the sequence and all last states."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = getattr(torch.nn, kind)(FEATURES, HIDDEN, **options)

    def forward(self, x: Any, *states: Any) -> Any:
        given = states if len(states) > 1 else states[0] if states else None
        sequence, last = self.layers(x, given)
        return (sequence, *last) if isinstance(last, tuple) else (sequence, last)


def network(module: Any, *inputs: Any) -> TorchNetwork:
    program = torch.export.export(module.eval(), inputs)
    return TorchNetwork(program, name="net", label="net.pt2")


def operators_of(network: TorchNetwork) -> set[str]:
    """The names of the kernels and operators that the imported network calls."""
    blocks = network.to_relax()["main"].body.blocks
    calls = [b.value for block in blocks for b in block.bindings if hasattr(b.value, "op")]
    return {str(call.args[0] if "call_tir" in str(call.op) else call.op) for call in calls}


LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}),
    ("LSTM", {"proj_size": 3}),
    ("GRU", {}),
    ("RNN", {}),
    ("RNN", {"nonlinearity": "relu"}),
]
STACKS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True, "num_layers": 2, "batch_first": True},
    {"bidirectional": True, "bias": False},
    {"num_layers": 3, "dropout": 0.5, "batch_first": True},
]
CASES = [
    (layer, stack, 3 if number % 2 else 1)
    for number, (layer, stack) in enumerate(itertools.product(LAYERS, STACKS))
]
QUICK = [CASES[5], CASES[10], CASES[19]]


@pytest.mark.parametrize(
    ("layer", "stack", "batch"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in QUICK)],
)
def test_layers_directions_and_batches(layer: Any, stack: dict[str, Any], batch: int):
    kind, options = layer
    extents = (batch, STEPS) if stack.get("batch_first") else (STEPS, batch)
    module = Recurrent(kind, **options, **stack)
    assert_tvm_agrees(network(module, torch.zeros(*extents, FEATURES)))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_states_that_are_given(kind: str):
    module = Recurrent(kind, num_layers=2, bidirectional=True, batch_first=True)
    states = [torch.zeros(4, 3, HIDDEN) for _ in range(2 if kind == "LSTM" else 1)]
    assert_tvm_agrees(network(module, torch.zeros(3, STEPS, FEATURES), *states))


@pytest.mark.slow
def test_a_sequence_without_a_batch():
    assert_tvm_agrees(network(Recurrent("GRU"), torch.zeros(STEPS, FEATURES)))


def test_a_step_is_one_product_and_one_kernel():
    whole = network(Recurrent("LSTM"), torch.zeros(STEPS, 1, FEATURES))
    names = operators_of(whole)
    assert any("lstm_step" in name for name in names)
    assert not any("sigmoid" in name or "tanh" in name for name in names)


@pytest.mark.slow
def test_weights_that_are_computed_are_decomposed():
    module = Recurrent("LSTM")
    torch.nn.utils.parametrizations.weight_norm(module.layers, "weight_hh_l0")
    normalized = network(module, torch.zeros(STEPS, 2, FEATURES))
    assert not any("lstm_step" in name for name in operators_of(normalized))
    assert_tvm_agrees(normalized)


@pytest.mark.slow
def test_layers_without_dropout_compute_the_same_in_training():
    module = Recurrent("LSTM").train()
    program = torch.export.export(module, (torch.zeros(STEPS, 2, FEATURES),))
    assert_tvm_agrees(TorchNetwork(program, name="net", label="net.pt2"))


def test_a_sequence_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch):
    # PyTorch takes half a minute to export a sequence longer than the real limit.
    monkeypatch.setattr(recurrent, "MOST_STEPS", STEPS - 1)
    long = network(Recurrent("GRU"), torch.zeros(STEPS, 1, FEATURES))
    with pytest.raises(TvmtuneError, match=rf"aten\.gru\.input.* {STEPS} steps"):
        long.to_relax()
