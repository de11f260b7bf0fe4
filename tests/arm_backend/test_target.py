"""The arm backend: its known boards, and compiling for them without a cross compiler."""

from __future__ import annotations

import json
import platform
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator

from cli.commands import complaint, tvmtune
from models import tiny_cnn
from remote import emulated
from remote.served import Farm, free_port
from tvmtune import api, cpu_features, host, networks
from tvmtune.accuracy import relative_error
from tvmtune.bench.verify import run_check
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import elf, metadata
from tvmtune.machine import cpu_count, known_boards, linkers, threads, triples
from tvmtune.networks.inputs import random_inputs
from tvmtune.remote.client.lease import BoardLease
from tvmtune.runtime.library import Library
from tvmtune.spaces import rule_space, tensor_intrinsics

EF_ARM_ABI_FLOAT_HARD, EF_ARM_EABI_VER5 = 0x400, 0x05000000
on_other_machines = pytest.mark.skipif(
    triples.runs_here("aarch64-linux-gnu"), reason="this machine is an ARM one"
)
needs_a_cross_linker = pytest.mark.skipif(
    shutil.which("ld.lld") is None, reason="ld.lld is not installed"
)


def make(remote: str | None = None, **attrs: object):
    return host.backend("arm").make_target(attrs, remote)


def conv() -> tvm.IRModule:
    x = te.placeholder((1, 14, 14, 32), "float32", "x")
    w = te.placeholder((3, 3, 32, 64), "float32", "w")
    func = te.create_prim_func([x, w, topi.nn.conv2d_nhwc(x, w, 1, 1, 1)])
    return tvm.IRModule({"main": func.with_attr("layout_free_buffers", [1])})


def dense_int8() -> tvm.IRModule:
    x, w = te.placeholder((64, 64), "int8", "x"), te.placeholder((64, 64), "int8", "w")
    k = te.reduce_axis((0, 64), "k")
    y = te.compute(
        (64, 64),
        lambda i, j: te.sum(x[i, k].astype("int32") * w[j, k].astype("int32"), axis=k),
        name="y",
    )
    return tvm.IRModule({"main": te.create_prim_func([x, w, y])})


@pytest.mark.parametrize("name", sorted(known_boards.BOARDS))
def test_llvm_knows_the_processor_of_each_board(name):
    board = known_boards.BOARDS[name]
    assert tvm.get_global_func("target.llvm_is_valid_cpu")(board.mcpu, board.mtriple)
    device = make(board=name)
    target = tvm.target.Target(device.target)
    assert str(target.attrs["mcpu"]) == board.mcpu
    assert device.threads == board.cores
    assert device.runtime == "cpu"
    assert "neon" in {str(f) for f in tvm.get_global_func("target.llvm_get_cpu_features")(target)}


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("raspberry-pi/4b-aarch64", "raspberry-pi-4b"),
        ("arm/rasp4b64", "raspberry-pi-4b"),
        ("nvidia/jetson-agx-xavier", "jetson-agx-xavier"),
        ("nvidia/jetson-agx-thor", "jetson-agx-thor"),
    ],
)
def test_boards_agree_with_tvms_tags(tag, name):
    tagged = tvm.target.list_tags()[tag]
    theirs = tagged if str(tagged.kind.name) == "llvm" else tagged.host
    board = known_boards.BOARDS[name]
    assert (str(theirs.attrs["mcpu"]), str(theirs.attrs["mtriple"])) == (board.mcpu, board.mtriple)


@pytest.mark.parametrize("name", sorted(known_boards.BOARDS))
def test_each_board_is_documented(name):
    board = known_boards.BOARDS[name]
    text = (Path(__file__).parents[2] / "docs" / "arm.md").read_text()
    (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
    assert row.endswith(f"| {board.cores} |")
    processor = row.split("|")[2].strip().split(",")[0].split(" (")[0]
    assert processor.lower().replace(" ", "-") == board.mcpu


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("RK3399", "rk3399"),
        ("arm/rk3399", "rk3399"),
        ("raspberry_pi_4b", "raspberry-pi-4b"),
        ("raspberry-pi/4b-aarch64", "raspberry-pi-4b"),
        ("rasp3b", "raspberry-pi-3b"),
        ("nvidia/jetson-agx-orin-64gb", "jetson-agx-orin"),
        ("jetson", "jetson-nano"),
        ("pynq", "pynq-z1"),
    ],
)
def test_boards_have_aliases(word, name):
    assert known_boards.board_name(word) == name


