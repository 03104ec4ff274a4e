"""`underpaint tune`, its preset files, and `underpaint protocol`, on small models of random weights."""

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer

from tests.cli.program import Ran, run_program
from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from tests.cli.test_killed import kill_when, lines_of, start
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.results import read_results
from underpaint.cli import protocol as protocol_command
from underpaint.cli.evaluation.prompts import PromptOptions
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import option_words
from underpaint.cli.runs import draw_run
from underpaint.cli.tune import ModelOptions, _other_prompts
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.runtime.protocol import protocol, tuning

pytestmark = pytest.mark.usefixtures("rough_costs")
TUNE = "tune --models {} --resolution 64 --methods eagle2 --temperatures 1 --prompts-count 4 --candidates 3 --out t"
PROTOCOL = "protocol --models {} --resolution 64 --methods eagle2,zipar --preset tuned --prompts-scale 0.01 --out p"


def test_a_killed_search_goes_on_and_its_preset_draws(
    tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = TUNE.format(small_models)
    log = tmp_path / "t" / "eagle2-t1" / "drawings.jsonl"
    kill_when(start(["-m", "underpaint", *line.split()], tmp_path), lambda: lines_of(log) >= 3)
    content = log.read_bytes()
    ran = run_program(line, tmp_path, monkeypatch)
    assert ran.code == 0, ran.err + ran.crash
    assert log.read_bytes().startswith(content[: content.rfind(b"\n") + 1])
    preset = json.loads((tmp_path / "t" / "preset.json").read_text())
    chosen = preset["methods"]["eagle2"]["sampled"]
    assert chosen["lossless"]
    assert chosen["measured"]["images"] == 4
    assert preset["tuning"]["prompts"] == {"skip": 0, "count": 4}
    again = run_program(line, tmp_path, monkeypatch)
    assert again.code == 0
    assert "round" not in again.err
    use = f"--models {small_models} --resolution 64 --preset t/preset.json"
    ran = run_program(
        f"compare {use} --methods eagle2 --prompts-count 1 --prompts-skip 4 --out c", tmp_path, monkeypatch
    )
    assert ran.code == 0, ran.err + ran.crash
    figures = read_results(tmp_path / "c" / "compare.json")
    assert figures["settings"]["preset"] == "preset.json"
    assert figures["settings"]["methods"]["eagle2"] == chosen["config"]
    words = shlex.quote("a woolly fox left of an outlined pumpkin")
    assert run_program(f"generate {words} --method eagle2 {use} --out x.png", tmp_path, monkeypatch).code == 0
    evaluated = f"evaluate {use} --methods eagle2 --prompts-count 1 --jobs 0 --out e".replace("64 ", "64 --seeds 1 ")
    assert run_program(evaluated, tmp_path, monkeypatch).code == 0
    for wrong, message in (
        (f"compare {use} --methods adt --out y", "holds no settings of 'adt'"),
        (f"compare {use} --methods eagle2 --temperature 0 --out y", "got temperature 1 alone; tune it with"),
        (f"compare {use.replace('n 64', 'n 128')} --methods eagle2 --out y", "tuned on other models than those of"),
        (f"compare {use} --backend device --quantization int8 --methods eagle2 --out y", "were not quantised to int8"),
        (f"generate {words} --preset t/preset.json --method eagle2 --out y.png", "tuned on other models than those of"),
        (line.replace("--candidates 3", "--candidates 2"), "is of another tuning (it differs in candidates)"),
    ):
        ran = run_program(wrong, tmp_path, monkeypatch)
        assert ran.code == 2
        assert message in ran.err, ran.err
    assert not list(tmp_path.glob("y*"))
    text = (tmp_path / "t" / "preset.json").read_text()
    for old, new, message in (
        ('"preset_version": 1', '"preset_version": 2', "expected 'preset_version': 1, got 2"),
        ('"temperature": 1.0', '"temperature": 0', "'greedy' is of temperature 0"),
        ('"top_k": ', '"top_k": 1', "tune again"),
        ('"tuning"', '"tunings"', "tunings"),
        ("{", "[", "expected JSON"),
    ):
        assert old in text
        (tmp_path / "wrong.json").write_text(text.replace(old, new))
        ran = run_program(f"compare {use} --methods eagle2 --out y".replace("t/preset", "wrong"), tmp_path, monkeypatch)
        assert ran.code == 2
        assert message in ran.err, ran.err


def test_what_is_built_for_the_models_is_no_part_of_a_preset_file(
    tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LANTERN's k is scaled to the codebook, and Sequoia's tree is planned by measured costs."""
    tuned = TUNE.format(small_models).replace("eagle2", "lantern,sequoia").replace("--candidates 3", "--candidates 2")
    tuned += " --within 9 --measure log-likelihood"
    for _ in range(2):
        ran = run_program(tuned, tmp_path, monkeypatch)
        assert ran.code == 0, ran.err + ran.crash
    assert "round" not in ran.err
    use = f"--models {small_models} --resolution 64 --preset t/preset.json --methods lantern,sequoia"
    ran = run_program(f"compare {use} --prompts-count 1 --prompts-skip 4 --out c", tmp_path, monkeypatch)
    assert ran.code == 0, ran.err + ran.crash
    drawn_by = read_results(tmp_path / "c" / "compare.json")["settings"]["methods"]
    assert drawn_by["lantern"]["rule_settings"]["k"]
    assert drawn_by["sequoia"]["cost_curve"]
    assert drawn_by["sequoia"]["policy_settings"]["verify_ms"]


class Hashed(SyntheticPipeline):
    """Synthetic models that have a file, by which a preset file knows them. more: other entries of the fingerprint."""

    more: ClassVar[Mapping[str, Any]] = {}

    def fingerprint(self) -> Mapping[str, Any]:
        return {**super().fingerprint(), "sha256": {"synthetic": "0" * 64}, **self.more}


class WithoutDrafter(Hashed):
    def drafter(self, sampling: SamplingParams) -> Any:
        raise ValueError("there is no drafter here")


def test_what_is_tuned_later_joins_the_preset_file_unless_it_is_sampled_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_models(monkeypatch, lambda side: Hashed())
    path, prompts = tmp_path / "t" / "preset.json", "--prompts-count 4 --candidates 2 --out t"

    def tuned(methods: str, temperatures: str, more: str = "") -> Ran:
        line = f"tune --resolution 64 --methods {methods} --temperatures {temperatures} {prompts} {more}"
        return run_program(line, tmp_path, monkeypatch)

    def heats() -> list[float | None]:
        chosen = json.loads(path.read_text())["methods"]["eagle2"]
        return [chosen[kind] and chosen[kind]["temperature"] for kind in ("sampled", "greedy")]

    for temperatures, expected in (("1", [1.0, None]), ("0", [1.0, 0.0]), ("0.5", [0.5, 0.0])):
        ran = tuned("eagle2", temperatures)
        assert ran.code == 0, ran.err + ran.crash
        assert heats() == expected
    use = "--preset t/preset.json --methods eagle2 --resolution 64 --temperature 0.5 --prompts-skip 4"
    assert f"next: underpaint compare {use} reports them on other prompts" in ran.out
    ran = tuned("speculative", "0")
    use = "--preset t/preset.json --methods eagle2,speculative --resolution 64 --temperature 0 --prompts-skip 4"
    assert f"next: underpaint compare {use} reports them on other prompts" in ran.out
    again = tuned("eagle2", "0.5,0")
    assert again.code == 0, again.err + again.crash
    assert "round" not in again.err
    other = "is of another tuning (it differs in sampling)"
    refused = tuned("eagle2,speculative", "0.5,0", "--top-k 3")
    assert (refused.code, other in refused.err) == (2, True), refused
    preset = json.loads(path.read_text())
    assert preset["tuning"]["sampling"] == {"guidance": 2.0, "top_k": 0, "top_p": 1.0}


def test_settings_of_another_engine_or_machine_are_not_taken_for_tuned_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_models(monkeypatch, lambda side: Hashed())
    line = "tune --resolution 64 --methods speculative --temperatures 1 --prompts-count 4 --candidates 1 --out t"
    assert run_program(line, tmp_path, monkeypatch).code == 0
    machine = {**describe_machine(), "processor": "another"}
    for where, name, value, differs in (
        (Hashed, "more", {"engine": "cuda", "threads": 3, "low": {"grids": []}}, "engine, low, threads"),
        (tuning, "describe_machine", lambda: machine, "processor"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            ran = run_program(line, tmp_path, monkeypatch)
        assert (ran.code, ran.crash) == (2, "")
        assert f"is of another tuning (it differs in {differs})" in ran.err
    assert run_program(line, tmp_path, monkeypatch).code == 0
    path = tmp_path / "t" / "preset.json"
    preset = json.loads(path.read_text())
    del preset["model"]["engine"]
    path.write_text(json.dumps({**preset, "machine": {}}))
    use = "--resolution 64 --preset t/preset.json --methods speculative --prompts-count 1 --out c"
    ran = run_program(f"compare {use}", tmp_path, monkeypatch)
    assert ran.code == 0, ran.err + ran.crash


def test_the_next_command_names_the_models_and_other_prompts() -> None:
    live = LiveOptions(live=Path("my model"), dtype="bfloat16", compile=True)
    assert option_words(live) == ["--live", "my model", "--dtype", "bfloat16", "--compile"]
    assert option_words(ModelOptions(models=Path("m"), low=Path("l"), top_k=5)) == [
        "--models",
        "m",
        "--top-k",
        "5",
        "--low",
        "l",
    ]
    assert _other_prompts(PromptOptions(), 32) == ["--prompts-skip", "32"]
    file = PromptOptions(prompts_file=Path("p.txt"), prompts_skip=2, skip_unknown=True)
    assert _other_prompts(file, 32) == ["--prompts", "OTHER"]  # all its prompts were tuned on
    some = _other_prompts(replace(file, prompts_count=8), 8)
    assert some == ["--prompts", "p.txt", "--prompts-skip", "10", "--skip-unknown"]


def test_a_bound_is_asked_for_and_needs_what_measures_it(
    tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models"
    shutil.copytree(small_models, models)
    index = json.loads((models / "model_index.json").read_text())
    index["judge"] = None
    (models / "model_index.json").write_text(json.dumps(index))
    line = TUNE.format(models).replace("eagle2", "zipar")
    for changed, message in (
        (line, "method 'zipar': it is relaxed, so tuning it needs a bound of quality; pass --within"),
        (f"{line} --measure log-likelihood", "--measure needs --within, the largest loss; add it, or leave it out"),
        (f"{line} --within 0.1", "holds no judge to measure quality by; pass --measure log-likelihood"),
    ):
        ran = run_program(changed, tmp_path, monkeypatch)
        assert ran.code == 2, ran.crash
        assert message in ran.err
        assert not (tmp_path / "t").exists()
    ran = run_program(f"{line} --within 9 --measure log-likelihood", tmp_path, monkeypatch)
    assert ran.code == 0, ran.err + ran.crash
    preset = json.loads((tmp_path / "t" / "preset.json").read_text())
    measured = preset["methods"]["zipar"]["sampled"]["measured"]
    assert measured["quality_over_ar"] >= -9
    assert preset["tuning"]["within"] == {"measure": "log-likelihood", "drop": 9.0}


def test_a_protocol_of_two_prompts_ends_in_a_record_and_cards(
    tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = PROTOCOL.format(small_models)
    log = tmp_path / "p" / "drawings.jsonl"
    ran = run_program(f"{line} --estimate", tmp_path, monkeypatch)
    assert ran.code == 0, ran.err + ran.crash
    assert "estimate for this machine: drawing" in ran.err + ran.out
    assert lines_of(log) == 1 + 10  # one prompt by five entries at two temperatures
    assert run_program(f"{line} --no-draw", tmp_path, monkeypatch).code == 0
    early = read_results(tmp_path / "p" / "protocol.json")
    assert {row["images"] for run in early["runs"] for row in run["results"]["rows"]} == {1}
    kill_when(start(["-m", "underpaint", *line.split()], tmp_path), lambda: lines_of(log) >= 14)
    ran = run_program(line, tmp_path, monkeypatch)
    assert ran.code == 0, ran.err + ran.crash
    assert lines_of(log) == 1 + 20
    record = read_results(tmp_path / "p" / "protocol.json")
    assert [run["results"]["settings"]["temperature"] for run in record["runs"]] == [1.0, 0.0]
    for run in (one["results"] for one in record["runs"]):
        names = ["ar", "eagle2", "eagle2 (paper)", "zipar", "zipar (paper)"]
        assert [row["method"] for row in run["rows"]] == names
        assert {row["images"] for row in run["rows"]} == {2}
        assert run["protocol"]["version"] == 1
        assert run["protocol"]["drawn"] == run["protocol"]["planned"] == 20
        assert run["cost_curve"]["knee"]
    cold = {row["method"]: row for row in record["runs"][1]["results"]["rows"]}
    assert cold["eagle2"]["identical_share"] == 1.0
    card = (tmp_path / "p" / "cards" / "eagle2.md").read_text()
    assert "| tuned | 1 |" in card
    assert "| 2 of 2 | 2 |" in card
    ranked = run_program("results rank p/protocol.json p/protocol.json --json -", tmp_path, monkeypatch)
    rows = json.loads(ranked.out)
    assert len(rows) == 10
    assert rows[0]["sides"]["A"] == rows[0]["sides"]["B"]
    for wrong, message in (
        (f"{line} --within 0.1", "--within applies to the tuning, which --preset skips"),
        (f"{line} --measure judge", "--measure applies to the tuning, which --preset skips"),
        (f"{line} --candidates 16", "--candidates applies to the tuning, which --preset skips"),
        (line.replace("set tuned", "set paper"), "expected tuned or a file of `underpaint tune`, got 'paper'"),
        (f"{line} --prompts-count 3", "the protocol chooses its prompts"),
        (line.replace("--out p", "--no-draw --out q"), "the first round is not drawn yet"),
        (line.replace("zipar", "adt"), "belongs to another comparison"),
    ):
        ran = run_program(wrong, tmp_path, monkeypatch)
        assert ran.code == 2, ran.crash
        assert message in ran.err, ran.err


def test_repeated_drawings_of_plain_autoregression_are_resumed_and_reported_once(
    tmp_path: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PLAIN_EVERY", 1)
    line, log = PROTOCOL.format(small_models).replace("eagle2,zipar", "zipar"), tmp_path / "p" / "drawings.jsonl"
    for more, lines in (("--estimate", 1 + 8), ("", 1 + 16), ("--no-draw", 1 + 16)):
        ran = run_program(f"{line} {more}", tmp_path, monkeypatch)
        assert ran.code == 0, ran.err + ran.crash
        assert lines_of(log) == lines
    for run in (one["results"] for one in read_results(tmp_path / "p" / "protocol.json")["runs"]):
        assert run["protocol"]["drawn"] == run["protocol"]["planned"] == 16
        plain, *others = run["rows"]
        assert (plain["method"], plain["images"], plain["speedup"]) == ("ar", 2, 1.0)
        drawings = [json.loads(one) for one in log.read_text().splitlines()[1:]]
        at = {1.0: None, 0.0: 1}[run["settings"]["temperature"]]
        seconds = [one["seconds"] for one in drawings if one["method"] == "ar" and one.get("model") == at]
        assert len(seconds) == 4
        assert plain["seconds_per_image"] == pytest.approx(sum(seconds) / 4)
        for row in others:
            assert row["speedup"] == pytest.approx(plain["seconds_per_image"] / row["seconds_per_image"])


SYNTHETIC = "protocol --methods speculative --prompts-scale 0.001 --candidates 1 --out p"
FROM_PRESET = SYNTHETIC.replace("--candidates 1", "--preset tuned")


@pytest.mark.parametrize("line", [SYNTHETIC, FROM_PRESET])
def test_a_protocol_that_compares_nothing_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    replace_models(monkeypatch, lambda side: WithoutDrafter())
    ran = run_program(line, tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, "")
    assert "draw by at temperature 1, got none; name others" in ran.err
    assert "The first, speculative at temperature 1: there is no drafter here" in ran.err
    assert not (tmp_path / "p").exists()


def test_an_estimate_is_told_where_nothing_is_drawn_or_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_models(monkeypatch, lambda side: Hashed())
    measured: list[bool] = []
    monkeypatch.setattr(protocol_command, "curve_for", lambda *_, measure=True: measured.append(measure))
    for more in ("--estimate", "--estimate --no-draw"):
        ran = run_program(f"{FROM_PRESET} {more}", tmp_path, monkeypatch)
        assert (ran.code, ran.crash) == (0, ""), ran.err
        assert "estimate for this machine: drawing" in ran.out + ran.err
    assert measured == [True, False]


def test_an_interrupt_before_the_first_reported_drawing_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_models(monkeypatch, lambda side: Hashed())

    def interrupted(*arguments: Any, **more: Any) -> None:
        if "drawing rounds" in arguments:
            raise typer.Exit(130)
        draw_run(*arguments, **more)

    monkeypatch.setattr(protocol_command, "draw_run", interrupted)
    ran = run_program(SYNTHETIC, tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (130, ""), ran.err
    assert "error" not in ran.err
    assert not (tmp_path / "p" / "protocol.json").exists()
