"""A stream of instructions with all that it takes to run it, and its file.

The file is a NumPy ``.npz`` archive, readable without this package. Its members:

``header``
    uint8, the text of a JSON object: ``format`` ("tvmtune-vta"), ``version`` (1), ``config`` (the keys
    of ``vta_config.json``), ``name`` and ``buffers``, a list of objects ``name``, ``role`` ("input",
    "constant", "output" or "scratch"), ``dtype`` ("int8" or "int32") and ``shape``.
``instructions``
    uint64 (n, 2), the low word first. ``dram_base`` counts from the beginning of the buffer.
``uops``
    uint32 (m,).
``operands``
    int32 (n,): whose address, divided by the bytes of an element of the addressed memory, is to be
    added to ``dram_base`` (bits 26-57 of the low word): the number of a buffer, -2 for the uops, -1
    for instructions that have no address.
``contents_<i>``, ``expected_<i>``
    Optional: what buffer i holds before the run (weights, a sample input), and has to hold after it.

Addresses are aligned to :data:`ALIGNMENT` bytes. Values lie in memory as VTA wants them: an element
is a (batch, block) row of inputs, accumulators or outputs, or a (block, block) tile of weights.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tvmtune.deploy import atomic
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta import isa
from tvmtune_vta.config import Config, Memory
from tvmtune_vta.isa import Instruction, Opcode
from tvmtune_vta.layout import Uops, Words

FORMAT, VERSION = "tvmtune-vta", 1
ALIGNMENT = 256
"""Bytes; each buffer, and the uops, begin at a multiple."""
NO_OPERAND, UOPS = -1, -2
ROLES = ("input", "constant", "output", "scratch")
DTYPES = ("int8", "int32")
_LARGEST = 1 << 32
"""Bytes of a buffer, and of a file's arrays together: more is beyond the accelerator's addresses."""
_DRAM = (26, (1 << 32) - 1)
"""Where ``dram_base`` is, the same in every configuration."""


@dataclass(frozen=True)
class Buffer:
    """A piece of DRAM: ``shape`` values of ``dtype``, contiguous in C order."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Program:
    """Instructions, uops, the buffers that they address, and for each instruction which one.

    ``operands`` has an entry an instruction: the number of a buffer, :data:`UOPS` or
    :data:`NO_OPERAND`. ``contents`` and ``expected`` map numbers of buffers to arrays. Raises
    :class:`TvmtuneError` if these do not fit one another; :mod:`tvmtune_vta.rules` checks the rest.
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
                    f"not {array.dtype} {array.shape}."
                )
        for index, operand in enumerate(self.operands):
            if not UOPS <= operand < len(self.buffers):
                raise TvmtuneError(
                    f"instruction {index}: there is no operand {operand}: "
                    f"{len(self.buffers)} buffers are listed."
                )
        for kind, arrays in (("contents", self.contents), ("expected", self.expected)):
            for number, array in arrays.items():
                if not 0 <= number < len(self.buffers):
                    raise TvmtuneError(f"{kind} of a buffer {number} that is not listed.")
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
        """A program from pairs of an instruction and its operand."""
        instructions = [instruction for instruction, _ in steps]
        words = isa.encode_all(instructions, config)
        words.flags.writeable = False  # they are what the objects say
        operands = np.array([operand for _, operand in steps], np.int32)
        made = cls(config, words, uops, tuple(buffers), operands, **others)
        object.__setattr__(made, "_decoded", tuple(instructions))
        return made

    def decode(self) -> list[Instruction]:
        """The instructions as objects. Raises :class:`TvmtuneError` for words that are none."""
        if self._decoded is None:
            return isa.decode_all(self.instructions, self.config)
        return list(self._decoded)

    def disassemble(self) -> list[str]:
        """A line for each instruction, with the name of its buffer."""
        lines = isa.disassemble(self.instructions, self.config)
        return [
            f"{line}  ; {self.operand_name(int(operand))}" if operand != NO_OPERAND else line
            for line, operand in zip(lines, self.operands, strict=True)
        ]

    def numbers(self, role: str) -> list[int]:
        """Of the buffers with this role, in order."""
        return [n for n, buffer in enumerate(self.buffers) if buffer.role == role]

    def join(self, memory: Mapping[int, npt.NDArray[Any]], role: str) -> bytes:
        """The buffers with this role one behind another, as they lie in memory."""
        return b"".join(
            np.ascontiguousarray(memory[n], self.buffers[n].dtype).tobytes()
            for n in self.numbers(role)
        )

    def split(self, data: bytes, role: str) -> dict[int, npt.NDArray[Any]]:
        """The inverse of :meth:`join`. Raises :class:`TvmtuneError` for too few or too many bytes."""
        numbers = self.numbers(role)
        needed = sum(self.buffers[n].nbytes for n in numbers)
        if len(data) != needed:
            raise TvmtuneError(
                f"the {role}s of '{self.name}' have {needed} bytes, not {len(data)}."
            )
        found, place = {}, 0
        for number in numbers:
            buffer = self.buffers[number]
            values = np.frombuffer(data, np.uint8, buffer.nbytes, place)
            found[number] = values.view(buffer.dtype).reshape(buffer.shape)
            place += buffer.nbytes
        return found

    def operand_name(self, operand: int) -> str:
        if operand in (UOPS, NO_OPERAND):
            return "uops" if operand == UOPS else "nothing"
        return self.buffers[operand].name

    def link(self, addresses: Sequence[int], uops: int) -> Words:
        """The instructions for buffers at these byte addresses, and the uops at ``uops``.

        Raises :class:`TvmtuneError` for an address that is not aligned or out of reach.
        """
        if len(addresses) != len(self.buffers):
            raise TvmtuneError(f"{len(self.buffers)} addresses are needed, not {len(addresses)}.")
        for operand, address in [*enumerate(addresses), (UOPS, uops)]:
            if address < 0 or address % ALIGNMENT:
                raise TvmtuneError(
                    f"{self.operand_name(operand)} at {address:#x}: "
                    f"addresses are multiples of {ALIGNMENT}."
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
                "is beyond the 32 bits of dram_base."
            )
        linked[moved, 0] &= ~np.uint64(mask << shift)
        linked[moved, 0] |= base.astype(np.uint64) << np.uint64(shift)
        return linked

    def save(self, path: str | Path) -> None:
        """Write the file; what is at ``path`` is replaced when the new one is complete."""
        with atomic.replacing(path) as temporary:
            try:
                with temporary.open("wb") as file:
                    self._write(file, np.savez_compressed)
            except OSError as error:
                raise atomic.cannot_write(Path(path), error) from error

    def to_bytes(self) -> bytes:
        """The file as a library carries it: not compressed."""
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
        """Read a file that :meth:`save` wrote.

        Raises :class:`TvmtuneError` if it is damaged, of another version, or with ``config`` of
        another configuration than that; :class:`UsageError` if it cannot be read.
        """
        try:
            with Path(path).open("rb") as file:
                return cls._read(file, path, config)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None

    @classmethod
    def from_bytes(cls, data: bytes, origin: str, config: Config | None = None) -> Program:
        """The inverse of :meth:`to_bytes`, with the errors of :meth:`load`, which name ``origin``."""
        return cls._read(io.BytesIO(data), origin, config)

    @classmethod
    def _read(cls, file: IO[bytes], origin: str | Path, config: Config | None) -> Program:
        try:
            with np.load(file, allow_pickle=False) as archive:
                if sum(member.file_size for member in archive.zip.infolist()) > _LARGEST:
                    raise ValueError("its arrays are too large")
                members = {name: archive[name] for name in archive.files}
        except OSError as error:
            if error.errno is not None:
                raise
            raise _damaged(origin, error) from None
        except Exception as error:  # whatever zipfile, zlib and NumPy make of damaged bytes
            raise _damaged(origin, error) from None
        try:
            return _parse(members, origin, config)
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(origin, error) from None


def _parse(
    members: dict[str, npt.NDArray[Any]], path: str | Path, config: Config | None
) -> Program:
    if "header" not in members:
        raise TvmtuneError(f"{path} is no VTA program: it has no header.")
    header = json.loads(members["header"].tobytes())
    if header.get("format") != FORMAT:
        raise TvmtuneError(f"{path} is no VTA program: its format is {header.get('format')!r}.")
    if header.get("version") != VERSION:
        raise TvmtuneError(
            f"{path} has version {header.get('version')!r} of the format; {VERSION} can be read."
        )
    of = Config.parse(header["config"], str(path))
    if config is not None and (keys := of.differences(config)):
        told, wanted = of.as_dict(), config.as_dict()
        differing = ", ".join(f"{key} {told[key]} instead of {wanted[key]}" for key in keys)
        raise TvmtuneError(
            f"{path} is for another configuration, {of.bitstream}, not {config.bitstream}: {differing}."
        )
    buffers = tuple(_buffer(told) for told in header["buffers"])
    listed: dict[str, dict[int, npt.NDArray[Any]]] = {"contents": {}, "expected": {}}
    for name, array in members.items():
        kind, _, number = name.partition("_")
        if kind in listed:
            listed[kind][int(number)] = array
    try:
        return Program(
            of,
            members["instructions"],
            members["uops"],
            buffers,
            members["operands"],
            **listed,
            name=str(header["name"]),
        )
    except TvmtuneError as error:
        raise _damaged(path, error) from None


def _buffer(told: Any) -> Buffer:
    name, role, dtype, shape = (told[key] for key in ("name", "role", "dtype", "shape"))
    if role not in ROLES or dtype not in DTYPES or not isinstance(name, str):
        raise ValueError(f"a buffer is {told!r}")
    buffer = Buffer(name, role, dtype, tuple(shape))
    if not all(isinstance(n, int) and n > 0 for n in shape) or buffer.nbytes > _LARGEST:
        raise ValueError(f"the shape of buffer '{name}' is {shape!r}")
    return buffer


def _check_array(buffer: Buffer, array: npt.NDArray[Any], what: str) -> None:
    if array.shape != buffer.shape or array.dtype != buffer.dtype:
        raise TvmtuneError(
            f"{what} of '{buffer.name}': {buffer.dtype} {buffer.shape} is needed, "
            f"not {array.dtype} {array.shape}."
        )


def _damaged(path: str | Path, error: Exception) -> TvmtuneError:
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return TvmtuneError(f"{path} is no VTA program, or is cut short or damaged ({told}).")