def test_the_remote_key_can_name_the_board():
    device = make("rk3399@10.0.0.1:9190")
    assert device.target["mcpu"] == "cortex-a72"
    assert device.key == "rk3399"
    assert device.mtriple == "aarch64-linux-gnu"


def test_attributes_override_those_of_the_board():
    device = make(board="rk3399", mcpu="cortex-a53", threads=4, mattr="+crc,+aes")
    assert device.target["mcpu"] == "cortex-a53"
    assert device.target["num-cores"] == device.threads == 4
    assert device.target["mattr"] == ["+neon", "+crc", "+aes"]
    assert device.identity() != make(board="rk3399").identity()


@on_other_machines
def test_errors_are_one_line():
    for attrs, words in [
        ({}, "which board? Give --target-attr board=NAME (android, hikey960"),
        ({"board": "rk3398"}, "board 'rk3398' is not known. Did you mean rk3399"),
        ({"bord": "rk3399"}, "'bord' is not known. Did you mean board"),
        ({"mcpu": "cortex-a720x"}, "no processor 'cortex-a720x' for aarch64-linux-gnu. Did you"),
        ({"mcpu": "cortex-a72", "mtriple": "x86_64-linux-gnu"}, "not an ARM system"),
        ({"board": "rk3399", "mattr": "dotprod"}, "given as +NAME"),
        ({"board": "rk3399", "mattr": "+dotprd"}, "no feature 'dotprd' of aarch64-linux-gnu"),
        ({"board": "rk3399", "threads": 0}, "threads must be at least 1, not 0"),
        ({"board": "rk3399", "threads": "many"}, "threads=many is not a number"),
    ]:
        with pytest.raises(UsageError) as raised:
            make(**attrs)
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="'shelf' names no board that is known: give"):
        make("shelf")
    assert make("shelf", mcpu="cortex-a55").target["mcpu"] == "cortex-a55"


@on_other_machines
def test_measuring_without_a_remote_board_is_an_error():
    with pytest.raises(TvmtuneError, match="name its board with --remote KEY"):
        host.backend("arm").make_runner(make(board="rk3399"))


