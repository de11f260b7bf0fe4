"""What is fuzzed: for each kind of input, how to make one from a mutation, and what reads it.

A reader returns the message of the error, or "" if it read the input; it raises whatever is a defect.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import io
import json
import lzma
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fuzz.mutations import Mutation, changed, dumped, mutated

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Kind:
    """A kind of input."""

    make: Callable[[int, Sequence[Mutation]], bytes]
    """An input, from the number of a seed and of a way to change it."""
    read: Callable[[bytes, Path], str]
    """Read it; the folder is for files."""


def run(*args: str) -> str:
    """A command in this process; returns its message. Raises AssertionError for anything but 0 without
    a message, or 1 or 2 with a single one."""
    from tvmtune.cli import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(args))
        except SystemExit as ended:
            code = ended.code
    lines = [x for x in err.getvalue().splitlines() if not x.startswith("warning: ")]
    assert code in (0, 1, 2), (code, lines)
    assert len(lines) == (code != 0), (code, lines)
    message = lines[0] if lines else ""
    assert "bug in tvmtune" not in message, message
    assert "out of memory" not in message, message
    return message


# Logs


def _log_lines() -> list[list[dict[str, Any]]]:
    from records import sample_log as sample

    def lines(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.json"
        trials = [sample.trial("a", str(n), 1.0 + n, trace=sample.trace(2**n)) for n in range(3)]
        sample.write(path, *trials, sample.trial("b", "x"))
        from tvmtune.records.log import LogWriter

        with LogWriter(path) as writer:
            writer.append("verdict", sample.verdict(trials[0], False, "off"))
            writer.append(
                "remeasure", {"workload": "w-a", "candidate": "1", "seconds": [2.0], "time": 1.0}
            )
            writer.append("drift", {"ratio": 1.0, "time": 1.0})
        made = lines(path)
    return [made, lines(FOLDER.parent / "records" / "format-1.json")]


def make_log(seed: int, changes: Sequence[Mutation]) -> bytes:
    """The first byte of an input says how it is compressed."""
    logs = _cached("logs", _log_lines)
    records = logs[seed % 2]
    form, how = seed // 2 % 3, seed // 6 % 3
    if how == 0:
        lines = [dumped(record) for record in records]
        at = changes[0][1] % len(records)
        lines[at] = dumped(_repacked(changed(records[at], changes), changes))
        text = b"\n".join(lines) + b"\n"
    else:
        text = b"\n".join(map(dumped, records)) + b"\n"
        text = mutated(text, changes) if how == 1 else text
    data = [lambda x: x, lambda x: gzip.compress(x, 1), lambda x: lzma.compress(x, preset=0)][form](
        text
    )
    return bytes([form]) + (mutated(data, changes) if how == 2 else data)


def _repacked(record: Any, changes: Sequence[Mutation]) -> Any:
    """With post-processors that inflate to something else, every other time."""
    if not isinstance(record, dict) or "postprocs" not in record or changes[0][2] % 2:
        return record
    content = [b"", b"{}", b"[", b"3", b"[[]]" * 9, b"[" * 9000, bytes(1 << 23), b"[1,2]", b"\xff"]
    packed = zlib.compress(content[changes[0][2] // 2 % len(content)], 9)
    return record | {"postprocs": base64.b64encode(packed).decode()}


def read_log(data: bytes, folder: Path) -> str:
    from records.sample_log import device
    from tvmtune.records import header
    from tvmtune.records.log import is_empty
    from tvmtune.records.log import read_log as read

    path = folder / ("log.json" + ("", ".gz", ".xz")[data[0]])
    path.write_bytes(data[1:])
    message = run("distill", str(path), "-o", str(folder / "best.json"), "--force")
    is_empty(path)
    if not message:
        log = read(path)
        for described in log.devices().values():
            header._difference(described, device())
        for each in log.headers:
            header._inputs(each["network"].get("inputs", []))
        for trial in log.trials:
            assert not trial.ok or trial.latency > 0
        with contextlib.suppress(_error()):
            header.check_tvm(log, "")
        read(folder / "best.json")
    return message


# Reports


def _report_lines() -> list[dict[str, Any]]:
    import tempfile

    from report import sample

    with tempfile.TemporaryDirectory() as folder:
        path = sample.write(Path(folder) / "log.json")
        return [json.loads(line) for line in path.read_text().splitlines()]


def make_report(seed: int, changes: Sequence[Mutation]) -> bytes:
    records = _cached("reports", _report_lines)
    lines = list(map(dumped, records))
    # Headers and tasks say most of what a page shows.
    often = [n for n, record in enumerate(records) if record["type"] in ("header", "task")]
    places = often if seed % 2 else range(len(records))
    at = places[changes[0][1] % len(places)]
    lines[at] = dumped(changed(records[at], changes))
    return b"\n".join(lines) + b"\n"


def read_report(data: bytes, folder: Path) -> str:
    path, page = folder / "log.json", folder / "log.html"
    path.write_bytes(data)
    options = ("--no-code", "--csv", str(folder), "-o", str(page))
    with _no_script():
        message = run("report", str(path), str(path), *options)
    if not message:
        _check_page(page)
    return message


def make_benchmark(seed: int, changes: Sequence[Mutation]) -> bytes:
    run = {"runtime": "tvmtune", "version": "1", "threads": 2, "device": "cpu", "median_ms": 1.0}
    record = {
        "runs": [run, {**run, "runtime": "other", "modelled_ms": 2.0, "ratio": 2.0}],
        "network": {"name": "net", "source": {"zoo": "net", "batch": 1, "dtype": "int8"}},
        "device": {"backend": "cpu", "model": "some CPU", "runtime": "cpu"},
        "host": {"cpu": "some CPU", "os": "Debian", "kernel": "6"},
        "notes": ["busy"],
        "background_load": 0.2,
        "time": 1.7e9,
        "board": {"cpu": "a board"},
    }
    return mutated(dumped(record), changes) if seed % 4 == 0 else dumped(changed(record, changes))


def read_benchmark(data: bytes, folder: Path) -> str:
    path, page = folder / "bench.json", folder / "bench.html"
    path.write_bytes(data)
    with _no_script():
        message = run("report", "--matrix", str(path), "-o", str(page))
    if not message:
        _check_page(page)
        run("report", "--matrix", str(path), "-o", str(folder / "bench.md"))
    return message


def _no_script() -> Any:
    """Vega's script does not depend on the input, and making it takes more address space than the
    runner has."""
    patches = contextlib.ExitStack()
    patches.enter_context(mock.patch("tvmtune.report.theme.script", lambda: ""))
    patches.enter_context(mock.patch("tvmtune.report.needs.vl_convert"))
    return patches


def _check_page(path: Path) -> None:
    """The data of its charts is JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    page = path.read_text(encoding="utf-8")
    data = page.partition('id="charts">')[2].partition("</script>")[0]
    json.loads(data, parse_constant=refuse)


