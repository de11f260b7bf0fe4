"""VTA's instruction set: five instructions and uops, as objects, 128-bit words and text.

Source: the VTA hardware repository, ``include/vta/hw_spec.h``; :mod:`tvmtune_vta.hardware.bitfields`
has the bit fields. Words are uint64 arrays of shape (n, 2), the low word first; in memory both are
little-endian, 16 bytes per instruction.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tvmtune.errors import TvmtuneError
from tvmtune_vta.hardware import bitfields
from tvmtune_vta.hardware.bitfields import FLAGS, Columns, Uops, Words
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.config import Memory as Memory

BYTES = 16
"""Size of one instruction."""


class Opcode(enum.IntEnum):
    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class AluOp(enum.IntEnum):
    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    """Arithmetic shift; a negative amount shifts left."""
    MUL = 4
    """Upstream's simulator has it, no bitstream does."""


class Engine(enum.IntEnum):
    """The three engines, each of which executes its instructions in order; neighbors exchange
    tokens."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """Fields of all instructions: tokens taken before and given after execution. *prev* and *next*
    are the neighbors in the order load, compute, store."""

    opcode: ClassVar[Opcode]
    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False

    @property
    def engine(self) -> Engine:
        return Engine.COMPUTE

    def __str__(self) -> str:
        return describe(self)


@dataclass(frozen=True, kw_only=True)
class Transfer(Instruction):
    """A transfer of ``y_size`` rows of ``x_size`` elements, ``x_stride`` elements apart in DRAM and
    contiguous on chip. Bases count elements of ``memory``."""

    memory: Memory
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 1
    x_size: int = 1
    x_stride: int = 1
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0


@dataclass(frozen=True, kw_only=True)
class Load(Transfer):
    """DRAM to chip, padded with zeros: pads count rows (y) and elements of each row (x)."""

    opcode: ClassVar[Opcode] = Opcode.LOAD

    @property
    def engine(self) -> Engine:
        return Engine.LOAD if self.memory in (Memory.INP, Memory.WGT) else Engine.COMPUTE


@dataclass(frozen=True, kw_only=True)
class Store(Transfer):
    """Chip to DRAM: the low 8 bits of each accumulator."""

    opcode: ClassVar[Opcode] = Opcode.STORE
    memory: Memory = Memory.OUT

    @property
    def engine(self) -> Engine:
        return Engine.STORE


@dataclass(frozen=True, kw_only=True)
class Loops(Instruction):
    """Uops ``uop_bgn`` to ``uop_end - 1``, in ``iter_out`` times ``iter_in`` iterations; each index
    is the uop's, plus ``out * factor_out + in * factor_in``."""

    uop_bgn: int
    uop_end: int
    iter_out: int = 1
    iter_in: int = 1
    dst_factor_out: int = 0
    dst_factor_in: int = 0
    src_factor_out: int = 0
    src_factor_in: int = 0


@dataclass(frozen=True, kw_only=True)
class Gemm(Loops):
    """``acc[dst] += inp[src] . wgt[wgt]^T``, or with ``reset`` ``acc[dst] = 0``."""

    opcode: ClassVar[Opcode] = Opcode.GEMM
    wgt_factor_out: int = 0
    wgt_factor_in: int = 0
    reset: bool = False


@dataclass(frozen=True, kw_only=True)
class Alu(Loops):
    """``acc[dst] = op(acc[dst], imm if use_imm else acc[src])``, value by value."""

    opcode: ClassVar[Opcode] = Opcode.ALU
    op: AluOp
    use_imm: bool = False
    imm: int = 0


@dataclass(frozen=True, kw_only=True)
class Finish(Instruction):
    """Signals completion to the host."""

    opcode: ClassVar[Opcode] = Opcode.FINISH


@dataclass(frozen=True)
class Uop:
    """Indices of one step: ``src`` addresses inputs for GEMM, accumulators for ALU."""

    dst: int
    src: int = 0
    wgt: int = 0


_CLASSES: dict[Opcode, type[Instruction]] = {
    cls.opcode: cls for cls in (Load, Store, Gemm, Finish, Alu)
}
_ENUMS = {"memory": Memory, "op": AluOp}
_BOOLS = {*FLAGS, "reset", "use_imm"}


