"""Operators of PyTorch programs that the importer gets wrong: dtypes, booleans, constants."""

from __future__ import annotations

import math
from typing import Any

import pytest

from networks.in_tvm import assert_tvm_agrees
from tvmtune.errors import TvmtuneError

torch = pytest.importorskip("torch")

from networks.torch_models import assert_correct, function_network  # noqa: E402

FLOATS, IDS = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64)


def numbers_and_integers(i: Any) -> Any:
    return i * 0.5, i + 1.5, 1.5 - i, i / 2, i / i.abs().add(1), i > 0.5, i.eq(1.0), i % 2


def mixed_dtypes(x: Any, i: Any) -> Any:
    return x + i, i * x, torch.where(i > 1, x, 0), torch.maximum(x, i), i < x, x.double() - x


def scaled_sums(x: Any, y: Any) -> Any:
    return torch.add(x, y, alpha=2), torch.sub(x, y, alpha=3), torch.rsub(x, y, alpha=2), x - 1


def rounded_quotients(x: Any, i: Any) -> Any:
    signed, positive = i * 7 - 40, i.abs() + 1
    truncated = [
        torch.div(a, b, rounding_mode="trunc")
        for a, b in ((signed, 3), (signed, positive), (x * 7, 2), (signed, 2.5))
    ]
    floors = signed // 3, signed // -positive, x * 7 // 2, x * 7 // positive, signed // 2.5
    halves = (x.half() * 0 + 1) // 0.1
    return *truncated, *floors, (x * 0 + 1) // 0.1, (x * 0 + 6) // 0.1, halves


def bounds(x: Any, i: Any) -> Any:
    signed = i * 7 - 40
    integers = signed.clamp(min=0), signed.clamp_min(-3), signed.clamp_max(2), signed.clamp(3, 1)
    return *integers, signed.clamp(max=0.5), signed.clamp(min=x), x.clamp(i, x + i), x.clamp(max=i)


def functions_of_integers(i: Any) -> Any:
    n, small, is_large = i.abs() + 1, i.to(torch.int8), i > 1
    names = ["exp", "log", "sigmoid", "reciprocal", "sqrt", "rsqrt", "sin", "cos", "tanh"]
    of_integers = [getattr(n, name)() for name in names]
    return *of_integers, small.cosh(), is_large.sigmoid(), n.double().rsqrt()


def powers(x: Any, i: Any) -> Any:
    return (
        x**2,
        x**3,
        x.abs() ** 0.5,
        x.abs() ** 1.5,
        2.0**x,
        x.abs() ** x,
        i**2,
        i.abs() ** i.abs(),
        2 ** i.abs(),
    )


def booleans(x: Any, i: Any) -> Any:
    a, b = x > 0, i > 1
    bits = a & b, a | b, a ^ b, ~a, a.logical_and(i), a == b, a != b
    bits += (a + b, a * b, torch.add(a, b, alpha=False), torch.maximum(a, b), torch.minimum(a, b))
    return *bits, a.sum(), a.sum(1), a.cumsum(1), i.to(torch.int32).cumsum(0), a * x, b.to(x.dtype)


def truth_of_numbers(x: Any, i: Any) -> Any:
    some, none = x.relu(), x * 0
    found = (
        some.any(),
        some.all(),
        some.any(1),
        some.all(0, keepdim=True),
        i.any((0, 1)),
        none.any(),
    )
    return *found, (i * 3).to(torch.uint8).any(1), (i > 0).any()


def products_of_integers(i: Any) -> Any:
    n = i + 1
    return n.int().prod(), n.prod(1, keepdim=True), (n > 0).prod(), n.prod(dtype=torch.float32)


def extremes_and_their_places(x: Any, i: Any) -> Any:
    """Of several, the first."""
    return *x.max(1), *x.min(-1, keepdim=True), *i.max(0), *i.min(1), *(i > 0).max(1)


def moments(x: Any) -> Any:
    halves = torch.var_mean((x + 9).half(), (0, 1))
    plain = *torch.var_mean(x), *torch.var_mean(x, -1, correction=0, keepdim=True)
    return *plain, *torch.std_mean(x, 0), *halves


def norms(x: Any) -> Any:
    orders = 0, math.inf, -math.inf, 1, 2, 3
    found = [torch.linalg.vector_norm(x.relu(), order, 1) for order in orders]
    return (
        *found,
        torch.linalg.vector_norm(x.relu(), 0),
        torch.linalg.vector_norm(x, 0, keepdim=True),
    )


def joined(x: Any, i: Any) -> Any:
    a, empty = x > 0, torch.zeros(0, dtype=torch.float64)
    return torch.cat([x, i], 1), torch.cat([i.int(), a, i]), torch.cat([empty, x[:, None]], dim=-1)


