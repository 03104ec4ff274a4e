"""A target's own drawings: resumed as one run, read for that target alone, and mixed into a drafter's batches."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.models.tiny import save_target, tiny_target, tiny_tokens
from tests.published.limits import files_of_at_most
from underpaint.models.checkpoints import load_target
from underpaint.models.sample import sample
from underpaint.training.distillation import DrafterSettings
from underpaint.training.drafter import mixed_batch, train_drafter
from underpaint.training.drawn import CHUNK, DrawnRows, DrawSettings, draw_scenes, fingerprint, load_drawn
from underpaint.training.grids import GridData
from underpaint.training.loop import CHECKPOINT, LoopSettings
from underpaint.training.tokens import TokenSet


def saved_target(folder: Path, seed: int = 0) -> Path:
    return save_target(folder / f"target{seed}" / CHECKPOINT, tiny_target(seed))


def captions(indices: range) -> NDArray[np.int64]:
    return tiny_tokens(400).words[indices.start : indices.stop]


@torch.no_grad()
def test_one_row_without_guidance_draws_what_the_pair_draws_at_guidance_1() -> None:
    target, words = tiny_target(), torch.from_numpy(tiny_tokens(6).words)
    one = sample(target, words, guidance=1, temperature=1, top_k=5, seed=3)
    pair = sample(target, words, guidance=1 + 1e-9, temperature=1, top_k=5, seed=3)
    assert torch.equal(one, pair)
    logits, _ = target(one, words)
    top_tokens = logits.topk(5, dim=-1).indices
    assert bool((top_tokens == one[..., None]).any(dim=-1).all())
    greedy = sample(target, words, guidance=1, temperature=0)
    assert torch.equal(target(greedy, words)[0].argmax(dim=-1), greedy)
    assert not torch.equal(one, greedy)


def test_half_is_greedy_and_every_row_keeps_its_caption(tmp_path: Path) -> None:
    target = saved_target(tmp_path)
    assert draw_scenes(tmp_path / "drawn", target, captions, 2 * CHUNK) == DrawnRows(2 * CHUNK, 2 * CHUNK)
    drawings = load_drawn(tmp_path / "drawn", load_target(target))
    assert np.array_equal(drawings.words, captions(range(2 * CHUNK)))
    model = tiny_target()
    with torch.no_grad():
        logits, _ = model(torch.from_numpy(drawings.codes.astype(np.int64)), torch.from_numpy(drawings.words))
    is_greedy = (logits.argmax(dim=-1).numpy() == drawings.codes).all(axis=1)
    assert np.array_equal(is_greedy, np.tile(DrawSettings().greedy(), 2))
    assert DrawSettings().greedy().sum() == CHUNK // 2


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_greedy_share_is_kept(share: float) -> None:
    assert DrawSettings(greedy_share=share).greedy().mean() == share


def test_a_stopped_run_continues_to_the_same_rows(tmp_path: Path) -> None:
    target, settings = saved_target(tmp_path), DrawSettings(seed=5)
    draw_scenes(tmp_path / "whole", target, captions, 3 * CHUNK, settings=settings)

    def interrupt(rows: int, total: int) -> None:
        if rows == CHUNK:
            os.kill(os.getpid(), signal.SIGINT)

    parts = tmp_path / "parts"
    stopped = draw_scenes(parts, target, captions, 3 * CHUNK, settings=settings, progress=interrupt)
    assert stopped == DrawnRows(CHUNK, 3 * CHUNK)
    assert len(load_drawn(parts, load_target(target)).codes) == CHUNK
    late = draw_scenes(parts, target, captions, 2 * CHUNK, settings=settings)
    assert late == DrawnRows(2 * CHUNK, 2 * CHUNK)
    seen: list[int] = []
    last = draw_scenes(
        parts, target, captions, 3 * CHUNK - 5, settings=settings, progress=lambda rows, _: seen.append(rows)
    )
    assert last == DrawnRows(3 * CHUNK, 3 * CHUNK)
    assert seen == [2 * CHUNK, 3 * CHUNK]
    whole, pieced = (load_drawn(tmp_path / name, load_target(target)) for name in ("whole", "parts"))
    assert np.array_equal(whole.codes, pieced.codes)
    assert np.array_equal(whole.words, pieced.words)


def test_rows_cut_short_by_a_crash_are_drawn_again(tmp_path: Path) -> None:
    target, folder = saved_target(tmp_path), tmp_path / "drawn"
    draw_scenes(folder, target, captions, CHUNK)
    whole = load_drawn(folder, load_target(target))
    (path,) = folder.glob("*.rows")
    path.write_bytes(path.read_bytes()[:-5])
    assert len(load_drawn(folder, load_target(target)).codes) == CHUNK - 1
    draw_scenes(folder, target, captions, CHUNK)
    assert np.array_equal(load_drawn(folder, load_target(target)).codes, whole.codes)


def test_another_target_never_reads_these_drawings(tmp_path: Path) -> None:
    one, other = saved_target(tmp_path), saved_target(tmp_path, seed=1)
    folder = tmp_path / "drawn"
    draw_scenes(folder, one, captions, CHUNK)
    name = fingerprint(load_target(one))
    with pytest.raises(FileNotFoundError, match=rf"no drawings of target .*{name}.*underpaint train world"):
        load_drawn(folder, load_target(other))
    draw_scenes(folder, other, captions, CHUNK)
    assert len(list(folder.glob("*.rows"))) == 2
    codes = [load_drawn(folder, load_target(path)).codes for path in (one, other)]
    assert not np.array_equal(*codes)


def test_the_fingerprint_covers_sizes_and_every_weight() -> None:
    target = tiny_target()
    before = fingerprint(target)
    assert fingerprint(target) == before
    with torch.no_grad():
        target.words.embedding.weight[3, 1] += 1e-3
    assert fingerprint(target) != before


def test_other_settings_or_captions_are_refused(tmp_path: Path) -> None:
    target, folder = saved_target(tmp_path), tmp_path / "drawn"
    draw_scenes(folder, target, captions, CHUNK)
    with pytest.raises(ValueError, match=r"now wanted .*'top_k': 7"):
        draw_scenes(folder, target, captions, CHUNK, settings=DrawSettings(top_k=7))
    (about,) = folder.glob("*.json")
    whole = about.read_bytes()
    about.write_bytes(b'{"target":')
    with pytest.raises(ValueError, match=r"\.json should say how the rows beside it were drawn, and is damaged"):
        draw_scenes(folder, target, captions, CHUNK)
    about.write_bytes(whole)
    with pytest.raises(ValueError, match="other captions"):
        draw_scenes(folder, target, lambda indices: captions(indices)[::-1], CHUNK)
    assert json.loads(about.read_text())["greedy_share"] == 0.5


@pytest.mark.parametrize(
    "change", [{"greedy_share": 1.5}, {"temperature": 0.0}, {"top_k": -1}, {"seed": -1}, {"greedy_share": float("nan")}]
)
def test_settings_out_of_range_raise(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="drawings: expected"):
        replace(DrawSettings(), **change)


@pytest.mark.parametrize(("share", "counts"), [(0.0, {0}), (0.5, {4}), (0.3, {2, 3}), (1.0, {8})])
def test_every_batch_holds_the_share(share: float, counts: set[int]) -> None:
    settings = DrafterSettings(batch=8, drawn_share=share)
    data, drawings = (TokenSet(np.full((9, 4), code, np.int16), np.full((9, 8), code)) for code in (1, 2))
    drawn_counts = []
    for step in range(200):
        codes, words = mixed_batch(data, drawings, settings, np.random.default_rng([0, step]))
        again, _ = mixed_batch(data, drawings, settings, np.random.default_rng([0, step]))
        assert torch.equal(codes, again)
        assert codes.shape == (8, 4)
        assert words.shape == (8, 8)
        drawn_counts.append(int((codes[:, 0] == 2).sum()))
    assert set(drawn_counts) == counts
    assert np.mean(drawn_counts) == pytest.approx(8 * share, abs=0.15)


def test_a_drafter_learns_what_its_target_draws(tmp_path: Path) -> None:
    target, data = saved_target(tmp_path), tiny_tokens()
    draw_scenes(tmp_path / "drawn", target, captions, 4 * CHUNK)
    grids, drawings = {4: GridData(data, data)}, {4: load_drawn(tmp_path / "drawn", load_target(target))}
    settings = DrafterSettings(batch=8, passes=2, validated=32, validated_passes=2)
    loop = LoopSettings(steps=24, learning_rate=5e-3, warmup_steps=2, validate_every=100)

    def run(out: str, loop: LoopSettings) -> dict[str, float]:
        return train_drafter(tmp_path / out, grids, target, settings=settings, loop=loop, drawn=drawings).validation

    before, after = run("mixed", replace(loop, steps=1)), run("mixed", loop)
    assert set(after) == {
        f"{name}{figure}_{depth}_32" for name in ("", "drawn_") for figure in ("top1", "acceptance") for depth in (1, 2)
    }
    assert after["drawn_top1_1_32"] > before["drawn_top1_1_32"]


def test_a_share_out_of_range_raises() -> None:
    with pytest.raises(ValueError, match="share from 0 to 1"):
        DrafterSettings(drawn_share=1.2)


def test_a_full_disk_is_told_before_anything_is_drawn_and_room_lets_it_go_on(tmp_path: Path) -> None:
    """All rows get their place on the disk first: a picture that is drawn can always be kept."""
    target, folder, reports = saved_target(tmp_path), tmp_path / "drawn", list[tuple[int, int]]()
    with files_of_at_most(1024), pytest.raises(OSError, match=r"\.rows"):
        draw_scenes(folder, target, captions, CHUNK, progress=lambda *one: reports.append(one))
    assert reports == []
    assert draw_scenes(folder, target, captions, CHUNK) == DrawnRows(CHUNK, CHUNK)
    assert len(load_drawn(folder, load_target(target)).codes) == CHUNK