# Libraries


def _library_code() -> bytes:
    import sys

    from tvmtune.library import elf

    file = io.BytesIO()
    elf.write_object(file, Path(sys.executable).resolve(), b"weights", [b"x" * 100])
    return file.getvalue()


def make_library(seed: int, changes: Sequence[Mutation]) -> bytes:
    code = _cached("code", _library_code)
    stored = _cached("library", lambda: json.loads((FOLDER / "library.json").read_text()))
    how = seed % 5
    text = dumped(changed(stored, changes) if how == 0 else stored)
    if how == 1:
        text = mutated(text, changes)
    if how == 2:
        code = mutated(code, changes)
    what, where, amount = changes[0]
    body = zlib.compress(text + b" " * (amount * 1000 if how == 3 else 0), 1)
    head = [1, len(code), zlib.crc32(code), len(body), len(text), zlib.crc32(body)]
    if how == 3:
        limits = (0, 1, 2**24, 2**28, 2**31, 2**32, 2**63, 2**64 - 1)
        head[what % 6] = limits[where % 8] % (2**64 if what % 6 in (1, 3, 4) else 2**32)
    packed = struct.pack("<8sIQIQQI", b"tvmtune{", *head)
    tail = struct.pack("<Q8s", len(packed) + len(body) + 16, b"}tvmtune")
    data = code + packed + body + tail
    return mutated(data, changes) if how == 4 else data


