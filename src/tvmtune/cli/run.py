"""``tvmtune run``: run a library once and show its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmtune.cli.json_output import emit, json_flag
from tvmtune.cli.options import PATH, library_options
from tvmtune.cli.paths import check_writable
from tvmtune.cli.resolve import lease_board, library_inputs
from tvmtune.command_help import Command, section

if TYPE_CHECKING:
    import numpy as np


@click.command(
    "run",
    cls=Command,
    examples=[
        ("Run on your own inputs", "tvmtune run mobilenet.so --input x.npz --output y.npz"),
        ("Run on a board", "tvmtune run mobilenet.so --remote ssh://pi@192.168.1.5"),
    ],
    docs="docs/deploy.md, docs/json.md",
)
@section(
    "Outputs",
    click.option(
        "--output",
        "output_file",
        metavar="FILE.npz",
        type=PATH,
        help="Write the outputs to FILE.npz, one array per output.",
    ),
)
@library_options("Run on a board:")
@section("General", json_flag("summary"))
def command(
    library: Path,
    input_file: Path | None,
    output_file: Path | None,
    threads: int | None,
    seed: int,
    remote: str | None,
    tracker: str | None,
    wait: float,
    as_json: bool,
) -> None:
    """Run a library once and summarize its outputs.

    Prints the mean, minimum and maximum of each output of LIB, and the index of the maximum.
    """
    if output_file is not None:
        check_writable("--output", output_file, library, input_file)
    from tvmtune.runtime.library import Library

    with lease_board(library, remote, tracker, wait) as board:
        loaded = Library.open(library, threads, board=board)
        inputs = library_inputs(loaded, input_file, seed)
        outputs = loaded.run(inputs)
    if not as_json:
        for spec, array in zip(loaded.outputs, outputs, strict=True):
            click.echo(f"{spec}: {_summary(array)}")
    if output_file is not None:
        names = [spec.name for spec in loaded.outputs]
        _write(output_file, dict(zip(names, outputs, strict=True)))
    if as_json:
        emit(
            {
                "library": str(library),
                "threads": loaded.threads,
                "outputs": [
                    spec.to_json() | _statistics(array)
                    for spec, array in zip(loaded.outputs, outputs, strict=True)
                ],
                "output_file": None if output_file is None else str(output_file),
            }
        )


def _statistics(array: np.ndarray) -> dict[str, float | int | None]:
    """``argmax`` counts values in row-major order; None for all if the output is empty."""
    if array.size == 0:
        return dict.fromkeys(("mean", "min", "max", "argmax"))
    values = array.astype("float64")
    return {
        "mean": float(values.mean()),
        "min": float(values.min()),
        "max": float(values.max()),
        "argmax": int(values.argmax()),
    }


def _summary(array: np.ndarray) -> str:
    if array.size == 0:
        return "empty"
    found = _statistics(array)
    return (
        f"mean {found['mean']:.4g}, min {found['min']:.4g}, max {found['max']:.4g} "
        f"at {found['argmax']}"
    )


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    import numpy as np

    from tvmtune.atomic_write import cannot_write, replacing

    with replacing(path) as temporary:
        try:
            # An open file, because NumPy adds .npz to names without it.
            with temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as exc:
            raise cannot_write(path, exc) from exc
