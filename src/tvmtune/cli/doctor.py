"""``tvmtune doctor``: can this machine do the job?

TVM is only touched in a child process with a deadline, so that even a crash in native code becomes
a row that says where it happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from importlib import metadata

DEADLINE = 120.0
"""Seconds for the child: a first import of TVM from a cold disk alone can take 20."""
NEEDED_MB = 200
OPTIONAL = {
    "onnxruntime": "peers",
    "openvino": "peers",
    "torch": "torch",
    "onnxscript": "torch",
    "pnnx": "torch",
    "ncnn": "ncnn",
    "tflite": "tflite",
    "ai-edge-litert": "tflite",
}
"""Packages for other formats and runtimes, and the extra that installs each."""


@dataclass(frozen=True)
class Row:
    """One finding. Only ``fail`` makes the command exit with 1."""

    name: str
    status: Literal["pass", "fail", "note"]
    detail: str
    remedy: str = ""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.option("--build", is_flag=True, help="Compile what backends need: the OpenCL runtime.")
def command(as_json: bool, build: bool) -> None:
    """Check whether this machine can tune, and say what to do where it cannot."""
    rows = examine(build=build)
    ok = all(row.status != "fail" for row in rows)
    if as_json:
        click.echo(json.dumps({"ok": ok, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        _show(rows, ok)
    if not ok:
        sys.exit(1)


def examine(*, build: bool = False) -> list[Row]:
    """All rows, in the order in which a remedy for one may mend the next; add-ons compiled first
    where ``build``."""
    pins, linker = _pins(), _linker()
    child: dict[str, Any] = {}
    if pins.status == "pass":
        child = _run_child(_linker_command())
    rows = [_python(), pins, linker, _threads(child), _kernel(pins, linker, child)]
    return [*rows, *_places(), *_addons(build), *(_optional(name) for name in OPTIONAL)]


def _addons(build: bool) -> list[Row]:
    """A row for each entry point of the group ``tvmtune.addons``.

    It names a module with ``check() -> str``, one line on what it finds on this machine; and where it
    has to be compiled first, ``built() -> Path | None`` and ``build() -> Path``. Each raises
    TvmtuneError where that fails.
    """
    from importlib import metadata

    found = metadata.entry_points(group="tvmtune.addons")
    return [_addon(entry, build) for entry in sorted(found, key=lambda entry: entry.name)]


def _addon(entry: metadata.EntryPoint, build: bool) -> Row:
    made = ""
    try:
        addon = entry.load()
        if hasattr(addon, "build"):
            made = "compiled; "
            if build:
                addon.build()
            elif addon.built() is None:
                return Row(entry.name, "note", "not compiled (optional)", "tvmtune doctor --build")
    except Exception as exc:
        return Row(entry.name, "fail" if build else "note", _message(exc))
    try:
        return Row(entry.name, "pass", addon.check())
    except Exception as exc:
        return Row(entry.name, "note", f"{made}{_message(exc)}")


def _message(exc: Exception) -> str:
    from tvmtune.errors import TvmtuneError, last_line

    return str(exc) if isinstance(exc, TvmtuneError) else last_line(exc)


def _python() -> Row:
    import platform

    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 10):  # noqa: UP036 - reached where an installer did not check
        return Row("python", "fail", found, "use Python 3.10 or later")
    return Row("python", "pass", found)


def _pins() -> Row:
    from tvmtune import system
    from tvmtune.errors import TvmtuneError

    try:
        system.check_pins()
    except TvmtuneError as exc:
        detail = str(exc).split(" Run: ")[0]
        return Row("tvm", "fail", detail, f"run: {system.pins_remedy()}")
    return Row("tvm", "pass", ", ".join(f"{name} {v}" for name, v in system.PINS.items()))


def _linker_command() -> list[str] | None:
    from tvmtune import system
    from tvmtune.errors import TvmtuneError

    try:
        return system.find_linker()
    except TvmtuneError:
        return None


def _linker() -> Row:
    from tvmtune import system
    from tvmtune.errors import TvmtuneError

    try:
        return Row("linker", "pass", " ".join(system.find_linker()))
    except TvmtuneError as exc:
        return Row(
            "linker",
            "fail",
            str(exc).split(". ")[0],
            "install one (Debian, Ubuntu: sudo apt-get install binutils) "
            "or name its command in TVMTUNE_LINKER",
        )


def _threads(child: dict[str, Any]) -> Row:
    from tvmtune import system

    cpus = system.count_cpus()
    quota = "no quota" if cpus.quota is None else f"a quota of {cpus.quota:g}"
    detail = (
        f"{cpus.usable} used by tvmtune: {cpus.seen} CPUs seen, {cpus.allowed} allowed, "
        f"{cpus.physical} physical, {quota}"
    )
    if "tvm_threads" in child:
        detail += f"; TVM by itself would use {child['tvm_threads']}"
    return Row("threads", "pass", detail)


def _kernel(pins: Row, linker: Row, child: dict[str, Any]) -> Row:
    blocked = [row.name for row in (pins, linker) if row.status == "fail"]
    if child.get("error"):
        remedy = "report this with the output of tvmtune doctor --json"
        if child.get("stage") == "link":
            remedy = "name another linker in TVMTUNE_LINKER"
        return Row("kernel", "fail", child["error"], remedy)
    if blocked:
        return Row("kernel", "note", f"not tried: {' and '.join(blocked)} first")
    detail = f"built, linked, run and checked; largest error {child['difference']:.1e}"
    return Row("kernel", "pass", detail)


def _places() -> list[Row]:
    """The working directory, where results go, and the one for temporary files."""
    return [
        _place("directory", Path.cwd, "go to a directory that you may write to"),
        _place("temporary", lambda: Path(tempfile.gettempdir()), "set TMPDIR to a writable one"),
    ]


def _place(name: str, find: Callable[[], Path], remedy: str) -> Row:
    where = name
    try:
        where = str(find())
        free = shutil.disk_usage(where).free / 1e6
        with tempfile.TemporaryFile(dir=where) as file:
            file.write(b"0" * 4096)
    except OSError as exc:
        return Row(name, "fail", f"{where} cannot be used: {exc.strerror or exc}", remedy)
    detail = f"{where}, {free / 1e3:.1f} GB free"
    if free < NEEDED_MB:
        return Row(name, "fail", detail, f"free at least {NEEDED_MB:g} MB")
    return Row(name, "pass", detail)


def _optional(name: str) -> Row:
    from tvmtune import system

    found = system.version_of(name)
    if found:
        return Row(name, "pass", found)
    remedy = f"pip install 'tvmtune[{OPTIONAL[name]}]'"
    return Row(name, "note", "not installed (optional)", remedy)


def _run_child(linker: list[str] | None) -> dict[str, Any]:
    """Build one kernel in a fresh process; what it found, or ``error`` and the ``stage``."""
    code = (
        "from tvmtune import torchless; torchless.install(); "
        "from tvmtune.cli import doctor; doctor.try_kernel()"
    )
    # A file called numpy.py in the working directory must not be imported.
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    env.pop("TVM_NUM_THREADS", None)  # what would TVM do by itself?
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(linker),
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            timeout=DEADLINE,
        )
        output, status = done.stdout, done.returncode
        complaint = (done.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired as exc:
        output, status = _text(exc.stdout), None
        complaint = f"no end after {DEADLINE:g} s"
    except OSError as exc:
        return {"error": f"no child process could be started: {exc}", "stage": "start"}
    found: dict[str, Any] = {"stage": "start"}
    for line in output.splitlines():
        # Only whole lines of ours: a dying process may leave half of one, a library its own.
        if line.startswith("{") and line.endswith("}"):
            with contextlib.suppress(ValueError):
                found |= json.loads(line)
    if status != 0 or found["stage"] != "done":
        if status is not None and status < 0:
            complaint = f"crashed ({signal.strsignal(-status) or f'signal {-status}'})"
        found["error"] = f"{found['stage']}: {complaint or f'exit status {status}'}"
    return found


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def try_kernel() -> None:
    """The child's side: say each stage on stdout before entering it, then what was found."""
    linker = json.loads(sys.stdin.read())

    def say(**found: Any) -> None:
        print(json.dumps(found), flush=True)

    say(stage="import")
    import numpy as np
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    from tvmtune import system
    from tvmtune.graph import intrinsics
    from tvmtune.threads import settle

    say(stage="threads", tvm_threads=int(tvm.get_global_func("runtime.NumThreads")()))
    settle(system.usable_cpus())

    say(stage="build")
    size = 64
    a = te.placeholder((size, size), "float32", "a")
    b = te.placeholder((size, size), "float32", "b")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    schedule = tvm.s_tir.Schedule(mod)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("c"))[0])
    host = tvm.target.codegen.llvm_get_system_cpu()
    library = tvm.compile(schedule.mod, target=tvm.target.Target({"kind": "llvm", "mcpu": host}))

    with tempfile.TemporaryDirectory() as folder:
        kernel = library
        if linker is not None:
            say(stage="link")
            path = Path(folder) / "kernel.so"
            library.export_library(str(path), fcompile=_link_with(linker))
            kernel = tvm.runtime.load_module(str(path))

        say(stage="run")
        rng = np.random.default_rng(0)
        x, y = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
        out = tvm.runtime.tensor(np.zeros((size, size), np.float32))
        kernel["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), out)

    say(stage="check")
    want = x.astype(np.float64) @ y
    difference = float(np.abs(out.numpy() - want).max() / np.abs(want).max())
    if not difference < 1e-5:
        sys.exit(f"wrong answer: max|y - ref| / max|ref| is {difference:.1e}")

    # Versions of tvm-ffi that do not fit crash here.
    say(stage="search")
    intrinsics.load_for("llvm")
    ms.TuneContext(
        mod=mod,
        target=tvm.target.Target({"kind": "llvm", "num-cores": 1}),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        num_threads=1,
    )
    say(stage="done", difference=difference)


def _link_with(linker: list[str]) -> Any:
    def link(output: str, objects: list[str], **_: Any) -> None:
        done = subprocess.run(
            [*linker, "-shared", "-o", output, *objects], capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{linker[0]}: {done.stderr.strip() or f'exit status {done.returncode}'}")

    return link


def _show(rows: list[Row], ok: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    colours = {"pass": "green", "fail": "bold red", "note": "yellow"}
    width = max(len(row.name) for row in rows)
    console = Console(highlight=False, soft_wrap=True)
    for row in rows:
        # A line per row, not a table: a remedy is to be copied in one piece.
        console.print(
            Text.assemble((row.status, colours[row.status]), f"  {row.name:<{width}}  {row.detail}")
        )
        if row.remedy:
            console.print(Text(f"      {'':<{width}}  {row.remedy}", style="cyan"))
    verdict = "this machine can tune" if ok else "something needs mending first"
    console.print(Text(verdict, style="green" if ok else "bold red"))
