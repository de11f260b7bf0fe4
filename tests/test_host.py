"""The plugin host: finding backends, and isolating broken ones."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from kernels import one_conv, prepared
from tvmtune import hookspecs, host
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.hookspecs import hookimpl
from tvmtune.operators.implementations import WINOGRAD
from tvmtune.tasks import extract
from tvmtune.tasks import lower as lowering

REPO = Path(__file__).resolve().parents[1]
OWNER_HOOKS = {"extract_tasks", "make_builder", "make_runner", "export_lib", "hardware_params"}

SOUND = """
from tvmtune.hookspecs import hookimpl
from tvmtune.types import Device

@hookimpl
def make_target(name, attrs, remote): return Device(name, {"kind": "c"}, 1, attrs)
@hookimpl
def hardware_params(device): return {}
@hookimpl
def prepare(network, device, layout): raise RuntimeError("first line\\nsecond line")
@hookimpl
def extract_tasks(prepared, device): return None
@hookimpl
def make_builder(device): ...
@hookimpl
def make_runner(device): ...
@hookimpl
def lower(prepared, chosen, device): ...
@hookimpl
def export_lib(lowered, device, path): ...
"""


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """Makes a distribution that registers backends: ``distribution(name, entries, sources)``."""
    modules = set(sys.modules)

    def make(name: str, entries: str, **sources: str) -> None:
        folder = tmp_path / name
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tvmtune]\n{entries}\n")
        for module, text in sources.items():
            (folder / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(folder)

    host.backend.cache_clear()
    yield make
    host.backend.cache_clear()
    for module in set(sys.modules) - modules:
        if module.startswith("fake_"):
            del sys.modules[module]


def info_of(name: str) -> host.PluginInfo:
    (plugin,) = [info for info in host.installed() if name in info.names]
    return plugin


def plugin_without(*hooks: str) -> types.ModuleType:
    module = types.ModuleType("fake_inline")
    exec(SOUND, module.__dict__)
    for hook in hooks:
        delattr(module, hook)
    return module


def test_the_list_of_hooks():
    assert host.HOOKS == (
        "make_target",
        "hardware_params",
        "prepare",
        "implementations",
        "extract_tasks",
        "make_builder",
        "make_runner",
        "lower",
        "export_lib",
        "serve_init",
    )


def test_host_and_hookspecs_agree():
    specs = {
        name: function
        for name, function in inspect.getmembers(hookspecs, inspect.isfunction)
        if hasattr(function, "tvmtune_spec")
    }
    assert set(specs) == set(host.HOOKS)
    assert host.OPTIONAL == ("implementations", "serve_init")
    # The host adds arguments: a backend knows its own name and implementations.
    added = {"name", "implementations"}
    for name in set(host.HOOKS) & set(vars(host.Backend)):
        arguments = set(inspect.signature(specs[name]).parameters)
        offered = set(inspect.signature(getattr(host.Backend, name)).parameters) - {"self"}
        # It passes on this one by what it offers as implementations.
        assert offered - {"exact_defaults"} == arguments - added


def test_a_new_hook_needs_no_code_in_the_host(monkeypatch):
    """A hook without host code is callable as a method, by position and by name."""
    assert "make_builder" not in vars(host.Backend)
    plugin = plugin_without("make_builder")
    plugin.make_builder = hookimpl(lambda device: f"builder for {device}")
    backend = host.Backend("plain", plugin)
    assert backend.make_builder("this") == backend.make_builder(device="this") == "builder for this"
    with pytest.raises(AttributeError, match="no hook 'make_bilder'"):
        backend.make_bilder("this")


def test_the_built_in_backends():
    ours = {info.names: info for info in host.installed() if info.distribution == "tvmtune"}
    assert [names for names in ours if "cpu" in names] == [("cpu", "llvm")]
    assert {info.error for info in ours.values()} == {None}


ADDONS = {entry.value for entry in metadata.entry_points(group="tvmtune.addons")}
PACKAGES = {path.parent.name for path in REPO.glob("plugins/*/tvmtune_*/__init__.py")}


@pytest.mark.parametrize("package", sorted(PACKAGES - ADDONS))
def test_every_backend_implements_the_owners_hooks(package):
    infos = [
        info for info in host.installed() if info.module.split(":")[0].split(".")[0] == package
    ]
    assert infos, f"pyproject.toml has no entry point for {package}"
    for info in infos:
        assert info.error is None
        assert set(info.hooks) >= OWNER_HOOKS


def test_an_alias_is_the_same_plugin_under_its_own_name(distribution):
    distribution("fake-one", "one = fake_one\nuno = fake_one", fake_one=SOUND)
    assert info_of("one").names == ("one", "uno")
    assert host.backend("uno").make_target().backend == "uno"
    assert host.backend("one") is host.backend("one")


def test_only_the_backend_asked_for_is_imported(distribution):
    distribution("fake-one", "one = fake_one", fake_one=SOUND)
    distribution("fake-two", "two = fake_two", fake_two="raise SystemExit(3)")
    host.backend("one")
    assert "fake_two" not in sys.modules


def test_an_unknown_backend_suggests_the_nearest(distribution):
    distribution("fake-one", "onion = fake_one", fake_one=SOUND)
    with pytest.raises(UsageError, match=r"'onio' is not known\. Did you mean onion"):
        host.backend("onio")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        ("import not_there_at_all", "No module named 'not_there_at_all'"),
    ],
)
def test_a_plugin_that_cannot_be_imported_affects_only_itself(distribution, source, why):
    distribution("fake-good", "good = fake_good", fake_good=SOUND)
    distribution("fake-bad", "bad = fake_bad", fake_bad=source)
    with pytest.raises(TvmtuneError) as caught:
        host.backend("bad")
    assert "'bad' (fake-bad 1.0) cannot be loaded" in str(caught.value)
    assert why in str(caught.value)
    assert why in info_of("bad").error
    assert info_of("good").error is None
    assert host.backend("good").hardware_params(host.backend("good").make_target()) == {}


def test_a_missing_module_is_reported(distribution):
    distribution("fake-gone", "gone = fake_gone")
    with pytest.raises(TvmtuneError, match=r"module 'fake_gone' is missing\. Reinstall fake-gone"):
        host.backend("gone")


def test_invalid_entry_points_are_reported(distribution):
    distribution("fake-good", "good = fake_good", fake_good=SOUND)
    distribution("fake-torn", "torn")
    (torn,) = [info for info in host.installed() if info.distribution == "fake-torn"]
    assert "fake-torn" in torn.error
    assert host.backend("good").name == "good"


def test_a_misspelled_hook_is_rejected(distribution):
    bad = SOUND + "\n@hookimpl\ndef hardware_param(device): ...\n"
    distribution("fake-bad", "bad = fake_bad", fake_bad=bad)
    wanted = r"'bad' \(fake-bad 1\.0\).*'hardware_param' is not a hook\. Did you mean hardware_para"
    with pytest.raises(TvmtuneError, match=wanted):
        host.backend("bad")
    assert "hardware_param" in info_of("bad").error


def test_an_unknown_argument_of_a_hook_is_rejected(distribution):
    bad = SOUND.replace("def make_builder(device)", "def make_builder(gadget)")
    distribution("fake-bad", "bad = fake_bad", fake_bad=bad)
    with pytest.raises(TvmtuneError, match=r"'bad'.*make_builder.*gadget"):
        host.backend("bad")


@pytest.mark.parametrize("hook", sorted({*OWNER_HOOKS, "make_target", "prepare", "lower"}))
def test_a_missing_hook_is_rejected(hook):
    with pytest.raises(TvmtuneError, match=f"'partial' is refused: it lacks the hook {hook}$"):
        host.Backend("partial", plugin_without(hook))


def test_a_hook_without_its_decorator_is_pointed_out():
    plugin = plugin_without("lower")
    plugin.lower = lambda prepared, chosen, device: None
    with pytest.raises(TvmtuneError, match=r"lacks the hook lower \(lower: there, but without @ho"):
        host.Backend("unmarked", plugin)


def test_a_name_registered_twice_is_rejected_naming_both(distribution):
    distribution(
        "fake-one", "twin = fake_one\nother = fake_other", fake_one=SOUND, fake_other=SOUND
    )
    distribution("fake-two", "twin = fake_two", fake_two=SOUND)
    with pytest.raises(TvmtuneError, match=r"'twin' is registered by fake-two 1\.0 and fake-one"):
        host.backend("twin")
    assert host.backend("other").name == "other"
    twins = [info for info in host.installed() if "twin" in info.names]
    assert len(twins) == 2
    assert all("uninstall one of them" in info.error for info in twins)


def test_a_failing_hook_names_backend_and_hook():
    backend = host.Backend("sound", plugin_without(), "fake-sound", "1.0")
    device = backend.make_target({"a": 1})
    assert (device.backend, device.attrs) == ("sound", {"a": 1})
    with pytest.raises(TvmtuneError) as caught:
        backend.prepare(None, device)
    assert str(caught.value) == (
        "backend 'sound' (fake-sound 1.0) failed in prepare: RuntimeError: first line"
    )
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(TvmtuneError, match="'sound'.*returned nothing from extract_tasks"):
        backend.extract_tasks(None, device)


def test_version_1_plugins_still_work_and_take_no_calibration():
    """Their ``prepare`` lacks that argument."""
    plugin = plugin_without("prepare")

    @hookimpl
    def prepare(network, device, layout):
        return [network, device, layout]

    plugin.prepare = prepare
    backend = host.Backend("old", plugin)
    assert backend.prepare("net", "device", "NCHW") == ["net", "device", "NCHW"]
    with pytest.raises(UsageError, match="takes no calibration data.*omit --calibration"):
        backend.prepare("net", "device", calibration={})


def test_version_2_plugins_still_work_and_get_winograd():
    """Their hooks do not have the argument ``implementations``; the core's default applies."""
    plugin = plugin_without("extract_tasks", "lower")

    @hookimpl
    def extract_tasks(prepared, device):
        return extract.extract_tasks(prepared, device)

    @hookimpl
    def lower(prepared, chosen, device):
        return lowering.lower(prepared, chosen, device)

    plugin.extract_tasks, plugin.lower = extract_tasks, lower
    backend = host.Backend("old", plugin)
    assert hookspecs.API_VERSION == 3
    network = prepared(one_conv())
    assert backend.implementations(network.device) is None
    (task,) = [t for t in backend.extract_tasks(network, network.device) if "conv2d" in t.name]
    assert [each.name for each in task.implementations] == ["direct", "winograd"]
    assert "conv2d" in backend.lower(network, {}, network.device).script()