def test_on_an_arm_machine_the_target_is_this_machine(monkeypatch):
    """Simulated on other machines, as far as the name and the CPUs."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr("tvmtune_arm.target._cpu", lambda *_: "cortex-a72")
    device = make()
    assert device.remote is None
    assert device.model == cpu_count.cpu_model()
    assert device.threads == len(threads.allowed_cpus())
    assert host.backend("arm").make_runner(device).run == "tvmtune.measure.local:run"
    assert host.backend("arm").hardware_params(device)["num_cores"] == cpu_count.usable_cpus()


def test_the_fast_cores_of_a_big_little_system(monkeypatch):
    groups = [{"cpus": [4, 5], "max_khz": 1800000}, {"cpus": [0, 1, 2, 3], "max_khz": 1400000}]
    monkeypatch.setattr("tvmtune.machine.describe.clusters", lambda cpus: groups)
    monkeypatch.setattr(threads, "allowed_cpus", lambda: list(range(6)))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert threads.fast_cpus() == [4, 5]
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert threads.fast_cpus() == list(range(6)), "kinds of cores cannot be told by frequency"


def test_an_unreachable_board_gets_the_parameters_of_its_name(monkeypatch):
    device = make("rk3399@127.0.0.1:1")
    with pytest.warns(UserWarning, match="cannot read .* parameters: no tracker answers at 127"):
        params = host.backend("arm").hardware_params(device)
    assert params["num_cores"] == 2


class TestReportedByTheBoard:
    def ask(self, monkeypatch, **described):
        monkeypatch.setattr("tvmtune.remote.client.boards.ask", lambda remote: described)

    def test_parameters(self, monkeypatch):
        clusters = [{"cpus": [4, 5], "max_khz": 2}, {"cpus": [0, 1, 2, 3], "max_khz": 1}]
        self.ask(monkeypatch, cpus=6, clusters=clusters, features=["asimd"], memory_bytes=1 << 30)
        params = host.backend("arm").hardware_params(make("rk3399"))
        assert params["clusters"] == [2, 4]
        assert params["num_cores"] == 6
        assert params["features"] == ["asimd"]

    def test_a_missing_feature_is_an_error_before_anything_runs(self, monkeypatch):
        self.ask(monkeypatch, machine="aarch64", cpu="Cortex-A72", features=["asimd", "fp"])
        runner = host.backend("arm").make_runner(make("rk3399"))
        assert runner.run == "tvmtune.measure.remote_runner:run"
        with pytest.raises(TvmtuneError) as raised:
            host.backend("arm").make_runner(make("rk3399", mcpu="cortex-a76"))
        assert "'rk3399' lacks asimddp, asimdhp, which the target (mcpu=cortex-a76) uses" in str(
            raised.value
        )

    def test_another_architecture_is_rejected(self, monkeypatch):
        self.ask(monkeypatch, machine="x86_64", cpu="Xeon", features=["avx2"])
        with pytest.raises(TvmtuneError, match="'rk3399' is x86_64 .Xeon., and the target is aarc"):
            host.backend("arm").make_runner(make("rk3399"))


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", ["cortex-a72", "cortex-a76"])
def test_the_space_has_no_int8_intrinsics(mcpu):
    """TVM's own rules generate kernels that are wrong (sdot) or do not build (neon)."""
    device = make(board="rk3399", mcpu=mcpu)
    target = tvm.target.Target(device.target)
    mod = dense_int8()
    space = rule_space.RuleSpace(device.target)
    context = rule_space.tune_context(mod, target, space.generator(), seed=1)
    designs = list(context.generate_design_space())
    assert designs
    for design in designs:
        assert "Tensorize" not in {inst.kind.name for inst in design.trace.insts}
        assert "tensor_intrin" not in design.mod.script().lower()
    theirs = SpaceGenerator.create("post-order-apply")
    tensor_intrinsics.load("arm_cpu")
    their_context = rule_space.tune_context(mod, target, theirs, seed=1)
    list(their_context.generate_design_space())
    their_rules = {str(r).partition("(")[0] for r in their_context.space_generator.sch_rules}
    assert any("Intrin" in rule for rule in their_rules), "TVM has mended its rules: look again"
    rules = {str(rule).partition("(")[0] for rule in context.space_generator.sch_rules}
    assert not any("Intrin" in rule for rule in rules), rules


def test_the_default_schedule_vectorizes_for_neon():
    device = make(board="rk3399")
    assert cpu_features.vector_unit(device.target) == cpu_features.NEON
    target = tvm.target.Target(device.target)
    mod = conv()
    scheduled = rule_space.RuleSpace(device.target).default(mod, target).mod
    script = scheduled.script()
    widths = {int(part.split(")")[0]) for part in script.split("T.vectorized(")[1:]}
    assert 8 in widths, "two registers of four float32 values"
    assert all(width % 4 == 0 for width in widths), widths
    code = tvm.compile(scheduled, target).mod.inspect_source("asm")
    assert "fmla\tv" in code.replace("fmla v", "fmla\tv"), "no multiplication of vectors"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> networks.Network:
    path = tmp_path_factory.mktemp("network") / "model.onnx"
    onnx.save(tiny_cnn(), path)
    return networks.load(str(path))


def compiled(network: networks.Network, board: str, folder: Path) -> Path:
    plan = api.plan(network, "arm", attrs={"board": board})
    return api.compile(plan, folder / f"{board}.so").path


