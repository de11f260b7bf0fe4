"""What runs programs: a simulator, an FPGA, or another machine that has one of these.

NumPy is enough for all of this module, on a board without TVM.
"""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy.typing as npt

from tvmtune.errors import TvmtuneError, UsageError, nearest
from tvmtune_vta import bitstream, fpga, rules
from tvmtune_vta.config import Config
from tvmtune_vta.program import Program

KEPT = 256
"""Programs that stay ready to run: more than a network has."""
OPTIONS = ["config", "device", "memory", "registers", "base", "loaded"]
DEVICES = ["sim", "fpga"]
ELSEWHERE = "http://"
"""So begins the address of a device that another machine serves."""

Memory = Mapping[int, npt.NDArray[Any]]


class Machine(Protocol):
    """A program that is ready to run."""

    def run(self, memory: Memory) -> Memory:
        """Outputs by the numbers of their buffers, of inputs by theirs."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Accelerator(Protocol):
    """Something that runs programs."""

    @property
    def config(self) -> Config | None:
        """The one that it has; None where it runs whatever a program is for."""
        ...

    def machine(self, program: Program) -> Machine:
        """Raises :class:`tvmtune_vta.fpga.Full` where no memory is left for it."""
        ...

    def describe(self) -> dict[str, Any]:
        """``device``, ``sim`` or ``fpga``, its ``config`` or None, and what is known of the bitstream
        that was ``loaded``, None where nothing is."""
        ...

    def program_fpga(self, path: str) -> None:
        """Load the bitstream at ``path``, which has to be for its configuration."""
        ...


def choose(options: Mapping[str, Any], *, careful: bool = False) -> Accelerator:
    """The one that ``options`` name; ``careful``: it runs nothing that breaks a rule, and so no stream
    that reaches beyond its buffers.

    ``config``, the configuration that it has, a sample's name or a file. ``device``: ``sim``, the
    simulator, which without a ``config`` simulates whatever a program is for; ``fpga``, which needs a
    ``config``; or ``http://HOST:PORT``, where :mod:`tvmtune_vta.server` serves one. For an FPGA:
    ``memory``, ``pynq`` or the path of a u-dma-buf; ``registers``, the file that is the machine's
    memory; ``base``, the first register's address there; ``loaded``, ``yes`` where somebody else loads
    the bitstream. Raises :class:`UsageError` for others, :class:`TvmtuneError` where it cannot be
    reached.
    """
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"vta: option '{name}' is not known.{nearest(name, OPTIONS)}")
    config = Config.find(str(options["config"])) if "config" in options else None
    device = str(options.get("device", "sim"))
    if device == "fpga":
        return _in_fpga(options, config, careful)
    if other := sorted(options.keys() - {"config", "device"}):
        raise UsageError(f"vta: {other[0]}= is for an FPGA: say device=fpga, too.")
    if device.startswith(ELSEWHERE):
        from tvmtune_vta.served import Served

        return Served(device.removeprefix(ELSEWHERE), config)
    if device not in DEVICES:
        known = [*DEVICES, f"{ELSEWHERE}HOST:PORT"]
        raise UsageError(f"vta: there is no device '{device}'.{nearest(device, known)}")
    return Simulated(config)


def _in_fpga(options: Mapping[str, Any], config: Config | None, careful: bool) -> InFpga:
    if config is None:
        raise UsageError("vta: an FPGA has one configuration: name it with config=.")
    base = fpga.BASES.get(config.target)
    if "base" in options:
        try:
            base = int(str(options["base"]), 0)
        except ValueError:
            raise UsageError(
                f"vta: base={options['base']} is no address, as 0x43C00000 is."
            ) from None
    if base is None:
        raise UsageError(
            f"vta: where the registers of {config.target} are is not known: say it with "
            "base=0x43C00000."
        )
    loaded = str(options.get("loaded", "no"))
    if loaded not in ("yes", "no"):
        raise UsageError(f"vta: loaded={loaded}: say yes or no.")
    registers = fpga.Registers(str(options.get("registers", fpga.REGISTERS)), base)
    memory = str(options.get("memory", "pynq"))
    given: fpga.Memory = fpga.PynqMemory() if memory == "pynq" else fpga.DmaMemory(memory)
    return InFpga(fpga.Board(config, registers, given), trusted=loaded == "yes", careful=careful)


class Simulated:
    """The simulator: the quick one where TVM can make its machine code, else the reference."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config

    def machine(self, program: Program) -> Machine:
        if not _compiles():
            return _Reference(program)
        from tvmtune_vta import quick

        return quick.Machine(program)

    def describe(self) -> dict[str, Any]:
        return _described("sim", self.config, None)

    def program_fpga(self, path: str) -> None:
        raise TvmtuneError(
            "this board simulates VTA, and has nothing to load: serve it with device=fpga."
        )


