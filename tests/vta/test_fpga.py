"""The FPGA driver, tested on a software model of the published registers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from quantize import cnn
from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune.runtime.library import Library
from tvmtune_vta.codegen.convolution import BIAS, W, X, Y, generate
from tvmtune_vta.codegen.knobs import Knobs
from tvmtune_vta.codegen.workload import Convolution, Epilogue
from tvmtune_vta.device import contiguous_memory, fpga, packed_functions
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.program import digest
from vta.device import ADDRESS, Device
from vta.packed import arrays

CONV = Convolution(1, 8, 8, 32, 32, 3, 3, 1, 1)
KNOBS = Knobs(1, 4, 8, 1, 1, 2, 1)


@pytest.fixture
def device(tmp_path, monkeypatch) -> Iterator[Device]:
    monkeypatch.setattr(fpga, "SETTLE", 30.0)  # threads are slow on a busy machine
    started = Device(tmp_path, Config.named("pynq"))
    monkeypatch.setattr(contiguous_memory, "SYSFS", started.sysfs)
    try:
        yield started
    finally:
        started.close()


def program():
    return generate(CONV, Epilogue(True), KNOBS, Config.named("pynq"))


def load(one) -> None:
    """Load a program as a library call does."""
    packed_functions.cache.get(digest(one.to_bytes()), one.to_bytes)


def test_a_program_runs_from_shared_memory(device):
    machine = fpga.FpgaProgram(program(), device.board())
    for seed in (0, 1):
        memory, wanted = arrays(CONV, Epilogue(True), device.config, seed)
        assert np.array_equal(machine.run(memory)[Y], wanted)
    assert device.runs == 2


@pytest.mark.parametrize("log_block", [5, 6])
def test_buffers_are_aligned_to_elements(log_block, tmp_path, monkeypatch):
    """A tile of weights then has 1024 or 4096 bytes, and addresses count elements."""
    monkeypatch.setattr(fpga, "SETTLE", 30.0)
    on = Config.parse(
        Config.named("pynq").as_dict() | {"LOG_BLOCK": log_block, "LOG_WGT_BUFF_SIZE": 20}, "test"
    )
    conv = Convolution(1, 4, 4, on.block, on.block, 3, 3, 1, 1)
    started = Device(tmp_path, on)
    monkeypatch.setattr(contiguous_memory, "SYSFS", started.sysfs)
    try:
        board = started.board()
        board.memory.allocate(256)  # what follows is not aligned by chance
        machine = fpga.FpgaProgram(generate(conv, Epilogue(True), Knobs(1, 4, 4), on), board)
        memory, wanted = arrays(conv, Epilogue(True), on)
        assert np.array_equal(machine.run(memory)[Y], wanted)
    finally:
        started.close()


def test_closing_a_program_frees_its_memory(device):
    board = device.board()
    whole = list(board.memory.free_ranges)
    machines = [fpga.FpgaProgram(program(), board) for _ in range(3)]
    assert all(m._region.address % 256 == 0 for m in machines)
    for place in (1, 0, 2):
        machines[place].close()
    assert board.memory.free_ranges == whole
    assert board.memory.address == ADDRESS


def test_too_little_memory_is_reported(device):
    memory = device.board().memory
    memory.allocate(1 << 19)
    with pytest.raises(
        TvmtuneError, match="no 1048576 bytes of contiguous memory .* 524288 of 1048"
    ):
        memory.allocate(1 << 20)


def test_a_run_times_out(device, monkeypatch):
    monkeypatch.setattr(fpga, "MIN_TIMEOUT", 0.1)
    device.dead = True
    machine = fpga.FpgaProgram(program(), device.board())
    with pytest.raises(
        TvmtuneError, match="has not finished .* is a bitstream 1x16_i8w8a32_15_15_18_17"
    ):
        machine.run({})


@pytest.mark.slow
def test_a_library_runs_on_the_fpga(device, tmp_path, monkeypatch):
    """Registered as in a board's session; earlier programs are evicted."""
    network = cnn.residual()
    plan = api.plan(network, "vta", attrs={"config": "pynq"})
    with pytest.warns(UserWarning, match="calibrated with"):
        compiled = api.compile(plan, tmp_path / "lib.so")
    inputs = random_inputs(network.inputs, 1)
    library = Library.open(compiled.path)
    packed_functions.cache.clear()
    options = {"device": "fpga", "registers": str(device.registers), "base": "0"}
    options |= {"config": "pynq", "memory": str(device.memory)}
    packed_functions.register(options)
    with pytest.raises(
        TvmtuneError, match="has not been loaded since the board was started, and 1x16_i8"
    ):
        load(program())
    packed_functions.register(options | {"loaded": "yes"})
    try:
        memory = packed_functions.cache.accelerator.board.memory
        load(program())
        begin, end = memory.free_ranges[0]
        memory.free_ranges[0] = (begin, begin + 256)  # as if other programs occupied the rest
        monkeypatch.setattr(packed_functions.cache, "_evict", lambda: _forget(memory, begin, end))
        (got,) = library.run(inputs)
        assert device.runs == 1
        assert np.array_equal(got, plan.network.reference(inputs)[0])
    finally:
        packed_functions.cache.clear()
        packed_functions.register({})


