"""``torch.compile(model, backend="tvmtune")``: results, weights, fallbacks, options."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tvmtune.errors import UsageError  # noqa: E402
from tvmtune.torch_backend import EagerFallback, compiled  # noqa: E402
from tvmtune.torch_backend.options import parse  # noqa: E402


class Tiny(nn.Module):
    """Parameters, a buffer, two outputs of which one is no contiguous tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.register_buffer("scale", torch.linspace(1, 2, 5))

    def forward(self, x):
        y = torch.relu(self.layer(x)) * self.scale
        return y.sum(1), torch.relu(y - 1).t()


@pytest.fixture(autouse=True)
def _reset():
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.fixture
def builds(monkeypatch):
    """The networks that are compiled, in order."""
    made = []
    original = compiled._new

    def new(key, network, options):
        made.append(network)
        return original(key, network, options)

    monkeypatch.setattr(compiled, "_new", new)
    return made


def compile(model, **options):
    return torch.compile(model.eval(), backend="tvmtune", dynamic=False, options=options or None)


def assert_close(got, want):
    if isinstance(want, torch.Tensor):
        got, want = (got,), (want,)
    assert len(got) == len(want)
    for y, reference in zip(got, want, strict=True):
        assert (y.shape, y.dtype, y.stride()) == (
            reference.shape,
            reference.dtype,
            reference.stride(),
        )
        assert (y - reference).abs().max() <= 1e-4 * reference.abs().max()


def assert_falls_back(model, inputs, reason, **options):
    """It runs in eager mode, with one warning, and changes the inputs as eager mode does."""
    copies = [value.detach().clone() for value in inputs]
    function = compile(model, **options)
    with pytest.warns(EagerFallback, match=reason) as caught:
        got = function(*inputs)
    assert len([w for w in caught if w.category is EagerFallback]) == 1
    want = model(*copies)
    for y, reference in zip(got, want, strict=True):
        torch.testing.assert_close(y, reference)
    for value, copied in zip(inputs, copies, strict=True):
        torch.testing.assert_close(value, copied)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EagerFallback)
        function(*inputs)


@pytest.mark.slow
def test_a_compiled_model_computes_what_eager_mode_does(builds):
    model, x = Tiny(), torch.randn(4, 6)
    function = compile(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(function(x), model(x))
        assert_close(function(x.t().contiguous().t()), model(x))
        first, _ = function(x)
        kept = first.clone()
        function(torch.randn(4, 6))
        assert (first == kept).all(), "outputs are new tensors"
        assert len(builds) == 1
        # the same graph and weights in another model: one library
        other = copy.deepcopy(model)
        assert_close(compile(other)(x), model(x))
        assert len(builds) == 1
        # changed in place, and replaced
        model.scale.mul_(3)
        assert_close(function(x), model(x))
        model.layer.weight = nn.Parameter(torch.randn(5, 6))
        assert_close(function(x), model(x))
        assert len(builds) == 3


class Views(nn.Module):
    def forward(self, x):
        return torch.relu(x), x[:, 1:]


class Increments(nn.Module):
    def forward(self, x):
        x.add_(1)
        return (x * 2,)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        return (x * 2,)


class Gamma(nn.Module):
    def forward(self, x):
        return (torch.lgamma(x.abs() + 1),)


class Doubles(nn.Module):
    def forward(self, x):
        return (x * 2,)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Views, "'output_1' shares memory with an input"),
        (Increments, "it changes its input '.*' in place"),
        (Counts, "it changes a buffer in place"),
        (Gamma, "lgamma"),
    ],
)
def test_what_a_library_cannot_do_runs_in_eager_mode_with_its_reason(model, reason):
    with torch.no_grad():
        assert_falls_back(model(), [torch.randn(3, 4)], reason)


def test_gradients_run_in_eager_mode():
    model = Tiny()
    assert_falls_back(model, [torch.randn(4, 6)], "gradients are required")
    model.zero_grad()
    compile(model)(torch.randn(4, 6))[0].sum().backward()
    assert model.layer.weight.grad is not None


def test_dynamic_shapes_run_in_eager_mode():
    model = Doubles()
    function = torch.compile(model, backend="tvmtune", dynamic=True)
    with torch.no_grad(), pytest.warns(EagerFallback, match="its shapes are dynamic"):
        for rows in (2, 3, 4):
            assert (function(torch.ones(rows, 5))[0] == 2).all()


def test_autocast_runs_in_eager_mode():
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert_falls_back(Tiny(), [torch.randn(4, 6)], "torch.autocast is on")


def test_a_model_made_in_inference_mode_runs_in_eager_mode():
    with torch.inference_mode():
        assert_falls_back(Tiny(), [torch.randn(4, 6)], "changes cannot be noticed")


@pytest.mark.slow
def test_a_graph_break_leaves_two_graphs():
    class Broken(nn.Module):
        def forward(self, x):
            y = torch.relu(x + 1)
            torch._dynamo.graph_break()
            return torch.relu(y - 2)

    model, x = Broken(), torch.randn(4, 6)
    with torch.no_grad():
        assert_close(compile(model)(x), model(x))


