"""A VTA hardware configuration: ``vta_config.json`` and the widths and depths derived from it.

Source: the VTA hardware repository, ``config/*.json``, ``config/pkg_config.py`` (derived keys,
bitstream names, buses) and ``include/vta/hw_spec_const.h`` (depths).
"""

from __future__ import annotations

import enum
import functools
import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tvmtune.errors import UsageError, nearest
from tvmtune_vta.hardware import bitfields

FOLDER = Path(__file__).with_name("configs")
"""The published configurations, one per board."""
TARGETS = ("sim", "tsim", "pynq", "ultra96", "zcu104", "de10nano")
CHISEL = ("tsim", "de10nano")
"""Targets with the Chisel design, in which the widths of all fields are constants."""
BUS_BITS = {"pynq": 64, "ultra96": 128, "zcu104": 128, "de10nano": 64}
"""Width of a board's memory bus; buffer elements are multiples of it."""
CHISEL_UOPS = 2048
"""Depth of the Chisel design's uop buffer, whatever the configuration says."""
LARGEST = {"LOG_BATCH": 8, "LOG_BLOCK": 8}
LARGEST_SIZE = 28
"""log2 of bytes: more than any FPGA has, and little enough to simulate."""


class Memory(enum.IntEnum):
    """On-chip memories, numbered as in LOAD and STORE."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5
    """The accumulator, loaded from int8: upstream's simulator has it, no bitstream does."""


