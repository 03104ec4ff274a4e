import numpy as np
import pytest

import benchmarks.mulo as benchmark
from tests.benchmarks.ending import figures
from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(side or 128))
    monkeypatch.setattr(benchmark, "MATCH_PROMPTS", 2)
    monkeypatch.setattr(benchmark, "ROUGH_PROMPTS", 2)
    monkeypatch.setattr(benchmark, "HALVINGS", 5)


def test_the_ablation_ends_in_a_table_and_goes_on_where_it_was(tmp_path, capsys):
    asked = ["--prompts-count", "3", "--folder", str(tmp_path / "work")]
    found = figures(benchmark.main, asked, tmp_path, capsys)
    assert "sampler bicubic" in found["left_out"]
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) | set(found["left_out"]) == {one.label for one in benchmark.VARIANTS}
    reference = rows["local + expansion"]["kept_share"]
    assert reference == pytest.approx(rows["plain local, matched"]["kept_share"], abs=0.4)
    assert rows["plain local, same tau"]["kept_share"] >= reference
    assert rows["row fronts in drafting, no repair"]["kept_share"] == 1.0
    assert {one["figure"] for one in found["orderings"]} == {
        "prompt_accuracy",
        "attribute_log_probability",
        "speedup",
    }
    for one in found["orderings"]:
        if one["figure"] == "speedup":
            assert one["holds"] == (one["found"][0] > one["found"][1])
        else:
            apart = rows[one["better"]][one["figure"]] - rows[one["worse"]][one["figure"]]
            assert one["difference"] == pytest.approx(apart)
            assert one["low"] <= one["difference"] <= one["high"]
            assert one["holds"] == (apart > 0)
    held = (tmp_path / "work" / "drawings.jsonl").read_bytes()
    again = figures(benchmark.main, asked, tmp_path, capsys)
    assert again["rows"] == found["rows"]
    assert (tmp_path / "work" / "drawings.jsonl").read_bytes() == held


def test_a_threshold_is_matched_by_what_it_keeps(monkeypatch):
    pipeline = SyntheticPipeline(128)
    one = benchmark.Variant("", "plain", "mulo", ("radius=0",))
    tau = benchmark.matched_tau(pipeline, one, 0.5, pipeline.sampling)
    above, below = (
        benchmark.kept_share(pipeline, benchmark.built(pipeline, one, f"tau={factor * tau:.5f}"), pipeline.sampling)
        for factor in (0.3, 3.0)
    )
    assert above > 0.5 > below


@pytest.mark.parametrize(
    ("steep", "shift", "expected"),
    [
        (0.05, 0.0, "line"),  # few prompts tell what all do
        (0.05, 0.2, "line"),  # all prompts lie a little beside the few
        (0.05, 3.0, "end"),  # far beside: no further than a bracket beyond the one that the few chose
        (0.0, 0.0, "middle"),  # the share of all never falls: the middle of the bracket
    ],
)
def test_a_threshold_lies_on_the_line_through_what_all_prompts_keep(monkeypatch, steep, shift, expected):
    """Shares fall evenly with the logarithm: `shift` is by how much the wanted place of all prompts lies beside the
    place of the few, -6, in its own units."""
    asked = []

    def kept(pipeline, method, sampler, count=None):
        place = np.log(method)
        asked.append(count)
        return 0.5 - 0.05 * (place + 6) if count else 0.5 - steep * (place + 6 - shift)

    monkeypatch.setattr(benchmark, "MATCH_PROMPTS", 48)
    monkeypatch.setattr(benchmark, "ROUGH_PROMPTS", 12)
    monkeypatch.setattr(benchmark, "kept_share", kept)
    monkeypatch.setattr(benchmark, "built", lambda pipeline, one, setting: float(setting.removeprefix("tau=")))
    tau = benchmark.matched_tau(None, None, 0.5, None)
    assert asked == [12] * 5 + [None] * 2
    width = -np.log(benchmark.LEAST_TAU) / 2**5
    low = -width * np.ceil(6 / width)
    assert low <= -6 <= low + width
    places = {"line": -6 + shift, "end": low + 2 * width, "middle": low + width / 2}
    assert np.log(tau) == pytest.approx(places[expected])


def test_a_few_variants_are_drawn_by_settings_of_their_own(tmp_path, capsys):
    asked = ["--prompts-count", "2", "--variants", "plain local, matched", "pooled", "--set", "k=7", "--set", "tau=0.2"]
    found = figures(benchmark.main, [*asked, "--folder", str(tmp_path / "work")], tmp_path, capsys)
    assert [row["method"] for row in found["rows"]] == ["ar", "local + expansion", "plain local, matched", "pooled"]
    methods = found["settings"]["methods"]
    assert {methods[name]["settings"]["k"] for name in methods if name != "ar"} == {7}
    assert methods["pooled"]["settings"]["tau"] == methods["local + expansion"]["settings"]["tau"] == 0.2
    assert methods["plain local, matched"]["settings"]["tau"] == found["matched_taus"]["plain local, matched"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--set", "tua=0.2"], "tua"),
        (["--variants", "expansion"], "invalid choice: 'expansion'"),
        (["--variants", "ar"], "expected one beside ar"),
    ],
)
def test_bad_variants_and_settings_are_told_before_any_work(tmp_path, capsys, asked, told):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main([*asked, "--folder", str(tmp_path / "work"), "--prompts-count", "2"])
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "work" / "drawings.jsonl").exists()
