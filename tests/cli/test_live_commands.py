"""`--live FOLDER` in the commands that measure: sweep, evaluate, trace, premises, costs and check."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.program import Ran, run_program
from tests.runtime.live.tiny_models import MODELS, SIDE
from tests.runtime.live.tiny_processors import PROCESSORS
from underpaint.cli.live import LiveOptions
from underpaint.runtime.costs import machine_curve
from underpaint.runtime.evaluation import invariance
from underpaint.runtime.live.load import open_live
from underpaint.sim.replay.trace import load as load_trace
from underpaint.training.distillation import DrafterSettings
from underpaint.training.live_drafter import DrawnPictures, train_live_drafter
from underpaint.training.loop import LoopSettings

PROMPT_IDS = (0, 103, 110, 121)
PROMPT = ",".join(map(str, PROMPT_IDS))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def emu3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Emu3, saved as a download of the hub is."""
    folder = tmp_path_factory.mktemp("emu3")
    MODELS["emu3"]().model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def drafter(emu3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of the tiny Emu3, after one step of training."""
    folder = tmp_path_factory.mktemp("drafter")
    live = open_live(emu3, grid=f"{SIDE}x{SIDE}").live
    codes = np.random.default_rng(0).integers(live.codes, size=(3, live.grid.cells))
    pictures = DrawnPictures(tuple((0, 100 + word, 121) for word in range(3)), codes)
    settings = DrafterSettings(batch=2, passes=1, validated=1, validated_passes=1)
    train_live_drafter(live, pictures, folder, settings=settings, loop=LoopSettings(steps=1, learning_rate=1e-3))
    return folder


def run_live(command: str, emu3: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    done = run_program(f"{command} --live {emu3} --grid {SIDE}x{SIDE}", folder, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    return done


def test_sweep_plots_a_live_model_by_what_the_target_itself_holds_likely(emu3, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\n0,99,121\n")
    vary = "--vary zipar.window=1,3 --vary sjd.window=4 --prompts prompts.txt"
    run_live(f"sweep {vary} --temperature 1 --out out", emu3, tmp_path, monkeypatch)
    results = json.loads((tmp_path / "out" / "sweep.json").read_text())
    rows = {row["method"]: row for row in results["rows"]}
    assert set(rows) == {"ar", "zipar window=1", "zipar window=3", "sjd window=4"}
    assert all(row["log_likelihood"] < 0 for row in rows.values())
    assert any(row["pareto"] for row in rows.values())
    assert (tmp_path / "out" / "pareto.png").stat().st_size > 10_000


def test_evaluate_draws_a_live_model(emu3, drafter, tmp_path, monkeypatch):
    arguments = f"evaluate {PROMPT} --methods eagle2 --temperature 0 --drafter {drafter} --jobs 0 --out out"
    run_live(arguments, emu3, tmp_path, monkeypatch)
    results = json.loads((tmp_path / "out" / "evaluate.json").read_text())
    assert [row["identical_to_ar"] for row in results["rows"]] == [1.0, 1.0]
    assert len(list((tmp_path / "out" / "pictures").rglob("*.png"))) == 2


def test_workers_open_a_live_model_of_their_own(emu3, drafter, monkeypatch):
    monkeypatch.chdir(emu3)
    source = LiveOptions(live=Path(), grid=f"{SIDE}x{SIDE}", drafter=drafter).source(threads=1)
    monkeypatch.chdir("/")
    opened = pickle.loads(pickle.dumps(source)).open(own_threads=True)
    assert opened.fingerprint()["drafter"] == "drafter"
    assert opened.condition(PROMPT).ids == PROMPT_IDS


def test_trace_premises_and_costs_of_a_live_model(emu3, drafter, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_curve, "_ROUNDS", {False: 1})
    monkeypatch.setattr(machine_curve, "_IMAGES", {False: 1})
    with_drafter = f"--drafter {drafter}"
    run_live(f"trace {PROMPT} {with_drafter} --depths 2 --keep 16 --out t.npz", emu3, tmp_path, monkeypatch)
    assert load_trace(tmp_path / "t.npz").grid.cells == SIDE * SIDE
    run_live(f"premises {PROMPT} {with_drafter} --no-costs --nearest 4 --json p.json", emu3, tmp_path, monkeypatch)
    figures = {row["figure"] for row in json.loads((tmp_path / "p.json").read_text())["rows"]}
    assert "overlap of drafter and target, 1 past the root" in figures
    assert any("cells" in figure for figure in figures)  # read in pictures of the model's own decoder
    done = run_live(f"costs {with_drafter} --export c.json", emu3, tmp_path, monkeypatch)
    curve = json.loads((tmp_path / "c.json").read_text())
    assert curve["model"] == {"target": "emu3", "drafter": "drafter", "rows": 2}
    assert set(curve["measured_on"]["sha256"]) == {"emu3", "drafter"}
    assert "Kept in" in done.out + done.err


def test_certify_drafts_with_a_drafter_of_a_larger_grid(emu3, drafter, tmp_path, monkeypatch):
    command = f"certify --live {emu3} --drafter {drafter} --grid 2 --top-k 2 --methods speculative --json out.json"
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    results = json.loads((tmp_path / "out.json").read_text())
    assert [row["verdict"] for row in results["rows"]] == ["lossless"]
    assert not results["random_drafter"]


def test_another_set_of_weights_is_another_run(emu3, tmp_path, monkeypatch):
    arguments = f"compare {PROMPT} --methods sjd --temperature 0 --no-likelihood --out out"
    run_live(arguments, emu3, tmp_path, monkeypatch)
    model = MODELS["emu3"]().model
    with torch.no_grad():
        model.model.text_model.layers[0].mlp.up_proj.weight[0, 0] += 0.01
    model.save_pretrained(tmp_path / "tuned")
    command = f"{arguments} --live tuned --grid {SIDE}x{SIDE}"
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done


def test_check_compares_passes_of_a_live_model(emu3, tmp_path, monkeypatch):
    monkeypatch.setattr(invariance, "COUNTS", (1, 2, 8))
    monkeypatch.setattr(invariance, "ROWS", (1, 2))
    for dtype, precision in (("float32", "fp32"), ("bfloat16", "bf16")):
        run_live(f"check --invariance --dtype {dtype} --json {dtype}.json", emu3, tmp_path, monkeypatch)
        results = json.loads((tmp_path / f"{dtype}.json").read_text())
        assert (results["model"]["target"], results["model"]["engine"]) == ("emu3", "live")
        assert {one["precision"] for one in results["passes"]} == {precision}
        wide = [one for one in results["passes"] if one["count"] == 8]
        assert all(one["tokens"] > 0 and one["passed"] for one in wide)
        if dtype == "float32":
            assert sum(one["flips"] for one in results["passes"]) == 0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("check --live EMU3", "--live needs --invariance, because there is no export"),
        ("check --invariance --live EMU3 --model emu3", "leave --model out"),
        ("check --invariance x --live EMU3", "leave --models out"),
        ("costs --live EMU3", "train one, and name it with --drafter"),
        (f"trace {PROMPT} --live EMU3 --out t.npz", "pass drafter=..., or use a method"),
        ("trace --live EMU3 --drafter DRAFTER --out t.npz", "a live model has none to choose from"),
        (f"compare {PROMPT} --live EMU3 --methods mulo --out m", "MuLo-SD: expected a model that draws a preview"),
        (f"evaluate {PROMPT} --live EMU3 --models x --out e", "leave --models out"),
        (f"premises {PROMPT} --live EMU3 --drafter gone --no-costs", "gone"),
        (f"compare {PROMPT} --dtype bfloat16 --out c", "name its folder with --live"),
        (f"compare {PROMPT} --live EMU3 --verify-near-ties float32 --out c", "got one in float32"),
        (f"compare {PROMPT} --live EMU3 --top-k 100 --out c", "has 64 codes, so at most 64 can be kept, got 100"),
    ],
)
def test_what_a_command_cannot_do_is_refused(emu3, drafter, tmp_path, monkeypatch, command, expected):
    line = command.replace("EMU3", str(emu3)).replace("DRAFTER", str(drafter))
    done = run_program(f"{line} --grid {SIDE}x{SIDE}" if "--live" in line else line, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert expected in " ".join(done.err.replace("\u2502", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "temperature", "preset"),
    [("", 0.7, "paper"), ("--temperature 1 --preset tuned", 1.0, "tuned"), ("--temperature 0", 0.0, "paper")],
)
def test_the_familys_temperature_and_the_papers_settings_are_the_defaults(
    tmp_path, monkeypatch, options, temperature, preset
):
    MODELS["chameleon"]().model.save_pretrained(tmp_path / "anole")
    command = f"compare {PROMPT} --methods sjd --no-likelihood --out out {options} --live anole --grid {SIDE}x{SIDE}"
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    settings = json.loads((tmp_path / "out" / "compare.json").read_text())["settings"]
    assert (settings["temperature"], settings["preset"]) == (temperature, preset)


@pytest.mark.parametrize("name", ["chameleon", "emu3"])
def test_words_and_files_of_prompts_are_drawn(tmp_path, monkeypatch, name):
    MODELS[name]().model.save_pretrained(tmp_path / "model")
    PROCESSORS[name]().save_pretrained(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("a red bicycle\na blue bicycle\n")
    live = f"--live model --grid {SIDE}x{SIDE}"
    done = run_program(
        f"compare --prompts prompts.txt --methods sjd --temperature 0 --no-likelihood --out out {live}",
        tmp_path,
        monkeypatch,
    )
    assert (done.code, done.crash) == (0, ""), done
    results = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert results["settings"]["prompts"] == ["a red bicycle", "a blue bicycle"]
    if name == "emu3":
        done = run_program(f"generate 'a red bicycle' --out fox.png {live}", tmp_path, monkeypatch)
        assert (done.code, done.crash) == (0, ""), done
