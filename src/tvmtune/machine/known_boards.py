"""A table of well-known boards: their processors and GPUs, and TVM targets for them.

TVM has tags for some of them, which are not used: most name no processor (``arm/rk3399``,
``arm/ultra96``), several are 32-bit for a 64-bit board (``arm/rasp3b``, ``arm/rasp4b``) and one names
the wrong processor (``nvidia/jetson-orin-nano``: Carmel instead of Cortex-A78AE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmtune.errors import UsageError, nearest
from tvmtune.machine import triples

LINUX64 = "aarch64-linux-gnu"
LINUX32 = "armv7a-linux-gnueabihf"
ANDROID = "aarch64-linux-android"


@dataclass(frozen=True)
class KnownBoard:
    """A board's processor, by LLVM's name, and its GPU."""

    model: str
    """Display name."""
    mcpu: str
    """LLVM's name of the cores that are used."""
    cores: int
    """Number of those cores: on big.LITTLE systems, the big ones."""
    mtriple: str = LINUX64
    mattr: tuple[str, ...] = ("+neon",)
    gpu: str = ""
    """Display name of a GPU that runs OpenCL; empty if there is none."""
    gpu_cores: int = 1


BOARDS = {
    "rk3399": KnownBoard(
        "Rockchip RK3399, 2 Cortex-A72 (and 4 Cortex-A53)",
        "cortex-a72",
        2,
        gpu="Mali-T860",
        gpu_cores=4,
    ),
    "rk3588": KnownBoard(
        "Rockchip RK3588, 4 Cortex-A76 (and 4 Cortex-A55)",
        "cortex-a76",
        4,
        gpu="Mali-G610",
        gpu_cores=4,
    ),
    "rk3568": KnownBoard(
        "Rockchip RK3568, 4 Cortex-A55", "cortex-a55", 4, gpu="Mali-G52", gpu_cores=2
    ),
    "hikey960": KnownBoard(
        "HiKey 960, 4 Cortex-A73 (and 4 Cortex-A53)", "cortex-a73", 4, gpu="Mali-G71", gpu_cores=8
    ),
    "hikey970": KnownBoard(
        "HiKey 970, 4 Cortex-A73 (and 4 Cortex-A53)", "cortex-a73", 4, gpu="Mali-G72", gpu_cores=12
    ),
    "odroid-n2": KnownBoard(
        "Odroid-N2, 4 Cortex-A73 (and 2 Cortex-A53)", "cortex-a73", 4, gpu="Mali-G52", gpu_cores=6
    ),
    "khadas-vim3": KnownBoard(
        "Khadas VIM3, 4 Cortex-A73 (and 2 Cortex-A53)", "cortex-a73", 4, gpu="Mali-G52", gpu_cores=4
    ),
    "android": KnownBoard(
        "an Android phone, 64-bit ARM", "generic", 4, ANDROID, gpu="Mali", gpu_cores=4
    ),
    "raspberry-pi-3b": KnownBoard("Raspberry Pi 3B, 4 Cortex-A53", "cortex-a53", 4),
    "raspberry-pi-4b": KnownBoard("Raspberry Pi 4B, 4 Cortex-A72", "cortex-a72", 4),
    "raspberry-pi-5": KnownBoard("Raspberry Pi 5, 4 Cortex-A76", "cortex-a76", 4),
    "jetson-nano": KnownBoard("Jetson Nano, 4 Cortex-A57", "cortex-a57", 4),
    "jetson-tx2": KnownBoard("Jetson TX2, 4 Cortex-A57 (and 2 Denver 2)", "cortex-a57", 4),
    "jetson-agx-xavier": KnownBoard("Jetson AGX Xavier, 8 Carmel", "carmel", 8),
    "jetson-xavier-nx": KnownBoard("Jetson Xavier NX, 6 Carmel", "carmel", 6),
    "jetson-agx-orin": KnownBoard("Jetson AGX Orin, 12 Cortex-A78AE", "cortex-a78ae", 12),
    "jetson-orin-nx": KnownBoard("Jetson Orin NX, 8 Cortex-A78AE", "cortex-a78ae", 8),
    "jetson-orin-nano": KnownBoard("Jetson Orin Nano, 6 Cortex-A78AE", "cortex-a78ae", 6),
    "jetson-agx-thor": KnownBoard("Jetson AGX Thor, 14 Neoverse V3AE", "neoverse-v3ae", 14),
    "ultra96": KnownBoard("Ultra96, 4 Cortex-A53", "cortex-a53", 4),
    "pynq-z1": KnownBoard("Pynq-Z1, 2 Cortex-A9", "cortex-a9", 2, LINUX32),
}

