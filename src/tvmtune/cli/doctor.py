"""``tvmtune doctor``: check whether this machine can tune.

Only a child process with a deadline loads TVM, so that even a crash in native code becomes a row with
the stage at which it happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
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

from tvmtune.cli import project_file
from tvmtune.cli.json_output import emit, json_flag
from tvmtune.command_help import PROJECT_FILE, Command
from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    from importlib import metadata

DEADLINE = 120.0
"""Seconds for the child process: importing TVM from a cold disk alone can take 20."""
NEEDED_MB = 200
EXTRAS = ("peers", "torch", "ncnn", "tflite")
"""Extras of tvmtune with packages for other formats and runtimes."""


Status = Literal["pass", "fail", "note"]


@dataclass(frozen=True)
class CheckRow:
    """The result of one check. Only ``fail`` makes the command exit with 1."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


@click.command(
    "doctor",
    cls=Command,
    examples=[
        ("Check this machine", "tvmtune doctor"),
        ("Compile the OpenCL runtime, then check", "tvmtune doctor --build"),
    ],
    docs="docs/opencl.md, docs/gpu.md",
)
@click.option(
    "--build",
    is_flag=True,
    help="Compile what backends need, such as the OpenCL runtime, before the checks.",
)
@json_flag("list")
def command(as_json: bool, build: bool) -> None:
    """Check whether this machine can tune.

    Builds and runs one kernel, lists what is installed, and says how to get what is missing.
    Exits with 1 if this machine cannot tune.
    """
    rows = examine(build=build)
    ok = all(row.status != "fail" for row in rows)
    if as_json:
        emit({"ok": ok, "rows": [asdict(row) for row in rows]})
    else:
        _show(rows, ok)
    if not ok:
        sys.exit(1)


def examine(*, build: bool = False) -> list[CheckRow]:
    """All rows, causes before consequences; with ``build``, compile add-ons first."""
    pins, linker = _pins(), _linker()
    child: dict[str, Any] = {}
    if pins.status == "pass":
        child = _run_child(_linker_command())
    rows = [_python(), pins, linker, _threads(child), _kernel(pins, linker, child)]
    return [*rows, *_places(), *_settings(), *_addons(build), *_optional()]


def _settings() -> list[CheckRow]:
    """The project file and the environment variables that set options."""
    rows = []
    ctx = click.get_current_context(silent=True)
    if ctx is not None and (path := ctx.meta.get(PROJECT_FILE)):
        try:
            found = project_file.read(Path(path))
            found.check(ctx.find_root())
            rows.append(CheckRow("project file", "pass", f"{path}: {found.summary()}"))
        except TvmtuneError as exc:
            rows.append(
                CheckRow("project file", "fail", str(exc), f"fix {path}, or use --no-config")
            )
    set_here = sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("TVMTUNE_") and "SECRET" not in name
    )
    if set_here:
        rows.append(CheckRow("environment", "pass", " ".join(set_here)))
    return rows


def _addons(build: bool) -> list[CheckRow]:
    """A row for each entry point of the group ``tvmtune.addons``.

    That is a module with ``check() -> str``, one line on what it finds on this machine; and, if it has
    to be compiled first, ``built() -> Path | None`` and ``build() -> Path``. Each raises TvmtuneError
    on failure.
    """
    from importlib import metadata

    entries = metadata.entry_points(group="tvmtune.addons")
    return [_addon(entry, build) for entry in sorted(entries, key=lambda entry: entry.name)]


def _addon(entry: metadata.EntryPoint, build: bool) -> CheckRow:
    prefix = ""
    try:
        addon = entry.load()
        if hasattr(addon, "build"):
            prefix = "compiled; "
            if build:
                addon.build()
            elif addon.built() is None:
                return CheckRow(
                    entry.name, "note", "not compiled (optional)", "tvmtune doctor --build"
                )
    except Exception as exc:
        return CheckRow(entry.name, "fail" if build else "note", _message(exc))
    try:
        return CheckRow(entry.name, "pass", addon.check())
    except Exception as exc:
        return CheckRow(entry.name, "note", f"{prefix}{_message(exc)}")


def _message(exc: Exception) -> str:
    from tvmtune.errors import TvmtuneError, last_line

    return str(exc) if isinstance(exc, TvmtuneError) else last_line(exc)


def _python() -> CheckRow:
    import platform

    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 10):  # noqa: UP036 - reached if an installer did not check
        return CheckRow("python", "fail", detail, "use Python 3.10 or later")
    return CheckRow("python", "pass", detail)