def read_library(data: bytes, folder: Path) -> str:
    from tvmtune.library import elf, metadata

    path = folder / "lib.so"
    path.write_bytes(data)
    message = run("inspect", str(path))
    run("inspect", str(path), "--json")
    elf.find_symbol(path, "weights")
    if not message:
        found = metadata.read_trailer(path).data
        metadata.specs([*found["inputs"], *found["outputs"]])
        with contextlib.suppress(_error()):
            metadata.check_runnable(path, found)
    return message


# ONNX


def _models() -> list[Any]:
    from models import one_node, tiny_cnn, tiny_encoder

    return [tiny_cnn(size=8), tiny_encoder(), one_node("Identity"), one_node("Softmax")]


def make_onnx(seed: int, changes: Sequence[Mutation]) -> bytes:
    import onnx

    model = _cached("models", _models)[seed % 4]
    if seed // 4 % 2:
        return mutated(model.SerializeToString(), changes)
    altered = onnx.ModelProto()
    altered.CopyFrom(model)
    for change in changes:
        with contextlib.suppress(ValueError, TypeError):  # a value that the field cannot hold
            _change_message(altered, change)
    return altered.SerializeToString()


def _change_message(message: Any, change: Mutation) -> None:
    """Change one field somewhere below ``message``."""
    what, where, how = change
    places = [*_messages(message)]
    holder = places[where % len(places)]
    present = [field for field, _ in holder.ListFields()]
    every = [*holder.DESCRIPTOR.fields]
    field = (present or every)[how % len(present or every)] if what % 4 else every[how % len(every)]
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
    if what % 5 == 0:
        holder.ClearField(field.name)
    elif repeated:
        values = getattr(holder, field.name)
        if what % 5 == 1 and len(values):
            del values[where % len(values)]
        elif what % 5 == 2 and len(values):
            values.extend([values[where % len(values)]] * (1 + how % 50))
        elif field.message_type is None:
            values.append(_scalar(field, what + how))
        else:
            values.add()
    elif field.message_type is None:
        setattr(holder, field.name, _scalar(field, what + how))
    else:
        getattr(holder, field.name).SetInParent()


def _scalar(field: Any, choice: int) -> Any:
    from google.protobuf.descriptor import FieldDescriptor as Of

    if field.cpp_type == Of.CPPTYPE_STRING:
        options: list[Any] = ["", "x", "data", "Conv", "If", "com.acme", "a" * 5000, "\x00", "../x"]
        chosen = options[choice % len(options)]
        return chosen.encode() if field.type == Of.TYPE_BYTES else chosen
    if field.cpp_type in (Of.CPPTYPE_FLOAT, Of.CPPTYPE_DOUBLE):
        return [0.0, -1.0, float("nan"), float("inf"), 1e30][choice % 5]
    return [0, 1, -1, 2, 7, 16, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63)][choice % 11]


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        try:
            inner = list(value)
        except TypeError:
            inner = [value]
        for each in inner:
            yield from _messages(each)


def read_onnx(data: bytes, folder: Path) -> str:
    from tvmtune import networks

    path = folder / "net.onnx"
    path.write_bytes(data)
    try:
        network = networks.load(str(path))
        assert all(type(extent) is int for spec in network.inputs for extent in spec.shape)
    except _error() as error:
        return _one_line(error)
    return ""


# Greetings and answers of trackers, boards and their clients


