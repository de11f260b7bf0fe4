"""The notebook in ``examples/`` runs from top to bottom, and says what it is said to say."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "examples/tune.ipynb"


def test_the_notebook_is_stored_without_outputs():
    book = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code
    assert [c.source for c in code if c.outputs or c.execution_count] == []


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    for package in ("ipykernel", "matplotlib", "onnxruntime", "pandas"):
        pytest.importorskip(package)
    nbclient = pytest.importorskip("nbclient")
    book = nbformat.read(NOTEBOOK, 4)
    nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = {
        cell.source.split("(")[0].split("\n")[0]: cell.outputs
        for cell in book.cells
        if cell.cell_type == "code"
    }
    shown = [output for outputs in cells.values() for output in outputs]
    assert [o for o in shown if o.output_type == "stream" and o.name == "stderr"] == []
    tuning = cells["session = tvmtune.tune"]
    # Besides there may be messages, for example that the machine has become slow.
    (table,) = (output for output in tuning if output.output_type == "display_data")
    (result,) = (output for output in tuning if output.output_type == "execute_result")
    # The last state of the table: it was updated in place, until the session ended.
    assert "16 trials, estimate" in table.data["text/plain"]
    assert table.data["text/html"].startswith("<pre")
    assert result.data["text/plain"].startswith("(16,")
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert "best_ms" not in str(cells)  # the printed table shows the columns that it names