@dataclass(frozen=True)
class Config:
    """One hardware configuration; the fields are the published keys in lower case.

    Buffer sizes are log2 of bytes, widths are log2 of bits, and ``log_batch`` and ``log_block`` are
    log2 of the GEMM core's shape (batch x block by block x block). Raises :class:`UsageError` if
    values are inconsistent, or need more bits than a 128-bit instruction or a 32-bit uop has.
    """

    target: str = "sim"
    hw_ver: str = "0.0.2"
    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_batch: int = 0
    log_block: int = 4
    log_uop_buff_size: int = 15
    log_inp_buff_size: int = 15
    log_wgt_buff_size: int = 18
    log_acc_buff_size: int = 17

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise UsageError(f"VTA configuration: {problem}")

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a ``vta_config.json``. Derived keys, which upstream's scripts also write, are
        accepted if they agree. Raises :class:`UsageError` that names the file and the key."""
        path = Path(path)
        try:
            values = json.loads(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: is not JSON: {error}") from None
        return cls.parse(values, str(path))

    @classmethod
    def named(cls, name: str) -> Config:
        """A published configuration: sim, pynq, ultra96, zcu104 or de10nano."""
        known = sorted(path.stem for path in FOLDER.glob("*.json"))
        if name not in known:
            raise UsageError(
                f"config={name} is neither a published configuration nor a file.{nearest(name, known)}"
            )
        return cls.load(FOLDER / f"{name}.json")

    @classmethod
    def find(cls, name: str) -> Config:
        """A published configuration by name, or a file. Raises :class:`UsageError` if it is
        neither."""
        path = Path(name)
        if path.suffix == ".json" or path.exists():
            return cls.load(path)
        return cls.named(name)

    @classmethod
    def parse(cls, values: Any, origin: str) -> Config:
        """A configuration from decoded JSON; ``origin`` names the source in messages."""
        if not isinstance(values, dict):
            raise UsageError(f"{origin}: a VTA configuration is a JSON object, {{...}}")
        keys = [key.name.upper() for key in fields(cls)]
        for key in values:
            if key not in keys and key not in _DERIVED:
                raise UsageError(f"{origin}: key '{key}' is not known.{_near(key, keys)}")
        for key in keys:
            if key not in values:
                raise UsageError(f"{origin}: key '{key}' is missing")
        try:
            config = cls(**{key.lower(): values[key] for key in keys})
        except UsageError as error:
            raise UsageError(
                f"{origin}: {str(error).removeprefix('VTA configuration: ')}"
            ) from None
        for key, (source, derive) in _DERIVED.items():
            if key in values and (values[key] != derive(config) or isinstance(values[key], bool)):
                raise UsageError(
                    f"{origin}: {key}={values[key]!r} contradicts {source}: "
                    f"it must be {derive(config)}"
                )
        return config

    def as_dict(self) -> dict[str, Any]:
        """The published keys and their values."""
        return {key.upper(): value for key, value in asdict(self).items()}

    def differences(self, other: Config) -> list[str]:
        """The keys whose values keep a program for one from running on the other."""
        own, theirs = self.as_dict(), other.as_dict()
        return [k for k in own if k not in ("TARGET", "HW_VER") and own[k] != theirs[k]]

    @property
    def batch(self) -> int:
        """Rows of an input or accumulator element."""
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        """Columns of an element; BLOCK_IN and BLOCK_OUT are the same."""
        return 1 << self.log_block

    @property
    def log_out_width(self) -> int:
        return self.log_inp_width

    @property
    def log_out_buff_size(self) -> int:
        return self.log_acc_buff_size + self.log_out_width - self.log_acc_width

    @property
    def bitstream(self) -> str:
        """The name of published bitstreams of this shape, such as 1x16_i8w8a32_15_15_18_17."""
        return (
            f"{self.batch}x{self.block}_i{1 << self.log_inp_width}w{1 << self.log_wgt_width}"
            f"a{1 << self.log_acc_width}_{self.log_uop_buff_size}_{self.log_inp_buff_size}"
            f"_{self.log_wgt_buff_size}_{self.log_acc_buff_size}"
        )

    def element_bytes(self, memory: Memory) -> int:
        """Bytes of one element of ``memory`` in DRAM, the unit of ``dram_base`` and
        ``x_stride``."""
        return 1 << self._log_bits(memory) - 3

    def element_shape(self, memory: Memory) -> tuple[int, ...]:
        """Shape of one element: (batch, block) for values, (block, block) for weights."""
        if memory is Memory.UOP:
            return ()
        return (self.block if memory is Memory.WGT else self.batch, self.block)

    def log_depth(self, memory: Memory) -> int:
        """log2 of the number of elements in ``memory`` on chip. OUT mirrors ACC."""
        size = {
            Memory.UOP: self.log_uop_buff_size,
            Memory.WGT: self.log_wgt_buff_size,
            Memory.INP: self.log_inp_buff_size,
        }.get(memory, self.log_acc_buff_size)
        kind = memory if memory in (Memory.UOP, Memory.WGT, Memory.INP) else Memory.ACC
        return size - self._log_bits(kind) + 3

    def depth(self, memory: Memory) -> int:
        """Number of elements in ``memory`` on chip."""
        return 1 << self.log_depth(memory)

    @property
    def uop_limit(self) -> int:
        """Uops that a program may use: the buffer's depth, and less than the Chisel design's."""
        return min(self.depth(Memory.UOP), CHISEL_UOPS - 1)

    @functools.cached_property
    def log_depths(self) -> tuple[int, int, int, int]:
        """log2 of the depths of uop, inp, wgt and acc, which are the widths of their indices."""
        kinds = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
        uop, inp, wgt, acc = (self.log_depth(kind) for kind in kinds)
        return uop, inp, wgt, acc

    @functools.cached_property
    def instructions(self) -> dict[str, bitfields.Layout]:
        """The fields of each instruction, by opcode: LOAD, STORE, GEMM, FINISH, ALU."""
        return bitfields.instruction_layouts(*self.log_depths)

    @functools.cached_property
    def uop(self) -> bitfields.Layout:
        """The fields of a uop: dst, src, wgt."""
        return bitfields.uop_layout(*self.log_depths[1:])

    def _log_bits(self, memory: Memory) -> int:
        vector = self.log_batch + self.log_block
        return {
            Memory.UOP: 5,
            Memory.WGT: self.log_wgt_width + 2 * self.log_block,
            Memory.INP: self.log_inp_width + vector,
            Memory.ACC: self.log_acc_width + vector,
            Memory.OUT: self.log_out_width + vector,
            Memory.ACC_8BIT: self.log_out_width + vector,
        }[memory]


_DERIVED = {
    "LOG_BLOCK_IN": ("LOG_BLOCK", lambda c: c.log_block),
    "LOG_BLOCK_OUT": ("LOG_BLOCK", lambda c: c.log_block),
    "LOG_OUT_WIDTH": ("LOG_INP_WIDTH", lambda c: c.log_out_width),
    "LOG_OUT_BUFF_SIZE": ("LOG_ACC_BUFF_SIZE", lambda c: c.log_out_buff_size),
}
"""Derived keys that upstream's scripts write, the key each follows from, and the derivation."""


def _near(key: str, keys: list[str]) -> str:
    """Like :func:`nearest`, for upper-case names."""
    suggestion = nearest(key.lower(), [k.lower() for k in keys])
    return re.sub(
        "|".join(map(re.escape, keys)), lambda m: m[0].upper(), suggestion, flags=re.IGNORECASE
    )


