"""vta_config.json: derived values, and rejected ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tvmtune.errors import UsageError
from tvmtune_vta.hardware.config import Config, Memory

SAMPLE: dict[str, Any] = Config().as_dict()


def write(path: Path, **changed: Any) -> Path:
    config = {key: value for key, value in (SAMPLE | changed).items() if value is not ...}
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", ["sim", "pynq", "ultra96", "zcu104", "de10nano"])
def test_published_configurations_have_the_same_shape(name):
    config = Config.named(name)
    assert config.target == name
    assert config.hw_ver == ("0.0.1" if name == "zcu104" else "0.0.2")
    assert config.bitstream == "1x16_i8w8a32_15_15_18_17"
    assert config.differences(Config()) == []


def test_derived_depths_and_element_sizes():
    config = Config()
    assert [config.depth(m) for m in Memory] == [8192, 1024, 2048, 2048, 2048, 2048]
    assert [config.element_bytes(m) for m in Memory] == [4, 256, 16, 64, 16, 16]
    assert (config.batch, config.block, config.log_out_buff_size) == (1, 16, 15)
    assert config.uop_limit == 2047


def test_fields_match_hw_spec():
    """The table of the instruction set, for the default configuration."""
    config = Config()
    low = {name: {f.name: f.low for f in lay.fields} for name, lay in config.instructions.items()}
    width = {
        name: {f.name: f.width for f in lay.fields} for name, lay in config.instructions.items()
    }
    memory = {"memory": 7, "sram_base": 10, "dram_base": 26, "y_size": 64, "x_size": 80}
    memory |= {"x_stride": 96, "y_pad_0": 112, "y_pad_1": 116, "x_pad_0": 120, "x_pad_1": 124}
    loops = {"reset": 7, "uop_bgn": 8, "uop_end": 21, "iter_out": 35, "iter_in": 49}
    loops |= {"dst_factor_out": 64, "dst_factor_in": 75, "src_factor_out": 86, "src_factor_in": 97}
    head = {"opcode": 0, "pop_prev": 3, "pop_next": 4, "push_prev": 5, "push_next": 6}
    assert low["LOAD"] == low["STORE"] == head | memory
    assert low["GEMM"] == head | loops | {"wgt_factor_out": 108, "wgt_factor_in": 118}
    assert low["ALU"] == head | loops | {"op": 108, "use_imm": 111, "imm": 112}
    assert (width["GEMM"]["uop_bgn"], width["GEMM"]["uop_end"]) == (13, 14)
    assert (width["ALU"]["src_factor_in"], width["GEMM"]["wgt_factor_in"]) == (11, 10)
    assert [(f.name, f.low, f.width) for f in config.uop.fields] == [
        ("dst", 0, 11),
        ("src", 11, 11),
        ("wgt", 22, 10),
    ]


def test_other_shapes_move_the_fields(tmp_path):
    config = Config.load(write(tmp_path / "c.json", LOG_BATCH=1))
    assert config.bitstream.startswith("2x16_")
    assert config.depth(Memory.ACC) == config.depth(Memory.INP) == 1024
    assert config.uop.fields[2].low == 20
    config = Config.load(write(tmp_path / "c.json", LOG_BLOCK=5))
    assert config.depth(Memory.WGT) == 256
    assert config.element_bytes(Memory.WGT) == 1024
    # A C compiler moves the first factor into the free bits of the first word,
    config = Config.load(write(tmp_path / "c.json", LOG_UOP_BUFF_SIZE=10))
    places = {f.name: f.low for f in config.instructions["GEMM"].fields}
    assert places["iter_in"] + 14 == 37 + 16
    assert places["dst_factor_out"] == 53
    assert places["dst_factor_in"] == 64
    # and a wider range of uops moves the inner count into the second word, if it fits.
    smaller = {"LOG_ACC_BUFF_SIZE": 13, "LOG_INP_BUFF_SIZE": 13, "LOG_WGT_BUFF_SIZE": 15}
    config = Config.load(write(tmp_path / "c.json", LOG_UOP_BUFF_SIZE=16, **smaller))
    assert {f.name: f.low for f in config.instructions["GEMM"].fields}["iter_in"] == 64


def test_consistent_derived_keys_are_accepted(tmp_path):
    derived = {"LOG_BLOCK_IN": 4, "LOG_BLOCK_OUT": 4, "LOG_OUT_WIDTH": 3, "LOG_OUT_BUFF_SIZE": 15}
    assert Config.load(write(tmp_path / "c.json", **derived)) == Config()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"LOG_BLOCK": ...}, "key 'LOG_BLOCK' is missing"),
        ({"LOG_BLOK": 4}, "key 'LOG_BLOK' is not known. Did you mean LOG_BLOCK"),
        ({"zzz": 4}, "key 'zzz' is not known. Known: HW_VER"),
        ({"LOG_BATCH": "0"}, "LOG_BATCH='0' is not an integer"),
        ({"LOG_BATCH": True}, "LOG_BATCH=True is not an integer"),
        ({"LOG_BATCH": 1.5}, "LOG_BATCH=1.5 is not an integer"),
        ({"LOG_BATCH": -1}, "LOG_BATCH=-1: must be 0 to 8"),
        ({"LOG_ACC_BUFF_SIZE": 99}, "LOG_ACC_BUFF_SIZE=99: must be 0 to 28"),
        ({"LOG_INP_WIDTH": 2}, "LOG_INP_WIDTH=2 is 4 bits"),
        ({"LOG_ACC_WIDTH": 4}, "LOG_ACC_WIDTH=4 is 16 bits"),
        ({"TARGET": "pink"}, "TARGET='pink' is not known. Did you mean pynq"),
        ({"TARGET": ["sim"]}, "TARGET=.* is not known"),
        ({"HW_VER": 2}, "HW_VER=2 is not a version"),
        ({"LOG_WGT_BUFF_SIZE": 7}, "LOG_WGT_BUFF_SIZE=7: 128 bytes hold no element of 256"),
        ({"LOG_UOP_BUFF_SIZE": 2}, "LOG_UOP_BUFF_SIZE=2: 4 bytes hold one element of 4"),
        ({"LOG_UOP_BUFF_SIZE": 19}, "depth of 2.17 elements does not fit the 16-bit sram_base"),
        ({"LOG_UOP_BUFF_SIZE": 16}, "LOG_UOP_BUFF_SIZE=16: .* the GEMM instruction 1.. bits"),
        (
            {"LOG_ACC_BUFF_SIZE": 18, "LOG_WGT_BUFF_SIZE": 16},
            "LOG_ACC_BUFF_SIZE=18: .* the ALU instruction 144 bits",
        ),
        (
            {"LOG_WGT_BUFF_SIZE": 19},
            "indices of 11, 11 and 11 bits exceed the 32 bits of a uop",
        ),
        ({"LOG_BLOCK_IN": 5}, "LOG_BLOCK_IN=5 contradicts LOG_BLOCK: it must be 4"),
        ({"LOG_OUT_BUFF_SIZE": 17}, "LOG_OUT_BUFF_SIZE=17 contradicts LOG_ACC_BUFF_SIZE"),
        ({"TARGET": "de10nano", "LOG_BATCH": 1}, "the Chisel design has batch 1"),
        (
            {"TARGET": "pynq", "LOG_INP_BUFF_SIZE": 14},
            "reads a uop's weight index at bit 21, .* 22",
        ),
        (
            {"TARGET": "ultra96", "LOG_BLOCK": 3, "LOG_WGT_BUFF_SIZE": 16, "LOG_ACC_BUFF_SIZE": 16}
            | {"LOG_INP_BUFF_SIZE": 14},
            "64 bits is narrower than the 128-bit bus",
        ),
    ],
)
def test_invalid_values_are_named(tmp_path, changed, named):
    path = write(tmp_path / "c.json", **changed)
    with pytest.raises(UsageError, match=named) as raised:
        Config.load(path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "named"),
    [("{", "is not JSON"), ("[1]", "is a JSON object"), ("\xff", "is not JSON"), (None, "No such")],
)
def test_a_file_that_is_not_a_configuration_is_named(tmp_path, text, named):
    path = tmp_path / "c.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=named):
        Config.load(path)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(
        UsageError, match="config=ultra69 is neither a published configuration.* mean ultra96"
    ):
        Config.named("ultra69")


def test_the_reference_simulator_does_not_import_tvm():
    """Drivers on boards, and authors of other simulators, have NumPy only."""
    code = "import sys, tvmtune_vta.simulator.reference; sys.exit('tvm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
