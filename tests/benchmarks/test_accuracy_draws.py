"""Accuracies beside AR's first seed and beside its others: by hand, and on comparisons that do not belong together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import accuracy_draws
from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.cli.app import app


def test_a_lucky_first_seed_makes_all_others_look_worse() -> None:
    first = np.array([1.0, 1.0, 1.0, 1.0])
    others = [np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0, 1.0])]
    right = {"exact": np.array([1.0, 0.0, 1.0, 0.0]), "other": np.array([1.0, 0.0, 0.0, 0.0])}
    ar, exact, other, mean = accuracy_draws.difference_rows(right, [first, *others], ["exact", "other"])
    assert (ar["prompt_accuracy"], ar["over_first_seed"], ar["over_other_seeds"]) == (1.0, 0.0, 0.5)
    assert (exact["over_first_seed"], exact["over_other_seeds"]) == (-0.5, 0.0)
    assert (other["over_first_seed"], other["over_other_seeds"]) == (-0.75, -0.25)
    assert (mean["method"], mean["prompt_accuracy"]) == ("mean of the lossless methods", 0.375)
    assert mean["over_other_seeds"] == pytest.approx(-0.125)
    assert exact["over_other_seeds_low"] < 0.0 < exact["over_other_seeds_high"]


def test_comparisons_that_do_not_belong_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128))

    def compared(name: str, *more: str) -> str:
        asked = ["compare", "--prompts-count", "2", "--out", str(tmp_path / name), *more]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, done.output
        return str(tmp_path / name)

    def refused(*arguments: Any) -> str:
        with pytest.raises(SystemExit) as stopped:
            accuracy_draws.main(list(arguments))
        assert stopped.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    base = compared("base", "--methods", "ar,eagle1")
    assert "expected three seeds of `ar` or more, got 2" in refused(
        base, compared("two", "--methods", "ar", "--seeds", "2")
    )
    cold = compared("cold", "--methods", "ar", "--seeds", "3", "--temperature", "0.5")
    assert "differ in temperature" in refused(base, cold)
    assert "no folder" in refused(base, str(tmp_path / "absent"))
