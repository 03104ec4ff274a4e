"""Benchmarks of exports and engines: tiny models where they run, one clear last line where they cannot."""

import json

import pytest

from benchmarks import gpu, llamagen_b
from tests.benchmarks.ending import figures
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.engines.context import EngineError


def test_llamagen_is_exported_checked_drawn_and_timed(monkeypatch, tmp_path, capsys):
    sizes = {"dim": 384, "layers": 1, "heads": 6, "hidden": 1024}  # 384: published
    tiny = DecoderConfig(**sizes, vocab_size=64, grid_side=16, prefix=1, cond_ids=1001)
    monkeypatch.setattr(llamagen_b, "CONFIG", tiny)
    monkeypatch.setattr(llamagen_b, "COUNTS", (1, 4))
    found = figures(llamagen_b.main, ["--threads", "1", "--rounds", "1"], tmp_path, capsys)
    assert found["benchmark"] == "llamagen_b"
    assert found["checked"] is True
    assert [count for count, _ in found["verify_ms"]] == [1, 4]
    assert found["weights_read_bytes"] == 4 * (found["parameters"] - 384 * (64 + tiny.cond_ids))
    assert found["token_over_reading"] == pytest.approx(found["verify_ms"][0][1] / found["reading_ms"], rel=0.05)


def test_without_a_gpu_the_last_line_says_so(monkeypatch, tmp_path, capsys):
    def none():
        raise EngineError("there is no GPU")

    monkeypatch.setattr(gpu, "gpu_name", none)
    out = tmp_path / "found.json"
    assert gpu.main(["--out", str(out)]) == 2
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads(out.read_text())
    assert found["not_run"] == "there is no GPU"
    assert set(found) >= {"benchmark", "backend", "precision", "machine", "command"}
