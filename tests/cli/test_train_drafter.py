"""`underpaint train drafter`, and drawing with what it trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.program import run_program
from tests.runtime.live.tiny_models import MODELS
from underpaint.training import live_drafter

GRID = "--grid 6x6"
TRAIN = f"train drafter --live emu3 {GRID} --prompts prompts.txt --steps 3 --batch 2 --passes 2 --out run --threads 1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tiny Emu3 and a file of prompts."""
    torch.set_num_threads(1)
    MODELS["emu3"]().model.save_pretrained(tmp_path / "emu3")
    (tmp_path / "prompts.txt").write_text("".join(f"0,{prompt},110,121\n" for prompt in range(100, 109)))
    return tmp_path


@pytest.mark.parametrize("options", ["", " --eagle 3 --drafted-codes 32 --loss lk-lambda --layout specforge"])
def test_a_drafter_is_trained_and_drafts_for_compare_and_generate(folder, monkeypatch, options):
    done = run_program(TRAIN + options, folder, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    output = done.out + done.err
    for expected in ("memory: target 0.00 GB", "drawing 9 pictures", "acceptance_1", "--drafter run --methods eagle2"):
        assert expected in " ".join(output.split())
    (line,) = (line for line in output.splitlines() if line.startswith("next: "))
    printed = run_program(line.removeprefix("next: underpaint ") + " --prompts-count 1", folder, monkeypatch)
    assert printed.code == 0, printed.err + printed.crash
    compare = f"compare 0,103,110,121 --live emu3 {GRID} --drafter run --temperature 0 --methods eagle2,adt --out out"
    done = run_program(compare, folder, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    rows = json.loads((folder / "out" / "compare.json").read_text())["rows"]
    assert [(row["method"], row["identical_to_ar"]) for row in rows] == [("ar", 1.0), ("eagle2", 1.0), ("adt", 1.0)]
    if options:
        options = "--methods eagle2 --temperature 0 --drafter run/specforge --out other"
        assert run_program(f"compare 0,103,110,121 --live emu3 {GRID} {options}", folder, monkeypatch).code == 0
        rows = json.loads((folder / "other" / "compare.json").read_text())["rows"]
        assert rows[1]["identical_to_ar"] == 1.0
    generate = f"generate 0,103,110,121 --live emu3 {GRID} --drafter run --method eagle2 --out fox.png"
    assert run_program(generate, folder, monkeypatch).code == 0


def test_a_run_that_was_stopped_while_drawing_goes_on(folder, monkeypatch):
    draw = live_drafter.AcceleratedModel.draw
    calls = []

    def stop_at_the_fourth(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw(*arguments)

    monkeypatch.setattr(live_drafter.AcceleratedModel, "draw", stop_at_the_fourth)
    stopped = run_program(TRAIN, folder, monkeypatch)
    assert stopped.code == 130, stopped
    assert "the same command continues run" in stopped.err
    assert (np.load(folder / "run" / "drawn.npy")[:, 0] >= 0).sum() == 3
    assert run_program(TRAIN, folder, monkeypatch).code == 0
    assert len(calls) == 4 + 6
    again = run_program(TRAIN.replace("--steps 3", "--steps 5"), folder, monkeypatch)
    assert again.code == 0
    assert "5 steps, finished" in again.out + again.err
    assert len(calls) == 4 + 6
    changed = run_program(TRAIN + " --loss lk-alpha", folder, monkeypatch)
    assert (changed.code, changed.crash) == (2, "")
    assert "settings.loss 'distillation', now wanted 'lk-alpha'" in " ".join(changed.err.split())
    timed = run_program(TRAIN.replace("--steps 3", "--minutes 0.01"), folder, monkeypatch)
    assert timed.code == 0
    assert "training 0.01 minutes at most" in " ".join((timed.out + timed.err).split())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--live emu3 --grid 6x6", "--prompts: expected a file of prompts"),
        (
            "--prompts prompts.txt",
            "expected --live FOLDER or --models DIR, whose target draws the pictures, got neither",
        ),
        ("--models x --live emu3 --prompts prompts.txt", "got both"),
        ("--models emu3 --prompts prompts.txt", "emu3"),
        ("--live emu3 --grid 6x6 --prompts gone.txt", "gone.txt"),
        ("--live emu3 --grid 6x6 --prompts one.txt", "of other prompts, got 1 of 1 prompts"),
        ("--live emu3 --grid 6x6 --prompts prompts.txt --drafted-codes 9", "of an EAGLE-3 drafter"),
        ("--live emu3 --grid 6x6 --prompts words.txt", "give the prompt as ids"),
        ("--live llama --grid 6x6 --prompts prompts.txt", "expected one of JanusForConditionalGeneration"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(folder, monkeypatch, options, expected):
    (folder / "one.txt").write_text("0,103,110,121\n")
    (folder / "words.txt").write_text("a red bicycle\n")
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    done = run_program(f"train drafter {options} --out run", folder, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert expected in " ".join(done.err.split())
    assert not (folder / "run").exists()


def test_drafters_of_other_targets_and_folders_without_one_are_refused(folder, monkeypatch):
    assert run_program(TRAIN, folder, monkeypatch).code == 0
    other = MODELS["emu3"]()
    with torch.no_grad():
        other.model.lm_head.weight.mul_(2)
    other.model.save_pretrained(folder / "other")
    compare = f"compare 0,103,110,121 --live emu3 {GRID} --methods eagle2 --out out --drafter run"
    for changed, expected in (
        (compare.replace("--live emu3", "--live other"), "got one of another target"),
        (compare.replace("--drafter run", "--drafter emu3"), "architectures: expected"),
        (compare.replace(GRID, "--grid 4x4"), "expected a drafter of 4 x 4 cells, got one of 6 x 6"),
        (compare.replace("--live emu3 --grid 6x6", ""), "name its folder with --live"),
    ):
        done = run_program(changed, folder, monkeypatch)
        assert (done.code, done.crash) == (2, ""), done
        assert expected in " ".join(done.err.split())
    assert not (folder / "out").exists()