def _problem(config: Config) -> str | None:
    """The first problem with a configuration's values, starting with the key, or None."""
    return (
        _bad_value(config) or _bad_depth(config) or _bad_field_widths(config) or _bad_design(config)
    )


def _bad_value(config: Config) -> str | None:
    if config.target not in TARGETS:
        close = nearest(str(config.target), list(TARGETS))
        return f"TARGET={config.target!r} is not known.{close}"
    if not isinstance(config.hw_ver, str) or not re.fullmatch(r"\d+(\.\d+)*", config.hw_ver):
        return f"HW_VER={config.hw_ver!r} is not a version such as '0.0.2'."
    for key, value in config.as_dict().items():
        if key.startswith("LOG_"):
            if not isinstance(value, int) or isinstance(value, bool):
                return f"{key}={value!r} is not an integer."
            most = LARGEST.get(key, LARGEST_SIZE)
            if not 0 <= value <= most:
                return f"{key}={value}: must be 0 to {most}."
    for key, value, bits in (
        ("LOG_INP_WIDTH", config.log_inp_width, 8),
        ("LOG_WGT_WIDTH", config.log_wgt_width, 8),
        ("LOG_ACC_WIDTH", config.log_acc_width, 32),
    ):
        if 1 << value != bits:
            return (
                f"{key}={value} is {1 << value} bits: this backend computes with 8-bit inputs and "
                f"weights and 32-bit accumulators, so it must be {bits.bit_length() - 1}."
            )
    return None


def _bad_depth(config: Config) -> str | None:
    for memory in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC):
        log = config.log_depth(memory)
        key = f"LOG_{memory.name}_BUFF_SIZE"
        if log < 1:
            size = config.as_dict()[key]
            return (
                f"{key}={size}: {1 << size} bytes hold {'one element' if log == 0 else 'no element'} "
                f"of {config.element_bytes(memory)} bytes, and at least two are needed."
            )
        if log > 16:
            return (
                f"{key}={config.as_dict()[key]}: a depth of 2^{log} elements does not fit the 16-bit "
                "sram_base of a LOAD."
            )
    return None


def _bad_field_widths(config: Config) -> str | None:
    """hw_spec.h packs each instruction into two 64-bit words and each uop into one 32-bit word."""
    uop, inp, wgt, acc = config.log_depths
    if acc + max(acc, inp) + wgt > bitfields.UOP_BITS:
        return (
            f"LOG_INP_BUFF_SIZE={config.log_inp_buff_size}, LOG_WGT_BUFF_SIZE="
            f"{config.log_wgt_buff_size} and LOG_ACC_BUFF_SIZE={config.log_acc_buff_size}: indices "
            f"of {max(acc, inp)}, {wgt} and {acc} bits exceed the {bitfields.UOP_BITS} bits of a uop."
        )
    for name, widths in bitfields.widths(uop, inp, wgt, acc).items():
        bits = bitfields.place_fields(widths)[1]
        if bits > 2 * bitfields.WORD:
            culprit = "LOG_ACC_BUFF_SIZE" if name == "ALU" else "LOG_UOP_BUFF_SIZE"
            return (
                f"{culprit}={config.as_dict()[culprit]}: indices of {uop} (uop), {inp} (inp), {wgt} "
                f"(wgt) and {acc} (acc) bits make the {name} instruction {bits} bits long, not 128."
            )
    return None


def _bad_design(config: Config) -> str | None:
    """Limits of the published designs beyond those of the instruction set."""
    widths = config.log_depths
    if config.target in CHISEL and (widths != (13, 11, 10, 11) or config.log_batch):
        return (
            f"TARGET={config.target}: the Chisel design has batch 1 and fields of 13, 11, 10 and 11 "
            "bits for uop, inp, wgt and acc indices; these values give batch "
            f"{config.batch} and {', '.join(map(str, widths))}."
        )
    if config.target not in BUS_BITS:
        return None
    _, inp, _, acc = widths
    if acc > inp:
        return (
            f"TARGET={config.target}: with 2^{acc} accumulators and only "
            f"2^{inp} inputs the HLS design reads a uop's weight index at bit "
            f"{acc + inp}, hw_spec.h writes it at bit "
            f"{2 * acc}; LOG_INP_BUFF_SIZE must be larger or LOG_ACC_BUFF_SIZE "
            "smaller."
        )
    bits, bus = 8 * config.element_bytes(Memory.INP), BUS_BITS[config.target]
    if bits < bus:
        return (
            f"LOG_BLOCK={config.log_block}: an input element of {bits} bits is narrower than the "
            f"{bus}-bit bus of TARGET={config.target}."
        )
    return None