def products(x: Any, y: Any) -> Any:
    left, right = x.double(), y.double().t()
    equations = {"ij,kj->ik": (x, y), "ij->j": (x,), "i,j->ij": (x[0], y[0])}
    sums = [torch.einsum(equation, *operands) for equation, operands in equations.items()]
    summed = torch.baddbmm(x[:, :1, None], x[:, None], y[:, :, None], beta=2, alpha=3)
    return left @ right, summed, *sums


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("function", "examples"),
    [
        (numbers_and_integers, [IDS]),
        (mixed_dtypes, [FLOATS, IDS]),
        (scaled_sums, [FLOATS, FLOATS]),
        (rounded_quotients, [FLOATS, IDS]),
        (bounds, [FLOATS, IDS]),
        (functions_of_integers, [IDS]),
        (powers, [FLOATS, IDS]),
        (booleans, [FLOATS, IDS]),
        (truth_of_numbers, [FLOATS, IDS]),
        (products_of_integers, [IDS]),
        (extremes_and_their_places, [FLOATS, IDS]),
        (moments, [FLOATS]),
        (norms, [FLOATS]),
        (joined, [FLOATS, IDS]),
        (products, [FLOATS, FLOATS]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_dtypes_are_promoted_as_in_pytorch(function: Any, examples: Any):
    assert_tvm_agrees(function_network(function, *examples))


@pytest.mark.slow
def test_halves_are_rounded_down_without_float64():
    """Some GPUs have none."""
    halved = function_network(lambda x: x * 9 // 2, FLOATS)
    assert "float64" not in halved.to_relax().script(show_meta=False)
    assert_tvm_agrees(halved)


def causal(x: Any) -> Any:
    """Adds a mask and the sine of positions, as exporters of decoders leave them in a file."""
    length = x.shape[1]
    position = torch.arange(length)
    blocks = (torch.diff(position, prepend=position[:1] - 1) != 1).cumsum(0)
    mask = (position[None] <= position[:, None]) & (blocks[None] == blocks[:, None])
    bias = torch.where(mask, 0.0, -1e4)
    return (x @ x.transpose(1, 2) + bias).softmax(-1) @ (x + position[:, None].float().sin())


@pytest.mark.slow
def test_what_does_not_depend_on_the_inputs_is_computed_at_import():
    decoder = function_network(causal, torch.zeros(1, 5, 4))
    text = decoder.to_relax().script(show_meta=False)
    for operator in ("arange", "cumsum", "less_equal", "sin"):
        assert f"R.{operator}" not in text
    assert_tvm_agrees(decoder)


def test_an_operator_that_the_importer_lacks_is_fine_on_constants():
    determinant = function_network(lambda x: x * torch.linalg.det(torch.eye(3) * 2), FLOATS)
    assert_tvm_agrees(determinant)


def test_constants_may_be_outputs():
    assert_tvm_agrees(function_network(lambda x: (torch.arange(3) * 2, x + 1), FLOATS))


def test_random_constants_are_refused():
    with pytest.raises(TvmtuneError, match="draws random numbers"):
        function_network(lambda x: x + torch.rand(3), FLOATS).to_relax()


def test_a_result_of_another_dtype_is_refused(monkeypatch: pytest.MonkeyPatch):
    from tvm import relax

    from tvmtune.networks.torch.converters import CONVERTERS

    def wrong(node: Any, importer: Any) -> Any:
        return importer.block_builder.emit(relax.op.astype(importer.env[node.args[0]], "float64"))

    monkeypatch.setitem(CONVERTERS, "relu.default", wrong)
    with pytest.raises(TvmtuneError, match=r"node 'relu' .*2x3 float64 instead of 2x3 float32"):
        function_network(torch.relu, FLOATS).to_relax()


@pytest.mark.slow
def test_the_largest_elements_in_any_order():
    def largest(x: Any) -> Any:
        (most, places), (least, _) = (
            torch.topk(x, 2, dim=1, sorted=False),
            torch.topk(x, 2, 0, largest=False, sorted=False),
        )
        return most.sum(1), x.gather(1, places).sum(1), least.sum(0)

    assert_tvm_agrees(function_network(largest, torch.zeros(4, 5)))


def test_the_kth_smallest_elements_and_their_places():
    def found(x: Any) -> Any:
        return (*torch.kthvalue(x, 2, 1), *torch.kthvalue(x, 3, 0, keepdim=True))

    assert_tvm_agrees(function_network(found, torch.zeros(4, 5)))


def test_functions_of_pairs():
    def found(x: Any, y: Any) -> Any:
        odd = torch.where(y > 0, y, float("nan"))
        signs = torch.copysign(x, y.round()), torch.copysign(x, -0.0)
        sizes = torch.hypot(x, y), torch.hypot(x * 1e25, y * 1e25) / 1e25, torch.hypot(x * 0, y * 0)
        return torch.exp2(x), torch.fmax(x, odd), torch.fmin(odd, y), *signs, torch.stack(sizes)

    assert_tvm_agrees(function_network(found, FLOATS, FLOATS))
    signs = torch.tensor([0.0, -0.0, math.inf, -math.inf])
    assert_correct(torch.copysign, torch.arange(1.0, 5.0), signs)


@pytest.mark.sweep
@pytest.mark.parametrize("order", [2.0, 1.0, 0.0, 3.0, math.inf])
def test_distances_between_rows(order: float):
    def distances(x: Any, y: Any) -> Any:
        return torch.cdist(x, y, order), torch.cdist(x[0], y[1], order)

    examples = torch.zeros(2, 5, 3), torch.zeros(2, 4, 3)
    assert_tvm_agrees(function_network(distances, *examples))


def test_a_bilinear_form_of_two_inputs():
    torch.manual_seed(0)
    layer = torch.nn.Bilinear(3, 4, 5)
    examples = torch.zeros(2, 6, 3), torch.zeros(2, 6, 4)
    assert_tvm_agrees(function_network(lambda x, y: layer(x, y), *examples))