def test_wrong_outputs_are_never_returned(monkeypatch):
    """A library that computes something else is found on PyTorch's example inputs."""

    class Wrong:
        threads = 1

        def __init__(self, network):
            self.inputs, self.outputs = network.inputs, network.outputs

        def run(self, inputs):
            return [next(iter(inputs.values())) * 2.001]

    monkeypatch.setattr(compiled, "_library", lambda network, options: Wrong(network))
    with torch.no_grad():
        assert_falls_back(Doubles(), [torch.randn(4, 6)], "differs from eager mode's by 5.0e-04")


@pytest.mark.slow
def test_weights_that_change_all_the_time_end_compiling(monkeypatch):
    class Right:
        threads = 1

        def __init__(self, network):
            self.inputs, self.outputs = network.inputs, network.outputs
            self.module = network.to_torch()

        def run(self, inputs):
            with torch.no_grad():
                results = self.module(*map(torch.from_numpy, inputs.values()))
            return [value.numpy() for value in results]

    made = []
    monkeypatch.setattr(
        compiled, "_library", lambda network, options: made.append(1) or Right(network)
    )
    model, x = Tiny(), torch.randn(4, 6)
    function = compile(model)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(compiled.RECOMPILATIONS + 5):
            model.scale.add_(1)
            assert_close(function(x), model(x))
    assert len(made) == compiled.RECOMPILATIONS + 1
    assert [str(w.message) for w in caught if w.category is EagerFallback] == [
        "not compiled by tvmtune, runs in eager mode: its weights have changed 5 times"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logs": "x.json"}, "has no option 'logs'. Did you mean log"),
        ({"target": "cpuu"}, "cpuu"),
        ({"attrs": {"thread": 1}}, "threads"),
        ({"attrs": "threads=1"}, "give a dict"),
        ({"cache": "/nowhere/at/all"}, "is not a directory"),
    ],
)
def test_wrong_options_are_errors(options, message):
    with pytest.raises(UsageError, match=message):
        parse(options)


def test_wrong_options_reach_the_caller():
    with torch.no_grad(), pytest.raises(Exception, match="has no option 'logs'"):
        compile(Doubles(), logs="x.json")(torch.ones(2, 2))
    with torch.no_grad(), pytest.raises(Exception, match="nowhere.json"):
        compile(Doubles(), log="nowhere.json")(torch.ones(2, 2))


@pytest.mark.soak
def test_a_log_of_the_exported_program_serves_its_graph(tmp_path, monkeypatch):
    """Tune the ``.pt2`` file, compile with its log; kept in the cache for the next process."""
    import tvmtune

    model, x = Tiny().eval(), torch.randn(4, 6)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "tiny.pt2")
    plan = tvmtune.plan(tvmtune.load(str(tmp_path / "tiny.pt2")))
    log = tmp_path / "log.json"
    trials = sum(len(task.implementations) for task in plan.tasks)
    tvmtune.tune(plan, log, budget=tvmtune.Budget(trials=trials))
    cache = tmp_path / "cache"
    cache.mkdir()
    with torch.no_grad():
        assert_close(compile(model, log=str(log), cache=str(cache))(x), model(x))
    (library,) = cache.iterdir()
    opened = tvmtune.Library.open(library)
    assert opened.metadata["tasks"]["exact"] == len(plan.tasks) > 0
    # another process finds it there
    torch.compiler.reset()
    compiled._open.clear()
    monkeypatch.setattr(compiled, "_new", lambda *_: pytest.fail("compiled again"))
    with torch.no_grad():
        assert_close(compile(model, log=str(log), cache=str(cache))(x), model(x))
    # a damaged one is replaced
    monkeypatch.undo()
    torch.compiler.reset()
    compiled._open.clear()
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(library.read_bytes()[:-100])
    damaged.replace(library)  # never in place: the old one is loaded
    with torch.no_grad():
        assert_close(compile(model, log=str(log), cache=str(cache))(x), model(x))
    assert tvmtune.Library.open(library).metadata["tasks"]["exact"] == len(plan.tasks)


@pytest.mark.soak
def test_networks_of_the_zoo():
    from networks import torch_zoo

    model, x = torch_zoo.ResNet([2, 2, 2, 2]), torch.randn(1, 3, 224, 224)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", EagerFallback)
        assert_close(compile(model)(x), model(x))


@pytest.mark.soak
def test_a_bert_of_transformers():
    transformers = pytest.importorskip("transformers")
    configuration = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=128, num_attention_heads=2
    )
    model = transformers.BertModel(configuration).eval()
    ids, mask = torch.randint(0, 30000, (1, 16)), torch.ones(1, 16, dtype=torch.int64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", EagerFallback)
        got, want = compile(model)(ids, mask), model(ids, mask)
        assert_close(got.last_hidden_state, want.last_hidden_state)
        assert_close(got.pooler_output, want.pooler_output)
