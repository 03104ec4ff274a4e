"""The notebook of the documents: every cell, in order, in one namespace, as a kernel would run them."""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def cells() -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    notebook_cells: list[dict[str, Any]] = notebook["cells"]
    return notebook_cells


def test_the_notebook_is_stored_without_results() -> None:
    notebook_cells = cells()
    assert len({one["id"] for one in notebook_cells}) == len(notebook_cells)
    code = [one for one in notebook_cells if one["cell_type"] == "code"]
    assert all(one["outputs"] == [] and one["execution_count"] is None for one in code)
    assert not re.search(r"[\w/]+/home/|/tmp/", NOTEBOOK.read_text(encoding="utf-8"))


def test_every_cell_of_the_notebook_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib.pyplot as plt

    from underpaint.algos.accept import RULES

    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    module: dict[str, Any] = {"__name__": "tutorial"}
    try:
        for number, one in enumerate(cells()):
            if one["cell_type"] == "code":
                exec(compile("".join(one["source"]), f"{NOTEBOOK.name}, cell {number}", "exec"), module)
    finally:
        plt.close("all")
        for name in ("backwards", "well_enough"):
            RULES._specs.pop(name, None)
    assert module["exact"].total_variation < 1e-12
    assert (module["good"].lossless, module["bad"].lossless) == (True, False)
    assert [row.method for row in module["report"].rows] == ["ar", "eagle2", "adt+lantern"]
    assert "well_enough is NOT lossless" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