@pytest.mark.slow
@needs_a_cross_linker
def test_a_library_is_compiled_for_a_64_bit_board(network, tmp_path):
    path = compiled(network, "rk3399", tmp_path)
    header = elf.read_header(path)
    assert header is not None
    assert header.machine == "aarch64"
    described = metadata.read(path)
    assert described["cpu_features"] == ["asimd"]
    assert described["check"]
    if not triples.runs_here("aarch64-linux-gnu"):
        with pytest.raises(TvmtuneError, match="holds code for aarch64 and this machine is"):
            Library.open(path)


@pytest.mark.slow
@needs_a_cross_linker
def test_a_library_is_compiled_for_a_32_bit_board(network, tmp_path):
    """Its ELF header: 32-bit, little-endian, ARM, EABI version 5, hard float."""
    path = compiled(network, "pynq-z1", tmp_path)
    head = path.read_bytes()[:52]
    assert head[:6] == b"\x7fELF\x01\x01"
    kind, machine = struct.unpack_from("<HH", head, 16)
    assert (kind, machine) == (3, 40)
    (flags,) = struct.unpack_from("<I", head, 36)
    assert flags & 0xFF000000 == EF_ARM_EABI_VER5
    assert flags & EF_ARM_ABI_FLOAT_HARD
    assert metadata.elf_machine(path) == "arm"
    assert metadata.read(path)["cpu_features"] == []


@needs_a_cross_linker
@pytest.mark.parametrize(
    ("board", "name"),
    [("rk3399", "aarch64-linux-gnu-ld"), ("pynq-z1", "arm-linux-gnueabihf-ld")],
)
@pytest.mark.slow
def test_any_cross_linker_works(network, tmp_path, monkeypatch, board, name):
    """GNU ld's cross builds if they are installed, otherwise lld under their names."""
    folder = tmp_path / "bin"
    folder.mkdir()
    real = shutil.which(name)
    monkeypatch.delenv("TVMTUNE_LINKER", raising=False)
    if real is None:
        script = f'#!/bin/sh\nexec "{shutil.which("ld.lld")}" "$@"\n'
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    else:
        (folder / name).symlink_to(real)
    monkeypatch.setenv("PATH", str(folder))
    assert linkers.find_linker(known_boards.BOARDS[board].mtriple) == [str(folder / name)]
    path = compiled(network, board, tmp_path)
    assert metadata.elf_machine(path) in ("aarch64", "arm")