def test_registering_again_clears_the_cache():
    packed_functions.register({"config": "sim"})
    try:
        one = generate(CONV, Epilogue(True), KNOBS, Config())
        load(one)
        assert packed_functions.cache.programs()
        packed_functions.register({"config": "sim"})
        assert not packed_functions.cache.programs()
    finally:
        packed_functions.register({})


def _forget(memory, begin: int, end: int) -> None:
    packed_functions.cache._loaded.clear()
    memory.free_ranges[0] = (begin, end)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "fgpa", "config": "pynq"}, "there is no device 'fgpa'. Did you mean fpga"),
        ({"device": "fpga"}, "an FPGA has one configuration"),
        ({"device": "fpga", "config": "sim"}, "the register address of sim is not known"),
        ({"device": "fpga", "config": "pynq", "base": "x"}, "base=x is not an address"),
        ({"memory": "/dev/udmabuf0"}, "memory= is for an FPGA"),
        ({"konfig": "pynq"}, "option 'konfig' is not known. Did you mean config"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UsageError) as raised:
        packed_functions.register(options)
    assert message in str(raised.value)


def test_errors_of_registers_and_memory_suggest_a_remedy(tmp_path):
    options = {"device": "fpga", "config": "pynq", "registers": str(tmp_path / "none")}
    with pytest.raises(TvmtuneError, match="registers cannot be mapped .* Serve the board as root"):
        packed_functions.register(options)
    (tmp_path / "registers").write_bytes(bytes(4 * fpga.PAGE))
    options |= {"registers": str(tmp_path / "registers"), "base": "0"}
    with pytest.raises(TvmtuneError, match="not a device of the kernel module u-dma-buf"):
        packed_functions.register(options | {"memory": "/dev/udmabuf-none"})


def test_pynq_memory_is_aligned_and_flushed(monkeypatch, device):
    """With a stand-in for PYNQ's package that follows the documentation of ``allocate``."""
    import sys
    import types

    class Buffer(np.ndarray):
        calls: list[str] = []  # noqa: RUF012

        @property
        def device_address(self):
            return 0x1000_0040

        def flush(self):
            self.calls.append("flush")

        def invalidate(self):
            self.calls.append("invalidate")

        def freebuffer(self):
            self.calls.append("freebuffer")

    def allocate(shape, dtype):
        return np.zeros(shape, dtype).view(Buffer)

    package = types.ModuleType("pynq")
    package.allocate = allocate
    monkeypatch.setitem(sys.modules, "pynq", package)
    region = contiguous_memory.PynqAllocator().allocate(1000)
    assert region.address == 0x1000_0100
    assert len(region.array) >= 1000
    region.array[0] = 7
    region.flush()
    region.invalidate()
    region.free()
    assert Buffer.calls == ["flush", "invalidate", "freebuffer"]


@pytest.mark.slow
def test_operands_do_not_mix_up(device):
    """Swapped weights must change the result."""
    memory, wanted = arrays(CONV, Epilogue(True), device.config, 3)
    machine = fpga.FpgaProgram(program(), device.board())
    assert np.array_equal(machine.run(memory)[Y], wanted)
    memory[W] = np.flip(memory[W], 0).copy()
    assert not np.array_equal(machine.run(memory)[Y], wanted)
    assert set(memory) == {X, W, BIAS}
