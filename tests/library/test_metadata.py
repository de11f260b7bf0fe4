"""Library metadata: read on any machine without loading the library; damage is detected."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from disks import NO_BYTECODE
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.library import elf, metadata, trailer, vm_program
from tvmtune.machine import cpu_features
from tvmtune.runtime.library import Library

AARCH64, X86_64 = 183, 62


def refusal(function, *args) -> str:
    """The message of the error, which is one line and names the file."""
    with pytest.raises(TvmtuneError) as raised:
        function(*args)
    text = str(raised.value)
    assert "\n" not in text
    assert str(args[0]) in text
    return text


def foreign_library() -> Path:
    """A shared library that tvmtune did not make."""
    return next(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_metadata_round_trip(copy):
    before = metadata.read(copy)
    size = trailer.read(copy).code_size
    code = copy.read_bytes()[:size]
    metadata.append(copy, before | {"note": "Grüße", "threads": 7})
    after = metadata.read(copy)
    assert after == before | {"note": "Grüße", "threads": 7}
    assert copy.read_bytes()[:size] == code
    assert trailer.read(copy).code_size == size, "the second trailer replaced the first one"


def test_a_library_describes_itself(tiny_library):
    found = metadata.read(tiny_library)
    assert found["format"] == 1
    assert found["network"]["name"] == "model"
    assert found["network"]["source"]["file"] == str(tiny_library.with_name("model.onnx"))
    assert found["network"]["layout"] == "NCHW"
    assert found["inputs"] == [{"name": "data", "shape": [1, 3, 32, 32], "dtype": "float32"}]
    assert found["outputs"] == [{"name": "logits", "shape": [1, 10], "dtype": "float32"}]
    assert found["device"]["backend"] == "cpu"
    assert found["device"]["identity"]
    assert found["threads"] == found["device"]["threads"]
    assert found["tasks"]["total"] == found["tasks"]["exact"] == 1
    assert found["tasks"]["anchor"] == found["tasks"]["default"] == 0
    assert found["estimate_ms"] == pytest.approx(2 * 0.01)
    assert found["check"]["seed"] == 0
    assert found["versions"]["apache-tvm"]
    assert found["created"] > 1.7e9
    assert set(found["machine"]) >= {"cpu", "machine"}


def test_an_unknown_latency_leaves_no_estimate(tiny_library):
    from tvmtune import networks

    network = networks.load(str(tiny_library.with_name("model.onnx")))
    from libraries import host_device

    row = {"name": "a", "weight": 1, "implementation": "direct", "record": "default", "flop": 1.0}
    found = metadata.describe(
        network, host_device(), layout="NHWC", tasks=[row | {"latency": None}]
    )
    assert found["estimate_ms"] is None
    assert found["check"] is None


def test_a_library_with_a_trailer_loads(tiny_library):
    assert ctypes.CDLL(str(tiny_library))


def test_reading_needs_no_tvm(tiny_library):
    code = (
        "import sys; from tvmtune.library import metadata\n"
        "found = metadata.read(sys.argv[1]); metadata.elf_machine(sys.argv[1])\n"
        "metadata.check_runnable(sys.argv[1], found)\n"
        "print([name for name in ('tvm', 'tvm_ffi', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tiny_library], capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_missing_files_and_directories_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="there is no library"):
        metadata.read(tmp_path / "none.so")
    with pytest.raises(UsageError, match="is a directory"):
        metadata.read(tmp_path)
    with pytest.raises(UsageError, match="there is no library"):
        metadata.append(tmp_path / "none.so", {})


def test_files_of_other_programs_are_refused(tmp_path):
    empty = tmp_path / "empty.so"
    empty.touch()
    assert "is empty" in refusal(metadata.read, empty)
    text = tmp_path / "text.so"
    text.write_text("not a library\n" * 100)
    assert "not an ELF file" in refusal(metadata.read, text)
    assert "not an ELF library" in refusal(metadata.append, text, {})
    assert "not an ELF library" in refusal(metadata.elf_machine, text)
    assert "carries no metadata" in refusal(metadata.read, foreign_library())


@pytest.mark.parametrize("kept", [0.001, 0.1, 0.5, 0.9, 0.95, 0.99, 0.9999])
def test_a_truncated_library_is_recognized(copy, kept):
    data = copy.read_bytes()
    copy.write_bytes(data[: int(len(data) * kept)])
    assert "truncated" in refusal(metadata.read, copy)


def test_a_stripped_library_is_recognized(copy):
    data = copy.read_bytes()
    copy.write_bytes(data[: trailer.read(copy).code_size])
    assert "carries no metadata" in refusal(metadata.read, copy)


def test_damaged_metadata_is_detected(copy):
    start = trailer.read(copy).code_size
    data = copy.read_bytes()
    for offset in (start, start + 13, start + 50, start + 500, len(data) - 16):
        copy.write_bytes(data)
        patch(copy, offset, bytes([data[offset] ^ 0x55]))
        assert "damaged" in refusal(metadata.read, copy)


def test_damaged_code_is_detected_before_it_is_loaded(copy):
    data = copy.read_bytes()
    patch(copy, 5000, bytes([data[5000] ^ 1]))
    assert metadata.read(copy), "reading the metadata does not read the code"
    assert "damaged" in refusal(Library.open, copy)


def test_a_hole_in_the_code_is_detected(copy):
    data = copy.read_bytes()
    copy.write_bytes(data[:4096] + data[8192:])
    assert "damaged" in refusal(metadata.read, copy)


def test_a_later_format_is_refused(copy):
    patch(copy, trailer.read(copy).code_size + 8, struct.pack("<I", 2))
    text = refusal(metadata.read, copy)
    assert "newer tvmtune" in text
    assert "update tvmtune" in text


def test_a_library_for_another_machine_is_refused_before_it_is_loaded(copy):
    other = X86_64 if platform.machine() == "aarch64" else AARCH64
    patch(copy, 18, struct.pack("<H", other))
    assert metadata.elf_machine(copy) == ("x86_64" if other == X86_64 else "aarch64")
    assert metadata.read(copy)["network"]["name"] == "model"
    code = (
        "import sys\nfrom tvmtune.runtime.library import Library\n"
        "try: Library.open(sys.argv[1])\n"
        "except Exception as exc: print(type(exc).__name__, exc)\n"
        "print('tvm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, copy], capture_output=True, text=True)
    message, loaded = done.stdout.strip().splitlines()
    assert message.startswith("TvmtuneError")
    assert "holds code for" in message
    assert "the test's CPU" in message
    assert loaded == "False"


def test_a_library_that_needs_missing_cpu_features_is_refused(copy):
    metadata.append(copy, metadata.read(copy) | {"cpu_features": ["avx4096"]})
    text = refusal(Library.open, copy)
    assert "uses avx4096, which this CPU lacks" in text


def test_a_full_disk_leaves_the_library_unchanged(copy):
    before = copy.read_bytes()
    code = (
        "import json, resource, sys\nfrom tvmtune.library import metadata\n"
        "found = metadata.read(sys.argv[1]) | {'noise': list(range(9999))}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try: metadata.append(sys.argv[1], found)\n"
        "except Exception as exc: print(type(exc).__name__, exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, copy, str(len(before) + 10)],
        env=os.environ | NO_BYTECODE,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("TvmtuneError cannot write the metadata"), done
    assert copy.read_bytes() == before


def test_metadata_are_plain_json(tiny_library):
    assert json.loads(json.dumps(metadata.read(tiny_library))) == metadata.read(tiny_library)


def header(bits: int, order: str, machine: int, sections: int) -> bytes:
    """An ELF header with ``sections`` bytes of section headers at offset 100."""
    ident = elf.MAGIC + bytes([bits // 32, 1 if order == "<" else 2, 1]) + bytes(9)
    word = "Q" if bits == 64 else "I"
    form = f"{order}HHI{word}{word}{word}IHHHHHH"
    size = 64 if bits == 64 else 52
    fields = (3, machine, 1, 0, 0, 100, 0, size, 0, 0, sections, 1, 0)
    return ident + struct.pack(form, *fields)


@pytest.mark.parametrize(
    ("bits", "order", "code", "name"),
    [
        (64, "<", 62, "x86_64"),
        (64, "<", 183, "aarch64"),
        (32, "<", 40, "arm"),
        (32, ">", 8, "mips"),
        (64, ">", 21, "ppc64"),
        (64, "<", 4242, "machine-4242"),
    ],
)
def test_elf_headers_of_all_classes_and_byte_orders(tmp_path, bits, order, code, name):
    path = tmp_path / "lib.so"
    path.write_bytes(header(bits, order, code, 40) + bytes(200))
    assert elf.read_header(path) == elf.Header(name, 140)
    assert metadata.elf_machine(path) == name


WHOLE = struct.Struct("<QQIHHHHHH")
"""e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx"""


@pytest.mark.parametrize(
    "fields",
    [
        (2**64 - 1, 2**64 - 1, 0, 64, 56, 65535, 64, 65535, 65535),
        (2**63, 2**62, 0, 64, 56, 2, 64, 0, 0),
        (64, 64, 0, 64, 0, 65535, 0, 0, 0),
        (0, 32, 0, 64, 1, 65535, 64, 2, 1),
    ],
)
def test_hostile_elf_headers_give_one_message(tmp_path, fields):
    path = tmp_path / "lib.so"
    for filler in (b"\0", b"\xff"):
        path.write_bytes(header(64, "<", 62, 0)[:32] + WHOLE.pack(*fields) + filler * 4096)
        refusal(metadata.read, path)
        assert metadata.elf_machine(path) == "x86_64"
        assert elf.find_symbol(path, "main") is None


@pytest.mark.slow
def test_a_damaged_symbol_table_is_an_absent_symbol(copy):
    """Each byte of the tables, one after the other, is set to 0xFF; nothing else is raised."""
    name = vm_program.SYMBOL.decode()
    data = copy.read_bytes()
    assert elf.find_symbol(copy, name) is not None
    end = elf.read_header(copy).end
    for offset in (*range(32, 64), *range(end - 13 * 64, end, 3)):
        patch(copy, offset, b"\xff")
        found = elf.find_symbol(copy, name)
        assert found is None or all(isinstance(number, int) for number in found)
        patch(copy, offset, data[offset : offset + 1])
    for kept in range(0, len(data), len(data) // 50):
        copy.write_bytes(data[:kept])
        elf.find_symbol(copy, name)


def test_the_host_machine_is_that_of_the_running_interpreter():
    assert elf.host_machine() == metadata.elf_machine(sys.executable)


def test_simd_extensions_have_linux_names(tmp_path):
    wanted = cpu_features.required({"kind": "llvm", "mcpu": "x86-64-v3"})
    assert wanted == ["avx", "avx2", "f16c", "fma"]
    arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
    zen4 = {"kind": "llvm", "mcpu": "znver4"}
    others = cpu_features.required(zen4)
    assert cpu_features.required(zen4, ["bfloat16"]) == sorted([*others, "avx512_bf16"])
    assert "avx512_bf16" not in others, "code in float32 runs without it"
    neoverse = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}
    added = set(cpu_features.required(neoverse, ["bfloat16"])) - {*cpu_features.required(neoverse)}
    assert added == {"bf16"}
    assert cpu_features.required(arm) == ["asimd", "asimddp", "asimdhp"]
    accelerator = {"kind": "opencl", "host": arm}
    assert cpu_features.required(accelerator) == cpu_features.required(arm)
    assert cpu_features.required({"kind": "opencl"}) == []
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx avx2\n")
    assert cpu_features.missing(wanted, cpuinfo) == ["f16c", "fma"]
    assert cpu_features.missing(wanted, tmp_path / "none") == []


def with_body(path: Path, text: bytes, claimed: int) -> None:
    """Replace the trailer by one whose JSON has another size than it claims."""
    code = path.read_bytes()[: trailer.read(path).code_size]
    body = zlib.compress(text, 9)
    head = trailer._HEAD.pack(
        b"tvmtune{", 1, len(code), zlib.crc32(code), len(body), claimed, zlib.crc32(body)
    )
    tail = trailer._TAIL.pack(len(head) + len(body) + trailer._TAIL.size, b"}tvmtune")
    path.write_bytes(code + head + body + tail)


@pytest.mark.parametrize("claimed", [0, 1000, 1 << 63])
def test_metadata_that_unpack_to_much_more_are_damaged(copy, claimed):
    with_body(copy, b'{"a":"' + b" " * (40 << 20) + b'"}', claimed)
    assert "is damaged" in refusal(metadata.read, copy)


@pytest.mark.parametrize("depth", [101, 1_000_000])
def test_deep_metadata_are_damaged(copy, depth):
    text = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    with_body(copy, text, len(text))
    assert "is damaged (it nests too deeply)" in refusal(metadata.read, copy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("network", []), ("device", {}), ("inputs", {}), ("inputs", [3]), ("tasks", None)),
        *(("threads", "2"), ("created", 1e300), ("versions", 1), ("cpu_features", [[]])),
        ("outputs", [{"name": "x", "shape": ["a"], "dtype": "float32"}]),
    ],
)
def test_metadata_of_other_types_are_damaged(copy, name, value):
    metadata.append(copy, metadata.read(copy) | {name: value})
    assert "is damaged: " in refusal(metadata.read, copy)
    assert "is damaged: " in refusal(Library.open, copy)


@pytest.mark.parametrize("offset", [32, 40], ids=["segments", "sections"])
@pytest.mark.parametrize("value", [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_offsets_that_no_file_has_are_truncation(tmp_path, offset, value):
    path = tmp_path / "lib.so"
    path.write_bytes(foreign_library().read_bytes()[:4096])
    patch(path, offset, struct.pack("<Q", value))
    assert "is truncated" in refusal(metadata.read, path)
    assert elf.find_symbol(path, "x") is None