def test_implementations_reach_the_hooks_that_take_them():
    plugin = plugin_without("extract_tasks", "lower")
    plugin.implementations = hookimpl(lambda device: [device])
    plugin.extract_tasks = hookimpl(lambda implementations: implementations)
    plugin.lower = hookimpl(lambda device, implementations: [device, *implementations])
    backend = host.Backend("new", plugin)
    assert backend.hooks == tuple(hook for hook in host.HOOKS if hook != "serve_init")
    assert backend.extract_tasks(None, "device") == ["device"]
    assert backend.lower(None, {}, "device") == ["device", "device"]


@pytest.mark.parametrize("name", ["direct", "winograd"])
def test_two_implementations_of_the_same_name_are_rejected(name):
    network = prepared(one_conv())
    twins = [WINOGRAD, replace(WINOGRAD, name=name)]
    with pytest.raises(TvmtuneError, match=f"'cpu': two implementations are called '{name}'"):
        extract.extract_tasks(network, network.device, implementations=twins)


def test_a_backends_own_error_passes_through():
    plugin = plugin_without("make_builder")

    @hookimpl
    def make_builder(device):
        raise UsageError("no such option")

    plugin.make_builder = make_builder
    with pytest.raises(UsageError, match="^no such option$"):
        host.Backend("own", plugin).make_builder(None)