def _pins() -> CheckRow:
    from tvmtune.errors import TvmtuneError
    from tvmtune.machine import package_versions

    try:
        package_versions.check_pins()
    except TvmtuneError as exc:
        detail = str(exc).split(" Run: ")[0]
        return CheckRow("tvm", "fail", detail, f"run: {package_versions.pins_remedy()}")
    return CheckRow(
        "tvm", "pass", ", ".join(f"{name} {v}" for name, v in package_versions.PINS.items())
    )


def _linker_command() -> list[str] | None:
    from tvmtune.errors import TvmtuneError
    from tvmtune.machine import linkers

    try:
        return linkers.find_linker()
    except TvmtuneError:
        return None


def _linker() -> CheckRow:
    from tvmtune.errors import TvmtuneError
    from tvmtune.machine import linkers

    try:
        return CheckRow("linker", "pass", " ".join(linkers.find_linker()))
    except TvmtuneError as exc:
        return CheckRow(
            "linker",
            "fail",
            str(exc).split(". ")[0],
            "install one (Debian, Ubuntu: sudo apt-get install binutils) "
            "or name its command in TVMTUNE_LINKER",
        )


def _threads(child: dict[str, Any]) -> CheckRow:
    from tvmtune.machine import cpu_count

    cpus = cpu_count.count_cpus()
    quota = "no quota" if cpus.quota is None else f"a quota of {cpus.quota:g}"
    detail = (
        f"tvmtune uses {cpus.usable}: {cpus.seen} CPUs seen, {cpus.allowed} allowed, "
        f"{cpus.physical} physical, {quota}"
    )
    if "tvm_threads" in child:
        detail += f"; TVM alone would use {child['tvm_threads']}"
    return CheckRow("threads", "pass", detail)


def _kernel(pins: CheckRow, linker: CheckRow, child: dict[str, Any]) -> CheckRow:
    blocked = [row.name for row in (pins, linker) if row.status == "fail"]
    if child.get("error"):
        remedy = "report this with the output of tvmtune doctor --json"
        if child.get("stage") == "link":
            remedy = "name another linker in TVMTUNE_LINKER"
        return CheckRow("kernel", "fail", child["error"], remedy)
    if blocked:
        return CheckRow("kernel", "note", f"not tried: fix {' and '.join(blocked)} first")
    detail = f"built, linked, run and checked; largest error {child['difference']:.1e}"
    return CheckRow("kernel", "pass", detail)


def _places() -> list[CheckRow]:
    """The working directory, where results go, and the directory for temporary files."""
    return [
        _place("directory", Path.cwd, "change to a writable directory"),
        _place(
            "temporary", lambda: Path(tempfile.gettempdir()), "set TMPDIR to a writable directory"
        ),
    ]


def _place(name: str, find: Callable[[], Path], remedy: str) -> CheckRow:
    where = name
    try:
        where = str(find())
        free = shutil.disk_usage(where).free / 1e6
        with tempfile.TemporaryFile(dir=where) as file:
            file.write(b"0" * 4096)
    except OSError as exc:
        return CheckRow(name, "fail", f"{where} cannot be used: {exc.strerror or exc}", remedy)
    detail = f"{where}, {free / 1e3:.1f} GB free"
    if free < NEEDED_MB:
        return CheckRow(name, "fail", detail, f"free at least {NEEDED_MB:g} MB")
    return CheckRow(name, "pass", detail)


def _optional() -> list[CheckRow]:
    """A row for each package of :data:`EXTRAS`, as tvmtune's own metadata list them."""
    from importlib import metadata

    from tvmtune.bench.peers import PEERS
    from tvmtune.machine import package_versions

    remedies = {peer.package: peer().remedy for peer in PEERS.values()}
    try:
        requirements = metadata.requires("tvmtune") or []
    except metadata.PackageNotFoundError:  # run from a checkout
        return []
    rows: dict[str, CheckRow] = {}
    for extra in EXTRAS:
        for requirement in requirements:
            match = re.match(rf"([\w.-]+).*;.*\bextra == ['\"]{extra}['\"]", requirement)
            if match is None or match[1] in rows:
                continue
            version = package_versions.version_of(match[1])
            if version:
                row = CheckRow(match[1], "pass", version)
            else:
                remedy = remedies.get(match[1], f"pip install 'tvmtune[{extra}]'")
                row = CheckRow(match[1], "note", "not installed (optional)", remedy)
            rows[match[1]] = row
    return list(rows.values())


