"""`TraceRecorder`: what a model's own `generate` draws becomes the file that `underpaint trace --from` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runtime.live.tiny_models import CODES, MODELS, SIDE, as_array
from underpaint import TraceRecorder
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.live.model import LiveModelError
from underpaint.sim.replay.own_logits import trace_of_own

GUIDANCE = {"janus": 5.0, "chameleon": 3.0, "lumina-mgpt": 3.0, "emu3": 3.0}


def code_ids(name: str) -> list[int] | None:
    if name == "janus":
        return None
    if name == "emu3":
        return [20 + code for code in range(CODES)]
    return [4 + (7 * code) % CODES for code in range(CODES)]


@pytest.mark.parametrize("name", sorted(GUIDANCE))
def test_a_recording_holds_what_generate_drew(name: str, tmp_path: Path) -> None:
    tiny = MODELS[name]()
    recorder = TraceRecorder((SIDE, SIDE), code_ids(name))
    before = tiny.model.generate
    with recorder.recording(tiny.model):
        drawn_tokens = as_array(tiny.generate(tiny.prompt, GUIDANCE[name]))
    assert tiny.model.generate == before
    ids = code_ids(name)
    codes = [int(one) if ids is None else ids.index(one) for one in drawn_tokens.tolist() if ids is None or one in ids]
    assert recorder.images == 1
    trace = trace_of_own([recorder.save(tmp_path / "own.npz")], SamplingParams(), None, CODES)
    assert trace.tokens[0].tolist() == codes
    # Greedy decoding under guidance: each token is the likeliest of its row, up to half precision.
    gaps = (
        trace.target_probs[0, :, 0]
        - np.take_along_axis(
            trace.target_probs[0], (trace.target_tokens[0] == trace.tokens[0][:, None]).argmax(axis=1)[:, None], axis=1
        )[:, 0]
    )
    assert np.abs(gaps).max() < 2e-3
    assert trace.target_probs[0].std() > 0


def test_sampled_batches_are_recorded_before_temperature_and_top_k(tmp_path: Path) -> None:
    tiny = MODELS["chameleon"]()
    torch.manual_seed(0)  # a third and a fourth token may tie in the recorded half precision
    recorder = TraceRecorder((SIDE, SIDE), code_ids("chameleon"))
    prompt = torch.tensor([tiny.prompt, tiny.prompt])
    forbidden = [token for token in range(128) if token not in code_ids("chameleon")]
    with recorder.recording(tiny.model):
        ids = tiny.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            **{
                "do_sample": True,
                "temperature": 0.5,
                "top_k": 3,
                "max_new_tokens": SIDE * SIDE,
                "min_new_tokens": SIDE * SIDE,
            },
            suppress_tokens=forbidden,
        )
    recorder.save(tmp_path / "own.npz", codebook=torch.eye(CODES))
    with np.load(tmp_path / "own.npz") as arrays:
        tokens, logits = arrays["tokens"], arrays["target_logits"].astype(np.float32)
    assert tokens.tolist() == [
        [code_ids("chameleon").index(one) for one in row[len(tiny.prompt) :].tolist()] for row in ids
    ]
    with torch.inference_mode():
        rows = tiny.model(ids).logits[:, len(tiny.prompt) - 1 : -1, code_ids("chameleon")].float().numpy()
    assert logits == pytest.approx(rows, abs=2e-2)
    cut = trace_of_own([tmp_path / "own.npz"], SamplingParams(temperature=0.5, top_k=3), None, CODES)
    assert (cut.target_probs > 0).sum(axis=-1).max() == 3


def test_a_loop_of_ones_own_records_by_step(tmp_path: Path) -> None:
    recorder, random = TraceRecorder((2, 3)), np.random.default_rng(0)
    rows = random.normal(size=(7, 2, 5))
    tokens = random.integers(5, size=(7, 2))
    tokens[3] = 9  # the end of a line, which is no code
    for logits, step_tokens in zip(rows, tokens, strict=True):
        recorder.step(torch.tensor(logits, dtype=torch.bfloat16), torch.tensor(step_tokens))
    recorder.save(tmp_path / "own.npz", draft_probs=np.full((2, 1, 6, 5), 0.2))
    trace = trace_of_own([tmp_path / "own.npz"], SamplingParams(), None, 5)
    assert trace.tokens.tolist() == np.delete(tokens, 3, axis=0).T.tolist()
    assert trace.acceptance.shape == (2, 1, 6)


def test_a_code_after_a_whole_batch_begins_another(tmp_path: Path) -> None:
    recorder, end = TraceRecorder((1, 2)), 9
    for codes in ([[1, 2], [3, 4], [end, end]], [[2], [1]], [[0], [end], [3]]):
        for drawn in codes:
            recorder.step(np.zeros((len(drawn), 5)), drawn)
    recorder.save(tmp_path / "own.npz")
    with np.load(tmp_path / "own.npz") as arrays:
        assert arrays["tokens"].tolist() == [[1, 3], [2, 4], [2, 1], [0, 3]]


def test_bad_recordings_say_what_to_do(tmp_path: Path) -> None:
    recorder = TraceRecorder((2, 2))
    with pytest.raises(LiveModelError, match="at least one image, got none"):
        recorder.save(tmp_path / "own.npz")
    with pytest.raises(LiveModelError, match="pass the guided logits"):
        recorder.step(np.zeros((4, 5)), [1, 2])
    recorder.step(np.zeros((1, 5)), [1])
    with pytest.raises(LiveModelError, match="expected 1 images"):
        recorder.step(np.zeros((2, 5)), [1, 2])
    with pytest.raises(LiveModelError, match=r"2 x 2 = 4 codes, got 1"):
        recorder.save(tmp_path / "own.npz")
    with pytest.raises(LiveModelError, match="ids below 5"):
        TraceRecorder((1, 1), [7]).step(np.zeros((1, 5)), [7])
    with pytest.raises(LiveModelError, match="each once"):
        TraceRecorder((1, 1), [1, 1])
    assert not list(tmp_path.iterdir())
