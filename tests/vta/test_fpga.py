"""The driver, held against a device behind the published registers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from quantise import cnn
from tvmtune import api
from tvmtune.deploy.library import Library
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs
from tvmtune_vta import driver, fpga
from tvmtune_vta.accelerator import digest
from tvmtune_vta.config import Config
from tvmtune_vta.convolution import BIAS, W, X, Y, generate
from tvmtune_vta.knobs import Knobs
from tvmtune_vta.workload import Convolution, Epilogue
from vta.device import ADDRESS, Device
from vta.packed import arrays

CONV = Convolution(1, 8, 8, 32, 32, 3, 3, 1, 1)
KNOBS = Knobs(1, 4, 8, 1, 1, 2, 1)


@pytest.fixture
def device(tmp_path, monkeypatch) -> Iterator[Device]:
    monkeypatch.setattr(fpga, "SETTLE", 30.0)  # a thread of a busy machine may take its time
    made = Device(tmp_path, Config.named("pynq"))
    monkeypatch.setattr(fpga, "SYSFS", made.sysfs)
    try:
        yield made
    finally:
        made.close()


def program():
    return generate(CONV, Epilogue(True), KNOBS, Config.named("pynq"))


def ready(one) -> None:
    """Have it prepared as a library that is called has it."""
    driver.shelf.get(digest(one.to_bytes()), one.to_bytes)


def test_a_program_runs_from_memory_that_both_sides_see(device):
    machine = fpga.Machine(program(), device.board())
    for seed in (0, 1):
        memory, wanted = arrays(CONV, Epilogue(True), device.config, seed)
        assert np.array_equal(machine.run(memory)[Y], wanted)
    assert device.runs == 2


def test_its_memory_is_given_back(device):
    board = device.board()
    whole = list(board.memory.holes)
    machines = [fpga.Machine(program(), board) for _ in range(3)]
    assert all(m._region.address % 256 == 0 for m in machines)
    for place in (1, 0, 2):
        machines[place].close()
    assert board.memory.holes == whole
    assert board.memory.address == ADDRESS


def test_too_little_memory_is_said(device):
    memory = device.board().memory
    memory.allocate(1 << 19)
    with pytest.raises(
        TvmtuneError, match="no 1048576 bytes of contiguous memory .* 524288 of 1048"
    ):
        memory.allocate(1 << 20)


def test_an_accelerator_that_does_not_answer_is_given_up(device, monkeypatch):
    monkeypatch.setattr(fpga, "LEAST", 0.1)
    device.dead = True
    machine = fpga.Machine(program(), device.board())
    with pytest.raises(
        TvmtuneError, match="has not ended .* is a bitstream 1x16_i8w8a32_15_15_18_17"
    ):
        machine.run({})


@pytest.mark.slow
def test_a_library_runs_on_it(device, tmp_path, monkeypatch):
    """Registered as a board's session registers it; what was run before makes room for it."""
    network = cnn.residual()
    plan = api.plan(network, "vta", attrs={"config": "pynq"})
    with pytest.warns(UserWarning, match="calibrated with"):
        compiled = api.compile(plan, tmp_path / "lib.so")
    inputs = random_inputs(network.inputs, 1)
    library = Library.open(compiled.path)
    driver.shelf.clear()
    options = {"device": "fpga", "registers": str(device.registers), "base": "0"}
    options |= {"config": "pynq", "memory": str(device.memory)}
    driver.register(options)
    with pytest.raises(
        TvmtuneError, match="was not loaded since the board was started, and 1x16_i8"
    ):
        ready(program())
    driver.register(options | {"loaded": "yes"})
    try:
        memory = driver.shelf.accelerator.board.memory
        ready(program())
        begin, end = memory.holes[0]
        memory.holes[0] = (begin, begin + 256)  # as if other programs lay behind it
        monkeypatch.setattr(driver.shelf, "_forget_oldest", lambda: _forget(memory, begin, end))
        (got,) = library.run(inputs)
        assert device.runs == 1
        assert np.array_equal(got, plan.network.reference(inputs)[0])
    finally:
        driver.shelf.clear()
        driver.register({})


def test_another_configuration_forgets_what_was_ready():
    driver.register({"config": "sim"})
    try:
        one = generate(CONV, Epilogue(True), KNOBS, Config())
        ready(one)
        assert driver.shelf.programs()
        driver.register({"config": "sim"})
        assert not driver.shelf.programs()
    finally:
        driver.register({})


def _forget(memory, begin: int, end: int) -> None:
    driver.shelf._ready.clear()
    memory.holes[0] = (begin, end)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "fgpa", "config": "pynq"}, "there is no device 'fgpa'. Did you mean fpga"),
        ({"device": "fpga"}, "an FPGA has one configuration"),
        ({"device": "fpga", "config": "sim"}, "where the registers of sim are is not known"),
        ({"device": "fpga", "config": "pynq", "base": "x"}, "base=x is no address"),
        ({"memory": "/dev/udmabuf0"}, "memory= is for an FPGA"),
        ({"konfig": "pynq"}, "option 'konfig' is not known. Did you mean config"),
    ],
)
def test_a_wrong_option(options, told):
    with pytest.raises(UsageError) as raised:
        driver.register(options)
    assert told in str(raised.value)


def test_without_registers_or_memory_the_remedy_is_named(tmp_path):
    options = {"device": "fpga", "config": "pynq", "registers": str(tmp_path / "none")}
    with pytest.raises(
        TvmtuneError, match="registers cannot be reached .* Serve the board as root"
    ):
        driver.register(options)
    (tmp_path / "registers").write_bytes(bytes(4 * fpga.PAGE))
    options |= {"registers": str(tmp_path / "registers"), "base": "0"}
    with pytest.raises(TvmtuneError, match="no memory of the kernel module u-dma-buf"):
        driver.register(options | {"memory": "/dev/udmabuf-none"})


def test_what_pynq_allocates_is_aligned_and_flushed(monkeypatch, device):
    """Its package, by what its documentation says of ``allocate``."""
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
    region = fpga.PynqMemory().allocate(1000)
    assert region.address == 0x1000_0100
    assert len(region.array) >= 1000
    region.array[0] = 7
    region.flush()
    region.invalidate()
    region.free()
    assert Buffer.calls == ["flush", "invalidate", "freebuffer"]


def test_inputs_and_biases_have_their_places(device):
    """Each operand lies where its loads look for it: swapped weights would show."""
    memory, wanted = arrays(CONV, Epilogue(True), device.config, 3)
    machine = fpga.Machine(program(), device.board())
    assert np.array_equal(machine.run(memory)[Y], wanted)
    memory[W] = np.flip(memory[W], 0).copy()
    assert not np.array_equal(machine.run(memory)[Y], wanted)
    assert set(memory) == {X, W, BIAS}
