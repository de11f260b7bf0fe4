"""Bitstreams: their headers, and programming the FPGA of a board."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from cli.commands import complaint
from remote.served import Farm
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune_vta.device import bitstream, fpga
from tvmtune_vta.device.bitstream import Bitstream
from tvmtune_vta.hardware.config import Config

NAME = Config.named("pynq").bitstream
PYNQ = """
class Bitstream:
    def __init__(self, path):
        self.path = path
    def download(self):
        with open({log!r}, "a") as log:
            log.write(self.path + "\\n")
"""
"""A stand-in for PYNQ's class, after its documentation."""


def bitstream_file(folder: Path, name: str = NAME, part: str = "7z020clg484") -> Path:
    """A file in the format of Vivado, with a few bytes of data."""
    fields = b"".join(
        struct.pack(">cH", key.encode(), len(text) + 1) + text.encode() + b"\0"
        for key, text in {
            "a": "vta;Version=2020.1",
            "b": part,
            "c": "2020/02/11",
            "d": "12:00:00",
        }.items()
    )
    path = folder / f"{name}.bit"
    path.write_bytes(bitstream._MAGIC + fields + struct.pack(">cI", b"e", 4) + b"\xff\xff\xff\xff")
    return path


def test_the_header_is_parsed(tmp_path):
    parsed = Bitstream.read(bitstream_file(tmp_path))
    assert (parsed.name, parsed.part) == (NAME, "7z020clg484")
    assert parsed.date == "2020/02/11 12:00:00"
    parsed.check(Config.named("pynq"))


def test_another_configuration_or_chip_is_rejected(tmp_path):
    right, other = bitstream_file(tmp_path), bitstream_file(tmp_path, "1x16_i8w8a32_15_15_18_18")
    with pytest.raises(TvmtuneError, match=f"is 1x16_i8w8a32_15_15_18_18, but .* {NAME}"):
        Bitstream.read(other).check(Config.named("pynq"))
    with pytest.raises(TvmtuneError, match="for the chip 7z020clg484, but zcu104 has a zu7ev"):
        Bitstream.read(right).check(Config.named("zcu104"))
    with pytest.raises(TvmtuneError, match="loading a de10nano is not supported"):
        Bitstream.read(right).check(
            Config.parse(Config.named("pynq").as_dict() | {"TARGET": "de10nano"}, "test")
        )


@pytest.mark.parametrize("size", [0, 5, 40, -1])
def test_a_truncated_file_is_rejected(tmp_path, size):
    path = bitstream_file(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TvmtuneError, match="is not a Xilinx bitstream"):
        Bitstream.read(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Bitstream.read(tmp_path / "none.bit")


@pytest.mark.slow
def test_program_fpga_loads_a_board(farm: Farm, tmp_path, command_line):
    """With a stand-in for the package pynq that logs calls, and no FPGA."""
    log, state, registers = (tmp_path / name for name in ("loaded.txt", "state.json", "registers"))
    (tmp_path / "pynq.py").write_text(PYNQ.format(log=str(log)))
    registers.write_bytes(bytes(4 * fpga.PAGE))
    _, tracker = farm.tracker()
    attrs = [f"registers={registers}", "base=0", "device=fpga", "config=pynq"]
    words = [word for attr in attrs for word in ("--target-attr", attr)]
    board = farm.start(
        farm.serving("board", tracker, "--target", "vta", *words),
        {"PYTHONPATH": str(tmp_path), "TVMTUNE_VTA_STATE": str(state)},
    )
    board.expect("registered")
    where = ["--remote", f"board@{tracker}", "--config"]
    code, _, stderr = command_line("vta", "reconfig-runtime", *where, "pynq")
    assert code == 1
    assert "has no known bitstream loaded" in complaint(stderr)
    file = str(bitstream_file(tmp_path))
    code, stdout, stderr = command_line("vta", "program-fpga", file, *where, "pynq")
    assert code == 0, stderr
    assert stdout.startswith(f"{NAME} (") and "is loaded into the FPGA of 'board'" in stdout
    assert log.read_text().endswith(f"/{NAME}.bit\n")
    assert json.loads(state.read_text())["part"] == "7z020clg484"
    _, stdout, _ = command_line("vta", "reconfig-runtime", *where, "pynq")
    assert stdout == f"the board 'board' has its FPGA loaded with {NAME}\n"
    other = tmp_path / "vta_config.json"
    other.write_text(json.dumps(Config().as_dict() | {"LOG_UOP_BUFF_SIZE": 14}))
    _, _, stderr = command_line("vta", "reconfig-runtime", *where, str(other))
    assert "not 1x16_i8w8a32_14_15_18_17: LOG_UOP_BUFF_SIZE differ" in complaint(stderr)


@pytest.mark.slow
def test_program_fpga_rejects_a_simulating_board(farm: Farm, tmp_path, command_line):
    _, tracker = farm.tracker()
    farm.board("board", tracker)
    where = ["--remote", f"board@{tracker}", "--config", "pynq"]
    _, stdout, _ = command_line("vta", "reconfig-runtime", *where)
    assert "simulates any configuration" in stdout
    code, _, stderr = command_line("vta", "program-fpga", str(bitstream_file(tmp_path)), *where)
    assert code == 1
    assert "this board simulates VTA and has no FPGA to program" in complaint(stderr)
