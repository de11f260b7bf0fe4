"""Files that would unpack to too much, or that declare absurd shapes, are refused at once."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from networks import tflite_models, torch_models
from tvmtune import bounded, networks
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import read_inputs
from tvmtune.types import TensorSpec

SPECS = (TensorSpec("data", (2, 3), "float32"),)
MEGABYTE = 1 << 20


def refused(call: Callable[[], Any], error: type[TvmtuneError] = UsageError) -> str:
    """The message of the refusal, which may not take much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            call()
        assert tracemalloc.get_traced_memory()[1] < 64 * MEGABYTE
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message
    return message


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"") -> bytes:
    """A member of an archive, with a shape that need not be true."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def archive(path: Path, *members: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(bounded, "ARCHIVE_FLOOR", MEGABYTE)


@pytest.mark.sweep
@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_inputs_that_unpack_to_too_much_are_refused(tmp_path, small_limit, how):
    bomb = npy(f"({100 * MEGABYTE // 4},)", data=bytes(100 * MEGABYTE))
    path = archive(tmp_path / "in.npz", ("data.npy", bomb), how=how)
    assert path.stat().st_size < MEGABYTE
    assert "unpacks to 105 MB" in refused(lambda: read_inputs(path, SPECS))


def test_large_inputs_are_read(tmp_path, small_limit):
    data = np.zeros((100, 100_000), np.float32)
    path = tmp_path / "in.npz"
    np.savez_compressed(path, data=data)
    assert path.stat().st_size < MEGABYTE
    specs = [TensorSpec("data", data.shape, "float32")]
    assert read_inputs(path, specs)["data"].shape == data.shape


@pytest.mark.parametrize(
    "member",
    [
        npy("(1099511627776,)"),
        npy("(4, 4294967296, 4294967296, 4294967296)"),
        npy("(3000000000,)", data=bytes(100)),
        npy("(2, -3)", data=bytes(24)),
        npy("(1152921504606846976,)", "'|V0'"),
        npy("(1,)", "'|V2000000000'"),
        npy("(2, 3)", "'|O'", bytes(48)),
        npy("(2, 3)", "[('a', '<f4')]", bytes(23)),
        npy("-" * 9000 + "1"),
        npy("(" * 5000),
        npy("(2, 3)", data=bytes(24))[:20],
        b"\x93NUMPY\x03\x00",
        b"",
        b"x" * 100,
    ],
)
def test_inputs_with_absurd_headers_are_refused(tmp_path, member):
    path = archive(tmp_path / "in.npz", ("data.npy", member))
    assert "is damaged or not an .npz file" in refused(lambda: read_inputs(path, SPECS))


@pytest.mark.parametrize("offset", [6, 8, 10])
def test_archives_that_zipfile_cannot_unpack_are_refused(tmp_path, offset):
    """Another version, encrypted, an unknown compression."""
    path = archive(tmp_path / "in.npz", ("data.npy", npy("(2, 3)", data=bytes(24))))
    content = bytearray(path.read_bytes())
    index = content.rindex(b"PK\x01\x02")
    content[index + offset] |= 99 if offset != 8 else 1
    path.write_bytes(content)
    assert str(path) in refused(lambda: read_inputs(path, SPECS))


def saved(path: Path) -> Path:
    program = torch.export.export(torch_models.TinyCnn().eval(), (torch.zeros(1, 3, 8, 8),))
    torch.export.save(program, path)
    return path


def rewritten(path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The archive with other content of its members, compressed."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as file:
        members = [(name, change(name, file.read(name))) for name in file.namelist()]
    return archive(path, *members)


@pytest.mark.slow
def test_a_program_that_unpacks_to_too_much_is_refused(tmp_path, small_limit):
    def padded(name: str, content: bytes) -> bytes:
        return content + b" " * 100 * MEGABYTE if name.endswith("model.json") else content

    path = rewritten(saved(tmp_path / "net.pt2"), padded)
    assert path.stat().st_size < MEGABYTE
    assert "unpacks to 105 MB" in refused(lambda: networks.load(str(path)))


def test_a_compressed_program_is_read(tmp_path):
    path = rewritten(saved(tmp_path / "net.pt2"), lambda name, content: content)
    assert networks.load(str(path)).inputs == (TensorSpec("image", (1, 3, 8, 8), "float32"),)


@pytest.mark.parametrize("extent", [1 << 40, (1 << 62) + 1])
def test_a_program_of_absurd_shapes_is_refused(tmp_path, extent):
    def larger(name: str, content: bytes) -> bytes:
        return content.replace(b'{"as_int": 8}', b'{"as_int": %d}' % extent)

    path = rewritten(saved(tmp_path / "net.pt2"), larger)
    assert str(path) in refused(lambda: networks.load(str(path)), TvmtuneError)


def test_a_tflite_model_of_absurd_shapes_is_refused(tmp_path):
    builder = tflite_models.TfliteBuilder()
    x = builder.input("x", (1, 1 << 16, 1 << 16))
    y = builder.add("RELU", [x], (1, 1 << 16, 1 << 16))
    path = tmp_path / "net.tflite"
    path.write_bytes(builder.content(y))
    assert "elements" in refused(lambda: networks.load(str(path)))


def test_a_tflite_model_of_absurd_intermediate_shapes_is_refused(tmp_path):
    builder = tflite_models.TfliteBuilder()
    x = builder.input("x", (1, 4))
    wide = builder.add("TILE", [x, builder.constant([1 << 18, 1 << 18], "int32")], (1, 4))
    y = builder.add("RELU", [wide], (1, 4))
    path = tmp_path / "net.tflite"
    path.write_bytes(builder.content(y))
    assert str(path) in refused(lambda: networks.load(str(path)), TvmtuneError)


def test_a_shape_that_the_user_gives_is_limited():
    message = refused(lambda: networks.load("resnet-18", shapes={"data": (1, 3, 1 << 20, 1 << 20)}))
    assert "elements" in message