def noop(engine: Engine, **flags: bool) -> Instruction:
    """An instruction of ``engine`` that only takes and gives tokens: an empty transfer."""
    memory = {Engine.LOAD: Memory.INP, Engine.COMPUTE: Memory.UOP, Engine.STORE: Memory.OUT}[engine]
    cls = Store if engine is Engine.STORE else Load
    return cls(memory=memory, y_size=0, x_size=0, x_stride=0, **flags)


def encode(instruction: Instruction, config: Config) -> bytes:
    """The 16 little-endian bytes of an instruction.

    Raises :class:`TvmtuneError` that names the field, the value and the limits if a value does not
    fit.
    """
    place, name = config.instructions[instruction.opcode.name], instruction.opcode.name
    word = int(instruction.opcode)
    for field in place.fields[1:]:
        value = getattr(instruction, field.name, 0)
        try:
            number = operator.index(value)
        except TypeError:
            raise TvmtuneError(f"{name}: {field.name}={value!r} is not an integer") from None
        least, most = field.limits
        if not least <= number <= most:
            raise field.out_of_range(name, number)
        word |= (number & (1 << field.width) - 1) << field.low
    return word.to_bytes(BYTES, "little")


def decode(data: bytes, config: Config) -> Instruction:
    """The instruction encoded in 16 bytes.

    Raises :class:`TvmtuneError` for other lengths, for numbers of no instruction, memory or ALU
    operation, and for unused bits that are not 0.
    """
    if len(data) != BYTES:
        raise TvmtuneError(f"an instruction has {BYTES} bytes, not {len(data)}")
    word = int.from_bytes(data, "little")
    number = word & 7
    if number not in _CLASSES:
        raise TvmtuneError(f"no instruction has opcode {number} ({_hex(word)})")
    opcode = Opcode(number)
    place = config.instructions[opcode.name]
    if word & place.unused:
        unused = word & place.unused
        bit = (unused & -unused).bit_length() - 1
        raise TvmtuneError(f"bit {bit} of a {opcode.name} is unused and must be 0 ({_hex(word)})")
    values: dict[str, Any] = {}
    for field in place.fields[1:]:
        value: Any = word >> field.low & (1 << field.width) - 1
        if field.name in bitfields.SIGNED and value >> field.width - 1:
            value -= 1 << field.width
        if field.name in _BOOLS:
            value = bool(value)
        elif field.name in _ENUMS:
            try:
                value = _ENUMS[field.name](value)
            except ValueError:
                raise TvmtuneError(
                    f"{opcode.name}: no {'memory' if field.name == 'memory' else 'ALU operation'} "
                    f"has the number {value} ({_hex(word)})"
                ) from None
        values[field.name] = value
    if opcode is Opcode.ALU and values.pop("reset"):
        raise TvmtuneError(f"ALU: the reset bit belongs to GEMM and must be 0 ({_hex(word)})")
    return _CLASSES[opcode](**values)


def encode_all(instructions: Sequence[Instruction], config: Config) -> Words:
    """(n, 2) words; errors name the instruction by index."""
    words = np.zeros((len(instructions), 2), np.uint64)
    kinds: dict[type[Instruction], list[int]] = {}
    for index, instruction in enumerate(instructions):
        kinds.setdefault(type(instruction), []).append(index)
    try:
        for kind, indices in kinds.items():
            places = [place.name for place in config.instructions[kind.opcode.name].fields]
            names = [field.name for field in fields(kind) if field.name in places]
            values = operator.attrgetter(*names)
            table = np.array([values(instructions[index]) for index in indices])
            columns = dict(zip(names, table.T, strict=True))
            words[indices] = pack(kind.opcode, config, len(indices), **columns)
    except TvmtuneError:  # one at a time, to name the first
        for index, instruction in enumerate(instructions):
            try:
                encode(instruction, config)
            except TvmtuneError as error:
                raise TvmtuneError(f"instruction {index}: {error}") from None
        raise
    return words


def decode_all(words: Words, config: Config) -> list[Instruction]:
    """The instructions encoded in (n, 2) words; errors name the instruction by index."""
    data, instructions = to_bytes(words), []
    for index in range(len(words)):
        try:
            instructions.append(decode(data[index * BYTES : (index + 1) * BYTES], config))
        except TvmtuneError as error:
            raise TvmtuneError(f"instruction {index}: {error}") from None
    return instructions


def to_bytes(words: Words) -> bytes:
    """Words as they are laid out in memory."""
    return words.astype("<u8").tobytes()


