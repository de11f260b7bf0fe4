"""A program: instructions with their uops and buffers, and its file format.

The file is a NumPy ``.npz`` archive, readable without this package. Its members:

``header``
    uint8, the text of a JSON object: ``format`` ("tvmtune-vta"), ``version`` (1), ``config`` (the keys
    of ``vta_config.json``), ``name`` and ``buffers``, a list of objects ``name``, ``role`` ("input",
    "constant", "output" or "scratch"), ``dtype`` ("int8" or "int32") and ``shape``.
``instructions``
    uint64 (n, 2), the low word first. ``dram_base`` is relative to the start of the buffer.
``uops``
    uint32 (m,).
``operands``
    int32 (n,): the buffer whose address, in elements of the addressed memory, is added to
    ``dram_base`` (bits 26-57 of the low word); -2 for the uops, -1 for instructions without address.
``contents_<i>``, ``expected_<i>``
    Optional: the contents of buffer i before the run (weights, a sample input), and after it.

Addresses are aligned to :func:`alignment`: they count elements. Values are laid out as VTA expects
them: an element is a (batch, block) row of inputs, accumulators or outputs, or a (block, block) tile
of weights.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tvmtune import atomic_write, bounded
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.bitfields import Uops, Words
from tvmtune_vta.hardware.config import Config, Memory
from tvmtune_vta.hardware.isa import Instruction, Opcode

FORMAT, VERSION = "tvmtune-vta", 1
ALIGNMENT = 256
"""The least alignment of buffers and uops, in bytes."""
NO_OPERAND, UOPS = -1, -2
ROLES = ("input", "constant", "output", "scratch")
DTYPES = ("int8", "int32")
Step = tuple[Instruction, int]
"""An instruction and its operand."""
_LARGEST = 1 << 29
"""Limit in bytes of all buffers, and of a file's arrays together: the memory of the boards."""
_MAX_RANK = 32
"""Dimensions of a buffer, as NumPy allows."""
_DRAM = (26, (1 << 32) - 1)
"""Lowest bit and mask of ``dram_base``, the same in every configuration."""


def alignment(config: Config) -> int:
    """Alignment of buffers and uops, in bytes: at least that of the largest element, because
    ``dram_base`` counts elements. A tile of weights has 256 bytes with blocks of 16, 4096 with 64."""
    return max(ALIGNMENT, *(config.element_bytes(memory) for memory in Memory))


def digest(data: bytes) -> bytes:
    """The SHA-256 of a program's file, by which caches and servers identify it."""
    return hashlib.sha256(data).digest()