def test_serve_init_is_optional():
    backend = host.Backend("plain", plugin_without())
    assert "serve_init" not in backend.hooks
    assert backend.serve_init() is None


def run_python(code: str, *path: Path, isolated: bool = False) -> subprocess.CompletedProcess:
    """Run code in a fresh interpreter; ``isolated``: without this environment's packages."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["PYTHONPATH"] = os.pathsep.join(map(str, path))
    flags = ["-S"] if isolated else []
    return subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, env=env, timeout=120
    )


def test_the_host_imports_neither_tvm_nor_a_backend():
    code = "import sys, tvmtune.host; print([m for m in sys.modules if m.startswith('tvm')])"
    done = run_python(code, REPO / "src")
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout.replace("'", '"')))
    assert not {name for name in imported if name.split(".")[0] != "tvmtune"}


def test_without_plugins_tvmtune_imports_and_explains(tmp_path):
    """Only ``src`` is on the path, as in an environment from which ``plugins/`` was removed."""
    import pluggy

    lone = tmp_path / "site"
    lone.mkdir()
    (lone / "pluggy").symlink_to(Path(pluggy.__file__).parent)
    code = """
import tvmtune
from tvmtune import errors, host
try:
    host.backend("cpu")
except errors.UsageError as exc:
    print(exc)
