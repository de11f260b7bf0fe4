"""Programs that PyTorch's PT2E flow quantized: integer kernels, with what PyTorch computes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmtune
from networks.in_tvm import assert_tvm_agrees, run_in_tvm
from tvmtune import api, host
from tvmtune.accuracy import relative_error
from tvmtune.bench.verify import allowed_errors
from tvmtune.dot_instructions import for_bytes
from tvmtune.errors import TvmtuneError
from tvmtune.networks.inputs import random_inputs
from tvmtune.networks.torch.network import TorchNetwork
from tvmtune.runtime.library import Library

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators

from networks.torch_models import Function, TinyCnn, image  # noqa: E402

ops = torch.ops.quantized_decomposed
INTEGERS = for_bytes(host.backend("cpu").make_target({}, None).target) is not None
"""Whether this machine computes in integers at all."""


def export(function: Any, *examples: Any) -> Any:
    return torch.export.export(Function(function).eval(), examples)


def network(function: Any, *examples: Any) -> TorchNetwork:
    return TorchNetwork(export(function, *examples), name="net", label="net.pt2")


def rounded(x: Any, scale: float, zero: int, dtype: Any = torch.int8, bounds: Any = None) -> Any:
    """``x`` through a quantized value, as the flow leaves it between two layers."""
    low, high = bounds or (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return ops.dequantize_per_tensor(
        ops.quantize_per_tensor(x, scale, zero, low, high, dtype), scale, zero, low, high, dtype
    )


class Weights(torch.nn.Module):
    """int8 weights with a scale for each output."""

    def __init__(self, seed: int, *shape: int, dtype: Any = torch.float32):
        super().__init__()
        torch.manual_seed(seed)
        self.register_buffer("steps", torch.randint(-127, 128, shape, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(shape[0], dtype=dtype) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(shape[0], dtype=torch.int64))

    def forward(self) -> Any:
        return ops.dequantize_per_channel(
            self.steps, self.scales, self.zeros, 0, -127, 127, torch.int8
        )


class Quantized(torch.nn.Module):
    """A convolution, a depthwise one around which values are added, and a classifier."""

    def __init__(self, dtype: Any = torch.uint8, bounds: Any = None):
        super().__init__()
        self.first, self.second = Weights(0, 8, 3, 3, 3), Weights(1, 8, 1, 3, 3)
        self.last, self.bias = Weights(2, 10, 8), torch.nn.Parameter(torch.randn(10))
        self.dtype, self.bounds = dtype, bounds
        low = torch.iinfo(dtype).min if bounds is None else bounds[0]
        self.zero, self.middle = low, low + 60

    def round(self, x: Any, scale: float, zero: int) -> Any:
        return rounded(x, scale, zero, self.dtype, self.bounds)

    def forward(self, image: Any) -> Any:
        x = self.round(image, 0.05, self.middle)
        x = torch.nn.functional.conv2d(x, self.first(), None, 2, 1)
        x = self.round(torch.nn.functional.hardtanh(x, 0.0, 6.0), 0.03, self.zero)
        y = torch.nn.functional.conv2d(x, self.second(), None, 1, 1, groups=8)
        x = self.round(x + self.round(y, 0.05, self.middle), 0.05, self.middle)
        x = self.round(torch.nn.functional.max_pool2d(x, 2), 0.05, self.middle)
        x = self.round(x.mean((2, 3)), 0.05, self.middle)
        return self.round(torch.nn.functional.linear(x, self.last(), self.bias), 0.04, self.middle)


STEP = 0.04
"""Of the outputs of :class:`Quantized`."""


def saved(model: Any, path: Path, *examples: Any) -> Path:
    torch.export.save(torch.export.export(model.eval(), examples), path)
    return path


def assert_within_a_step(path: Path, folder: Path, step: float, **options: Any) -> list[str]:
    """Of PyTorch's outputs; returns the names of the kernels."""
    net = tvmtune.load(path)
    plan = api.plan(net, "cpu", **options)
    library = Library.open(api.compile(plan, folder / "lib.so").path)
    for seed in (50, 51, 52):
        inputs = random_inputs(library.inputs, seed)
        for got, wanted in zip(library.run(inputs), net.reference(inputs), strict=True):
            assert np.abs(got - wanted).max() <= 1.001 * step
            assert np.ptp(wanted) > 5 * step
    return [task.name for task in plan.tasks]


def are_integer_kernels(names: list[str]) -> bool:
    products = [name for name in names if "conv2d" in name or "matmul" in name]
    assert len(products) >= 3
    quantized = ["quantized" in name for name in products]
    assert all(quantized) or not any(quantized)
    return all(quantized)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [(torch.uint8, None), (torch.int8, None), (torch.uint8, (0, 127)), (torch.int8, (-127, 127))],
    ids=["unsigned", "signed", "seven bits", "narrow"],
)
def test_what_is_between_layers_is_rounded_as_in_pytorch(dtype: Any, bounds: Any):
    """In TVM without schedules, that is, in floats."""
    program = torch.export.export(Quantized(dtype, bounds).eval(), (image(),))
    made = TorchNetwork(program, name="net", label="net.pt2")
    inputs = random_inputs(made.inputs, seed=3)
    (got,), (wanted,) = run_in_tvm(made, inputs), made.reference(inputs)
    assert np.abs(got - wanted).max() <= 1.001 * STEP
    assert np.ptp(wanted) > 10 * STEP


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [None, (0, 127)])
def test_layers_are_integer_kernels(bounds: Any, tmp_path: Path):
    path = saved(Quantized(bounds=bounds), tmp_path / "net.pt2", image())
    names = assert_within_a_step(path, tmp_path, STEP)
    assert are_integer_kernels(names) == INTEGERS


