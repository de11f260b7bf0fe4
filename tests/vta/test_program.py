"""Program files and relocation."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import zipfile

import numpy as np
import pytest

from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.hardware import isa
from tvmtune_vta.hardware.config import Config
from tvmtune_vta.hardware.isa import Finish, Load, Memory
from tvmtune_vta.hardware.program import NO_OPERAND, UOPS, Buffer, Program
from tvmtune_vta.simulator import reference
from vta.small import W, X, Y, expected, memory, program


def complete() -> Program:
    held = memory()
    return dataclasses.replace(program(), contents=held, expected={Y: expected(held)})


def test_saving_and_loading_round_trips(tmp_path):
    built = complete()
    built.save(tmp_path / "p.npz")
    read = Program.load(tmp_path / "p.npz", Config())
    assert np.array_equal(read.instructions, built.instructions)
    assert np.array_equal(read.uops, built.uops)
    assert np.array_equal(read.operands, built.operands)
    assert (read.config, read.buffers, read.name) == (built.config, built.buffers, "product")
    assert np.array_equal(reference.run(read, {}).memory[Y], read.expected[Y])
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]


def test_numpy_alone_reads_the_file(tmp_path):
    complete().save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        assert (header["format"], header["version"]) == ("tvmtune-vta", 1)
        assert header["config"]["LOG_BLOCK"] == 4
        assert header["buffers"][Y] == {
            "name": "y",
            "role": "output",
            "dtype": "int8",
            "shape": [2, 8, 1, 16],
        }
        assert archive["instructions"].dtype == np.uint64
        assert archive["operands"].tolist()[:5] == [UOPS, W, X, NO_OPERAND, NO_OPERAND]
        assert archive[f"expected_{Y}"].shape == (2, 8, 1, 16)


def test_a_file_for_another_configuration_is_rejected(tmp_path):
    complete().save(tmp_path / "p.npz")
    text = "for another configuration, .*_15_15_18_17, not .*_14_15_18_17: LOG_UOP_BUFF_SIZE 15 instead"
    with pytest.raises(TvmtuneError, match=text):
        Program.load(tmp_path / "p.npz", Config(log_uop_buff_size=14))
    Program.load(tmp_path / "p.npz", Config.named("zcu104"))


def test_a_file_of_another_version_is_rejected(tmp_path):
    complete().save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as archive:
        members = dict(archive)
    for key, value, message in (
        ("version", 2, "has version 2 of the format; only 1 is supported"),
        ("format", "other", "is not a VTA program: its format is 'other'"),
        ("buffers", [1], "is not a VTA program, or is truncated or damaged"),
        ("buffers", [], "there is no operand"),
        ("config", {}, "key 'TARGET' is missing"),
    ):
        header = json.loads(members["header"].tobytes()) | {key: value}
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        np.savez(tmp_path / "q.npz", **members | {"header": text})
        with pytest.raises(TvmtuneError, match=message):
            Program.load(tmp_path / "q.npz")
    for name in ("instructions", "uops", "operands", "header"):
        np.savez(tmp_path / "q.npz", **{k: v for k, v in members.items() if k != name})
        with pytest.raises(TvmtuneError, match="is not a VTA program"):
            Program.load(tmp_path / "q.npz")
    np.savez(tmp_path / "q.npz", **members | {"uops": members["uops"].astype(np.float32)})
    with pytest.raises(TvmtuneError, match="uops are uint32"):
        Program.load(tmp_path / "q.npz")


def test_a_truncated_or_damaged_file_is_rejected(tmp_path):
    complete().save(tmp_path / "p.npz")
    whole, path = (tmp_path / "p.npz").read_bytes(), tmp_path / "q.npz"
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(
            TvmtuneError, match="q.npz is not a VTA program, or is truncated or damaged"
        ):
            Program.load(path)
    rng = random.Random(5)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            Program.load(path)
        except TvmtuneError as error:
            assert str(error).startswith(f"{path} ")
            refused += 1
    assert refused > 100  # the rest change dates and other metadata


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="p.npz: cannot be read: No such file"):
        Program.load(tmp_path / "p.npz")
    with pytest.raises(TvmtuneError, match="cannot write .*: there is no directory"):
        complete().save(tmp_path / "missing" / "p.npz")


def test_link_relocates_addresses():
    built = program()
    linked = built.link([0x10000, 0x20000, 0x30000], 0x40000)
    before, after = built.decode(), isa.decode_all(linked, Config())
    assert after[0].dram_base == 0x40000 // 4
    assert after[1].dram_base == 0x20000 // 256
    assert after[2].dram_base == 0x10000 // 16
    assert after[9].dram_base == 0x10000 // 16 + 8
    assert after[15].dram_base == 0x30000 // 16 + 4
    for old, new in zip(before, after, strict=True):
        if hasattr(old, "dram_base"):
            new = dataclasses.replace(new, dram_base=old.dram_base)
        assert new == old


def test_invalid_addresses_are_rejected():
    built = program()
    with pytest.raises(TvmtuneError, match="w at 0x20010: addresses are multiples of 256"):
        built.link([0x10000, 0x20010, 0x30000], 0)
    with pytest.raises(TvmtuneError, match="3 addresses are needed, not 2"):
        built.link([0, 0], 0)
    with pytest.raises(TvmtuneError, match="instruction 2: the address of x exceeds the 32 bits"):
        built.link([1 << 40, 0, 0], 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"operands": np.zeros(3, np.int32)}, "operands are int32 .18,., not int32 .3,."),
        (
            {"operands": np.full(18, 3, np.int32)},
            "there is no operand 3: the program has 3 buffers",
        ),
        ({"operands": np.full(18, -3, np.int32)}, "there is no operand -3"),
        ({"uops": np.zeros(3, np.int64)}, "uops are uint32"),
        ({"contents": {0: np.zeros(3)}}, "contents of 'x': int8 .8, 2, 1, 16. is needed"),
        ({"expected": {5: np.zeros(3)}}, "expected of a buffer 5 that does not exist"),
    ],
)
def test_inconsistent_parts_are_rejected(changed, message):
    with pytest.raises(TvmtuneError, match=message):
        dataclasses.replace(program(), **changed)


def test_disassembly_names_the_buffers():
    lines = program().disassemble()
    assert lines[0].endswith("LOAD UOP sram=0 dram=0 size=1x4 stride=4  ; uops")
    assert lines[8].endswith("STORE OUT sram=0 dram=0 size=2x4 stride=8 pop_prev push_prev  ; y")
    assert lines[17] == "   17  compute  FINISH"


def test_size_of_buffers():
    assert Buffer("b", "constant", "int32", (3, 1, 16)).nbytes == 192
    steps = [(Load(memory=Memory.INP), 0), (Finish(), NO_OPERAND)]
    built = Program.build(
        Config(), steps, np.zeros(0, np.uint32), [Buffer("b", "input", "int8", (16,))]
    )
    assert len(built.instructions) == 2


@pytest.mark.slow
def test_a_file_that_unpacks_to_more_than_a_board_holds_is_refused(tmp_path):
    path = tmp_path / "p.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("contents_0.npy", "w", force_zip64=True) as member,
    ):
        for _ in range(40):
            member.write(bytes(1 << 24))
    with pytest.raises(TvmtuneError, match="it unpacks to 671 MB"):
        Program.load(path)


@pytest.mark.parametrize(
    "shape", [[1 << 30], [1 << 15, 1 << 15], [1] * 1000, [True], [1 << 63, 1 << 63]]
)
def test_buffers_that_no_board_holds_are_refused(tmp_path, shape):
    path = tmp_path / "p.npz"
    with np.load(io.BytesIO(complete().to_bytes())) as archive:
        members = dict(archive)
    header = json.loads(members["header"].tobytes())
    header["buffers"].append({"name": "z", "role": "scratch", "dtype": "int8", "shape": shape})
    members["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **members)
    with pytest.raises(
        TvmtuneError, match="p.npz is not a VTA program, or is truncated or damaged"
    ):
        Program.load(path)