def _run_child(linker: list[str] | None) -> dict[str, Any]:
    """Build one kernel in a fresh process; returns its results, or ``error`` and the ``stage``."""
    code = (
        "from tvmtune import block_torch_import; block_torch_import.install(); "
        "from tvmtune.cli import doctor; doctor.try_kernel()"
    )
    # Do not import a file called numpy.py from the working directory.
    env = os.environ | {"PYTHONSAFEPATH": "1"}
    env.pop("TVM_NUM_THREADS", None)  # to see TVM's default
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
        reason = (done.stderr.strip().splitlines() or [""])[-1]
    except subprocess.TimeoutExpired as exc:
        output, status = _text(exc.stdout), None
        reason = f"timed out after {DEADLINE:g} s"
    except OSError as exc:
        return {"error": f"no child process could be started: {exc}", "stage": "start"}
    results: dict[str, Any] = {"stage": "start"}
    for line in output.splitlines():
        # Only whole lines of JSON: a dying process may leave half a line, a library may print others.
        if line.startswith("{") and line.endswith("}"):
            with contextlib.suppress(ValueError):
                results |= json.loads(line)
    if status != 0 or results["stage"] != "done":
        if status is not None and status < 0:
            reason = f"crashed ({signal.strsignal(-status) or f'signal {-status}'})"
        results["error"] = f"{results['stage']}: {reason or f'exit status {status}'}"
    return results


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def try_kernel() -> None:
    """Run in the child: report each stage on stdout before entering it, then the results."""
    linker = json.loads(sys.stdin.read())

    def report(**results: Any) -> None:
        print(json.dumps(results), flush=True)

    report(stage="import")
    import numpy as np
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    from tvmtune.machine import cpu_count, processor
    from tvmtune.machine.threads import bind_pool
    from tvmtune.spaces import tensor_intrinsics

    report(stage="threads", tvm_threads=int(tvm.get_global_func("runtime.NumThreads")()))
    bind_pool(cpu_count.usable_cpus())

    report(stage="build")
    size = 64
    a = te.placeholder((size, size), "float32", "a")
    b = te.placeholder((size, size), "float32", "b")
    k = te.reduce_axis((0, size), "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
    schedule = tvm.s_tir.Schedule(mod)
    schedule.parallel(schedule.get_loops(schedule.get_sblock("c"))[0])
    host = processor.name()
    library = tvm.compile(schedule.mod, target=tvm.target.Target({"kind": "llvm", "mcpu": host}))

    with tempfile.TemporaryDirectory() as folder:
        kernel = library
        if linker is not None:
            report(stage="link")
            path = Path(folder) / "kernel.so"
            library.export_library(str(path), fcompile=_link_with(linker))
            kernel = tvm.runtime.load_module(str(path))

        report(stage="run")
        rng = np.random.default_rng(0)
        x, y = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
        out = tvm.runtime.tensor(np.zeros((size, size), np.float32))
        kernel["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y), out)

    report(stage="check")
    want = x.astype(np.float64) @ y
    difference = float(np.abs(out.numpy() - want).max() / np.abs(want).max())
    if not difference < 1e-5:
        sys.exit(f"wrong output: max|y - ref| / max|ref| is {difference:.1e}")

    # Wrong versions of tvm-ffi crash here.
    report(stage="search")
    tensor_intrinsics.load_for("llvm")
    ms.TuneContext(
        mod=mod,
        target=tvm.target.Target({"kind": "llvm", "num-cores": 1}),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        num_threads=1,
    )
    report(stage="done", difference=difference)


def _link_with(linker: list[str]) -> Any:
    def link(output: str, objects: list[str], **_: Any) -> None:
        done = subprocess.run(
            [*linker, "-shared", "-o", output, *objects], capture_output=True, text=True
        )
        if done.returncode != 0:
            sys.exit(f"{linker[0]}: {done.stderr.strip() or f'exit status {done.returncode}'}")

    return link


def _show(rows: list[CheckRow], ok: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    colors = {"pass": "green", "fail": "bold red", "note": "yellow"}
    width = max(len(row.name) for row in rows)
    console = Console(highlight=False, soft_wrap=True)
    for row in rows:
        # A line per row, not a table, so that a remedy can be copied in one piece.
        console.print(
            Text.assemble((row.status, colors[row.status]), f"  {row.name:<{width}}  {row.detail}")
        )
        if row.remedy:
            console.print(Text(f"      {'':<{width}}  {row.remedy}", style="cyan"))
    verdict = "this machine can tune" if ok else "this machine cannot tune yet: fix what failed"
    console.print(Text(verdict, style="green" if ok else "bold red"))
