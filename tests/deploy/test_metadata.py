"""Metadata behind the code: read anywhere, loaded nowhere, and never trusted when damaged."""

from __future__ import annotations

import ctypes
import json
import platform
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tvmtune.deploy import cpu_features, elf, metadata, trailer
from tvmtune.deploy.library import Library
from tvmtune.errors import TvmtuneError, UsageError

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
    """A shared library that is certainly not ours."""
    return next(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_what_is_written_is_read(copy):
    before = metadata.read(copy)
    image = trailer.read(copy).image_size
    code = copy.read_bytes()[:image]
    metadata.append(copy, before | {"note": "Grüße", "threads": 7})
    after = metadata.read(copy)
    assert after == before | {"note": "Grüße", "threads": 7}
    assert copy.read_bytes()[:image] == code
    assert trailer.read(copy).image_size == image, "the second trailer took the first one's place"


def test_a_library_describes_itself(made):
    found = metadata.read(made)
    assert found["format"] == 1
    assert found["network"]["name"] == "model"
    assert found["network"]["source"]["file"] == str(made.with_name("model.onnx"))
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


def test_an_unknown_latency_leaves_the_estimate_open(made):
    from tvmtune import networks

    network = networks.load(str(made.with_name("model.onnx")))
    from deploy.building import host_device

    row = {"name": "a", "weight": 1, "implementation": "direct", "record": "default", "flop": 1.0}
    found = metadata.describe(
        network, host_device(), layout="NHWC", tasks=[row | {"latency": None}]
    )
    assert found["estimate_ms"] is None
    assert found["check"] is None


def test_the_loader_does_not_mind_the_trailer(made):
    assert ctypes.CDLL(str(made))


def test_reading_needs_no_tvm(made):
    code = (
        "import sys; from tvmtune.deploy import metadata\n"
        "found = metadata.read(sys.argv[1]); metadata.elf_machine(sys.argv[1])\n"
        "metadata.check_runnable(sys.argv[1], found)\n"
        "print([name for name in ('tvm', 'tvm_ffi', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, made], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_files_that_are_not_there_or_not_files(tmp_path):
    with pytest.raises(UsageError, match="there is no library"):
        metadata.read(tmp_path / "none.so")
    with pytest.raises(UsageError, match="is a directory"):
        metadata.read(tmp_path)
    with pytest.raises(UsageError, match="there is no library"):
        metadata.append(tmp_path / "none.so", {})


def test_files_that_are_not_ours(tmp_path):
    empty = tmp_path / "empty.so"
    empty.touch()
    assert "is empty" in refusal(metadata.read, empty)
    text = tmp_path / "text.so"
    text.write_text("not a library\n" * 100)
    assert "no ELF file" in refusal(metadata.read, text)
    assert "no ELF library" in refusal(metadata.append, text, {})
    assert "no ELF library" in refusal(metadata.elf_machine, text)
    assert "carries no metadata" in refusal(metadata.read, foreign_library())


@pytest.mark.parametrize("kept", [0.001, 0.1, 0.5, 0.9, 0.95, 0.99, 0.9999])
def test_a_truncated_library_is_recognised(copy, kept):
    data = copy.read_bytes()
    copy.write_bytes(data[: int(len(data) * kept)])
    assert "truncated" in refusal(metadata.read, copy)


def test_a_stripped_library_is_recognised(copy):
    data = copy.read_bytes()
    copy.write_bytes(data[: trailer.read(copy).image_size])
    assert "carries no metadata" in refusal(metadata.read, copy)


def test_damage_to_the_metadata_is_found(copy):
    start = trailer.read(copy).image_size
    data = copy.read_bytes()
    for offset in (start, start + 13, start + 50, start + 500, len(data) - 16):
        copy.write_bytes(data)
        patch(copy, offset, bytes([data[offset] ^ 0x55]))
        assert "damaged" in refusal(metadata.read, copy)


def test_damage_to_the_code_is_found_before_it_is_loaded(copy):
    data = copy.read_bytes()
    patch(copy, 5000, bytes([data[5000] ^ 1]))
    assert metadata.read(copy), "reading the metadata does not read the code"
    assert "damaged" in refusal(Library.open, copy)


def test_code_cut_out_of_the_middle_is_found(copy):
    data = copy.read_bytes()
    copy.write_bytes(data[:4096] + data[8192:])
    assert "damaged" in refusal(metadata.read, copy)


def test_a_later_format_is_refused(copy):
    patch(copy, trailer.read(copy).image_size + 8, struct.pack("<I", 2))
    text = refusal(metadata.read, copy)
    assert "newer tvmtune" in text
    assert "update tvmtune" in text


def test_a_library_for_another_machine_is_refused_before_it_is_loaded(copy):
    other = X86_64 if platform.machine() == "aarch64" else AARCH64
    patch(copy, 18, struct.pack("<H", other))
    assert metadata.elf_machine(copy) == ("x86_64" if other == X86_64 else "aarch64")
    assert metadata.read(copy)["network"]["name"] == "model"
    code = (
        "import sys\nfrom tvmtune.deploy.library import Library\n"
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


def test_a_library_that_needs_what_this_cpu_lacks_is_refused(copy):
    metadata.append(copy, metadata.read(copy) | {"cpu_features": ["avx4096"]})
    text = refusal(Library.open, copy)
    assert "uses avx4096, which this CPU lacks" in text


def test_a_disk_that_is_full_leaves_the_library_as_it_was(copy):
    before = copy.read_bytes()
    code = (
        "import json, resource, sys\nfrom tvmtune.deploy import metadata\n"
        "found = metadata.read(sys.argv[1]) | {'noise': list(range(9999))}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)\n"
        "try: metadata.append(sys.argv[1], found)\n"
        "except Exception as exc: print(type(exc).__name__, exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, copy, str(len(before) + 10)], capture_output=True, text=True
    )
    assert done.stdout.startswith("TvmtuneError cannot write the metadata"), done
    assert copy.read_bytes() == before


def test_metadata_are_json_for_other_programs(made):
    assert json.loads(json.dumps(metadata.read(made))) == metadata.read(made)


def header(bits: int, order: str, machine: int, sections: int) -> bytes:
    """An ELF header that says that ``sections`` bytes of section headers follow 100 bytes later."""
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
def test_elf_headers_of_every_kind(tmp_path, bits, order, code, name):
    path = tmp_path / "lib.so"
    path.write_bytes(header(bits, order, code, 40) + bytes(200))
    assert elf.read_header(path) == elf.Header(name, 140)
    assert metadata.elf_machine(path) == name


def test_the_host_is_what_its_own_code_is_for():
    assert elf.host_machine() == metadata.elf_machine(sys.executable)


def test_simd_extensions_by_the_systems_names(tmp_path):
    wanted = cpu_features.required({"kind": "llvm", "mcpu": "x86-64-v3"})
    assert wanted == ["avx", "avx2", "f16c", "fma"]
    arm = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
    assert cpu_features.required(arm) == ["asimd", "asimddp", "asimdhp"]
    accelerator = {"kind": "opencl", "host": arm}
    assert cpu_features.required(accelerator) == cpu_features.required(arm)
    assert cpu_features.required({"kind": "opencl"}) == []
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx avx2\n")
    assert cpu_features.missing(wanted, cpuinfo) == ["f16c", "fma"]
    assert cpu_features.missing(wanted, tmp_path / "none") == []
