"""A draw by the table of cells is the draw by search, whatever the distributions."""

import numpy as np
import pytest

from underpaint.algos.arrays import FloatArray
from underpaint.sim.batched import draws as batch_draws
from underpaint.sim.batched.draws import Draws
from underpaint.sim.batched.images import TableBatch, TableLookups
from underpaint.sim.synthetic.field import make_synthetic_model

LAWS = {
    "even": np.full((5, 12), 1.0 / 12),
    "sharp": np.eye(7)[:, ::-1],
    "sparse": np.random.default_rng(1).dirichlet(np.full(40, 0.02), size=30),
    "float32": np.random.default_rng(2).dirichlet(np.full(100, 0.5), size=20).astype(np.float32),
    "one token": np.ones((3, 1)),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("most", [0, 2**19], ids=["searched", "looked up"])
def test_draws_invert_the_cumulated_distribution(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_draws, "MOST_LOOKED_UP", most)
    distributions: FloatArray = LAWS[name].astype(np.float64)
    steps = distributions.cumsum(axis=1) / distributions.sum(axis=1, keepdims=True)
    draws, generator = Draws(LAWS[name]), np.random.default_rng(0)
    rows = generator.integers(distributions.shape[0], size=(50, 1))
    uniforms = generator.random((50, 40))
    uniforms[:, 0], uniforms[:, 1], uniforms[:, 2] = 0.0, 1.0 - 2.0**-53, 0.5
    actual = draws(rows, uniforms)
    clear = np.abs(steps[rows] - uniforms[..., None]).min(axis=2) > 1e-8  # elsewhere rounding may decide
    expected = (steps[rows] <= uniforms[..., None]).sum(axis=2)
    assert np.array_equal(actual[clear], expected[clear])
    assert clear.mean() > 0.8
    assert (distributions[rows, actual] > 0.0).all()


@pytest.mark.parametrize("cell", [1, 5, 6, 7, 12, 23])
def test_a_batch_finds_the_rows_of_its_model(cell: int) -> None:
    model = make_synthetic_model(
        "field", {"vocab_size": 8, "height": 4, "width": 6, "images": 3, "clusters": 4, "levels": 3}
    )
    draws = np.random.default_rng(cell)
    batch = TableBatch(TableLookups(model, 2), 1, 5, draws)
    batch.canvas[:] = draws.integers(model.vocab_size, size=batch.canvas.shape)
    batch.cell[:] = cell
    active, tokens = np.array([4, 0, 3]), draws.integers(model.vocab_size, size=(3, 4))
    for level in range(min(3, model.grid.cells - cell)):
        above = cell + level - model.grid.width
        upper = batch.canvas[active, above] if above >= 0 else np.full(3, -1)
        images, cells = batch.images[active, None], np.full((3, 1), cell + level)
        expected = model.rows(images, cells, tokens, upper[:, None])
        assert np.array_equal(batch.rows_after(active, level, tokens), expected)
        levels = np.full(3, level)
        assert np.array_equal(batch.rows_after(active, levels, tokens[:, 1]), expected[:, 1])
    assert np.array_equal(batch.roots(active), batch.canvas[active, cell - 1])
