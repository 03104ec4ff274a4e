"""EAGLE's and VVS's released code beside ours: the same trees for the same passes, and another cut."""

from dataclasses import dataclass

import numpy as np
import pytest

from tests.exact.released.eagle_tree import released_tree
from underpaint.algos import skipping
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes, sampling
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.enumeration import target_distribution, total_variation
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.skipping import Skipping, skipping_cycles
from underpaint.algos.tree import DraftTree, Verdict, emitted
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy


@dataclass
class Counted:
    """A drafter that counts its passes."""

    drafter: SyntheticDrafter
    passes: int = 0

    @property
    def vocab_size(self) -> int:
        return self.drafter.vocab_size

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        self.passes += 1
        return self.drafter.expand(tokens, parents)


def counted(seed: int) -> Counted:
    return Counted(SyntheticDrafter(RandomDistribution(6, seed=seed, sharpness=1.5)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("depth", "top_k", "total"), [(1, 2, 3), (2, 3, 8), (3, 2, 6), (4, 4, 15), (5, 3, 20)])
def test_eagles_depth_is_ours_less_one_and_the_passes_are_as_many(
    depth: int, top_k: int, total: int, seed: int
) -> None:
    """SafeAILab/EAGLE, `topK_genrate`: a pass below the root comes before the `depth` passes of its loop."""
    theirs, ours = counted(seed), counted(seed)
    expected = released_tree(theirs, 0, depth, top_k, total)
    tree = Eagle2(depth + 1, top_k, total).grow(ours, 0, Budget(64, 64), sampling(0))
    paths = sorted(tuple(int(tree.tokens[at]) for at in tree.path_to(node)) for node in range(1, tree.size))
    assert paths == expected
    assert ours.passes == theirs.passes == depth + 1


def released_cut(tree: DraftTree) -> int:
    """The most tokens of a skipped path in HyattDD/VVS, `skip_evaluate`: the mean nodes of a path, rounded down, less
    the root. What was accepted before does not come in."""
    depths = [int(tree.depths()[leaf]) + 1 for leaf in tree.leaves]
    return sum(depths) // len(depths) - 1


@pytest.mark.parametrize(("shape", "cut"), [((0, 1, 2, 3), 4), ((0, 1, 2, 3, 1, 0), 2), ((0, 1, 2, 0), 2), ((0, 0), 1)])
def test_vvs_cuts_to_the_mean_path_of_its_tree(shape: tuple[int, ...], cut: int) -> None:
    tokens, parents = np.arange(len(shape) + 1), np.array([-1, *shape])
    tree = DraftTree(tokens, parents, "top_k", np.empty((0, 9)), np.full(tokens.size, -1))
    assert released_cut(tree) == cut


def skipped(self: "skipping._SkippedCycles", tree: DraftTree, chance: Chance) -> Verdict:
    is_leaf = np.zeros(tree.size)
    is_leaf[tree.leaves] = 1.0
    path = tree.path_to(chance.draw(is_leaf, At(Role.PATH, 0)))[: released_cut(tree)]
    self.pending = tuple(int(tree.tokens[node]) for node in (0, *path[:-1]))
    self.drafter.descend(self.pending)
    self.skipped = tree
    return Verdict(path[:-1], int(tree.tokens[path[-1]]))


def test_vvss_cut_skips_more_and_costs_more_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafts are chains of three. The paper's cut commits one of them here, the released cut up to two."""
    likely, grid = RandomDistribution(2, seed=3), Grid(1, 6)
    other = Blend(likely, RandomDistribution(2, seed=4, sharpness=2.0), 0.7)

    def program(chance: Chance) -> tuple[tuple[int, ...], int]:
        cycles = skipping_cycles(
            SyntheticTarget(likely, grid),
            SyntheticDrafter(other),
            ShapePolicy((0, 1, 2), "iid"),
            RULES["chain"].make(),
            chance,
            Skipping(2, 4),
            8,
        )
        done = tuple(cycles)
        tokens = tuple(token for cycle in done for token in emitted(cycle.tree, cycle.verdict))
        return tokens, max((len(cycle.verdict.path) + 1 for cycle in done if not cycle.verified), default=0)

    def bias_and_longest() -> tuple[float, int]:
        runs = enumerate_outcomes(program)
        images: dict[tuple[int, ...], float] = {}
        for (tokens, _), weight in runs.items():
            images[tokens] = images.get(tokens, 0.0) + weight
        exact = target_distribution(SyntheticTarget(likely, grid))
        return total_variation(images, exact), max(longest for _, longest in runs)

    assert bias_and_longest() == (pytest.approx(0.06355, rel=1e-3), 1)
    monkeypatch.setattr(skipping._SkippedCycles, "_skip", skipped)
    assert bias_and_longest() == (pytest.approx(0.1105, rel=1e-3), 2)
