"""The accelerator that ``--target-attr`` of ``tvmtune serve`` describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmtune.errors import UsageError, nearest
from tvmtune_vta.device import contiguous_memory, fpga
from tvmtune_vta.device.accelerator import Accelerator
from tvmtune_vta.device.client import RemoteAccelerator
from tvmtune_vta.device.fpga import FpgaAccelerator
from tvmtune_vta.device.simulated import SimulatedAccelerator
from tvmtune_vta.hardware.config import Config

OPTIONS = ["config", "device", "memory", "registers", "base", "loaded"]
DEVICES = ["sim", "fpga"]
REMOTE = "http://"
"""Prefix of the address of a device that another machine serves."""


def open_accelerator(options: Mapping[str, Any], *, check_programs: bool = False) -> Accelerator:
    """The accelerator that ``options`` describe.

    ``config``: its configuration, a published name or a file. ``device``: ``sim``, the simulator,
    which without ``config`` runs programs for any configuration; ``fpga``, which requires ``config``;
    or ``http://HOST:PORT``, served by :mod:`tvmtune_vta.device.server`. For an FPGA: ``memory``,
    ``pynq`` or the path of a u-dma-buf device; ``registers``, the file that maps physical memory;
    ``base``, the physical address of the first register; ``loaded``, ``yes`` if the bitstream is
    loaded by other means.

    With ``check_programs``, which is for programs of others, an FPGA checks every program against the
    hardware's rules before it runs, so that none reads or writes outside its buffers, and a simulator
    refuses those that would keep it busy for long. Raises :class:`UsageError` for invalid options,
    :class:`TvmtuneError` if the accelerator cannot be reached.
    """
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"vta: option '{name}' is not known.{nearest(name, OPTIONS)}")
    config = Config.find(str(options["config"])) if "config" in options else None
    device = str(options.get("device", "sim"))
    if device == "fpga":
        return _fpga(options, config, check_programs)
    if other := sorted(options.keys() - {"config", "device"}):
        raise UsageError(f"vta: {other[0]}= is for an FPGA: add device=fpga")
    if device.startswith(REMOTE):
        return RemoteAccelerator(device.removeprefix(REMOTE), config)
    if device not in DEVICES:
        known = [*DEVICES, f"{REMOTE}HOST:PORT"]
        raise UsageError(f"vta: there is no device '{device}'.{nearest(device, known)}")
    return SimulatedAccelerator(config, bounded=check_programs)


def _fpga(options: Mapping[str, Any], config: Config | None, check: bool) -> FpgaAccelerator:
    if config is None:
        raise UsageError("vta: an FPGA has one configuration: name it with config=")
    base = fpga.BASES.get(config.target)
    if "base" in options:
        try:
            base = int(str(options["base"]), 0)
        except ValueError:
            raise UsageError(
                f"vta: base={options['base']} is not an address such as 0x43C00000"
            ) from None
    if base is None:
        raise UsageError(
            f"vta: the register address of {config.target} is not known: give base=0x43C00000"
        )
    loaded = str(options.get("loaded", "no"))
    if loaded not in ("yes", "no"):
        raise UsageError(f"vta: loaded={loaded}: must be yes or no")
    registers = fpga.Registers(str(options.get("registers", fpga.REGISTERS)), base)
    memory = str(options.get("memory", "pynq"))
    allocator: contiguous_memory.Allocator = (
        contiguous_memory.PynqAllocator()
        if memory == "pynq"
        else contiguous_memory.UdmabufAllocator(memory)
    )
    board = fpga.FpgaBoard(config, registers, allocator)
    return FpgaAccelerator(board, trusted=loaded == "yes", check_programs=check)