@on_other_machines
def test_without_a_linker_the_message_lists_the_remedies(network, tmp_path, monkeypatch):
    monkeypatch.delenv("TVMTUNE_LINKER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TvmtuneError) as raised:
        linkers.find_linker("aarch64-linux-gnu")
    for word in ("no linker for aarch64-linux-gnu", "pip install ziglang", "install lld"):
        assert word in str(raised.value)


@needs_a_cross_linker
@pytest.mark.slow
def test_the_command_compiles_a_network_of_the_zoo(tmp_path):
    done = tvmtune(
        *("compile", "--target", "arm", "--target-attr", "board=rk3399"),
        *("--network", "squeezenet", "-o", "lib.so"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert metadata.elf_machine(tmp_path / "lib.so") == "aarch64"
    assert "with the default schedule; 2 threads" in done.stdout


@pytest.mark.slow
@on_other_machines
def test_the_command_reports_errors_in_one_line(tmp_path):
    done = tvmtune("compile", "--target", "arm", "--network", "mobilenet", cwd=tmp_path)
    assert done.returncode == 2
    assert complaint(done.stderr).startswith("which board? Give --target-attr board=NAME")


class Emulated:
    """A tracker with one emulated board, which runs aarch64 code on this machine."""

    def __init__(self, farm: Farm, key: str, cpu: str) -> None:
        self.key = key
        _, tracker = farm.tracker()
        words = ["serve", "--key", key, "--tracker", tracker, "--port", free_port()]
        python = str(emulated.board())
        self.board = farm.start(
            [python, "-m", "tvmtune.cli", *map(str, words)], emulated.environment(cpu)
        )
        self.board.expect("registered")
        self.remote = f"{key}@{tracker}"


@pytest.fixture(scope="module")
def rk3399(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    """Like a Cortex-A72, it has no int8 dot products."""
    if emulated.WITHOUT:
        pytest.skip(emulated.WITHOUT)
    farm = Farm(tmp_path_factory.mktemp("farm"))
    try:
        yield Emulated(farm, "rk3399", "cortex-a72")
    finally:
        farm.close()


@needs_a_cross_linker
@pytest.mark.slow
class TestOnAnEmulatedBoard:
    def test_untuned_mobilenet_is_correct(self, rk3399, tmp_path):
        """Compiled here without a cross compiler, run there, compared with ONNX Runtime here."""
        done = tvmtune(
            *("compile", "--target", "arm", "--target-attr", "board=rk3399"),
            *("--network", "mobilenet", "--shape", "data:1x3x32x32", "-o", "lib.so"),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        network = networks.load("mobilenet", shapes={"data": (1, 3, 32, 32)})
        inputs = random_inputs(network.inputs, 5)
        np.savez(tmp_path / "x.npz", **inputs)
        done = tvmtune(
            *("run", "lib.so", "--remote", rk3399.remote),
            *("--input", "x.npz", "--output", "y.npz"),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        (want,) = network.reference(inputs)
        got = np.load(tmp_path / "y.npz")[network.outputs[0].name]
        assert relative_error(got, want) <= 1e-4
        done = tvmtune(
            *("bench", "lib.so", "--remote", rk3399.remote, "--repeat", 1, "--check"),
            *("--vs", "onnxruntime", "--json", "report.json"),
            cwd=tmp_path,
        )
        assert "the output is right" in done.stderr
        assert "on the board 'rk3399': onnxruntime is not installed" in done.stderr
        assert done.returncode == 1, "no runtime took part in the comparison"
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["board"]["machine"] == "aarch64"
        assert "asimd" in report["board"]["features"]
        assert report["runs"][0]["check"]["error"] <= 1e-4

    def test_the_board_reports_its_parameters(self, rk3399):
        params = host.backend("arm").hardware_params(make(rk3399.remote))
        assert "asimd" in params["features"]
        assert "asimddp" not in params["features"]
        assert sum(params["clusters"]) == len(threads.allowed_cpus())
        assert params["memory_bytes"] > 1 << 30

    def test_a_target_with_unsupported_features_is_rejected(self, rk3399, network, tmp_path):
        with pytest.raises(TvmtuneError, match="lacks asimddp, asimdhp, which the target"):
            host.backend("arm").make_runner(make(rk3399.remote, mcpu="cortex-a76"))
        assert host.backend("arm").make_runner(make(rk3399.remote)).run
        path = compiled(network, "raspberry-pi-5", tmp_path)
        done = tvmtune("run", path, "--remote", rk3399.remote, cwd=tmp_path)
        assert done.returncode == 1
        message = complaint(done.stderr)
        assert "uses asimddp, asimdhp, which the board's CPU lacks" in message

    def test_a_library_for_this_machine_is_rejected(self, rk3399, network, tmp_path):
        path = api.compile(api.plan(network, "cpu"), tmp_path / "lib.so").path
        done = tvmtune("bench", path, "--remote", rk3399.remote, cwd=tmp_path)
        assert done.returncode == 1
        assert f"holds code for {platform.machine()} and the board is aarch64" in done.stderr

    def test_a_newer_cpu_runs_a_library_for_it(self, network, tmp_path):
        path = compiled(network, "raspberry-pi-5", tmp_path)
        folder = tmp_path / "farm"
        folder.mkdir()
        farm = Farm(folder)
        try:
            pi = Emulated(farm, "raspberry-pi-5", "cortex-a76")
            with BoardLease(pi.remote) as board:
                library = Library.open(path, board=board)
                assert run_check(library, library.metadata["check"]).passed
        finally:
            farm.close()
