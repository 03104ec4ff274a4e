"""Acceptance logs: every engine's form gives the same counts, and chains cut short are priced from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.program import run_program
from underpaint.sim.advise import PLAIN, chain_changes, chains_of, fastest, price_changes
from underpaint.sim.latency.models import MeasuredCosts
from underpaint.sim.latency.run_times import RepeatedTimes
from underpaint.sim.replay.acceptance_log import acceptance_of, aiperf_lines, read_acceptance
from underpaint.sim.synthetic.field import make_synthetic_model

VLLM = {
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}
"""Of vLLM's pull request 48915."""
TENSORRT = {
    "acceptance_rate": 0.5,
    "total_accepted_draft_tokens": 30,
    "total_draft_tokens": 60,
    "num_spec_steps": 20,
    "acceptance_histogram": [8, 0, 6, 6],
    "num_spec_tokens": 3,
}
"""Of AIPerf's pull request 1433."""
SGLANG = {
    "spec_num_correct_drafts": 63,
    "spec_num_proposed_drafts": 215,
    "spec_verify_ct": 43,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}
"""Of SGLang's pull request 33518."""
SPARSE = {**VLLM, "engine": "vllm", "acceptance_histogram": {"0": 39, "1": 1, "3": 3}}
PROMETHEUS = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 3.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 129.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 3.0
"""


@pytest.mark.parametrize(
    ("engine", "record", "histogram", "drafted"),
    [
        ("vllm", {"choices": [], "metrics": {"speculative_decoding": VLLM}}, [39, 1, 0, 3], 129),
        ("vllm", {"metadata": {}, "metrics": {}, "spec_decode_acceptance": SPARSE}, [39, 1, 0, 3], 129),
        ("tensorrt_llm", {"choices": [{"index": 0, "speculative_decoding": TENSORRT}]}, [8, 0, 6, 6], 60),
        ("sglang", {"text": "", "meta_info": SGLANG}, [11, 14, 11, 4, 0, 3], 215),
        ("sglang", {"meta_info": {"spec_verify_ct": 7, "spec_accept_histogram": [2, 5]}}, [2, 5], -1),
        ("vllm", {"speculative_decoding": VLLM, "text": "a\u2028b\x85c"}, [39, 1, 0, 3], 129),
    ],
)
def test_every_engine_s_form_is_read(
    engine: str, record: Any, histogram: list[int], drafted: int, tmp_path: Path
) -> None:
    warmup = {"metadata": {"benchmark_phase": "warmup"}, "spec_decode_acceptance": SPARSE}
    path = tmp_path / "log.jsonl"
    lines = (json.dumps(line, ensure_ascii=False) for line in (warmup, record, {"choices": []}, record))
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    log = read_acceptance(path)
    assert (log.engine, log.skipped) == (engine, 2)
    assert log.histograms.tolist() == [histogram] * 2
    assert log.drafted.tolist() == [drafted] * 2
    path.write_text(json.dumps([record]))
    assert read_acceptance(path).histograms.tolist() == [histogram]
    path.write_bytes(aiperf_lines(log))
    assert path.read_text().count("draft_acceptance_rate") == 2 * (drafted >= 0)
    again = read_acceptance(path)
    assert (again.engine, again.histograms.tolist(), again.drafted.tolist()) == (engine, [histogram] * 2, [drafted] * 2)


def test_the_prometheus_page_is_read_over_engines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text(PROMETHEUS)
    log = read_acceptance(path)
    assert log.histograms.tolist() == [[39, 1, 0, 3]]
    assert log.acceptance(1).mean == pytest.approx(4 / 43)
    assert log.acceptance(2).mean == pytest.approx(3 / 4)


@pytest.mark.parametrize("count", ["1e999", "1e19"])
def test_counts_beyond_any_run_are_refused(tmp_path: Path, count: str) -> None:
    path = tmp_path / "metrics.prom"
    path.write_text(f"vllm:spec_decode_num_drafts {count}\nvllm:spec_decode_num_draft_tokens 4\n")
    with pytest.raises(ValueError, match="expected a count from 0 to"):
        read_acceptance(path)
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"acceptance_histogram": [1, 1 << 41]}))
    with pytest.raises(ValueError, match="expected a histogram of whole numbers from 0 to"):
        read_acceptance(path)


def test_chains_cut_short_are_priced_from_the_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"metrics": {"speculative_decoding": TENSORRT}}))
    log, prices = read_acceptance(path), RepeatedTimes(MeasuredCosts("m", ((1, 1.0), (4, 1.3)), ((1, 0.1), (4, 0.1))))
    tokens = [1 + 12 / 20, 1 + 24 / 20, 1 + 30 / 20]
    for length, (chain, expected) in enumerate(zip(chains_of(log), tokens, strict=True), start=1):
        assert chain.tokens_per_cycle.mean == pytest.approx(expected)
        assert chain.speedup(prices).mean == pytest.approx(expected / (1.0 + 0.1 * length + 0.1 * length))
    assert fastest(chains_of(log), prices) == ("chain of 2", pytest.approx(tokens[1] / 1.4))
    assert fastest(chains_of(log), prices, extra_ms=2.0) == (PLAIN, 1.0)
    changes = list(price_changes(chains_of(log), chains_of(log)[1], prices))
    assert changes[-1].fastest != "chain of 2"
    better, worse = chain_changes(log, chains_of(log)[1], prices)
    shares = np.array([12 / 20, 1.0])
    up, down = np.cumprod(shares + 0.2 * (1 - shares)), np.cumprod(0.8 * shares)
    assert better.speedup.mean == pytest.approx((1 + up.sum()) / 1.4)
    assert worse.speedup.mean == pytest.approx((1 + down.sum()) / 1.4)


def test_a_model_s_own_counts_are_of_its_chains() -> None:
    model = make_synthetic_model("field", {"vocab_size": 24, "clusters": 4, "height": 4, "width": 6, "images": 3})
    log = acceptance_of(model, 3)
    places = np.arange(4)
    assert (log.histograms.sum(axis=1) + log.histograms @ places).tolist() == [23, 23, 23], "all cells but the first"
    assert np.all(log.drafted <= 3 * log.steps)
    assert np.all(log.drafted >= log.histograms @ places)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"choices": []}, "none of its 1 requests has acceptance counts"),
        ({**VLLM, "num_spec_steps": 44}, "expected 43 steps, as its histogram says, got 44"),
        ({**VLLM, "num_accepted_draft_tokens": 9}, "expected 10 accepted"),
        ({**VLLM, "num_draft_tokens": 9}, "expected at most 9 accepted tokens"),
        ({**VLLM, "num_draft_tokens": 43 * 20}, "they were trees"),
        ({**VLLM, "acceptance_histogram": [1, -1]}, "whole numbers from 0 to"),
        ({"acceptance_histogram": [0, 0], "num_draft_tokens": 3, "num_spec_tokens": 1}, "none of its 1 requests has"),
        ({**VLLM, "acceptance_histogram": {"x": 1}}, "whole numbers from 0 to"),
        ("not json", "expected JSON"),
    ],
)
def test_bad_logs_end_with_2(content: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.jsonl").write_text(content if isinstance(content, str) else json.dumps(content))
    done = run_program("advise log.jsonl --machine a100/llamagen-xl", tmp_path, monkeypatch)
    assert done.code == 2, done.crash
    assert message in " ".join(done.err.split())
