"""``tvmtune tune --dtype auto``: a library for each dtype, and a table of their times and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.cli import messages
from tvmtune.cli.resolve import INT8_OPTIONS, make_plan
from tvmtune.cli.tune_one import TuneRequest, files_of, tune_one
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.tasks.dtypes import FLOAT32, INT8, to_compare

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.bench.dtypes import DtypeComparison
    from tvmtune.tasks.plan import Plan
    from tvmtune.types import JSON, Network


def tune_each(
    request: TuneRequest, network: Mapping[str, Any], log: Path | None, output: Path | None
) -> JSON:
    """Tune the network in float32 and in each other dtype of the device; then compare the libraries.

    ``network`` are the options of :func:`tvmtune.cli.options.network_options`. ``log`` and ``output``
    name the files for float32; the others' get the dtype appended. Returns the documents of the dtypes
    and the comparison, None if no libraries were made.
    """
    plans = _plan_each(request, network)
    float_network, device = plans[FLOAT32].network, plans[FLOAT32].device
    # What is wrong with files is said before hours of tuning.
    samples = _samples(request, network, float_network)
    files = {dtype: (_variant(log, dtype), _variant(output, dtype)) for dtype in plans}
    for dtype, plan in plans.items():
        files_of(request, plan, *files[dtype])
    documents: dict[str, JSON] = {}
    for dtype in files:
        messages.info(f"\n{dtype} ({len(documents) + 1} of {len(files)})")
        documents[dtype] = tune_one(request, plans.pop(dtype), *files[dtype])
    compared = None
    if not (request.dry_run or request.no_compile):
        from tvmtune.bench.dtypes import compare

        messages.info("\ncomparing the libraries")
        libraries = {dtype: Path(document["output"]) for dtype, document in documents.items()}
        comparison = compare(
            float_network,
            libraries,
            device,
            samples,
            repeat=request.bench_repeat,
            wait=request.options.wait,
            say=messages.info,
        )
        if not request.as_json:
            _show(comparison)
        compared = comparison.to_json()
    return {"runs": documents, "comparison": compared}


def _plan_each(request: TuneRequest, network: Mapping[str, Any]) -> dict[str, Plan]:
    """Plans by dtype. Raises :class:`UsageError` if there is none besides float32, and for options of
    int8 that have no effect or do not fit."""
    purpose: Any = "describe" if request.dry_run else "measure"

    def plan(dtype: str) -> Plan:
        own: dict[str, Any] = {"dtype": dtype}
        own |= {} if dtype == INT8 else dict.fromkeys(INT8_OPTIONS)
        return make_plan(**{**network, **own}, purpose=purpose)

    plans = {FLOAT32: plan(FLOAT32)}
    dtypes, notes = to_compare(plans[FLOAT32])
    given = [option for option in INT8_OPTIONS if network[option] is not None]
    if given and INT8 not in dtypes:
        option = f"--{given[0].replace('_', '-')}"
        raise UsageError(f"{option} has no effect: {network['target']} does not compute in int8")
    for dtype in dtypes:
        try:
            plans[dtype] = plan(dtype)
        except TvmtuneError as error:
            if given and dtype == INT8:
                raise
            notes.append(f"{dtype} is left out: {error}")
    if len(plans) == 1:
        raise UsageError("--dtype auto finds nothing to compare with float32: " + "; ".join(notes))
    for note in notes:
        messages.info(f"note: {note}")
    return plans


def _variant(path: Path | None, dtype: str) -> Path | None:
    """The file of one dtype, for a path that the user gave."""
    if path is None or dtype == FLOAT32:
        return path
    return path.with_name(f"{path.stem}-{dtype}{path.suffix}")


def _samples(
    request: TuneRequest, options: Mapping[str, Any], network: Network
) -> Sequence[Mapping[str, np.ndarray]]:
    """The user's inputs: those of ``--input``, or else of ``--calibration``; random ones otherwise."""
    from tvmtune.networks.inputs import read_inputs, read_samples
    from tvmtune.quantize.calibrate import split_runs

    inputs = network.inputs
    if request.input_file is not None:
        return [read_inputs(request.input_file, inputs)]
    if options["calibration"] is not None:
        data = read_samples(options["calibration"], inputs)
        return split_runs(network, data, "the calibration data")
    return ()


def _show(comparison: DtypeComparison) -> None:
    from rich.table import Table
    from rich.text import Text

    from tvmtune.cli.output import console

    results = comparison.results
    shown = [each for each in results if each.agreement is not None]
    table = Table(title="dtypes", title_justify="left")
    table.add_column("dtype", no_wrap=True)
    columns = ["median ms", "float32 / this", "error", "MB"]
    if shown:
        columns.insert(3, "same class")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("library", overflow="fold")
    for each in results:
        ms = each.time.latency_ms
        cells = [each.dtype, f"{ms:.3f}", f"{results[0].time.latency_ms / ms:.2f}x"]
        cells.append(f"{each.error:.1e}")
        if shown:
            cells.append("" if each.agreement is None else f"{each.agreement:.0%}")
        cells += [f"{each.path.stat().st_size / 1e6:.1f}", str(each.path)]
        table.add_row(*map(Text, cells))
    console().print(table)
    for note in comparison.bench.notes:
        messages.info(f"note: {note}")
    inputs = f"{comparison.samples} inputs"
    if comparison.random:
        inputs = f"{comparison.samples} random inputs (--input and --calibration take real ones)"
    click.echo(f"error: max|y - ref| / max|ref| against float32, over {inputs}")
    fastest = comparison.fastest
    click.echo(f"fastest: {fastest.dtype} ({fastest.path}); all {len(results)} libraries are kept")