ALIASES = {
    "firefly-rk3399": "rk3399",
    "rock-pi-4": "rk3399",
    "rock-5b": "rk3588",
    "orange-pi-5": "rk3588",
    "rasp3b": "raspberry-pi-3b",
    "rpi3b": "raspberry-pi-3b",
    "rasp4b": "raspberry-pi-4b",
    "rasp4b64": "raspberry-pi-4b",
    "rpi4b": "raspberry-pi-4b",
    "raspberry-pi-4b-aarch64": "raspberry-pi-4b",
    "rpi5": "raspberry-pi-5",
    "jetson": "jetson-nano",
    "tx2": "jetson-tx2",
    "jetson-xavier": "jetson-agx-xavier",
    "jetson-orin": "jetson-agx-orin",
    "jetson-thor": "jetson-agx-thor",
    "pynq": "pynq-z1",
}


def board_name(name: str) -> str | None:
    """The name in :data:`BOARDS` for a name, alias or TVM tag (``arm/rk3399``); None if unknown.

    Case does not matter, nor do underscores instead of hyphens.
    """
    plain = name.lower().replace("_", "-")
    for maker in ("arm/", "nvidia/"):
        plain = plain.removeprefix(maker)
    plain = plain.replace("/", "-").removesuffix("-32gb").removesuffix("-64gb")
    plain = ALIASES.get(plain, plain)
    return plain if plain in BOARDS else None


def triple_of(machine: str) -> str:
    """LLVM's triple of a Linux machine, from the output of ``uname -m``."""
    if machine.startswith("armv7"):
        return LINUX32
    return LINUX64 if machine in ("aarch64", "arm64") else f"{machine}-linux-gnu"


def host_target(mcpu: Any = None, mtriple: str = "") -> dict[str, Any]:
    """TVM's target of the CPU that launches an accelerator's kernels: a generic one of its family
    unless ``mcpu`` is given. Raises :class:`UsageError` if LLVM does not know ``mcpu``."""
    if mcpu is None:
        import tvm

        triple = mtriple or str(tvm.get_global_func("target.llvm_get_system_triple")())
        mcpu = "x86-64" if triple.startswith("x86_64") else "generic"
    else:
        triples.check_processor(str(mcpu), mtriple)
    return cpu_target(str(mcpu), mtriple)


def cpu_target(
    mcpu: str, mtriple: str = "", threads: int | None = None, mattr: Sequence[str] = ()
) -> dict[str, Any]:
    """TVM's target of a processor; an empty ``mtriple`` means this machine's."""
    target: dict[str, Any] = {"kind": "llvm"}
    if mtriple:
        target["mtriple"] = mtriple
    target["mcpu"] = mcpu
    if threads is not None:
        target["num-cores"] = threads
    if mattr:
        target["mattr"] = list(dict.fromkeys(mattr))
    if mtriple.endswith("hf"):
        target["mfloat-abi"] = "hard"
    return target


def require_board(name: str, otherwise: str) -> str:
    """As :func:`board_name`, but raises :class:`UsageError` for an unknown name; the message suggests
    the target attributes ``otherwise``."""
    board = board_name(name)
    if board is None:
        raise UsageError(
            f"board '{name}' is not known.{nearest(name, sorted(BOARDS))} For another one give "
            f"--target-attr {otherwise}."
        )
    return board