@pytest.mark.slow
def test_layers_are_float_kernels_without_the_instructions(tmp_path: Path):
    path = saved(Quantized(), tmp_path / "net.pt2", image())
    names = assert_within_a_step(path, tmp_path, STEP, attrs={"mcpu": "x86-64-v2"})
    assert not are_integer_kernels(names)


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", ["x86", "xnnpack"])
def test_a_network_that_torchao_quantized(quantizer: str, tmp_path: Path):
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    if quantizer == "x86":
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        chosen = x86.X86InductorQuantizer()
        chosen.set_global(x86.get_default_x86_inductor_quantization_config())
    else:
        from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

        chosen = xnnpack.XNNPACKQuantizer()
        chosen.set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=True))
    examples = (torch.randn(1, 3, 16, 16),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ready = prepare_pt2e(torch.export.export(TinyCnn().eval(), examples).module(), chosen)
        for seed in range(4):
            torch.manual_seed(seed)
            ready(torch.randn(1, 3, 16, 16))
        path = tmp_path / "net.pt2"
        torch.export.save(torch.export.export(convert_pt2e(ready), examples), path)
    names = assert_within_a_step(path, tmp_path, 0.005)
    assert are_integer_kernels(names) == INTEGERS


@pytest.mark.slow
def test_a_product_of_a_reshaped_operand_is_an_integer_kernel():
    """PyTorch flattens tokens before a product, and makes them three axes again behind it."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights, self.bias = Weights(3, 16, 32), torch.nn.Parameter(torch.randn(16))

        def forward(self, x: Any) -> Any:
            return torch.nn.functional.linear(rounded(x, 0.05, 3), self.weights(), self.bias)

    program = torch.export.export(Model().eval(), (torch.zeros(2, 5, 32),))
    made = TorchNetwork(program, name="net", label="net.pt2")
    plan = api.plan(made, "cpu", attrs={"mcpu": "cascadelake"})
    assert [task.name for task in plan.tasks if "matmul_quantized" in task.name]
    assert_tvm_agrees(made)


@pytest.mark.slow
def test_scales_of_activations_may_be_computed_at_run_time():
    """As the flow's dynamic quantization does."""

    def dynamic(x: Any) -> Any:
        scale, zero = ops.choose_qparams(x, -128, 127, 2**-12, torch.int8)
        bounds = scale, zero, -128, 127, torch.int8
        y = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *bounds), *bounds)
        return y @ y.t()

    assert_tvm_agrees(network(dynamic, torch.zeros(5, 7)))


@pytest.mark.slow
def test_weights_may_be_quantized_in_the_program():
    """``convert_pt2e(fold_quantize=False)`` leaves them as floats."""
    weights = torch.randn(70, 80)
    bounds = torch.full((70,), 0.02), torch.zeros(70, dtype=torch.int64), 0, -127, 127, torch.int8

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(weights)

        def forward(self, x: Any) -> Any:
            steps = ops.quantize_per_channel(self.weights, *bounds)
            return rounded(x, 0.05, 0) @ ops.dequantize_per_channel(steps, *bounds).t()

    program = torch.export.export(Model().eval(), (torch.zeros(2, 80),))
    made = TorchNetwork(program, name="net", label="net.pt2")
    text = made.to_relax().script(show_meta=False)
    assert text.count("R.quantize(") == text.count("R.quantize(x") == 1
    assert_tvm_agrees(made)


def test_integers_may_be_inputs_and_outputs():
    def shifted(x: Any) -> Any:
        y = ops.dequantize_per_tensor(x, 0.1, 3, 0, 255, torch.uint8)
        return ops.quantize_per_tensor(y.relu(), 0.2, -4, -128, 127, torch.int8)

    made = network(shifted, torch.zeros(2, 3, dtype=torch.uint8))
    assert [spec.dtype for spec in (*made.inputs, *made.outputs)] == ["uint8", "int8"]
    assert_tvm_agrees(made)


def test_the_check_allows_what_rounding_networks_differ_by():
    program = torch.export.export(Quantized().eval(), (image(),))
    made = TorchNetwork(program, name="net", label="net.pt2")
    ((one,), (other,)) = made.rounding_runs[0]
    apart = relative_error(one, other)
    assert [each.error for each in allowed_errors(made)] == [max(0.1, 2 * apart)]


def channels(scales: Any, zeros: Any) -> Any:
    steps = torch.ones(4, 5, dtype=torch.int8)
    return lambda x: x + ops.dequantize_per_channel(steps, scales, zeros, 0, -128, 127, torch.int8)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (channels(torch.zeros(4), torch.zeros(4, dtype=torch.int64)), "its scale is 0.0"),
        (
            channels(torch.full((4,), torch.nan), torch.zeros(4, dtype=torch.int64)),
            "its scale is nan",
        ),
        (
            lambda x: (
                ops.dequantize_per_channel_group(
                    torch.ones(4, 6, dtype=torch.int8),
                    torch.ones(4, 2),
                    torch.zeros(4, 2, dtype=torch.int64),
                    -8,
                    7,
                    torch.int8,
                    3,
                    torch.float32,
                )[:, :5]
                + x
            ),
            "dequantize_per_channel_group",
        ),
    ],
    ids=["zero", "not a number", "groups"],
)
def test_unsound_and_unsupported_quantization_is_refused(function: Any, cause: str):
    made = network(function, torch.zeros(4, 5))
    with pytest.raises(TvmtuneError) as raised:
        made.to_relax()
    text = str(raised.value)
    assert text.startswith("node '")
    assert "net.pt2" in text
    assert cause in text
    assert "\n" not in text