def pack(opcode: Opcode, config: Config, count: int, **values: npt.ArrayLike) -> Words:
    """``count`` instructions of one kind; each field is a scalar or an array.

    Fields that are not given are 0. Raises :class:`TvmtuneError` as :func:`encode` does.
    """
    place = config.instructions[opcode.name]
    return bitfields.pack(place, {**values, "opcode": int(opcode)}, count)


def unpack(opcode: Opcode, words: Words, config: Config) -> Columns:
    """The fields of words that are all of kind ``opcode``, as arrays, unchecked."""
    return bitfields.unpack(config.instructions[opcode.name], words)


def opcodes(words: Words) -> npt.NDArray[np.int64]:
    """The opcode of each instruction."""
    return (words[:, 0] & np.uint64(7)).astype(np.int64)


def pack_uops(
    config: Config, dst: npt.ArrayLike, src: npt.ArrayLike = 0, wgt: npt.ArrayLike = 0
) -> Uops:
    """Uops from arrays of indices that broadcast, flattened in C order."""
    return bitfields.pack_uops(config.uop, dst, src, wgt)


def unpack_uops(words: Uops, config: Config) -> Columns:
    """``dst``, ``src`` and ``wgt`` of each uop, as arrays."""
    return bitfields.unpack_uops(config.uop, words)


def decode_uops(words: Uops, config: Config) -> list[Uop]:
    columns = unpack_uops(words, config)
    return [
        Uop(*(int(n) for n in row))
        for row in zip(columns["dst"], columns["src"], columns["wgt"], strict=True)
    ]


def describe(instruction: Instruction) -> str:
    """One line of text: operands, then tokens."""
    words = [_operands(instruction)]
    words += [flag for flag in FLAGS if getattr(instruction, flag)]
    return " ".join(word for word in words if word)


def disassemble(words: Words, config: Config) -> list[str]:
    """A line per instruction: index, engine and text. Words that cannot be decoded are shown with
    the reason, so that damaged programs can be inspected."""
    lines, data = [], to_bytes(words)
    for index in range(len(words)):
        raw = data[index * BYTES : (index + 1) * BYTES]
        try:
            instruction = decode(raw, config)
            engine, text = instruction.engine.name.lower(), describe(instruction)
        except TvmtuneError as error:
            engine, text = "?", str(error)
        lines.append(f"{index:5d}  {engine:<7}  {text}")
    return lines


def disassemble_uops(words: Uops, config: Config) -> list[str]:
    """A line per uop: its index and fields."""
    return [
        f"{index:5d}  dst={uop.dst} src={uop.src} wgt={uop.wgt}"
        for index, uop in enumerate(decode_uops(words, config))
    ]


def _operands(instruction: Instruction) -> str:
    name = instruction.opcode.name
    if isinstance(instruction, Transfer):
        if instruction.x_size == 0:
            plain = noop(instruction.engine)
            same = all(
                getattr(instruction, f.name) == getattr(plain, f.name)
                for f in fields(instruction)
                if f.name not in FLAGS
            )
            if same:
                return f"{name} {instruction.memory.name} nothing"
        pads = [getattr(instruction, f"{axis}_pad_{end}") for axis in "yx" for end in (0, 1)]
        shown = f" pad=y{pads[0]},{pads[1]} x{pads[2]},{pads[3]}" if any(pads) else ""
        return (
            f"{name} {instruction.memory.name} sram={instruction.sram_base} "
            f"dram={instruction.dram_base} size={instruction.y_size}x{instruction.x_size} "
            f"stride={instruction.x_stride}{shown}"
        )
    if not isinstance(instruction, Loops):
        return name
    factors = [
        f"{index}+{getattr(instruction, f'{index}_factor_out')}"
        f",{getattr(instruction, f'{index}_factor_in')}"
        for index in ("dst", "src", "wgt")
        if hasattr(instruction, f"{index}_factor_out")
    ]
    if isinstance(instruction, Gemm):
        name += " reset" if instruction.reset else ""
        second = ""
    elif isinstance(instruction, Alu):
        name += f" {instruction.op.name}"
        second = f" imm={instruction.imm}" if instruction.use_imm else ""
    return (
        f"{name} uop={instruction.uop_bgn}:{instruction.uop_end} "
        f"out={instruction.iter_out} in={instruction.iter_in} {' '.join(factors)}{second}"
    )


def _hex(word: int) -> str:
    return f"0x{word:032x}"
