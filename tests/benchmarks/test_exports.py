"""Benchmarks of exports and engines: tiny models where they run, one clear last line where they cannot."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import gpu, host_share, llamagen_b, pauses, samplers
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


def test_the_hosts_share_of_a_cycle_is_told_apart(monkeypatch, tmp_path, capsys):
    sizes = {"dim": 384, "layers": 1, "heads": 6, "hidden": 1024}  # 384: published
    tiny = DecoderConfig(**sizes, vocab_size=64, grid_side=8, prefix=1, cond_ids=1001)
    for module in (llamagen_b, host_share):
        monkeypatch.setattr(module, "CONFIG", tiny)
    asked = ["--threads", "2", "--cycles", "8", "--top-k", "20", "--folder", str(tmp_path / "models")]
    found = figures(host_share.main, asked, tmp_path, capsys)
    assert found["fuses_trees"]
    assert set(found["loops"]) == {"ar", "eagle2_one_call", "eagle2_by_level"}
    for name, parts in found["loops"].items():
        whole = parts["target_ms"] + parts["drafter_ms"] + parts["host_ms"]
        assert parts["host_share"] == pytest.approx(parts["host_ms"] / whole, abs=1e-3)
        assert (parts["drafter_ms"] > 0) == (name != "ar")
        assert parts["positions"] == (1 if name == "ar" else 7)
    assert host_share.export_pair(tmp_path / "models") == tmp_path / "models" / "out"


def test_passes_are_timed_after_pauses(tmp_path, capsys):
    found = figures(pauses.main, ["--target", "target64", "--threads", "1", "--rounds", "1"], tmp_path, capsys)
    assert [pause for pause, _ in found["passes_ms"]] == list(pauses.PAUSES_MS)
    assert all(set(by_size) == {"1", "4", "9"} and min(by_size.values()) > 0 for _, by_size in found["passes_ms"])


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


@dataclasses.dataclass
class Noise:
    """Pictures of numbered scenes without the art."""

    def __call__(self, indices, size, split):
        rng = np.random.default_rng(list(indices))
        coarse = rng.integers(0, 256, (len(indices), 8, 8, 3), dtype=np.uint8)
        return coarse.repeat(size // 8, axis=1).repeat(size // 8, axis=2)


def test_samplers_stand_beside_the_tokenizers_ceiling(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(samplers, "TexturedPictures", Noise)
    pictures = tmp_path / "strips.png"
    asked = ["--scenes", "2", "--kinds", "bicubic", "latent", "--threads", "1", "--pictures", str(pictures)]
    found = figures(samplers.main, asked, tmp_path, capsys)
    assert set(found) == {"sides", "scenes", "split", "sha256", "rows", "machine", "command"}
    assert found["sides"] == [64, 128]
    assert [row["kind"] for row in found["rows"]] == ["tokenizer", "bicubic", "latent"]
    assert set(found["rows"][0]) == {"kind", "up_psnr_scene", "down_psnr_scene"}
    for row in found["rows"][1:]:
        assert set(row["up_accuracy"]) == {"mean", "half"}
        assert 0 <= row["round_trip"]["mean"] <= 1
        assert row["up_ms"] > 0
    assert pictures.read_bytes().startswith(b"\x89PNG")
