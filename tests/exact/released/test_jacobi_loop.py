"""What the authors' released Jacobi loops draw, exactly, and what one line mended makes of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.released.jacobi_loop import ReleasedLoop, bias_and_passes
from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray
from underpaint.sim.synthetic.models import PrefixDistribution, RandomDistribution
from underpaint.strategies import pools

SJD, SCD = ReleasedLoop(4), ReleasedLoop(4, "coupled", old_scores=True)
LOOPS_WITHOUT_MISTAKES = [ReleasedLoop(length, tail) for length in (1, 3, 4) for tail in ("fresh", "coupled")]


def two_tokens(seed: int) -> PrefixDistribution:
    return RandomDistribution(2, seed=seed, sharpness=1.5)


def cooled(temperature: float) -> tuple[PrefixDistribution, ReleasedLoop]:
    """A model of three tokens at this temperature, and SJD's loop that applies the temperature to the residual too."""
    model = RandomDistribution(3, seed=9, sharpness=1.5)

    def warp(row: FloatArray) -> FloatArray:
        return normalised(normalised(row) ** (1.0 / temperature))

    return lambda prefix: warp(model(prefix)), ReleasedLoop(3, warp=warp)


@pytest.mark.parametrize("loop", LOOPS_WITHOUT_MISTAKES)
@pytest.mark.parametrize("one_hot_refill", [True, False])
def test_the_loops_are_lossless_without_their_mistakes(loop: ReleasedLoop, one_hot_refill: bool) -> None:
    mended = ReleasedLoop(loop.length, loop.tail, one_hot_refill=one_hot_refill)
    assert bias_and_passes(two_tokens(8), 5, mended)[0] < 1e-12


@settings(max_examples=15)
@given(pools(2), st.sampled_from(LOOPS_WITHOUT_MISTAKES))
def test_any_distributions(distribution: PrefixDistribution, loop: ReleasedLoop) -> None:
    assert bias_and_passes(distribution, 4, loop)[0] < 1e-12


@pytest.mark.parametrize(("seed", "bias"), [(8, 0.03432), (11, 0.01874)])
def test_scd_keeps_a_tail_token_under_its_old_score(seed: int, bias: float) -> None:
    """junhyukso/SCD, `SpeculativeSampler.__call__`: `resampled_target_scores[...] = draft_prob[...]` behind a
    rejection too, where the token has by then the new distribution."""
    assert bias_and_passes(two_tokens(seed), 5, SCD)[0] == pytest.approx(bias, rel=1e-3)
    mended = ReleasedLoop(4, "coupled", old_scores=False)
    assert bias_and_passes(two_tokens(seed), 5, mended)[0] < 1e-12


def test_sjd_passes_its_residual_through_the_temperature_twice() -> None:
    """tyshiwo1/Accelerating-T2I-AR-with-SJD, `reject_sampling_single_token`: `logits_warper` on the residual of rows
    that were warped before."""
    model, released = cooled(0.7)
    assert bias_and_passes(model, 4, released)[0] == pytest.approx(0.02954, rel=1e-3)
    assert bias_and_passes(model, 4, ReleasedLoop(3))[0] < 1e-12
    model, released = cooled(1.0)
    assert bias_and_passes(model, 4, released)[0] < 1e-12


def test_top_k_twice_is_top_k_once() -> None:
    """The residual has no token that top-k left out, so the second filter finds nothing to do."""

    def top_two(row: FloatArray) -> FloatArray:
        return normalised(np.where(row >= np.sort(row)[-2], row, 0.0))

    model = RandomDistribution(3, seed=9, sharpness=1.5)
    released = ReleasedLoop(3, warp=top_two)
    assert bias_and_passes(lambda prefix: top_two(model(prefix)), 4, released)[0] < 1e-12


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_random_tokens_scored_one_hot_cost_passes(seed: int) -> None:
    """The same code, `get_multi_token_for_preparation`: tokens drawn evenly, scored as certain. Both are lossless;
    the distribution that they were drawn from saves passes."""
    one_hot, even = SJD, ReleasedLoop(4, one_hot_refill=False)
    (first_bias, first), (second_bias, second) = (
        bias_and_passes(two_tokens(seed), 5, loop) for loop in (one_hot, even)
    )
    assert max(first_bias, second_bias) < 1e-12
    assert second < first - 0.1


@pytest.mark.parametrize(("seed", "bias"), [(7, 0.11323), (9, 0.34103)])
def test_sjd_pac_draws_the_extra_token_evenly(seed: int, bias: float) -> None:
    """KangJialiang/SJD-PAC, `_uniform_pad`: the scores of the last row are not read. After a full acceptance the
    committed extra token comes from the padding, which is even over all codes."""
    assert bias_and_passes(two_tokens(seed), 5, ReleasedLoop(4, "coupled", uniform_extra=True))[0] == pytest.approx(
        bias, rel=1e-3
    )


@pytest.mark.parametrize(("seed", "bias", "with_new_scores"), [(8, 0.00019, 0.1299), (11, 0.01718, 0.04622)])
def test_pjd_keeps_drafts_above_half_the_ratio(seed: int, bias: float, with_new_scores: float) -> None:
    """boyaliao/PJD, on one row: neither score is right for a draft kept by a threshold, so neither is lossless."""
    loops = ReleasedLoop(4, "ratio", old_scores=True), ReleasedLoop(4, "ratio")
    biases = [bias_and_passes(two_tokens(seed), 5, loop)[0] for loop in loops]
    assert biases == pytest.approx([bias, with_new_scores], rel=0.03)
