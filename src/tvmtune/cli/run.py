"""``tvmtune run``: a library's outputs for given inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import numpy as np


@click.command("run")
@click.argument("library", metavar="LIB", type=click.Path(path_type=Path))
@click.option(
    "--input",
    "input_file",
    metavar="FILE.npz",
    type=click.Path(path_type=Path),
    help="Inputs, one array for each; random ones without it.",
)
@click.option(
    "--output",
    "output_file",
    metavar="FILE.npz",
    type=click.Path(path_type=Path),
    help="Where to write the outputs, one array for each.",
)
@click.option("--threads", type=int, help="CPU threads; by default as many as it was tuned for.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random inputs.")
@click.option("--remote", metavar="KEY", hidden=True)
def command(
    library: Path,
    input_file: Path | None,
    output_file: Path | None,
    threads: int | None,
    seed: int,
    remote: str | None,
) -> None:
    """Run the library LIB once and say what came out."""
    from tvmtune.errors import UsageError

    if remote:
        raise UsageError("remote runs need the farm, which this version does not have")
    from tvmtune.deploy.library import Library
    from tvmtune.networks.inputs import random_inputs, read_inputs

    loaded = Library.open(library, threads)
    if input_file is None:
        inputs = random_inputs(loaded.inputs, seed)
    else:
        inputs = read_inputs(input_file, loaded.inputs)
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

    from tvmtune.deploy.atomic import cannot_write, replacing

    with replacing(path) as temporary:
        try:
            # Through an open file, or NumPy adds .npz to names that lack it.
            with temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as exc:
            raise cannot_write(path, exc) from exc
