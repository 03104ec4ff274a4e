"""`underpaint trace --from`: logits of any model become the trace that a recording of it would have been."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.program import run_program
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.sim.batched.decoding import make_scheme, run_loop
from underpaint.sim.replay import own_logits
from underpaint.sim.replay.own_logits import misplaced, trace_of_own
from underpaint.sim.replay.recording import Recorder, record_image
from underpaint.sim.replay.trace import load, replay
from underpaint.sim.report.statistics import tokens_per_cycle
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

PLAIN = SamplingParams()
ARRAYS = ("tokens", "target_tokens", "target_probs", "draft_tokens", "draft_probs", "target_entropy")
MORE = ("draft_entropy", "neighbour_mass", "acceptance", "codebook")


@pytest.fixture(scope="module")
def model() -> TableModel:
    settings = {"vocab_size": 24, "clusters": 4, "levels": 3, "height": 4, "width": 6, "images": 6}
    return make_synthetic_model("field", {**settings, "drift": 0.3, "depth_known": 3})


def written(model: TableModel, folder: Path, images: int = 4, depths: int = 3, **changes: Any) -> Path:
    """What an owner of the model would write: tokens, and logits up to a constant per row."""
    rows = [
        record_image(TableTarget(model, image), TableDrafter(model, image), sampling(3, image), depths, greedy=False)
        for image in range(images)
    ]
    tokens, target, drafted = (np.stack(parts) for parts in zip(*rows, strict=True))
    with np.errstate(divide="ignore"):
        logits, draft_logits = np.maximum(np.log(target), -60.0) + 3.0, np.maximum(np.log(drafted), -60.0) - 1.0
    for depth in range(depths):
        draft_logits[:, depth, : depth + 1] = np.nan  # no draft reaches these cells
    arrays = {"tokens": tokens, "target_logits": logits, "draft_logits": draft_logits, "codebook": model.codebook}
    arrays = {**arrays, "grid": np.array(model.grid), **changes}
    path = folder / "own.npz"
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_logits_become_the_trace_that_a_recording_makes(model: TableModel, tmp_path: Path) -> None:
    recorder = Recorder(model.codebook, nearest_codes(model.codebook, 20), 3, 24)
    for image in range(4):
        recorder.add(TableTarget(model, image), TableDrafter(model, image), sampling(3, image), greedy=False)
    recorded, trace = recorder.trace({}), trace_of_own([written(model, tmp_path)], PLAIN, None, 24)
    assert trace.grid == model.grid
    for name in (*ARRAYS, *MORE):
        assert getattr(trace, name) == pytest.approx(getattr(recorded, name), abs=1e-9), name


def test_at_temperature_0_the_trace_has_the_rows_that_greedy_rules_read(model: TableModel, tmp_path: Path) -> None:
    path = written(model, tmp_path)
    cold, warm = (trace_of_own([path], SamplingParams(temperature=heat), None, 24) for heat in (0.0, 1.0))
    for name in (*ARRAYS, *MORE):
        np.testing.assert_array_equal(getattr(cold, name), getattr(warm, name))
    assert [one.about["sampler"]["temperature"] for one in (cold, warm)] == [0.0, 1.0]


def test_a_file_that_does_not_fit_in_memory_is_refused(
    model: TableModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_logits, "free_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"own.npz: expected arrays that fit in memory, got 0.0 GB.*fewer images"):
        trace_of_own([written(model, tmp_path)], PLAIN, None, 24)


def test_the_round_trip_keeps_tokens_a_pass(model: TableModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "trace.npz"
    written(model, tmp_path)
    done = run_program("trace --from own.npz --keep 24 --out trace.npz", tmp_path, monkeypatch)
    assert done.code == 0, done.err
    assert "4 images of 24 cells" in done.out
    again = run_program("trace --from . --keep 24 --out trace.npz", tmp_path, monkeypatch)
    assert (again.code, again.out) == (0, done.out), again.err
    own_model = replay(load(out))
    recorder = Recorder(model.codebook, nearest_codes(model.codebook, 20), 3, 24)
    for image in range(4):
        recorder.add(TableTarget(model, image), TableDrafter(model, image), sampling(3, image), greedy=False)
    of_model = replay(recorder.trace({}))
    for policy in ("eagle2", "adt"):
        tokens = [
            tokens_per_cycle(run_loop(one, make_scheme(one, policy, "point"), 24, seed=5)).mean
            for one in (of_model, own_model)
        ]
        assert tokens[1] == pytest.approx(tokens[0], rel=0.02)


def test_sampling_is_applied_to_logits_and_not_to_probabilities(model: TableModel, tmp_path: Path) -> None:
    path, cut = written(model, tmp_path), SamplingParams(temperature=0.7, top_k=5)
    trace = trace_of_own([path], cut, None, 24)
    with np.load(path) as arrays:
        logits = arrays["target_logits"]
        expected = sampling_probs(logits[2, 5][None, None], cut)[0]
    kept_mask = trace.target_probs[2, 5] > 0
    assert kept_mask.sum() == 5
    assert trace.target_probs[2, 5][kept_mask] == pytest.approx(np.sort(expected)[::-1][:5])
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    (tmp_path / "two").mkdir()
    same = written(model, tmp_path / "two", target_logits=None, target_probs=probs.astype(np.float16))
    assert trace_of_own([same], cut, None, 24).target_probs[2, 5] == pytest.approx(
        trace_of_own([path], PLAIN, None, 24).target_probs[2, 5], abs=2e-3
    )


def test_what_a_trace_lacks_is_refused_only_where_it_is_needed(model: TableModel, tmp_path: Path) -> None:
    trace = trace_of_own([written(model, tmp_path, draft_logits=None, codebook=None)], PLAIN, None, 24)
    assert trace.acceptance.shape == (4, 0, 24)
    assert trace.codebook.shape == (24, 0)
    with pytest.raises(ValueError, match="needs a drafter"):
        make_scheme(replay(trace), "eagle2", "point")
    (tmp_path / "two").mkdir()
    drafted = replay(trace_of_own([written(model, tmp_path / "two", codebook=None)], PLAIN, None, 24))
    make_scheme(drafted, "eagle2", "point")
    with pytest.raises(ValueError, match="has no codebook"):
        make_scheme(drafted, "eagle2", "lantern")


NAN = np.full((4, 24, 24), np.nan)
ONES = np.ones((4, 24, 24))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_logits": None}, "expected an array target_logits or target_probs, got neither"),
        ({"target_probs": ONES}, "got both"),
        ({"target_logits": NAN}, "got NaN or infinity at image 0, row 0"),
        (
            {"target_logits": -np.inf * ONES},
            "-inf for codes that were filtered out, got NaN or infinity at image 0, row 0",
        ),
        ({"target_logits": None, "target_probs": NAN}, "target_probs: expected finite numbers, got NaN"),
        ({"target_logits": None, "target_probs": ONES}, "got a sum of 24"),
        ({"target_logits": ONES[:, :7]}, "expected [4, 24, V]"),
        ({"tokens": np.full((4, 24), 24)}, "expected 0 to 23"),
        ({"tokens": np.zeros((4, 24)) + 0.5}, "expected whole numbers"),
        ({"draft_logits": np.zeros((4, 2, 24, 23))}, "expected [4, D, 24, 24]"),
        ({"draft_logits": np.full((4, 2, 24, 24), np.inf)}, "draft_logits: expected finite numbers"),
        ({"draft_logits": np.zeros((4, 24, 24, 24))}, "D below 24"),
        ({"codebook": np.zeros((9, 2))}, "codebook: expected 24 codes"),
        ({"codebook": np.full((24, 2), np.nan)}, "codebook: expected finite"),
        ({"grid": None}, "pass --grid"),
        ({"grid": np.array([5, 5])}, "expected a grid of 24 cells"),
    ],
)
def test_bad_arrays_are_named(model: TableModel, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"--from .*own\.npz: ") as caught:
        trace_of_own([written(model, tmp_path, **changes)], PLAIN, None, 24)
    assert message in str(caught.value)


def test_codes_that_were_filtered_out_before_have_no_probability(model: TableModel, tmp_path: Path) -> None:
    rows = np.zeros((4, 24, 24))
    rows[..., 1::2] = -np.inf
    path = written(model, tmp_path, target_logits=rows, tokens=np.zeros((4, 24), dtype=np.int64))
    trace = trace_of_own([path], PLAIN, None, 24)
    assert trace.target_probs.sum(axis=-1) == pytest.approx(1.0)
    assert trace.target_probs[..., :12] == pytest.approx(1.0 / 12.0)
    assert not trace.target_probs[..., 12:].any()


def test_rows_that_the_tokens_were_not_drawn_from_are_noticed(model: TableModel, tmp_path: Path) -> None:
    path = written(model, tmp_path, images=24)
    assert misplaced(trace_of_own([path], PLAIN, None, 24)) is None
    assert misplaced(trace_of_own([path], PLAIN, None, 3)) is None, "what is not kept is even over the rest"
    with np.load(path) as arrays:
        shifted = np.roll(arrays["target_logits"], 1, axis=1)
    warning = misplaced(trace_of_own([written(model, tmp_path, images=24, target_logits=shifted)], PLAIN, None, 24))
    assert warning is not None
    assert "check that row c is the one that token c was drawn from" in warning


def test_files_of_one_model_follow_each_other(model: TableModel, tmp_path: Path) -> None:
    first, second = (written(model, folder) for folder in (tmp_path, tmp_path))
    assert trace_of_own([first, second], PLAIN, Grid(4, 6), 24).tokens.shape == (8, 24)
    (tmp_path / "other").mkdir()
    other = written(model, tmp_path / "other", depths=2)
    with pytest.raises(ValueError, match="the sizes of the first file, grid 4x6, 24 codes, 3 draft depths"):
        trace_of_own([first, other], PLAIN, None, 24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--from own.npz --grid 4by6", "--grid: expected ROWSxCOLUMNS of tokens"),
        ("--from own.npz --guidance 3", "apply guidance to the logits"),
        ("--from own.npz --models runs", "--models does not go with --from"),
        ("--from own.npz --depths 2", "--depths does not go with --from"),
        ("--from own.npz --to a.jsonl --methods adt", "--methods does not go with --to"),
        ("--from own.npz --to a.jsonl --out b.npz", "--out does not go with --to"),
        ("--from own.npz --out trace.npy", "ends in .npz"),
        ("--from empty", "expected a folder with .npz files"),
        ("--grid 4x6", "--grid needs --from or --live"),
    ],
)
def test_bad_options_end_with_2(
    model: TableModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    written(model, tmp_path)
    (tmp_path / "empty").mkdir()
    done = run_program(f"trace {options}", tmp_path, monkeypatch)
    assert done.code == 2, done.crash
    assert message in " ".join(done.err.split())
    assert not (tmp_path / "runs").exists()
