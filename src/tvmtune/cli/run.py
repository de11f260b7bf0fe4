"""``tvmtune run``: run a library once and show its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmtune.cli.options import PATH, library_options
from tvmtune.cli.paths import check_writable
from tvmtune.cli.resolve import lease_board, library_inputs

if TYPE_CHECKING:
    import numpy as np


@click.command("run")
@library_options("Run on a board registered under KEY.")
@click.option(
    "--output",
    "output_file",
    metavar="FILE.npz",
    type=PATH,
    help="Write the outputs to this file, one array each.",
)
def command(
    library: Path,
    input_file: Path | None,
    output_file: Path | None,
    threads: int | None,
    seed: int,
    remote: str | None,
    tracker: str | None,
    wait: float,
) -> None:
    """Run a library once and print a summary of its outputs.

    LIB runs on this machine, or on a board (--remote).
    """
    if output_file is not None:
        check_writable("--output", output_file, library, input_file)
    from tvmtune.runtime.library import Library

    with lease_board(remote, tracker, wait) as board:
        loaded = Library.open(library, threads, board=board)
        inputs = library_inputs(loaded, input_file, seed)
        outputs = loaded.run(inputs)
    for spec, array in zip(loaded.outputs, outputs, strict=True):
        click.echo(f"{spec}: {_summary(array)}")
    if output_file is not None:
        names = [spec.name for spec in loaded.outputs]
        _write(output_file, dict(zip(names, outputs, strict=True)))


def _summary(array: np.ndarray) -> str:
    if array.size == 0:
        return "empty"
    values = array.astype("float64")
    return (
        f"mean {values.mean():.4g}, min {values.min():.4g}, max {values.max():.4g} "
        f"at {int(values.argmax())}"
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
