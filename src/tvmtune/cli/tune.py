"""``tvmtune tune``: from a network to a tuned, verified, timed library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvmtune.cli import completion, dtypes
from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import (
    DURATION,
    PATH,
    bench_repeat_option,
    duration_option,
    network_options,
    output_option,
    shipped_records_option,
    tasks_option,
    vs_option,
    wait_option,
)
from tvmtune.cli.parsing import parse_pairs
from tvmtune.cli.resolve import make_plan, network_name, refuse_with
from tvmtune.cli.tune_one import TuneRequest, tune_one
from tvmtune.command_help import Command, section
from tvmtune.tasks.dtypes import AUTO
from tvmtune.tuning.budget import FAILURE_RATE, PATIENCE, SECONDS, Budget
from tvmtune.tuning.tuners import TUNERS


@click.command(
    "tune",
    cls=Command,
    examples=[
        (
            "Tune a network of the zoo for half an hour, and compare with ONNX Runtime",
            "tvmtune tune mobilenet --time-budget 30m --vs onnxruntime",
        ),
        (
            "Tune a model file with 500 trials; the same command resumes the log",
            "tvmtune tune model.onnx --shape data:1x3x224x224 --trials 500 -o model.so",
        ),
        (
            "Tune for the GPU of a board",
            "tvmtune tune mobilenet --target mali --remote rk3588@tracker:9190",
        ),
        (
            "Compare float32, bfloat16 and int8, with real images for the int8 scales",
            "tvmtune tune resnet-18 --dtype auto --calibration images.npz --time-budget 10m",
        ),
    ],
    docs="docs/networks.md, docs/tuners.md, docs/log-format.md, docs/farm.md",
)
@network_options(
    "Tune on boards:",
    wait_option("10m", "How long to wait for a board, or for a machine of --build-cluster."),
)
@section(
    "When to stop",
    click.option(
        "--trials",
        type=int,
        metavar="N",
        help="Stop when the log holds N trials, or when no candidate is left.",
    ),
    click.option(
        "--trials-per-task", type=int, metavar="N", help="Measure at most N trials of each task."
    ),
    click.option(
        "--time-budget",
        type=DURATION,
        metavar="TIME",
        show_default=f"{SECONDS / 60:.0f}m without --trials or --trials-per-task",
        help="Stop after TIME, e.g. 90s, 30m or 1h30m.",
    ),
    click.option(
        "--patience",
        type=int,
        metavar="N",
        show_default=f"{PATIENCE} without any other limit",
        help="Stop when the last N trials lowered the estimated latency by less than 1%.",
    ),
    click.option(
        "--task-patience",
        type=int,
        metavar="N",
        help="Stop tuning a task when its last N trials improved it by less than 1%.",
    ),
    click.option(
        "--max-failure-rate",
        default=FAILURE_RATE,
        show_default=True,
        metavar="FRACTION",
        help="Abort when more than this fraction of the recent trials failed.",
    ),
)
@section(
    "Search",
    click.option(
        "--tuner",
        default="xgb",
        metavar="NAME",
        show_default=True,
        help=f"Tuner: {', '.join(TUNERS)}.",
        shell_complete=completion.completer(completion.tuners),
    ),
    click.option(
        "--tuner-option",
        multiple=True,
        metavar="K=V",
        help="Option of the tuner, e.g. population=256 for xgb. Repeatable.",
    ),
    click.option(
        "--scheduler",
        default="gradient",
        metavar="NAME",
        show_default=True,
        help="Task scheduler: gradient, round-robin or sequential.",
        shell_complete=completion.completer(completion.schedulers),
    ),
    tasks_option,
    click.option(
        "--transfer-from",
        multiple=True,
        type=PATH,
        metavar="LOG",
        help="Learn from the log of another network or device. Repeatable.",
    ),
    shipped_records_option,
    click.option("--seed", default=0, metavar="N", show_default=True, help="Seed of the search."),
)
@section(
    "Measurement",
    click.option(
        "--number",
        default=1,
        metavar="N",
        show_default=True,
        help="Calls per repeat. With 1, a CPU's weights come from memory.",
    ),
    click.option("--repeat", default=10, metavar="N", show_default=True, help="Repeats per trial."),
    click.option(
        "--min-repeat-ms",
        default=0,
        metavar="MS",
        show_default=True,
        help="Minimum duration of one repeat, in milliseconds.",
    ),
    duration_option("--build-timeout", "Time limit for building one candidate.", default="20s"),
    duration_option("--run-timeout", "Time limit for running one candidate.", default="10s"),
    click.option(
        "--build-cluster",
        metavar="ADDRESS",
        help="Build candidates on a Dask cluster, e.g. tcp://HOST:8786.",
    ),
)
@section(
    "Log and library",
    click.option(
        "--log",
        type=PATH,
        metavar="FILE",
        show_default="named after the network and target, e.g. resnet-18-NHWC-B1-cpu.json",
        help="Log of the trials; an existing one is resumed.",
    ),
    click.option("--fresh", is_flag=True, help="Start a new log; an existing one is renamed."),
    output_option("Library to write."),
    click.option("--no-compile", is_flag=True, help="Stop after tuning; write no library."),
    click.option(
        "--input",
        "input_file",
        type=PATH,
        metavar="FILE.npz",
        show_default="random inputs",
        help="Inputs to check and time the library with: one array per input, by name.",
    ),
    vs_option,
    bench_repeat_option("--bench-repeat", "Repeats of the benchmark at the end."),
)
@section(
    "General",
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print what would be tuned, without building or running anything.",
    ),
    json_flag("table"),
)
@click.pass_context
def command(
    ctx: click.Context,
    trials: int | None,
    trials_per_task: int | None,
    time_budget: float | None,
    patience: int | None,
    task_patience: int | None,
    max_failure_rate: float,
    tuner: str,
    tuner_option: tuple[str, ...],
    transfer_from: tuple[Path, ...],
    no_shipped_records: bool,
    scheduler: str,
    only: str | None,
    number: int,
    repeat: int,
    min_repeat_ms: int,
    build_timeout: float,
    run_timeout: float,
    wait: float,
    build_cluster: str | None,
    log: Path | None,
    fresh: bool,
    seed: int,
    dry_run: bool,
    no_compile: bool,
    vs: str | None,
    bench_repeat: int | None,
    input_file: Path | None,
    output: Path | None,
    as_json: bool,
    **network: Any,
) -> None:
    """Tune a network, then compile, verify and time it.

    Measures variants of each kernel on the device, and keeps the fastest. An existing log is resumed:
    its trials count toward --trials and --patience, and none is measured again.

    With --dtype auto, all this is done in each dtype that suits the device, each with its own log,
    library and limits, and a table compares their times and errors.
    """
    from tvmtune.bench.peers import parse
    from tvmtune.tuning.options import TuneOptions
    from tvmtune.types import Timing

    given = network_name(network["network"], network["positional"])
    if no_compile:
        refuse_with(ctx, "no_compile", "vs", "bench_repeat", "output", "input_file")
    if dry_run:
        refuse_with(ctx, "dry_run", "fresh")
    options = TuneOptions(
        budget=Budget(
            trials=trials,
            seconds=time_budget,
            per_task=trials_per_task,
            patience=patience,
            task_patience=task_patience,
            failure_rate=max_failure_rate,
        ),
        timing=Timing(number, repeat, min_repeat_ms, build_timeout, run_timeout),
        tuner=tuner,
        tuner_options=parse_pairs("--tuner-option", tuner_option),
        scheduler=scheduler,
        seed=seed,
        wait=wait,
        build_cluster=build_cluster,
        shipped_records=not no_shipped_records,
    )
    request = TuneRequest(
        options=options,
        given=given,
        only=only,
        peers=parse(vs) if vs else [],
        bench_repeat=bench_repeat,
        input_file=input_file,
        transfer_from=transfer_from,
        fresh=fresh,
        no_compile=no_compile,
        dry_run=dry_run,
        as_json=as_json,
    )
    if network["dtype"] == AUTO:
        document = dtypes.tune_each(request, network, log, output)
    else:
        plan = make_plan(**network, purpose="describe" if dry_run else "measure")
        document = tune_one(request, plan, log, output)
    if as_json:
        emit(document)
