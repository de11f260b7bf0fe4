"""The end of ``tune``: compile, verify, time, and ship what is quicker: tuned or untuned."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmtune.errors import TvmtuneError

if TYPE_CHECKING:
    import numpy as np

    from tvmtune.api import Plan
    from tvmtune.deploy.library import Library


def ship(
    plan: Plan,
    log: Path,
    output: Path,
    peers: list[Any],
    *,
    seed: int,
    inputs: dict[str, np.ndarray] | None = None,
) -> None:
    """Compile the tuned library to ``output``, check it, and print the table.

    ``inputs`` are checked and timed, too, instead of random ones.

    The untuned library is timed in the same minutes; should it be the quicker one, it is shipped.
    Raises :class:`TvmtuneError` if the outputs are wrong; nothing is written then.
    """
    from tvmtune import api
    from tvmtune.cli.bench import show
    from tvmtune.cli.compile import describe
    from tvmtune.deploy.atomic import replacing
    from tvmtune.deploy.bench import bench
    from tvmtune.deploy.library import Library as Loaded
    from tvmtune.deploy.verify import run_check

    click.echo("compiling the tuned and the untuned library", err=True)
    with tempfile.TemporaryDirectory(prefix="tvmtune-ship-") as folder:
        tuned = api.compile(plan, Path(folder) / "tuned.so", [log], check_seed=seed)
        untuned = api.compile(plan, Path(folder) / "untuned.so", check_seed=seed)
        library, baseline = Loaded.open(tuned.path), Loaded.open(untuned.path)
        verdict = run_check(library, tuned.metadata["check"])
        before = _median(baseline)
        best = tuned
        if not verdict.passed:
            verdict = run_check(baseline, untuned.metadata["check"])
            if not verdict.passed:
                raise TvmtuneError(
                    f"the outputs are {verdict}, tuned and untuned: nothing is written"
                )
            click.echo(
                "the tuned library's outputs are wrong: the untuned one is shipped", err=True
            )
            best, library = untuned, baseline
        elif before < _median(library):
            click.echo("the untuned library is the quicker one: it is shipped", err=True)
            best, library = untuned, baseline
        if inputs is not None:
            _check_inputs(plan, library, inputs)
        result = bench(library, inputs=inputs, seed=seed, peers=peers, network=plan.network)
        result.runs[0].check = verdict
        with replacing(output) as fresh:
            shutil.copyfile(best.path, fresh)
    show(result)
    for note in result.notes:
        click.echo(f"note: {note}", err=True)
    measured = result.runs[0].median_ms
    estimate = best.metadata["estimate_ms"]
    click.echo(f"the output is {verdict}")
    click.echo(
        f"untuned {before * 1e3:.3f} ms, now {measured:.3f} ms"
        + (f", {estimate:.3f} ms estimated from its kernels" if estimate else "")
    )
    click.echo(describe(replace(best, path=output)))


def _check_inputs(plan: Plan, library: Library, inputs: dict[str, np.ndarray]) -> None:
    """Compare the outputs for the user's own inputs with the reference."""
    from tvmtune.accuracy import TOLERANCE, relative_error

    pairs = zip(library.run(inputs), plan.network.reference(inputs), strict=True)
    worst = max((relative_error(got, want) for got, want in pairs), default=0.0)
    if not worst <= TOLERANCE:
        raise TvmtuneError(
            f"the outputs for the given inputs are wrong (max|y - ref| / max|ref| = {worst:.1e}): "
            "nothing is written"
        )
    click.echo(f"the outputs for the given inputs are right ({worst:.1e})")


def _median(library: Library) -> float:
    from statistics import median

    from tvmtune.networks.inputs import random_inputs

    return median(library.time(random_inputs(library.inputs, 0), repeat=10))
