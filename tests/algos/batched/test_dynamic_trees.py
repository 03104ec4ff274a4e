"""Dynamic trees of many images at once are, tree by tree, those of the policy."""

import numpy as np
import pytest

from underpaint.algos.arrays import IntArray
from underpaint.algos.batched.dynamic_trees import grow_dynamic
from underpaint.algos.batched.spec import TreeBatch
from underpaint.algos.draft.eagle2 import grow_eagle2
from underpaint.algos.protocols import Budget
from underpaint.algos.step import Verdict
from underpaint.algos.tree import root_only
from underpaint.sim.batched.decoding import MOST_NODES
from underpaint.sim.batched.images import TableBatch, TableLookups
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

SIZE = {"vocab_size": 8, "height": 6, "width": 6}
SYNTHETIC_MODELS = {
    "field": make_synthetic_model("field", {**SIZE, "images": 4, "clusters": 4, "levels": 3}),
    # No context: a path is worth what its reverse is, so that many candidates tie.
    "ties": make_synthetic_model("dirichlet", {**SIZE, "images": 1, "rows": 1, "error": 0.6}),
}


def in_lockstep(grown: TreeBatch) -> dict[int, set[tuple[int, ...]]]:
    """The paths of each image's tree."""
    image_paths: dict[int, set[tuple[int, ...]]] = {int(image): set() for image in grown.images}
    for place, image in enumerate(grown.images.tolist()):
        last: dict[int, tuple[int, ...]] = {0: ()}
        for block in grown.levels:
            if place >= block.rows.shape[0]:
                break
            width = block.tokens.shape[2]
            paths = {}
            for (node, rank), token in np.ndenumerate(block.tokens[place]):
                above = int(block.above[place, node])
                if block.in_tree[place, node, rank]:
                    paths[node * width + rank] = (*last[above], int(token))
            image_paths[image] |= set(paths.values())
            last = paths
    return image_paths


def alone(
    model: TableModel, canvas: IntArray, image: int, sizes: tuple[int, int, int]
) -> tuple[set[tuple[int, ...]], int]:
    """The paths of the tree that the policy grows after the tokens `canvas`, and the drafter's passes."""
    target, drafter = TableTarget(model, image), TableDrafter(model, image)
    scored = target.begin()
    drafter.begin(scored)
    for token in canvas[:-1].tolist():
        drafter.commit(root_only(token, model.vocab_size), Verdict((), 0), scored)
    budget = Budget(model.grid.cells - canvas.size - 1, MOST_NODES)
    tree = grow_eagle2(drafter, int(canvas[-1]), budget, *sizes)
    paths = {tuple(tree.tokens[list(tree.path_to(node))].tolist()) for node in range(1, tree.size)}
    return paths, len(drafter.passes)


@pytest.mark.parametrize("name", SYNTHETIC_MODELS)
@pytest.mark.parametrize("even", ["depth", "width", "total", "none"])
def test_each_tree_is_the_policys(name: str, even: str) -> None:
    model, count = SYNTHETIC_MODELS[name], 60
    draws = np.random.default_rng(5)
    batch = TableBatch(TableLookups(model, 5), 0, count, draws)
    batch.cell[:] = draws.integers(1, model.grid.cells, count)
    for image, cell in enumerate(batch.cell.tolist()):
        batch.canvas[image, :cell] = draws.integers(model.vocab_size, size=cell)
    sizes = {"depth": draws.integers(1, 5, count), "width": draws.integers(1, 6, count)}
    sizes["total"] = draws.integers(1, 15, count)
    if even in sizes:
        sizes[even][:] = 4
    active = np.flatnonzero(draws.random(count) < 0.8)
    grown = grow_dynamic(batch, active, *(size[active] for size in sizes.values()))
    assert sorted(grown.images.tolist()) == active.tolist()
    image_paths = in_lockstep(grown)
    for place, image in enumerate(grown.images.tolist()):
        image_sizes = (int(sizes["depth"][image]), int(sizes["width"][image]), int(sizes["total"][image]))
        canvas = batch.canvas[image, : int(batch.cell[image])]
        expected, passes = alone(model, canvas, image, image_sizes)
        assert image_paths[image] == expected, (image, image_sizes)
        assert grown.nodes[place] == 1 + len(expected)
        assert grown.depth[place] == max(map(len, expected), default=0)
        assert sum(int(place < level.size and level[place] > 0) for level in grown.passes) == passes
        assert grown.one_call[place] == (image_sizes[1] == 1)