@dataclass(frozen=True)
class Buffer:
    """A DRAM buffer: ``shape`` values of ``dtype``, contiguous in C order."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Program:
    """Instructions, uops, the buffers that they address, and each instruction's operand.

    ``operands`` has one entry per instruction: the index of a buffer, :data:`UOPS` or
    :data:`NO_OPERAND`. ``contents`` and ``expected`` map buffer indices to arrays. Raises
    :class:`TvmtuneError` if these are inconsistent; :mod:`tvmtune_vta.hardware.rules` checks the
    rest.
    """

    config: Config
    instructions: Words
    uops: Uops
    buffers: tuple[Buffer, ...]
    operands: npt.NDArray[np.int32]
    contents: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    expected: Mapping[int, npt.NDArray[Any]] = field(default_factory=dict)
    name: str = ""
    _decoded: tuple[Instruction, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.instructions)
        for array, dtype, shape, what in (
            (self.instructions, np.uint64, (count, 2), "instructions"),
            (self.uops, np.uint32, (len(self.uops),), "uops"),
            (self.operands, np.int32, (count,), "operands"),
        ):
            if array.dtype != dtype or array.shape != shape:
                raise TvmtuneError(
                    f"a program's {what} are {np.dtype(dtype)} {shape}, "
                    f"not {array.dtype} {array.shape}"
                )
        for index, operand in enumerate(self.operands):
            if not UOPS <= operand < len(self.buffers):
                raise TvmtuneError(
                    f"instruction {index}: there is no operand {operand}: "
                    f"the program has {len(self.buffers)} buffers"
                )
        for kind, arrays in (("contents", self.contents), ("expected", self.expected)):
            for number, array in arrays.items():
                if not 0 <= number < len(self.buffers):
                    raise TvmtuneError(f"{kind} of a buffer {number} that does not exist")
                _check_array(self.buffers[number], array, kind)

    @classmethod
    def build(
        cls,
        config: Config,
        steps: Sequence[tuple[Instruction, int]],
        uops: Uops,
        buffers: Sequence[Buffer],
        **others: Any,
    ) -> Program:
        """A program from instructions with their operands."""
        instructions = [instruction for instruction, _ in steps]
        words = isa.encode_all(instructions, config)
        words.flags.writeable = False  # must stay in step with the objects
        operands = np.array([operand for _, operand in steps], np.int32)
        program = cls(config, words, uops, tuple(buffers), operands, **others)
        object.__setattr__(program, "_decoded", tuple(instructions))
        return program

    def decode(self) -> list[Instruction]:
        """The instructions as objects. Raises :class:`TvmtuneError` for words that cannot be
        decoded."""
        if self._decoded is None:
            return isa.decode_all(self.instructions, self.config)
        return list(self._decoded)

    def disassemble(self) -> list[str]:
        """A line per instruction, with the name of its buffer."""
        lines = isa.disassemble(self.instructions, self.config)
        return [
            f"{line}  ; {self.operand_name(int(operand))}" if operand != NO_OPERAND else line
            for line, operand in zip(lines, self.operands, strict=True)
        ]

    def numbers(self, role: str) -> list[int]:
        """Indices of the buffers with this role, in order."""
        return [n for n, buffer in enumerate(self.buffers) if buffer.role == role]

    def join(self, memory: Mapping[int, npt.NDArray[Any]], role: str) -> bytes:
        """The concatenated contents of the buffers with this role, as they are laid out in
        memory."""
        return b"".join(
            np.ascontiguousarray(memory[n], self.buffers[n].dtype).tobytes()
            for n in self.numbers(role)
        )

    def split(self, data: bytes, role: str) -> dict[int, npt.NDArray[Any]]:
        """The inverse of :meth:`join`. Raises :class:`TvmtuneError` for the wrong number of
        bytes."""
        numbers = self.numbers(role)
        needed = sum(self.buffers[n].nbytes for n in numbers)
        if len(data) != needed:
            raise TvmtuneError(f"the {role}s of '{self.name}' have {needed} bytes, not {len(data)}")
        arrays, place = {}, 0
        for number in numbers:
            buffer = self.buffers[number]
            values = np.frombuffer(data, np.uint8, buffer.nbytes, place)
            arrays[number] = values.view(buffer.dtype).reshape(buffer.shape)
            place += buffer.nbytes
        return arrays

    def operand_name(self, operand: int) -> str:
        if operand in (UOPS, NO_OPERAND):
            return "uops" if operand == UOPS else "nothing"
        return self.buffers[operand].name

    def link(self, addresses: Sequence[int], uops: int) -> Words:
        """The instructions, relocated to buffers at these byte addresses and the uops at ``uops``.

        Raises :class:`TvmtuneError` for an address that is unaligned or out of range.
        """
        if len(addresses) != len(self.buffers):
            raise TvmtuneError(f"{len(self.buffers)} addresses are needed, not {len(addresses)}")
        unit = alignment(self.config)
        for operand, address in [*enumerate(addresses), (UOPS, uops)]:
            if address < 0 or address % unit:
                raise TvmtuneError(
                    f"{self.operand_name(operand)} at {address:#x}: "
                    f"addresses are multiples of {unit}"
                )
        shift, mask = _DRAM
        linked = self.instructions.copy()
        table = np.array([*addresses, uops, 0], np.int64)  # -2 and -1 count from the end
        memories = (linked[:, 0] >> np.uint64(7) & np.uint64(7)).astype(np.int64)
        kind = isa.opcodes(linked)
        moved = np.flatnonzero(
            (self.operands != NO_OPERAND) & ((kind == Opcode.LOAD) | (kind == Opcode.STORE))
        )
        sizes = np.array(
            [self.config.element_bytes(m) for m in Memory] + [1] * (8 - len(Memory)), np.int64
        )
        base = (linked[moved, 0] >> np.uint64(shift)).astype(np.int64) & mask
        base += table[self.operands[moved]] // sizes[memories[moved]]
        if np.any(base > mask):
            index = int(moved[int(np.argmax(base > mask))])
            raise TvmtuneError(
                f"instruction {index}: the address of {self.operand_name(int(self.operands[index]))} "
                "exceeds the 32 bits of dram_base"
            )
        linked[moved, 0] &= ~np.uint64(mask << shift)
        linked[moved, 0] |= base.astype(np.uint64) << np.uint64(shift)
        return linked

    def save(self, path: str | Path) -> None:
        """Write the file atomically."""
        with atomic_write.replacing(path) as temporary:
            try:
                with temporary.open("wb") as file:
                    self._write(file, np.savez_compressed)
            except OSError as error:
                raise atomic_write.cannot_write(Path(path), error) from error

    def to_bytes(self) -> bytes:
        """The file uncompressed, as libraries embed it."""
        file = io.BytesIO()
        self._write(file, np.savez)
        return file.getvalue()

    def _write(self, file: IO[bytes], save: Callable[..., None]) -> None:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "config": self.config.as_dict(),
            "buffers": [asdict(buffer) for buffer in self.buffers],
        }
        arrays: dict[str, npt.NDArray[Any]] = {
            "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
            "instructions": self.instructions,
            "uops": self.uops,
            "operands": self.operands,
        }
        arrays |= {f"contents_{i}": array for i, array in self.contents.items()}
        arrays |= {f"expected_{i}": array for i, array in self.expected.items()}
        save(file, **arrays)

    @classmethod
    def load(cls, path: str | Path, config: Config | None = None) -> Program:
        """Read a file written by :meth:`save`.

        Raises :class:`TvmtuneError` if it is damaged, of another version, or for another
        configuration than ``config``; :class:`UsageError` if it cannot be read.
        """
        try:
            with Path(path).open("rb") as file:
                return cls._read(file, path, config)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None

    @classmethod
    def from_bytes(cls, data: bytes, origin: str, config: Config | None = None) -> Program:
        """The inverse of :meth:`to_bytes`; raises the errors of :meth:`load`, which name
        ``origin``."""
        return cls._read(io.BytesIO(data), origin, config)

    @classmethod
    def _read(cls, file: IO[bytes], origin: str | Path, config: Config | None) -> Program:
        try:
            members = bounded.read_npz(file, _LARGEST)
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):  # a position before the file's start
                raise
            raise _damaged(origin, error) from None
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds on damaged bytes
            raise _damaged(origin, error) from None
        try:
            return _parse(members, origin, config)
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(origin, error) from None


def _parse(
    members: dict[str, npt.NDArray[Any]], path: str | Path, config: Config | None
) -> Program:
    if "header" not in members:
        raise TvmtuneError(f"{path} is not a VTA program: it has no header")
    header = bounded.parse_json(members["header"].tobytes())
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    if header.get("format") != FORMAT:
        raise TvmtuneError(f"{path} is not a VTA program: its format is {header.get('format')!r}")
    if header.get("version") != VERSION:
        raise TvmtuneError(
            f"{path} has version {header.get('version')!r} of the format; only {VERSION} is supported"
        )
    of = Config.parse(header["config"], str(path))
    if config is not None and (keys := of.differences(config)):
        theirs, ours = of.as_dict(), config.as_dict()
        differing = ", ".join(f"{key} {theirs[key]} instead of {ours[key]}" for key in keys)
        raise TvmtuneError(
            f"{path} is for another configuration, {of.bitstream}, not {config.bitstream}: {differing}"
        )
    buffers = tuple(_buffer(entry) for entry in header["buffers"])
    for buffer in buffers:
        if buffer.nbytes > _LARGEST:
            raise ValueError(f"the shape of buffer '{buffer.name}' is too large")
    if sum(buffer.nbytes for buffer in buffers) > _LARGEST:
        raise ValueError("its buffers are too large")
    arrays: dict[str, dict[int, npt.NDArray[Any]]] = {"contents": {}, "expected": {}}
    for name, array in members.items():
        kind, _, number = name.partition("_")
        if kind in arrays:
            arrays[kind][int(number)] = array
    try:
        return Program(
            of,
            members["instructions"],
            members["uops"],
            buffers,
            members["operands"],
            **arrays,
            name=str(header["name"]),
        )
    except TvmtuneError as error:
        raise _damaged(path, error) from None


def _buffer(entry: Any) -> Buffer:
    name, role, dtype, shape = (entry[key] for key in ("name", "role", "dtype", "shape"))
    if role not in ROLES or dtype not in DTYPES or not isinstance(name, str):
        raise ValueError(f"a buffer is {entry!r}")
    buffer = Buffer(name, role, dtype, tuple(shape))
    if not all(type(n) is int and 0 < n <= _LARGEST for n in shape) or len(shape) > _MAX_RANK:
        raise ValueError(f"the shape of buffer '{name}' is {shape!r}")
    return buffer


def _check_array(buffer: Buffer, array: npt.NDArray[Any], what: str) -> None:
    if array.shape != buffer.shape or array.dtype != buffer.dtype:
        raise TvmtuneError(
            f"{what} of '{buffer.name}': {buffer.dtype} {buffer.shape} is needed, "
            f"not {array.dtype} {array.shape}"
        )


def _damaged(path: str | Path, error: Exception) -> TvmtuneError:
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return TvmtuneError(f"{path} is not a VTA program, or is truncated or damaged ({reason})")
