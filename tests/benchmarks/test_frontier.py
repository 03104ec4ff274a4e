"""Which methods are dominated, by speed and bias and by speed and quality, and the picture that shows it."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from benchmarks import frontier
from benchmarks.frontier_plot import MEASURES, draw_frontier, family_of
from tests.benchmarks.ending import figures
from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.cli.app import app
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.replay import Replay
from underpaint.runtime.page.document import ComparisonFolder

PROMPTS = tuple("abcdefgh")
AR_SECONDS = 1.0


def drawing(method: str, prompt: str, seconds: float) -> Drawing:
    return Drawing(method, prompt, 0, (), None, None, 1, 0, seconds, seconds, 0.0)


def compared(**methods: tuple[float, float | None, float]) -> ComparisonFolder:
    """Methods by name: how much faster than AR, their bias (None: lossless) and their loss of log-likelihood."""
    rows, drawings, replays = [], {}, []
    for name, (speed, bias, likelihood) in {"ar": (1.0, None, 0.0), **methods}.items():
        spread = {"log_likelihood_over_ar_low": likelihood - 0.01, "log_likelihood_over_ar_high": likelihood + 0.01}
        row = {"method": name, "lossless": bias is None, "images": len(PROMPTS), "speedup": speed, **spread}
        rows.append(
            {**row, "log_likelihood_over_ar": likelihood, "speedup_low": speed - 0.05, "speedup_high": speed + 0.05}
        )
        for place, prompt in enumerate(PROMPTS):
            drawings[name, prompt] = drawing(name, prompt, AR_SECONDS / speed * (1.0 + 0.01 * (place % 3)))
            if bias is not None:
                replays.append(Replay(name, prompt, 0, "tree", (), (), bias + 0.001 * (place - 3.5)))
    return ComparisonFolder({"rows": rows}, drawings, tuple(replays))


def found(**methods: tuple[float, float | None, float]) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in frontier.frontier(compared(**methods))}


def test_what_another_is_faster_than_at_no_more_bias_is_dominated() -> None:
    rows = found(exact=(1.5, None, 0.0), bold=(3.0, 0.2, -0.3), mild=(2.0, 0.1, -0.1), slow=(1.4, 0.3, -0.2))
    assert list(rows) == ["bold", "mild", "exact", "slow"]  # the fastest first, without the baseline
    assert rows["slow"]["token_bias_dominated"]["by"] == ["exact", "bold", "mild"]
    assert rows["slow"]["token_bias_dominated"]["clearly"] == ["exact", "bold", "mild"]
    assert rows["slow"]["log_likelihood_over_ar_dominated"]["by"] == ["exact", "mild"]
    for name in ("bold", "mild", "exact"):
        assert rows[name]["token_bias_dominated"] == {"by": [], "clearly": []}
    assert rows["mild"]["token_bias"] == pytest.approx(0.1)
    assert rows["mild"]["token_bias_low"] < 0.1 < rows["mild"]["token_bias_high"]
    assert (rows["exact"]["token_bias"], rows["exact"]["token_bias_high"]) == (0.0, 0.0)


def test_what_lies_within_the_noise_is_not_clear() -> None:
    """The one is a little less biased only, the other a little faster only."""
    rows = found(fast=(2.0, 0.1, 0.0), near=(1.5, 0.1005, 0.0))
    assert rows["near"]["token_bias_dominated"] == {"by": ["fast"], "clearly": []}
    folder = compared(fast=(1.5, 0.1, 0.0), near=(1.49, 0.3, 0.0))
    slow = {
        key: dataclasses.replace(one, seconds=one.seconds * (1.2 if key[1] in "abcd" else 0.83))
        for key, one in folder.drawings.items()
        if key[0] == "near"
    }
    mixed = dataclasses.replace(folder, drawings={**folder.drawings, **slow})
    rows = {row["method"]: row for row in frontier.frontier(mixed)}
    assert rows["near"]["token_bias_dominated"] == {"by": ["fast"], "clearly": []}


def test_a_likelihood_above_ar_s_is_no_better_than_ar_s() -> None:
    rows = found(exact=(2.0, None, 0.0), sharp=(1.5, 0.2, 0.5))
    assert rows["sharp"]["log_likelihood_over_ar_dominated"]["by"] == ["exact"]
    assert rows["exact"]["log_likelihood_over_ar_dominated"]["by"] == []
    assert MEASURES["token_bias"].loss(0.25) == 0.25
    assert MEASURES["accuracy_over_ar"].loss(-0.25) == 0.25


def test_bias_buys_what_it_gains_beyond_the_fastest_lossless_method() -> None:
    rows = found(exact=(1.5, None, 0.0), bold=(2.5, 0.2, 0.0), vain=(1.2, 0.1, 0.0))
    assert rows["bold"]["bought"] == pytest.approx(0.5)  # one time more, for 0.2: 0.5 for each 0.1
    assert rows["vain"]["bought"] == pytest.approx(-0.3)
    assert rows["exact"]["bought"] is None


def test_a_method_without_a_bias_stands_in_the_other_panels_alone() -> None:
    folder = compared(exact=(1.5, None, 0.0), mulo=(3.0, 0.2, -0.5))
    bare = dataclasses.replace(folder, replays=())
    rows = {row["method"]: row for row in frontier.frontier(bare)}
    assert rows["mulo"]["token_bias"] is None
    assert rows["mulo"]["bought"] is None
    assert rows["exact"]["token_bias_dominated"]["by"] == []
    assert Image.open(io.BytesIO(draw_frontier(frontier.frontier(bare)))).size[0] > 1000


def test_the_picture_is_small_and_shows_every_family() -> None:
    names = {"sjd": None, "lantern": 0.1, "gsd": 0.2, "zipar": 0.3, "mulo": 0.4}
    rows = frontier.frontier(
        compared(**{name: (2.0 + 0.1 * place, bias, 0.0) for place, (name, bias) in enumerate(names.items())})
    )
    assert {family_of(row) for row in rows} == {"lossless", "trees", "windows", "row fronts", "multi-scale"}
    drawn = draw_frontier(rows)
    assert len(drawn) < 120 * 1024
    colours = Image.open(io.BytesIO(drawn)).convert("RGB").getcolors(1 << 20)
    assert colours is not None
    assert len(colours) > 8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128))
    asked = ["compare", "--methods", "ar,eagle1,lantern,zipar", "--prompts-count", "3", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*asked, "--save-replay", "3"])
    assert done.exit_code == 0, done.output
    return tmp_path / "run"


def test_a_comparison_s_folder_becomes_rows_and_a_picture(folder: Path, tmp_path: Path, capsys: Any) -> None:
    picture = tmp_path / "frontier.png"
    told = figures(frontier.main, [str(folder), "--picture", str(picture)], tmp_path, capsys)
    assert {row["method"] for row in told["rows"]} == {"eagle1", "lantern", "zipar"}
    assert (told["pictures"], told["replays"]) == (3, 3)
    assert told["compared"]["command"]
    by_name = {row["method"]: row for row in told["rows"]}
    assert by_name["eagle1"]["token_bias"] == 0.0
    assert 0.0 < by_name["lantern"]["token_bias_low"] <= by_name["lantern"]["token_bias_high"] < 1.0
    assert by_name["zipar"]["token_bias"] > 0.0
    recorded = {row["method"]: row for row in json.loads((folder / "compare.json").read_text())["rows"]}
    for name, row in by_name.items():
        assert row["token_bias"] == pytest.approx(recorded[name]["token_bias"])
        assert row["speedup"] == recorded[name]["speedup"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_says_nothing_of_a_frontier_is_refused(folder: Path, tmp_path: Path, capsys: Any) -> None:
    def refused(place: Path) -> str:
        with pytest.raises(SystemExit) as stopped:
            frontier.main([str(place)])
        assert stopped.value.code == 2
        return str(capsys.readouterr().err.splitlines()[-1])

    (folder / "replays.jsonl").rename(tmp_path / "kept")
    assert "holds no replay that tells a bias; repeat its command with --save-replay" in refused(folder)
    (tmp_path / "kept").rename(folder / "replays.jsonl")
    (folder / "drawings.jsonl").unlink()
    assert "holds figures and no drawings.jsonl" in refused(folder)
    exact = ["compare", "--methods", "ar,eagle1", "--prompts-count", "1", "--out", str(tmp_path / "exact")]
    assert CliRunner().invoke(app, exact).exit_code == 0
    assert "every method is lossless" in refused(tmp_path / "exact")
    cold = ["compare", "--methods", "ar,lantern", "--prompts-count", "1", "--temperature", "0"]
    assert CliRunner().invoke(app, [*cold, "--out", str(tmp_path / "cold")]).exit_code == 0
    assert "at temperature 0 there is no distribution to be biased" in refused(tmp_path / "cold")
