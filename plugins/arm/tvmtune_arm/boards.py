"""Boards by name: what their processors are.

TVM has tags for some of them; what they say is said here in full, because the tags lack the processor of
most (``arm/rk3399`` has none), and because several name 32-bit systems for 64-bit boards.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvmtune.errors import UsageError, nearest

LINUX64 = "aarch64-linux-gnu"
LINUX32 = "armv7a-linux-gnueabihf"


@dataclass(frozen=True)
class Board:
    """A processor, as LLVM knows it."""

    model: str
    """For people."""
    mcpu: str
    """Of the cores that are used."""
    cores: int
    """How many of those there are: on big.LITTLE systems, the quick ones."""
    mtriple: str = LINUX64
    mattr: tuple[str, ...] = ("+neon",)


BOARDS = {
    "rk3399": Board("Rockchip RK3399, 2 Cortex-A72 (and 4 Cortex-A53)", "cortex-a72", 2),
    "rk3588": Board("Rockchip RK3588, 4 Cortex-A76 (and 4 Cortex-A55)", "cortex-a76", 4),
    "raspberry-pi-3b": Board("Raspberry Pi 3B, 4 Cortex-A53", "cortex-a53", 4),
    "raspberry-pi-4b": Board("Raspberry Pi 4B, 4 Cortex-A72", "cortex-a72", 4),
    "raspberry-pi-5": Board("Raspberry Pi 5, 4 Cortex-A76", "cortex-a76", 4),
    "jetson-nano": Board("Jetson Nano, 4 Cortex-A57", "cortex-a57", 4),
    "jetson-xavier": Board("Jetson AGX Xavier, 8 Carmel", "carmel", 8),
    "jetson-orin": Board("Jetson AGX Orin, 12 Cortex-A78AE", "cortex-a78ae", 12),
    "ultra96": Board("Ultra96, 4 Cortex-A53", "cortex-a53", 4),
    "pynq-z1": Board("Pynq-Z1, 2 Cortex-A9", "cortex-a9", 2, LINUX32),
}

ALIASES = {
    "rasp3b": "raspberry-pi-3b",
    "rpi3b": "raspberry-pi-3b",
    "rasp4b": "raspberry-pi-4b",
    "rasp4b64": "raspberry-pi-4b",
    "rpi4b": "raspberry-pi-4b",
    "rpi5": "raspberry-pi-5",
    "jetson": "jetson-nano",
    "pynq": "pynq-z1",
    "firefly-rk3399": "rk3399",
}


def by_name(name: str) -> Board | None:
    """The board of that name or alias, however it is spelt; None if it is not known."""
    plain = name.lower().replace("_", "-").replace("/", "-")
    return BOARDS.get(ALIASES.get(plain, plain))


def named(name: str) -> Board:
    """As :func:`by_name`; raises :class:`UsageError` for an unknown one."""
    board = by_name(name)
    if board is None:
        raise UsageError(
            f"no board '{name}' is known.{nearest(name, sorted(BOARDS))} For another one give "
            "--target-attr mcpu=NAME (and threads=N)."
        )
    return board