def _compiles() -> bool:
    """Whether TVM is there with its compiler, which boards do without."""
    if importlib.util.find_spec("tvm") is None:
        return False
    import tvm

    return tvm.get_global_func("target.llvm_get_system_cpu", allow_missing=True) is not None


class _Reference:
    """A program on the reference simulator."""

    def __init__(self, program: Program) -> None:
        rules.check(program)
        self._program = program

    def run(self, memory: Memory) -> Memory:
        from tvmtune_vta import simulator

        return simulator.run(self._program, memory).memory

    def close(self) -> None:
        """It holds nothing."""


class InFpga:
    """VTA in the FPGA of this board. ``trusted``: its bitstream is somebody else's business;
    ``careful``: programs are held against the rules first, which libraries' have been."""

    def __init__(self, board: fpga.Board, *, trusted: bool = False, careful: bool = False) -> None:
        self.board, self._trusted, self._careful = board, trusted, careful

    @property
    def config(self) -> Config:
        return self.board.config

    def machine(self, program: Program) -> Machine:
        """To touch registers that are not there stops some boards for good: raises
        :class:`TvmtuneError` unless the FPGA is known to be loaded."""
        name = (bitstream.loaded() or {}).get("name")
        if not self._trusted and name != self.config.bitstream:
            raise TvmtuneError(
                f"the FPGA {f'has {name}' if name else 'was not loaded since the board was started'}, "
                f"and {self.config.bitstream} is needed: tvmtune vta program-fpga loads it; where "
                "something else does, serve the board with loaded=yes."
            )
        if self._careful:
            rules.check(program)
        return fpga.Machine(program, self.board)

    def describe(self) -> dict[str, Any]:
        return _described("fpga", self.config, bitstream.loaded())

    def program_fpga(self, path: str) -> None:
        bitstream.load(path, self.config)


def _described(device: str, config: Config | None, loaded: Any) -> dict[str, Any]:
    told = None if config is None else config.as_dict()
    return {"device": device, "config": told, "loaded": loaded}


def digest(data: bytes) -> bytes:
    """By which a program's file is recognised: its SHA-256."""
    return hashlib.sha256(data).digest()


class Shelf:
    """Programs that are ready to run on one accelerator; what was not used for longest has to go where
    room is needed."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._ready: OrderedDict[bytes, tuple[Program, Machine]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: bytes, data: Callable[[], bytes] | None = None
    ) -> tuple[Program, Machine] | None:
        """The program whose file has the digest ``key``, made from ``data`` if it is not there; None if
        there is no ``data`` either. Raises :class:`TvmtuneError` for one that is damaged or that the
        accelerator cannot run."""
        with self._lock:
            if key in self._ready:
                self._ready.move_to_end(key)
            elif data is None:
                return None
            else:
                self._ready[key] = self._made(key, data())
            return self._ready[key]

    def programs(self) -> list[Program]:
        """Those that ran last at the end."""
        with self._lock:
            return [program for program, _ in self._ready.values()]

    def drop(self, key: bytes) -> None:
        """Forget a program, if it is there."""
        with self._lock:
            if found := self._ready.pop(key, None):
                found[1].close()

    def program_fpga(self, path: str) -> None:
        """Load the FPGA with the bitstream at ``path``; what was ready before is forgotten."""
        if self.accelerator.config is not None:
            bitstream.Bitstream.read(path).check(self.accelerator.config)
        self.clear()
        self.accelerator.program_fpga(path)

    def clear(self) -> None:
        with self._lock:
            while self._ready:
                self._forget_oldest()

    def _made(self, key: bytes, data: bytes) -> tuple[Program, Machine]:
        if digest(data) != key:
            raise TvmtuneError("the library's program is damaged: compile it again.")
        program = Program.from_bytes(data, "the library's program", self.accelerator.config)
        while len(self._ready) >= KEPT:
            self._forget_oldest()
        while True:
            try:
                return program, self.accelerator.machine(program)
            except fpga.Full:
                if not self._ready:
                    raise
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, machine) = self._ready.popitem(last=False)
        machine.close()
