"""The target's log-likelihood of tokens: the same in passes of any size, and as drawing itself saw it."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.evaluation.comparison import choose_prompts
from underpaint.runtime.evaluation.likelihood import (
    SMALLEST,
    image_log_likelihood,
    tokens_log_likelihood,
    whole_distribution,
)
from underpaint.sim.replay.recording import draw_image
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticTarget

GRID, VOCAB = Grid(3, 4), 6


def target() -> SyntheticTarget:
    return SyntheticTarget(RandomDistribution(VOCAB, seed=3, sharpness=2.0), GRID)


@pytest.mark.parametrize("most", [1, 2, 5, 11, 64])
def test_passes_of_any_size_tell_what_drawing_saw(most: int) -> None:
    image = draw_image(target(), sampling(0, 1), greedy=False)
    seen = [float(scored.probs[0][token]) for scored, token in zip(image.scored, image.tokens, strict=True)]
    assert tokens_log_likelihood(target(), image.tokens, most) == pytest.approx(np.log(seen).mean(), abs=1e-12)


def test_other_tokens_are_less_likely_than_drawn_ones_on_the_mean():
    rng = np.random.default_rng(0)
    drawn_tokens = [draw_image(target(), sampling(0, number), greedy=False).tokens for number in range(20)]
    likely = np.mean([tokens_log_likelihood(target(), tokens, 64) for tokens in drawn_tokens])
    changed = np.mean([tokens_log_likelihood(target(), rng.integers(VOCAB, size=12), 64) for _ in range(20)])
    assert likely > changed + 0.2


def test_a_token_that_the_target_rules_out_leaves_the_mean_finite():
    class Certain(SyntheticTarget):
        def begin(self):
            return super().begin()._replace(probs=np.eye(VOCAB)[[2]])

    certain = Certain(RandomDistribution(VOCAB, seed=3), Grid(1, 1))
    assert tokens_log_likelihood(certain, np.array([2]), 4) == 0.0
    assert tokens_log_likelihood(certain, np.array([1]), 4) == pytest.approx(np.log(SMALLEST))


def test_images_are_judged_by_the_whole_distribution_of_their_condition():
    params = SamplingParams(guidance=3.0, temperature=0.0, top_k=5, top_p=0.5)
    assert whole_distribution(params) == SamplingParams(guidance=3.0, temperature=1.0, top_k=0, top_p=1.0)
    models, (one, other) = SyntheticPipeline(), choose_prompts(2)
    tokens = np.arange(16) % 7
    log_likelihood = image_log_likelihood(models, one, tokens, params)
    warm = models.target(one, whole_distribution(params)).model
    assert log_likelihood == pytest.approx(tokens_log_likelihood(warm, tokens, 3), abs=1e-12)
    assert log_likelihood != image_log_likelihood(models, other, tokens, params)


@pytest.mark.parametrize("width", [None, 1, 3, 4, 48])
def test_the_largest_pass_has_room_for_ends_of_lines(width: int | None) -> None:
    """width: cells of a row that ends in a token of its own; None without."""
    decoding = EngineTarget.__new__(EngineTarget)
    decoding.params = SamplingParams()
    config = SimpleNamespace(eol_id=None if width is None else 7, width=width or 4)
    for widest in (None, 1, 2, 5, 8, 32, 64, 200):
        decoding.decoder = SimpleNamespace(max_positions=lambda rows, most=widest: most, config=config)  # type: ignore[assignment]
        nodes = decoding.most_nodes(64)
        ends = 0 if width is None else -(-nodes // width)
        assert nodes == 1 or nodes + ends <= (widest or 64 + ends)
        assert widest is not None or nodes == 64
        assert widest is None or width is not None or nodes == min(64, widest)
        assert widest is None or width is None or nodes >= min(64, widest - -(-widest // width))
