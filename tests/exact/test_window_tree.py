"""SJD-PAC: a window with candidates beside its drafts draws exactly the target's distribution, in every coupling and
refill; its authors' code, which chooses the longest path and draws the candidates from the residual, does not."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.distributions import whole_images
from tests.exact.test_jacobi import COUPLINGS, LOOKING_AHEAD, REFILLS
from underpaint.algos.accept import RULES
from underpaint.algos.accept.walk import excess, normalised, proposal_distributions
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes, sampling
from underpaint.algos.coupling import EnumeratedNoise, noise_of
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Grid, Rule
from underpaint.algos.spatial import jacobi, jacobi_window
from underpaint.algos.spatial.jacobi import jacobi_cycles, jacobi_decode
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill, WindowDraft, tail_nodes, tree_nodes
from underpaint.algos.tree import DraftTree, Verdict, emitted
from underpaint.sim.synthetic.models import PrefixDistribution, RandomDistribution, SyntheticTarget
from underpaint.strategies import distributions, pools

RULE = RULES["without_replacement"].make()
TOKEN_WISE = [
    spec.name
    for spec in RULES
    if spec.promise == "lossless"
    and not (spec.greedy or spec.looks_ahead or spec.needs_chain)
    and "without_replacement" in spec.drawn
]


def missed(
    grid: Grid, window: JacobiWindow, rule: Rule = RULE, vocab_size: int = 3, model: PrefixDistribution | None = None
) -> float:
    """The total variation of whole images."""
    distribution = model or RandomDistribution(vocab_size, seed=7, sharpness=1.5)

    def program(chance: Chance) -> tuple[int, ...]:
        noise = EnumeratedNoise(chance) if window.coupling == "gumbel" else None
        cycles = jacobi_cycles(SyntheticTarget(distribution, grid), rule, chance, window, noise)
        return tuple(token for cycle in cycles for token in emitted(cycle.tree, cycle.verdict))

    return total_variation(enumerate_outcomes(program), whole_images(distribution, grid))


@pytest.mark.parametrize("refill", REFILLS)
@pytest.mark.parametrize("coupling", ["independent", "maximal"])
@pytest.mark.parametrize("rule", TOKEN_WISE)
@pytest.mark.parametrize(("grid", "length", "levels"), [(Grid(2, 2), 3, 2), (Grid(1, 4), 2, 1)])
def test_candidates_beside_the_drafts_are_lossless(
    grid: Grid, length: int, levels: int, rule: str, coupling: Coupling, refill: Refill
) -> None:
    assert missed(grid, JacobiWindow(length, coupling, refill, 2, levels), RULES[rule].make()) < 1e-12


@pytest.mark.parametrize("refill", ["left", "lookup"])
@pytest.mark.parametrize("candidates", [1, 2])
def test_candidates_that_are_looked_up_are_lossless(refill: Refill, candidates: int) -> None:
    for grid, length in ((Grid(2, 2), 2), (Grid(1, 5), 2)):
        for coupling in COUPLINGS:
            window = JacobiWindow(length, coupling, refill, candidates, candidates, True, 0.85, last_row=True)
            assert missed(grid, window, vocab_size=2) < 1e-12
            if coupling != "gumbel":
                assert missed(grid, window) < 1e-12


@pytest.mark.parametrize("refill", ["left", "above"])
@pytest.mark.parametrize("coupling", ["independent", "maximal"])
def test_on_a_row_of_five_and_with_more_candidates(coupling: Coupling, refill: Refill) -> None:
    assert missed(Grid(1, 5), JacobiWindow(3, coupling, refill, 2, 2)) < 1e-12
    assert missed(Grid(2, 2), JacobiWindow(2, coupling, refill, 3, 2), vocab_size=4) < 1e-12


@pytest.mark.parametrize("refill", REFILLS)
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_every_coupling_of_two_tokens(coupling: Coupling, refill: Refill) -> None:
    for candidates in (1, 2):
        for grid, length in ((Grid(2, 2), 3), (Grid(1, 5), 2)):
            window = JacobiWindow(length, coupling, refill, candidates, 1)
            assert missed(grid, window, vocab_size=2) < 1e-12


@settings(max_examples=25)
@given(pools(3), st.sampled_from(["independent", "maximal"]), st.sampled_from(["left", "above"]))
def test_any_distributions(distribution: PrefixDistribution, coupling: Coupling, refill: Refill) -> None:
    """Zeros, ties and one-hot rows among them: a distribution that has fewer tokens gets fewer candidates."""
    assert missed(Grid(2, 2), JacobiWindow(3, coupling, refill, 2, 2), model=distribution) < 1e-12


@given(distributions(4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_the_tree_of_a_window(row: FloatArray, candidates: int, levels: int, length: int) -> None:
    chance = sampling(3)
    window_tokens = [chance.draw(row, At(Role.DRAFT, place)) for place in range(length)]
    drafts = [WindowDraft(token, row) for token in window_tokens]
    tree = jacobi_window.window_tree(2, drafts, candidates, levels, "without_replacement", 5, chance)
    tree.check(4)
    support = int(np.count_nonzero(row))
    each = min(candidates, support)
    assert tree.size == tree_nodes(length, each, levels) <= tree_nodes(length, candidates, levels)
    assert tree.tokens[: length + 1].tolist() == [2, *window_tokens]
    below, depths = tree.children(), tree.depths()
    for node, children in enumerate(below):
        tokens = [int(tree.tokens[child]) for child in children]
        if not children:
            continue
        assert len(tokens) == (each if depths[node] < levels else 1)
        assert tokens[0] == window_tokens[depths[node]]
        assert tokens == [int(tree.tokens[child]) for child in below[int(depths[node])]]  # those of the chain's node
        assert len(list(proposal_distributions(tree, node, children))) == len(children)
    for leaf in range(tree.size):
        nodes = tail_nodes(tree, tree.path_to(leaf), length)
        assert depths[nodes].tolist() == list(range(int(depths[leaf]) + 1, length))
        assert all(tree.tokens[node] == window_tokens[depths[node] - 1] for node in nodes)


@pytest.mark.parametrize(
    ("rule", "coupling"),
    [("chain", "maximal"), ("multi_round", "maximal"), ("greedy", "maximal"), ("traversal", "independent")],
)
def test_a_rule_that_candidates_do_not_fit_is_refused(rule: str, coupling: Coupling) -> None:
    with pytest.raises(ValueError, match=f"rule '{rule}' does not fit 2 candidates"):
        missed(Grid(1, 3), JacobiWindow(2, coupling, "left", 2), RULES[rule].make())


def test_a_rule_that_looks_ahead_would_be_biased_without_any_coupling() -> None:
    """The same candidates stand below each other's siblings: seen once, they are fresh no more."""
    rule = RULES["traversal"].make()

    def hidden(tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        return rule(tree, probs, chance)

    window = JacobiWindow(3, "independent", "left", 2, 2)
    assert "traversal" in LOOKING_AHEAD
    assert missed(Grid(1, 5), window, hidden) > 1e-4


def longest_path(tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
    """How the released code chooses: every node is tried, as if the siblings before it had failed; the longest path of
    accepted nodes stays, the first of equals."""
    below, accepted, residual = tree.children(), {0}, {}
    for node, children in enumerate(below):
        distribution = normalised(probs[node])
        proposed = proposal_distributions(tree, node, children) if children else ()
        for child, drafted in zip(children, proposed, strict=True):
            if chance.flip(
                float(distribution[tree.tokens[child]]), At(Role.ACCEPT, child), float(drafted[tree.tokens[child]])
            ):
                accepted.add(child)
            rest = excess(distribution, drafted)
            distribution = normalised(rest) if rest.any() else distribution
        residual[node] = distribution

    def reach(node: int) -> list[int]:
        paths = [[child, *reach(child)] for child in below[node] if child in accepted]
        return max(paths, key=len, default=[])

    path = reach(0)
    last = path[-1] if path else 0
    return Verdict(tuple(path), chance.draw(residual[last], At(Role.RESIDUAL, last)))


def test_the_longest_path_is_biased() -> None:
    """KangJialiang/SJD-PAC, `accepted_lengths` and `torch.max`: a sibling may win although one before it was accepted,
    because of what stands below it."""
    window = JacobiWindow(2, "maximal", "uniform", 2, 2)
    assert missed(Grid(1, 4), window, longest_path) == pytest.approx(0.0279, rel=0.02)
    assert missed(Grid(1, 4), window) < 1e-12


def test_candidates_from_the_residual_are_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """KangJialiang/SJD-PAC, `torch.multinomial(res_p, ...)`: the other candidates are drawn from the residual of the
    coupling, and judged as if they were drawn from the distribution itself."""
    owed: dict[int, FloatArray] = {}
    right = jacobi.maximal_coupling

    def noted(token: int, draft: FloatArray, target: FloatArray, chance: Chance, at: At) -> int:
        owed[at.node] = excess(target, draft)
        return right(token, draft, target, chance, at)

    def from_residual(draft: WindowDraft, candidates: int, address: int, chance: Chance) -> Sequence[int]:
        tokens, residual = [draft.token], owed.pop(address // candidates, draft.distribution).copy()
        for place in range(1, candidates):
            residual[tokens[-1]] = 0.0
            if not residual.any():
                break
            tokens.append(chance.draw(residual, At(Role.CANDIDATE, address + place)))
        return tokens

    monkeypatch.setattr(jacobi, "maximal_coupling", noted)
    monkeypatch.setattr(jacobi_window, "_proposals", from_residual)
    assert missed(Grid(1, 5), JacobiWindow(3, "maximal", "left", 2, 2)) == pytest.approx(0.135, rel=0.02)


def test_candidates_are_accepted_where_the_draft_is_not() -> None:
    """What they are for: fewer passes, and more so on top of the coupling."""
    base, drift = RandomDistribution(12, seed=1, sharpness=2.0), RandomDistribution(12, seed=2, sharpness=2.0)

    def distribution(prefix: tuple[int, ...]) -> np.ndarray:
        return 0.4 * base((len(prefix),)) + 0.6 * drift(prefix[-2:])

    def passes(candidates: int, levels: int, coupling: Coupling = "maximal") -> float:
        window, target = (
            JacobiWindow(8, coupling, "left", candidates, levels),
            SyntheticTarget(distribution, Grid(8, 8)),
        )
        done = [jacobi_decode(target, RULE, sampling(0, image), window) for image in range(6)]
        assert all(run.tokens.size == 64 for run in done)
        return float(np.mean([len(run.cycles) for run in done]))

    chain = passes(1, 1)
    assert passes(3, 1) < 0.95 * chain
    assert passes(3, 2) < chain
    assert passes(3, 2, "independent") < passes(1, 1, "independent")


def test_the_same_seed_draws_the_same_picture() -> None:
    window, target = JacobiWindow(6, "gumbel", "left", 2, 2), SyntheticTarget(RandomDistribution(9), Grid(4, 5))
    one, other, third = (
        jacobi_decode(target, RULE, sampling(seed), window, noise_of(sampling(seed))).tokens.tolist()
        for seed in (4, 4, 5)
    )
    assert one == other != third


@pytest.mark.parametrize("bad", [{"candidates": 0}, {"levels": 0}, {"length": 2, "candidates": 2, "levels": 3}])
def test_bad_windows_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"window: {'candidates' if 'levels' not in bad else 'levels'} must be"):
        JacobiWindow(**bad)
