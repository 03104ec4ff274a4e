"""`--live FOLDER`: a model of transformers on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.program import run_program
from tests.runtime.live.tiny_models import MODELS, SIDE

PROMPT = "0,103,110,121"


@pytest.fixture(scope="module")
def emu3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Emu3, saved as a download of the hub is."""
    folder = tmp_path_factory.mktemp("emu3")
    MODELS["emu3"]().model.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_generate_draws_a_picture_of_a_live_model(emu3, tmp_path, monkeypatch):
    command = f"generate {PROMPT} --live {emu3} --grid {SIDE}x{SIDE} --out fox.png --save-tokens"
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    assert (tmp_path / "fox.png").is_file()
    record = json.loads((tmp_path / "fox.json").read_text())
    assert len(record["tokens"]) == SIDE * SIDE


def test_generate_and_evaluate_draw_batches(emu3, tmp_path, monkeypatch):
    prompts = f"{PROMPT} 0,104,121 0,105,110,121"
    common = f"{prompts} --live {emu3} --grid {SIDE}x{SIDE} --temperature 0"
    for name, more in (("single", ""), ("batch", " --batch 2")):
        done = run_program(f"generate {common} --save-tokens --out {name}{more}", tmp_path, monkeypatch)
        assert (done.code, done.crash) == (0, ""), done
    single, batch = (
        {path.name: json.loads(path.read_text()) for path in (tmp_path / name).glob("*.json")}
        for name in ("single", "batch")
    )
    assert len(single) == 3
    assert {name: one["tokens"] for name, one in single.items()} == {name: one["tokens"] for name, one in batch.items()}
    assert {one["batch"] for one in batch.values()} == {2}
    done = run_program(f"evaluate {common} --methods sjd --batch 2 --out out", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    results = json.loads((tmp_path / "out" / "evaluate.json").read_text())
    assert results["model"]["batch"] == 2
    assert {row["method"]: (row["batch"], row["images"], row["identical_to_ar"]) for row in results["rows"]} == {
        "ar": (2, 3, 1.0),
        "sjd": (2, 3, 1.0),
    }
    done = run_program(f"evaluate {common} --methods sjd --jobs 0 --out out", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "belongs to another comparison (it differs in model)" in " ".join(done.err.split())
    done = run_program(f"evaluate {common} --batch 2 --jobs 2 --out two", tmp_path, monkeypatch)
    assert done.code == 2
    assert "--batch needs --live, and draws in this process" in " ".join(done.err.split())


def test_batches_that_cannot_be_drawn_are_refused_before_anything_is_written(emu3, tmp_path, monkeypatch):
    ties = "--dtype bfloat16 --verify-near-ties float32"
    common = f"{PROMPT} 0,104,121 --live {emu3} --grid {SIDE}x{SIDE} {ties} --batch 2 --out out"
    for command in ("generate", "evaluate --methods sjd"):
        done = run_program(f"{command} {common}", tmp_path, monkeypatch)
        assert (done.code, done.crash) == (2, ""), done
        assert "near-ties are verified in float32, got 2; leave one of the two out" in " ".join(done.err.split())
        assert list(tmp_path.iterdir()) == []


def test_certify_judges_methods_on_a_live_model(emu3, tmp_path, monkeypatch):
    common = f"certify --live {emu3} --grid 2 --top-k 2 --methods speculative,eagle2 --json out.json"
    done = run_program(common, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    results = json.loads((tmp_path / "out.json").read_text())
    assert [(row["method"], row["verdict"], row["pictures"]) for row in results["rows"]] == [
        ("speculative", "lossless", 16),
        ("eagle2", "lossless", 16),
    ]
    assert results["random_drafter"]
    done = run_program(f"certify --live {emu3} --grid 8 --top-k 2", tmp_path, monkeypatch)
    assert done.code == 2
    assert "got 2^64 = 18,446,744,073,709,551,616" in " ".join(done.err.split())
    done = run_program("certify rule:point --top-k 2", tmp_path, monkeypatch)
    assert done.code == 2


def test_compare_holds_lossless_methods_to_plain_decoding(emu3, tmp_path, monkeypatch):
    command = (
        f"compare {PROMPT} --live {emu3} --grid {SIDE}x{SIDE} --temperature 0 --methods sjd,jacobi-lookup --out out"
    )
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    results = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["identical_to_ar"] for row in results["rows"]] == [1.0, 1.0, 1.0]
    assert results["model"]["engine"] == "live"
    again = run_program(command, tmp_path, monkeypatch)
    assert again.code == 0
    assert "nothing left to draw" in again.err + again.out


def test_a_family_of_ones_own_is_a_file(tmp_path, monkeypatch):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=80, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    root = Path(__file__).parents[2]
    shutil.copy(root / "docs" / "examples" / "my_family.py", tmp_path / "my_family.py")
    command = "compare 1,2,3,7 --live llama --family my_family.py --methods sjd --temperature 0 --out out"
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    refused = run_program("compare 1,2,3,7 --live llama --methods sjd --out two", tmp_path, monkeypatch)
    assert refused.code == 2
    assert "expected one of JanusForConditionalGeneration" in " ".join(refused.err.split())
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--live nowhere", "expected a folder with config.json"),
        ("--live EMU3 --grid 6", "--grid: expected ROWSxCOLUMNS"),
        ("--live EMU3 --family flux", "--family: expected one of janus, emu3"),
        ("--live EMU3 --family gone.py", "there is no such file"),
        ("--live EMU3 --models x", "leave --models out"),
        ("--live EMU3 --backend tensorrt", "leave --backend out"),
        ("--grid 6x6", "name its folder with --live"),
        ("--live EMU3 --family lumina-mgpt", "vocabulary_map"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(emu3, tmp_path, monkeypatch, options, expected):
    command = f"compare {PROMPT} --methods sjd --out out " + options.replace("EMU3", str(emu3))
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert expected in " ".join(done.err.replace("\u2502", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prompt", ["a red bicycle", "1,2", "0,999,121"])
def test_prompts_that_do_not_fit_are_refused(emu3, tmp_path, monkeypatch, prompt):
    done = run_program(f"generate '{prompt}' --live {emu3} --grid 6x6 --out x.png", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "prompt" in done.err
    assert list(tmp_path.iterdir()) == []


def test_without_methods_a_live_model_is_compared_by_those_that_need_no_drafter(emu3, tmp_path, monkeypatch):
    done = run_program(f"compare {PROMPT} --live {emu3} --grid 6x6 --temperature 0 --out out", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    results = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [row["method"] for row in results["rows"]] == ["ar", "sjd", "scd-maximal", "jacobi-lookup"]


def test_a_model_without_a_picture_decoder_says_where_its_tokens_are(tmp_path, monkeypatch):
    MODELS["chameleon"]().model.save_pretrained(tmp_path / "anole")
    done = run_program(f"generate {PROMPT} --live anole --grid 6x6 --out x.png", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "underpaint.accelerate()" in " ".join(done.err.split())
    assert not (tmp_path / "x.png").exists()


def test_a_live_model_is_tuned_on_a_file_of_prompts(emu3, tmp_path, monkeypatch):
    prompts = [f"0,{first},{second},121" for first in (103, 110) for second in (103, 110)]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    on = f"--live {emu3} --grid {SIDE}x{SIDE} --prompts prompts.txt"
    tuned = f"tune {on} --methods sjd --temperatures 1 --candidates 2 --out t"
    done = run_program(tuned, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    use = f"compare {on} --prompts-count 1 --methods sjd --preset t/preset.json --out c"
    done = run_program(use, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    preset = (tmp_path / "t" / "preset.json").read_text()
    (digest,) = set(json.loads(preset)["model"]["sha256"].values())
    (tmp_path / "t" / "preset.json").write_text(preset.replace(digest, "0" * 64))
    done = run_program(use, tmp_path, monkeypatch)
    assert done.code == 2
    assert "it was tuned on other models" in done.err