print(host.installed())
"""
    done = run_python(code, REPO / "src", lone, isolated=True)
    assert done.returncode == 0, done.stderr
    assert "'cpu' is not known: no backend is installed" in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """The folder into which pip has installed the third-party example."""
    target = tmp_path_factory.mktemp("example")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    command += [str(REPO / "examples/third_party_backend")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_the_third_party_example_works_once_installed(example):
    code = """
import json
from tvmtune import host
backend = host.backend("example")
device = backend.make_target({"mcpu": "generic"})
print(json.dumps([backend.distribution, backend.hooks, device.backend, device.target["mcpu"],
    backend.make_builder(device).build, backend.make_runner(device).options["threads"],
    sorted(backend.hardware_params(device)), host.backend("cpu").name]))
"""
    done = run_python(code, example)
    assert done.returncode == 0, done.stderr
    distribution, hooks, name, mcpu, build, threads, params, cpu = json.loads(done.stdout)
    assert distribution == "tvmtune-example"
    assert tuple(hooks) == host.HOOKS
    assert (name, mcpu, build) == ("example", "generic", "tvmtune.measure.local:build")
    assert threads >= 1
    assert "num_cores" in params
    assert cpu == "cpu"


@pytest.mark.slow
def test_the_third_party_example_is_listed(example):
    code = "from tvmtune.cli.plugins import command; command(['--json'])"
    done = run_python(code, example)
    assert done.returncode == 0, done.stderr
    plugins = {tuple(info["names"]): info for info in json.loads(done.stdout)["plugins"]}
    assert plugins[("example",)]["error"] is None
    assert plugins[("example",)]["distribution"] == "tvmtune-example"
    table = run_python("from tvmtune.cli.plugins import command; command([])", example).stdout
    assert "tvmtune-example 0.1.0" in table
    assert "all 10" in table


@pytest.mark.slow
def test_the_third_party_example_rejects_unknown_attributes(example):
    code = """
from tvmtune import errors, host
try:
    host.backend("example").make_target({"mcpuu": "x"})
except errors.UsageError as exc:
    print(exc)
"""
    done = run_python(code, example)
    assert "no attribute 'mcpuu'. Did you mean mcpu?" in done.stdout, done.stderr
