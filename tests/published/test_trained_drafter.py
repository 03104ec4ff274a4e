"""`underpaint train drafter --models DIR`: an exported target gets a drafter, which the folder then draws with."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.program import run_program
from tests.published.checkpoints import save_llamagen
from tests.published.test_export import TINY
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.trained_drafter import open_exported
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.pipeline import Pipeline

pytestmark = pytest.mark.slow


def test_an_exported_target_gets_a_drafter(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    save_llamagen(tmp_path / "c2i.pt", captions=False)
    shutil.copytree(tokenizer, tmp_path / "models")
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", options=TINY), tmp_path / "models")
    (tmp_path / "prompts.txt").write_text("".join(f"{each}\n" for each in range(5)))
    train = "train drafter --models models --prompts prompts.txt --pictures 2 --steps 2 --batch 2 --out run --threads 1"
    done = run_program(train, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    compare = "compare 1 --preset tuned --models models --methods eagle2 --temperature 0 --out out --no-costs"
    done = run_program(compare, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert [(row["method"], row["identical_to_ar"]) for row in rows] == [("ar", 1.0), ("eagle2", 1.0)]
    again = run_program(train, tmp_path, monkeypatch)
    assert again.code == 2
    assert "expected a folder without a drafter" in again.err


def test_a_target_that_reads_prompts_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prompted = DecoderConfig(
        dim=16, layers=1, heads=2, hidden=16, vocab_size=8, grid_side=2, prefix=4, cond_ids=9, rope="line"
    )
    decoder = ConfigOnlyDecoder("target", prompted, None)  # type: ignore[arg-type]
    models = SimpleNamespace(entry=SimpleNamespace(drafter=None), high=SimpleNamespace(decoder=decoder))
    monkeypatch.setattr(Pipeline, "open", lambda *_, **__: models)
    with pytest.raises(ValueError, match="expected a target that is conditioned on classes"):
        open_exported(tmp_path, "cpu")