def make_greeting(seed: int, changes: Sequence[Mutation]) -> bytes:
    """The first byte says who reads it."""
    from tvmtune.remote import protocol

    answers: list[Any] = [
        [
            0,
            {
                "queue_info": {"pi": {"free": 1, "pending": 0}},
                "server_info": [{"key": "server:pi", "addr": ["10.0.0.1", 9090]}],
            },
        ],
        [0, ["10.0.0.1", 9090, "pi:0.5"]],
    ]
    reader = seed % 5
    if reader < 2:
        answer = changed(answers[reader], changes) if seed // 5 % 2 else answers[reader]
        text = dumped(answer)
        data = protocol.integer(protocol.TRACKER_MAGIC) + protocol.integer(len(text)) + text
    elif reader == 2:
        data = protocol.integer(protocol.MISMATCH)
    elif reader == 3:
        text = b"client:pi:0.5 -timeout=60"
        if seed // 5 % 2:
            text = mutated(text, changes)
        data = protocol.integer(protocol.RPC_MAGIC) + protocol.integer(len(text)) + text
    else:
        text = dumped(changed([["pi:0.5"], 0, ""], changes))
        data = protocol.integer(protocol.TRACKER_MAGIC) + protocol.integer(len(text)) + text
    return bytes([reader]) + (data if seed // 5 % 2 and reader != 2 else mutated(data, changes))


def read_greeting(data: bytes, folder: Path) -> str:
    from tvmtune.remote import protocol
    from tvmtune.remote.client import boards
    from tvmtune.remote.server import registration, server

    ours, theirs = socket.socketpair()
    address = protocol.Address("10.0.0.1", 9190)
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            theirs.send(data[1:])
        theirs.shutdown(socket.SHUT_WR)
        with mock.patch.object(socket, "create_connection", lambda *_, **__: ours):
            try:
                if data[0] == 0:
                    with protocol.Tracker(address) as tracker:
                        boards.queues(tracker)
                elif data[0] == 1:
                    with protocol.Tracker(address) as tracker:
                        tracker.request("pi", 1.0)
                elif data[0] == 2:
                    protocol.is_alive(address)
                elif data[0] == 3:
                    ours.setblocking(False)
                    _, words = asyncio.run(server._read_greeting(ours))
                    server._timeout((words or [])[1:])
                else:
                    asyncio.run(_registration_call(registration, data[1:]))
            except _error() as error:
                return _one_line(error)
            # What the server takes as the end of a client, and the registration as another service.
            except (OSError, ValueError, TypeError, EOFError) as error:
                assert data[0] >= 3, error
                return type(error).__name__
    return ""


async def _registration_call(registration: Any, data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    connection = registration._Connection(reader, mock.Mock())
    await connection.greet()
    await connection.call([0])


# VTA's programs


def make_vta(seed: int, changes: Sequence[Mutation]) -> bytes:
    from vta.small import W, X, expected, memory, program

    def members() -> dict[str, Any]:
        import dataclasses

        held = memory()
        made = dataclasses.replace(program(), contents=held, expected=expected_of(held))
        with np.load(io.BytesIO(made.to_bytes())) as archive:
            return {name: archive[name] for name in archive.files}

    def expected_of(held: Any) -> Any:
        from vta.small import Y

        return {Y: expected(held)}

    assert (X, W) == (0, 1)
    arrays = dict(_cached("vta", members))
    how, (what, where, amount) = seed % 5, changes[0]
    names = sorted(arrays)
    if how == 0:
        header = json.loads(arrays["header"].tobytes())
        arrays["header"] = np.frombuffer(dumped(changed(header, changes)), np.uint8)
    elif how == 1:
        for what, where, amount in changes:
            name = ("instructions", "uops", "operands")[what % 3]
            raw = bytearray(arrays[name].tobytes())
            raw[where % len(raw)] ^= 1 << amount % 8
            arrays[name] = np.frombuffer(bytes(raw), arrays[name].dtype).reshape(arrays[name].shape)
    elif how == 2:
        name, other = names[where % len(names)], names[amount % len(names)]
        arrays[name] = [
            arrays[other],
            arrays[name].astype(np.float64),
            arrays[name].reshape(-1)[: where % 50],
            np.zeros(1 << 10 + amount % 18, np.uint8),
            np.array(amount),
        ][what % 5]
    elif how == 3:
        del arrays[names[where % len(names)]]
        arrays[("contents_", "expected_", "contents_9", "expected_-1", "x")[what % 5]] = np.zeros(3)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return mutated(file.getvalue(), changes) if how == 4 else file.getvalue()


def read_vta(data: bytes, folder: Path) -> str:
    path = folder / "stream.npz"
    path.write_bytes(data)
    return run("vta", "check", str(path))


# Inputs and networks in archives of other packages


def make_inputs(seed: int, changes: Sequence[Mutation]) -> bytes:
    what, where, amount = changes[0]
    arrays = {"data": np.zeros((2, 3), np.float32), "ids": np.zeros(4, np.int64)}
    file = io.BytesIO()
    (np.savez_compressed if seed % 2 else np.savez)(file, **arrays)
    if seed // 2 % 2:
        return mutated(file.getvalue(), changes)
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(members)[where % 2]
    if what % 3:
        members[name] = mutated(members[name], changes)
    else:
        extent = [b"-1", b"9" * 9, b"9" * 30, b"()", b"None", b"2.0", b"'x'", b"0"][amount % 8]
        members[name] = members[name].replace(b"4" if name == "ids.npy" else b"3", extent)
    return _archive(members)


def read_inputs(data: bytes, folder: Path) -> str:
    from tvmtune.networks.inputs import read_inputs as read
    from tvmtune.types import TensorSpec

    path = folder / "in.npz"
    path.write_bytes(data)
    try:
        read(path, (TensorSpec("data", (2, 3), "float32"), TensorSpec("ids", (4,), "int64")))
    except _error() as error:
        assert getattr(error, "exit_code", 0) == 2
        return _one_line(error)
    return ""


def _program() -> dict[str, bytes]:
    import torch

    from networks.torch_models import TinyCnn

    file = io.BytesIO()
    torch.export.save(torch.export.export(TinyCnn().eval(), (torch.zeros(1, 3, 8, 8),)), file)
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def make_program(seed: int, changes: Sequence[Mutation]) -> bytes:
    """Other than pickles, which may run code."""
    members = dict(_cached("program", _program))
    if seed % 3 == 0:
        return mutated(_archive(members), changes)
    names = [name for name in sorted(members) if not name.endswith(".pt")]
    name = names[changes[0][1] % len(names)]
    if name.endswith(".json") and seed % 3 == 1:
        members[name] = dumped(changed(json.loads(members[name]), changes))
    else:
        members[name] = mutated(members[name], changes)
    return _archive(members)


def read_program(data: bytes, folder: Path) -> str:
    return _read_network(data, folder / "net.pt2")


def make_tflite(seed: int, changes: Sequence[Mutation]) -> bytes:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    from networks.tflite_models import tiny_cnn

    content = _cached("tflite", tiny_cnn)
    if seed % 3 == 0:
        return mutated(content, changes)
    model = schema.ModelT.InitFromPackedBuf(content)
    graph = model.subgraphs[0]
    for what, where, how in changes:  # the verifier accepts what these become
        value = [0, -1, 1, 2, 7, 2**16, 2**24, 2**31 - 1, -(2**31)][how % 9]
        if what % 2:
            tensor = graph.tensors[where % len(graph.tensors)]
            shape = [*tensor.shape]
            if shape:
                shape[how % len(shape)] = value
            tensor.shape = np.array(shape if what % 3 else [*shape, value], np.int32)
        else:
            node = graph.operators[where % len(graph.operators)]
            chosen = vars(node.builtinOptions) if node.builtinOptions else {}
            names = [n for n in sorted(chosen) if type(chosen[n]) is int]
            if names and what % 4:
                setattr(node.builtinOptions, names[how % len(names)], value % 2**31)
            elif len(node.inputs):
                node.inputs = np.array(node.inputs)
                node.inputs[how % len(node.inputs)] = value % (1 + len(graph.tensors))
    builder = flatbuffers.Builder(1024)
    try:
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    except (TypeError, struct.error, ValueError):  # more than a field can hold
        return content
    return bytes(builder.Output())


def read_tflite(data: bytes, folder: Path) -> str:
    return _read_network(data, folder / "net.tflite")


def _read_network(data: bytes, path: Path) -> str:
    from tvmtune import networks

    path.write_bytes(data)
    try:
        networks.load(str(path))
    except _error() as error:
        return _one_line(error)
    return ""


def _archive(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


KINDS = {
    "logs": Kind(make_log, read_log),
    "reports": Kind(make_report, read_report),
    "benchmarks": Kind(make_benchmark, read_benchmark),
    "libraries": Kind(make_library, read_library),
    "onnx": Kind(make_onnx, read_onnx),
    "greetings": Kind(make_greeting, read_greeting),
    "vta": Kind(make_vta, read_vta),
    "inputs": Kind(make_inputs, read_inputs),
    "programs": Kind(make_program, read_program),
    "tflite": Kind(make_tflite, read_tflite),
}

_made: dict[str, Any] = {}


def _cached(name: str, make: Callable[[], Any]) -> Any:
    if name not in _made:
        _made[name] = make()
    return _made[name]


def _error() -> type[Exception]:
    from tvmtune.errors import TvmtuneError

    return TvmtuneError


def _one_line(error: Exception) -> str:
    message = str(error)
    assert message
    assert "\n" not in message, message
    return message
