"""Rows of one engine on the shipped target: unequal progress, guidance, closing."""

import numpy as np
import pytest

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.engines.context import EngineContext, EngineError, load_decoder
from underpaint.runtime.engines.engine import Engine, GuidanceEngines, LoadedDecoder
from underpaint.runtime.engines.pass_inputs import causal

STEPS = ((1, 4, 2), (3, 1, 5), (2, 2, 2))
"""New positions of each of three pictures in each of three passes."""


@pytest.fixture(scope="module")
def decoder() -> LoadedDecoder:
    return load_decoder("target64", "target", context=EngineContext(threads=1))


def prefill(engine: Engine, rows: int) -> None:
    shape = engine.config
    engine.begin()
    engine.run(np.tile(shape.uncond_ids, (rows, 1)), shape.first_cells(shape.prefix), causal(shape.prefix))
    engine.cache.commit(slice(None))


def test_pictures_of_unequal_progress_share_a_pass(decoder: LoadedDecoder) -> None:
    """Each row at cells of its own, under a bias of its own; it says what a run of its own says."""
    tokens = np.random.default_rng(0).integers(0, decoder.config.vocab_size, (3, decoder.config.grid.cells))
    together = decoder.open(3)
    prefill(together, 3)
    alone = [decoder.open(1) for _ in range(3)]
    for engine in alone:
        prefill(engine, 1)
    done = np.zeros(3, dtype=np.int64)
    for counts in STEPS:
        most = max(counts)
        fed = done[:, None] + np.minimum(np.arange(most), np.array(counts)[:, None] - 1)  # the last again, as padding
        bias = np.stack([causal(most)] * 3)
        logits = together.run(np.take_along_axis(tokens, fed, axis=1), fed, bias).logits.copy()
        together.cache.commit(slice(None), counts)
        for row, (engine, count) in enumerate(zip(alone, counts, strict=True)):
            cells = np.arange(done[row], done[row] + count)
            single_logits = engine.run(tokens[row, cells], cells, causal(count)).logits
            np.testing.assert_allclose(logits[row, :count], single_logits[0], atol=1e-4)
            engine.cache.commit(slice(None))
        done += counts
        assert together.cache.lengths.tolist() == (decoder.config.prefix + done).tolist()


def test_hidden_slots_are_seen_by_no_later_position(decoder: LoadedDecoder) -> None:
    """Row 1 never sees its first three positions, whatever stands there; row 0 does."""
    logits = []
    for first in (5, 900):
        engine = decoder.open(2)
        engine.begin((0, 3))
        engine.run(np.array([first, first + 1, first + 2]), np.arange(3), causal(3))
        engine.cache.commit(slice(None))
        logits.append(engine.run(np.array([7]), np.array([3]), causal(1)).logits[:, 0].copy())
    np.testing.assert_array_equal(logits[0][1], logits[1][1])
    assert np.abs(logits[0][0] - logits[1][0]).max() > 1e-2


def test_sampling_changes_between_passes_and_engines_do_not_pile_up(decoder: LoadedDecoder) -> None:
    engines = GuidanceEngines(decoder)
    one = engines.under(SamplingParams(temperature=0.0))
    prefill(one, 1)
    assert one.run(np.array([3]), np.array([0]), causal(1)).probs is None
    for temperature, top_p in ((1.0, 1.0), (0.5, 0.8)):
        params = SamplingParams(temperature=temperature, top_k=20, top_p=top_p)
        assert engines.under(params) is one
        output = one.run(np.array([3]), np.array([0]), causal(1))
        assert output.probs is not None
        from_host = output._replace(probs=None).probs_at(slice(None), params)
        np.testing.assert_allclose(output.probs_at(slice(None), params), from_host, atol=1e-6)
    pair = engines.under(SamplingParams(guidance=2.0))
    assert pair is engines.under(SamplingParams(guidance=3.0)) is not one
    assert (one.rows, pair.rows) == (1, 2)
    with pytest.raises(EngineError, match="closed"):  # one at a time
        one.run(np.array([3]), np.array([0]), causal(1))
    engines.close()
    one = pair
    with pytest.raises(EngineError, match="closed"):
        one.run(np.array([3]), np.array([0]), causal(1))


def test_passes_are_timed(decoder: LoadedDecoder) -> None:
    engine = decoder.open(1)
    prefill(engine, 1)
    engine.run(np.array([3, 4]), np.arange(2), causal(2))
    assert (engine.cost.passes, engine.cost.positions) == (2, decoder.config.prefix + 2)
    assert engine.cost.seconds > 0
