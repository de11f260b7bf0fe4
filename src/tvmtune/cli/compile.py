"""``tvmtune compile``: from a network and its records to a library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import messages, phases
from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import PATH, network_options, output_option, shipped_records_option
from tvmtune.cli.paths import check_library, check_writable
from tvmtune.cli.resolve import make_plan, network_name
from tvmtune.command_help import Command, section
from tvmtune.library import SHARED, STATIC

if TYPE_CHECKING:
    from tvmtune.compiling.compile import Compiled
    from tvmtune.types import JSON


@click.command(
    "compile",
    cls=Command,
    examples=[
        (
            "Compile with the records of a log",
            "tvmtune compile mobilenet --log mobilenet.json -o mobilenet.so",
        ),
        (
            "Compile a model file, without tuning it",
            "tvmtune compile model.onnx --shape data:1x3x224x224",
        ),
        (
            "Compile for a board, without access to it",
            "tvmtune compile mobilenet --target arm --target-attr board=rk3588",
        ),
        (
            "Compile an archive to link into a C++ program",
            "tvmtune compile mobilenet -o mobilenet.a",
        ),
    ],
    docs="docs/deploy.md, docs/shipped-records.md",
)
@network_options("Compile for boards:")
@section(
    "Records",
    click.option(
        "--log",
        "logs",
        multiple=True,
        type=PATH,
        metavar="LOG",
        help="Log whose records to use, or directory of a MetaSchedule database. Repeatable.",
    ),
    shipped_records_option,
)
@section(
    "Library",
    output_option("Library to write: .so, or .o, .a or .tar to link into a program."),
    click.option(
        "--seed",
        default=0,
        metavar="N",
        show_default=True,
        help="Seed of the random inputs for checking the output, now and with bench --check.",
    ),
    click.option(
        "--emit-module",
        type=PATH,
        metavar="FILE",
        help="Also write the prepared Relax module to FILE, as TVMScript.",
    ),
)
@section("General", json_flag("summary"))
def command(
    logs: tuple[Path, ...],
    no_shipped_records: bool,
    output: Path | None,
    seed: int,
    emit_module: Path | None,
    as_json: bool,
    **network: Any,
) -> None:
    """Compile a network into a library.

    Each task (a fused kernel) uses its best record in the given logs; without one, a record that
    comes with tvmtune for the target's processor and number of threads, or its model of GPU; without
    that, a default schedule.

    If this machine can run the library, its output is compared with that of a reference, such as ONNX
    Runtime. If the error exceeds the tolerance, more accurate kernels are used; if the output is still
    wrong, nothing is written and the exit code is 1.
    """
    from tvmtune.records.database import check_kind
    from tvmtune.records.log import read_log

    given = network_name(network["network"], network["positional"])
    for path in logs:
        check_kind(path)  # fail on a wrong log before anything slow
        if not path.is_dir():
            read_log(path)
    if output is not None:
        check_library("-o", output, *logs, given, suffixes=SHARED + STATIC)
    if emit_module is not None:
        check_writable("--emit-module", emit_module, output, *logs, given)
    with phases.shown(verbose=messages.shown(messages.DEBUG)):
        plan = make_plan(**network)
        from tvmtune.library import static_library

        target = output or plan.default_library()
        check_library("-o", target, *logs, given, suffixes=SHARED + STATIC)
        if static_library.is_static(target):
            static_library.check_device(target, plan.device)

        from tvmtune import api
        from tvmtune.atomic_write import write_text

        if emit_module is not None:
            write_text(emit_module, plan.prepared.graph.script(show_meta=False))
        compiled = api.compile(
            plan, target, logs, check_seed=seed, shipped_records=not no_shipped_records
        )
    if compiled.warning:
        messages.warning(f"warning: {compiled.warning}")
    if as_json:
        emit(describe_json(compiled))
    else:
        click.echo(describe(compiled))


def describe_json(compiled: Compiled) -> JSON:
    """What was compiled; the whole metadata is what ``tvmtune inspect --json`` prints."""
    stored = compiled.metadata
    return {
        "path": str(compiled.path),
        "bytes": compiled.path.stat().st_size,
        "network": stored["network"]["name"],
        "device": stored["device"],
        "threads": stored["threads"],
        "tasks": {"total": stored["tasks"]["total"], **compiled.counts},
        "estimate_ms": stored["estimate_ms"],
        "fallbacks": compiled.fallbacks,
        "unverified": list(compiled.unverified),
        "warning": compiled.warning or None,
    }


def describe(compiled: Compiled) -> str:
    """The library, and how many of its tasks have a record; further lines say what is unusual."""
    from tvmtune.cli.output import counted

    counts = compiled.counts
    total = compiled.metadata["tasks"]["total"]
    size = compiled.path.stat().st_size / 1e6
    lines = [
        f"{compiled.path}: {size:.1f} MB, {counted(total, 'task')}: {counts['exact']} with a record, "
        f"{counts['anchor']} with that of a similar task, "
        + (f"{counts['shipped']} with a shipped record, " if counts["shipped"] else "")
        + f"{counts['default']} with the default schedule; "
        + counted(compiled.metadata["threads"], "thread")
    ]
    if compiled.fallbacks:
        lines.append(
            f"{counted(compiled.fallbacks, 'task')} fell back to more accurate kernels: with the "
            "fastest, the network's error exceeded the tolerance"
        )
    if compiled.unverified:
        lines.append(
            f"the kernels of {', '.join(compiled.unverified)} are used unverified: the check of "
            "their output never finished. tvmtune tune with the same log checks them again"
        )
    return "\n".join(lines)
