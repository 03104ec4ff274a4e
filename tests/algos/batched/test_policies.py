"""Every policy's batched form has the trees of its reference; the registry says which policies have one."""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.algos.batched.trees import Children, batched_children, children_of
from underpaint.algos.arrays import IntArray
from underpaint.algos.batched.spec import BatchedPolicy
from underpaint.algos.chance import enumerate_outcomes, sampling
from underpaint.algos.draft import POLICIES, PolicySpec
from underpaint.algos.protocols import Budget
from underpaint.algos.registry import build
from underpaint.algos.step import Verdict
from underpaint.algos.tree import root_only
from underpaint.sim.batched.decoding import MOST_NODES
from underpaint.sim.batched.images import TableBatch, TableLookups
from underpaint.sim.synthetic.field import make_synthetic_model
from underpaint.sim.synthetic.table_model import TableDrafter, TableTarget

MODEL = make_synthetic_model(
    "field", {"vocab_size": 4, "clusters": 2, "height": 5, "width": 5, "images": 2, "levels": 2, "depth_known": 2}
)
CASES = [
    pytest.param(spec, settings, id=f"{spec.name}-{number}")
    for spec in POLICIES
    for number, settings in enumerate(spec.examples or ({},))
]
COPIES = 8000


def policy_of(spec: PolicySpec, settings: Mapping[str, Any]) -> Any:
    return build(spec.make, settings, spec.name)


def batched_of(spec: PolicySpec, policy: Any) -> BatchedPolicy:
    batched = spec.batched(policy)
    if batched is None:
        pytest.skip(f"'{spec.name}' has no batched form at these settings")
    return batched


def drafter_after(canvas: IntArray, image: int) -> TableDrafter:
    """The drafter of image `image` when the tokens `canvas` are committed, the last of them as the root."""
    drafter = TableDrafter(MODEL, image)
    scored = TableTarget(MODEL, image).begin()
    drafter.begin(scored)
    for token in canvas[:-1].tolist():
        drafter.commit(root_only(token, MODEL.vocab_size), Verdict((), 0), scored)
    return drafter


def frozen(tree: Children) -> Hashable:
    return frozenset(tree.items())


def test_every_policy_of_the_house_that_decodes_in_lockstep_says_so() -> None:
    assert {spec.name for spec in POLICIES if spec.batched(policy_of(spec, {})) is not None} >= {
        *("chain", "chain_top1", "eagle1", "static_top_k", "eagle2", "adt")
    }


@pytest.mark.parametrize(("spec", "settings"), CASES)
@pytest.mark.parametrize("cell", [7, 22])  # at 22 the image ends two cells further
def test_trees_have_the_distribution_of_the_policys(spec: PolicySpec, settings: Mapping[str, Any], cell: int) -> None:
    policy = policy_of(spec, settings)
    batched = batched_of(spec, policy)
    canvas = np.random.default_rng(3).integers(MODEL.vocab_size, size=cell)

    def program(chance: Any) -> Hashable:
        policy.begin(MODEL.grid)
        budget = Budget(MODEL.grid.cells - cell - 1, MOST_NODES)
        return frozen(children_of(policy.grow(drafter_after(canvas, 0), int(canvas[-1]), budget, chance)))

    expected = enumerate_outcomes(program)
    batch = TableBatch(TableLookups(MODEL, batched.most_children), 0, 2 * COPIES, np.random.default_rng(4))
    batch.cell[:] = cell
    batch.canvas[:, :cell] = canvas
    active = np.arange(0, 2 * COPIES, 2)  # the pool repeats: all of these are image 0
    batched.begin(2 * COPIES, MODEL.grid.cells)
    trees = batched.grow(batch, active)
    children = batched_children(trees)
    seen = Counter(frozen(tree) for tree in children.values())
    assert set(seen) <= set(expected), "a tree that the policy never grows"
    counts = np.array([seen[tree] for tree in expected]), COPIES * np.array(list(expected.values()))
    often = counts[1] > 5.0
    squares = float(((counts[0] - counts[1])[often] ** 2 / counts[1][often]).sum())
    degrees = max(1, int(often.sum()) - 1)
    assert squares < degrees + 5.0 * np.sqrt(2.0 * degrees), (squares, degrees)
    assert len(expected) > 1 or squares == 0.0
    for place, image in enumerate(trees.images.tolist()):
        depth = max((len(above) + 1 for above in children[image]), default=0)
        assert trees.depth[place] == depth <= batched.deepest
        assert trees.nodes[place] == 1 + sum(map(len, children[image].values())) <= batched.most_nodes


@pytest.mark.parametrize(("spec", "settings"), [case for case in CASES if case.values[0].drawn == "top_k"])
def test_both_learn_the_same_of_verdicts(spec: PolicySpec, settings: Mapping[str, Any]) -> None:
    """Point proposals are no random choice: after the same verdicts both grow the same tree, cycle by cycle."""
    images, draws = 12, np.random.default_rng(8)
    policies = [policy_of(spec, settings) for _ in range(images)]
    batched = batched_of(spec, policies[0])
    batch = TableBatch(TableLookups(MODEL, batched.most_children), 0, images, draws)
    batched.begin(images, MODEL.grid.cells)
    batch.cell[:] = 1
    batch.canvas[:, 0] = draws.integers(MODEL.vocab_size, size=images)
    for policy in policies:
        policy.begin(MODEL.grid)
    while (running := batch.running()).size:
        trees = batched.grow(batch, running)
        children = batched_children(trees)
        path = np.zeros((running.size, MODEL.grid.cells), dtype=np.int64)
        accepted, extra = np.zeros(running.size, dtype=np.int64), draws.integers(MODEL.vocab_size, size=running.size)
        for place, image in enumerate(trees.images.tolist()):
            cell = int(batch.cell[image])
            canvas = batch.canvas[image, :cell]
            budget = Budget(MODEL.grid.cells - cell - 1, MOST_NODES)
            drafter = drafter_after(canvas, image)
            tree = policies[image].grow(drafter, int(canvas[-1]), budget, sampling(0))
            assert children[image] == children_of(tree), (image, cell)
            assert sum(int(place < level.size and level[place] > 0) for level in trees.passes) == len(drafter.passes)
            accepted_path = tree.path_to(int(draws.integers(tree.size)))
            accepted[place] = len(accepted_path)
            path[place, : len(accepted_path)] = tree.tokens[list(accepted_path)]
            policies[image].observe(tree, Verdict(accepted_path, int(extra[place])), cell)
        batch.commit(trees.images, path, accepted, extra)
        batched.observe(trees, accepted)
