"""Planted bugs in the relaxed rules: the rule agrees with a second reading of it, and each of its mutants does not."""

import dataclasses
import itertools
from collections.abc import Callable
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.exact.relaxed import star
from tests.mutants.harness import (
    Plant,
    around,
    check_is_caught,
    instead,
    load,
    replaced,
    with_attributes,
    wrapped,
)
from tests.mutants.relaxed import (
    Reading,
    boosted_verdict,
    cool_reading,
    decided_distribution,
    expected_distribution,
    gsd_reading,
    lantern_reading,
    longest_path,
    nearest,
)
from underpaint.algos.accept import RULES
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes, sampling
from underpaint.algos.coupling import EnumeratedNoise
from underpaint.algos.enumeration import target_distribution, total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.tree import DraftTree, Drawn, Verdict, emitted
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy

CLOSE = 1e-9


def rows(vocab_size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """A target with a zero, a draft, codes with ties, and three tokens, none of them the target's zero."""
    generator = np.random.default_rng(seed)
    target, draft = generator.dirichlet(np.ones(vocab_size), size=2)
    target[0] = 0.0
    codes = generator.integers(0, 3, size=(vocab_size, 2)).astype(float)
    return target / target.sum(), draft, codes, (1 + generator.permutation(vocab_size - 1)[:3]).tolist()


def agree(rule: Any, reading: Reading, drawn: Drawn, seed: int, count: int) -> None:
    target, draft, _, tokens = rows(6, seed)
    tree = star(tuple(tokens[:count]), drawn, draft)
    got = decided_distribution(rule, tree, np.tile(target, (tree.size, 1)))
    want = expected_distribution(reading, target, tokens[:count], drawn, draft)
    assert np.abs(got - want).max() < CLOSE


def check_lantern(module: ModuleType) -> None:
    for seed, residual, drawn in product(
        range(8), ("paper", "released", "standard"), ("top_k", "without_replacement", "iid")
    ):
        if residual == "released" and drawn == "iid":
            continue
        codes = rows(6, seed)[2]
        for k, count in ((2, 1), (3, 3)):
            settings = {"neighbours": nearest_codes(codes, 5), "k": k, "residual": residual}
            additive = lantern_reading(codes, k, residual, lambda p: 0.2371)
            agree(module.Lantern(delta=0.2371, **settings), additive, drawn, seed, count)
            relative = lantern_reading(codes, k, residual, lambda p: 1.713 * p)
            agree(module.LanternPP(factor=2.713, **settings), relative, drawn, seed, count)
    with pytest.raises(ValueError, match="lantern_pp"):
        module.Lantern(nearest_codes(codes, 5), delta=1.5)


def check_cool(module: ModuleType) -> None:
    for seed, drawn, count in product(range(6), ("top_k", "without_replacement", "iid"), (1, 3)):
        for factor in (0.7, 1.4):
            agree(module.CoolSD(delta=factor, nu=0.7, mu=0.0), cool_reading(factor), drawn, seed, count)
    assert np.allclose(module.CoolSD(1.0, 0.7).factors(2), [2 / (1 + np.exp(-0.7)), 2 / (1 + np.exp(0.7))])
    target, draft, _, tokens = rows(6, 0)  # the second level is cooler: the factor there is 1.4 exp(-0.7)
    tree = DraftTree(np.array([0, *tokens[:2]]), np.array([-1, 0, 1]), "iid", draft[None, :], np.array([0, 0, -1]))
    cooler = 1.4 * np.exp(-0.7) * target[tokens[1]] / draft[tokens[1]]
    first = min(1.0, 1.4 * target[tokens[0]] / draft[tokens[0]])
    verdicts: dict[Any, float] = {}
    for verdict, weight in _verdicts(module.CoolSD(1.4, 0.7, 0.0), tree, np.tile(target, (3, 1))).items():
        verdicts[verdict.path] = verdicts.get(verdict.path, 0.0) + weight
    assert abs(verdicts.get((1, 2), 0.0) - first * min(1.0, cooler)) < CLOSE


def check_gsd(module: ModuleType) -> None:
    for seed, residual, window, group in product(range(6), ("paper", "standard"), ("paper", "released"), (3, 4)):
        codes = rows(6, seed)[2]
        rule = module.GroupedSpeculation(codes, group, 0.2, 1.2, window, residual)
        reading = gsd_reading(codes, group, 0.2, 1.2, window, residual)
        for drawn, count in product(("top_k", "without_replacement", "iid"), (1, 2)):
            agree(rule, reading, drawn, seed, count)


def bushes(seed: int) -> tuple[DraftTree, np.ndarray, np.ndarray]:
    """A tree of two levels, distributions with ties for its nodes, codes."""
    generator = np.random.default_rng(seed)
    tokens = np.array([0, *generator.permutation(6)[:3], *generator.permutation(6)[:2], *generator.permutation(6)[:2]])
    tree = DraftTree(tokens, np.array([-1, 0, 0, 0, 1, 1, 3, 3]), "top_k", np.empty((0, 6)), np.full(8, -1))
    distributions = generator.multinomial(12, np.full(6, 1 / 6), size=8) / 12
    return tree, distributions, generator.integers(0, 3, size=(6, 2)).astype(float)


def check_greedy(module: ModuleType) -> None:
    for seed in range(60):
        tree, distributions, codes = bushes(seed)
        near = nearest_codes(codes, 4)
        for k in (1, 3):
            rule = module.LanternGreedy(near, k, 0.2371)
            assert rule(tree, distributions, None) == boosted_verdict(tree, distributions, codes, k, lambda p: 0.2371)
            rule = module.LanternPPGreedy(near, k, 2.713)
            assert rule(tree, distributions, None) == boosted_verdict(
                tree, distributions, codes, k, lambda p: 1.713 * p
            )


def check_typical(module: ModuleType) -> None:
    for seed in range(60):
        tree, distributions, _ = bushes(seed)

        def passes(parent: int, node: int, distributions: np.ndarray = distributions, tree: DraftTree = tree) -> bool:
            nonzero = distributions[parent][distributions[parent] > 0]
            least = min(0.31, 0.9 * float(np.exp((nonzero * np.log(nonzero)).sum())))
            return bool(distributions[parent, tree.tokens[node]] > least)

        for choose in ("first", "likeliest"):
            got = _verdicts(module.TypicalAcceptance(0.31, 0.9, choose), tree, distributions)
            (path,) = {verdict.path for verdict in got}
            best = longest_path(tree, passes)
            masses = np.prod([distributions[tree.parents[node], tree.tokens[node]] for node in path])
            assert len(path) == len(best)
            assert choose != "first" or path == best
            assert choose == "first" or masses >= np.prod(
                [distributions[tree.parents[n], tree.tokens[n]] for n in best]
            )
            end = path[-1] if path else 0
            assert {verdict.token: weight for verdict, weight in got.items()} == pytest.approx(
                {token: mass for token, mass in enumerate(distributions[end]) if mass}
            )


def check_mulo(module: ModuleType) -> None:
    for seed in range(60):
        tree, distributions, codes = bushes(seed)

        def passes(parent: int, node: int, distributions: np.ndarray = distributions, tree: DraftTree = tree) -> bool:
            token = int(tree.tokens[node])
            return bool(distributions[parent][[token, *nearest(codes, token, 2)]].sum() >= 0.46)  # noqa: B023

        got = _verdicts(module.PooledThreshold(nearest_codes(codes, 4), 2, 0.46), tree, distributions)
        assert {verdict.path for verdict in got} == {longest_path(tree, passes)}
        cells = module.passing_cells(distributions[tree.parents[1:]], tree.tokens[1:], nearest_codes(codes, 2), 0.46)
        assert cells.tolist() == [passes(int(tree.parents[node]), node) for node in range(1, tree.size)]


def _verdicts(rule: Any, tree: DraftTree, distributions: np.ndarray) -> dict[Any, float]:
    return enumerate_outcomes(lambda chance: rule(tree, distributions, chance))


def check_neighbours(module: ModuleType) -> None:
    for seed in range(4):
        codes = np.random.default_rng(seed).integers(0, 3, size=(40, 2)).astype(float)
        for k in (1, 4, 30):
            table = module.nearest_codes(codes, k)
            assert table.tolist() == [nearest(codes, token, k) for token in range(40)]
    twins = np.tile(np.random.default_rng(0).normal(size=(150, 7)), (3, 1))  # dead codes: each stands there thrice
    table = module.nearest_codes(twins, 9)
    assert table[:, :2].tolist() == [
        sorted({code % 150, code % 150 + 150, code % 150 + 300} - {code}) for code in range(450)
    ]
    assert np.all(np.diff(table[:, 2:].reshape(450, -1)[:, :3], axis=1) == 150)
    # Far from the origin every product rounds by more than all codes are apart, however a processor adds it up.
    remote = 1e12 + np.random.default_rng(0).permutation(40).astype(float)[:, None]
    assert module.nearest_codes(remote, 9).tolist() == [nearest(remote, token, 9) for token in range(40)]
    with pytest.raises(ValueError, match="expected 1 to 39 nearest codes"):
        module.nearest_codes(codes, 40)
    with pytest.raises(ValueError, match="finite codes"):
        module.nearest_codes(np.array([[0.0], [np.nan], [1.0]]), 1)
    with pytest.raises(ValueError, match=r"expected a table of codes by numbers"):
        module.nearest_codes(np.zeros(4), 1)
    with pytest.raises(ValueError, match="its own neighbour"):
        module.check_neighbours(np.array([[1], [1]]), "table")


def check_jacobi(module: ModuleType) -> None:
    distribution = RandomDistribution(2, seed=7, sharpness=1.5)
    for grid, length, coupling, refill in (
        (Grid(1, 4), 3, "independent", "uniform"),
        (Grid(2, 2), 3, "independent", "above"),
        (Grid(1, 4), 3, "maximal", "uniform"),
        (Grid(1, 4), 3, "gumbel", "left"),
    ):
        window = JacobiWindow(length, coupling, refill)

        def program(chance: Chance, grid: Grid = grid, window: JacobiWindow = window) -> Any:
            noise = EnumeratedNoise(chance) if window.coupling == "gumbel" else None
            run = module.jacobi_cycles(
                SyntheticTarget(distribution, grid), RULES["chain"].make(), chance, window, noise
            )
            return tuple(token for cycle in run for token in emitted(cycle.tree, cycle.verdict))

        assert (
            total_variation(enumerate_outcomes(program), target_distribution(SyntheticTarget(distribution, grid)))
            < CLOSE
        )
    redrawn = 0  # where a distribution depends on the cell alone, a draft that was redrawn from it is sure to be kept
    cells, window = SyntheticTarget(lambda prefix: RandomDistribution(8)((len(prefix),)), Grid(1, 30)), JacobiWindow(4)
    for cycle in module.jacobi_cycles(cells, RULES["chain"].make(), sampling(0), window):
        assert len(cycle.verdict.path) >= min(redrawn, cycle.tree.depth)
        redrawn = cycle.tree.depth - len(cycle.verdict.path) - 1
    first, second = np.array([0.2, 0.5, 0.3]), np.array([0.5, 0.1, 0.4])

    def coupled(chance: Chance) -> tuple[int, int]:
        token = chance.draw(first, At(Role.DRAFT, 1))
        return token, module.maximal_coupling(token, first, second, chance, At(Role.DRAFT, 2))

    joint = enumerate_outcomes(coupled)
    assert abs(sum(weight for (old, new), weight in joint.items() if old == new) - 0.6) < CLOSE


def check_race(module: ModuleType) -> None:
    generator = np.random.default_rng(0)
    for _ in range(6):
        first, second = generator.dirichlet(np.ones(4), size=2)
        joint = np.array([mass * module.second_race(first, token, second) for token, mass in enumerate(first)])
        assert np.allclose(joint.sum(axis=0), second, atol=CLOSE)
        for token in range(4):
            assert abs(joint[token, token] - 1 / np.maximum(first / first[token], second / second[token]).sum()) < CLOSE
    pairs = [np.array([share, 1 - share]) for share in (0.3, 0.6, 0.45)]
    outcomes = enumerate_outcomes(
        lambda chance: tuple(noise.race(pair, 0) for noise in [module.EnumeratedNoise(chance)] for pair in pairs)
    )
    assert outcomes == pytest.approx({(0, 0, 0): 0.3, (1, 0, 0): 0.15, (1, 0, 1): 0.15, (1, 1, 1): 0.4})
    noise = module.SampledNoise(0)
    won = [noise.race(np.array([0.2, 0.8]), cell) for cell in range(2000)]
    assert abs(np.mean(won) - 0.8) < 0.05


def check_skipping(module: ModuleType) -> None:
    """With the target as its drafter every draft is kept and the distribution is the target's, skipped or not."""
    distribution, skipped = RandomDistribution(2, seed=3), set[int]()

    def run(target: SyntheticTarget, chance: Chance) -> tuple[int, ...]:
        models = target, SyntheticDrafter(distribution), ShapePolicy((0, 1), "iid"), RULES["chain"].make()
        done = list(module.skipping_cycles(*models, chance, module.Skipping(2, 2), 8))
        assert all(len(cycle.verdict.path) == cycle.tree.depth for cycle in done if cycle.verified)
        skipped.update(len(cycle.verdict.path) + 1 for cycle in done if not cycle.verified)
        return tuple(token for cycle in done for token in emitted(cycle.tree, cycle.verdict))

    whole = target_distribution(SyntheticTarget(distribution, Grid(1, 8)))
    got = enumerate_outcomes(lambda chance: run(SyntheticTarget(distribution, Grid(1, 8)), chance))
    assert total_variation(got, whole) < CLOSE
    assert skipped == {2}
    seen = set[tuple[int, ...]]()

    def noted(prefix: tuple[int, ...]) -> np.ndarray:
        seen.add(prefix)
        return distribution(prefix)

    image = run(SyntheticTarget(noted, Grid(1, 30)), sampling(0))
    assert {image[:count] for count in range(27)} <= seen  # all of it was scored as one sequence
    check_schedules(module)


def check_schedules(module: ModuleType) -> None:
    """Which cycles are skipped follows from their numbers or from the codes, and from what was accepted before."""
    forked = DraftTree(np.array([0, 1, 2, 0, 3]), np.array([-1, 0, 0, 1, 1]), "top_k", np.empty((0, 4)), np.full(5, -1))
    assert module.skipped_distribution(forked, 4).tolist() == pytest.approx([0, 2 / 3, 1 / 3, 0], abs=CLOSE)
    distribution, codes = RandomDistribution(4, seed=3), np.eye(4)
    for codebook, settings, due in (
        (None, module.Skipping(3, 2), lambda number, alike: number % 3 == 0),
        (codes, module.Skipping(0, 2, "similarity", 0.75), lambda number, alike: alike),
        (np.ones((4, 2)), module.Skipping(0, 2, "similarity", 0.75), lambda number, alike: True),
    ):
        models = SyntheticTarget(distribution, Grid(1, 60)), SyntheticDrafter(distribution)
        policy, rule = ShapePolicy((0, 0), "iid"), RULES["multi_round"].make()
        done = list(module.skipping_cycles(*models, policy, rule, sampling(4), settings, 8, codebook))
        skipped, ready, last = 0, False, False
        for number, cycle in enumerate(done):
            alike = cycle.tree.size == 3 and cycle.tree.tokens[1] == cycle.tree.tokens[2]
            expected = ready and not last and cycle.tree.size > 1 and due(number, alike)
            assert cycle.verified is not bool(expected)
            last = not cycle.verified
            skipped += last
            verified = [one for one in done[1 : number + 1] if one.verified]
            ready = sum(len(one.verdict.path) for one in verified) >= len(verified) > 0
        assert skipped > 2


def check_similarity(module: ModuleType) -> None:
    """The cosine of every pair of paths, level by level, added up one by one."""
    generator = np.random.default_rng(5)
    codes = generator.standard_normal((6, 3))
    codes[5] = 0.0
    for parents in ((-1, 0, 0, 1, 1, 2, 3), (-1, 0, 0, 0), (-1, 0, 1, 2), (-1, 0, 1, 1, 3)):
        tokens = generator.integers(6, size=len(parents))
        tree = DraftTree(tokens, np.array(parents), "top_k", np.empty((0, 6)), np.full(len(parents), -1))
        paths = [tree.path_to(node) for node in range(1, tree.size) if node not in parents]
        total, count = 0.0, 0
        for first, second in itertools.combinations(paths, 2):
            count += 1
            for level, (one, other) in enumerate(zip(first, second, strict=False)):
                lengths = np.linalg.norm(codes[tokens[one]]) * np.linalg.norm(codes[tokens[other]])
                cosine = codes[tokens[one]] @ codes[tokens[other]] / lengths if lengths > 0.0 else 0.0
                total += cosine * 0.5**level / sum(0.5**depth for depth in range(tree.depth))
        expected = total / count if count else 0.0
        assert abs(module.path_similarity(tree, codes, 0.5) - expected) < CLOSE


CHECKS: dict[str, Callable[[ModuleType], None]] = {
    "accept/lantern.py": check_lantern,
    "accept/lantern_greedy.py": check_greedy,
    "accept/cool.py": check_cool,
    "accept/gsd.py": check_gsd,
    "accept/typical.py": check_typical,
    "accept/mulo.py": check_mulo,
    "accept/neighbours.py": check_neighbours,
    "spatial/jacobi.py": check_jacobi,
    "coupling.py": check_race,
    "skipping.py": check_skipping,
    "path_similarity.py": check_similarity,
}


def with_fields(**changed: Callable[[Any], Any]) -> Callable[..., Any]:
    """A wrong method: the right one of an owner whose fields are what these functions make of it."""

    def wrong(right: Any, owner: Any, *args: Any) -> Any:
        fields = {name: change(owner) for name, change in changed.items()}
        return right(
            owner._replace(**fields) if isinstance(owner, tuple) else dataclasses.replace(owner, **fields), *args
        )

    return wrong


def pooling(method: str, wrong: Callable[..., Any]) -> tuple[str, Plant]:
    return "accept/lantern.py", around("Pooling", method, wrong)


def grouping(method: str, wrong: Callable[..., Any]) -> tuple[str, Plant]:
    return "accept/gsd.py", around("GroupedAcceptance", method, wrong)


def skipping(method: str, wrong: Callable[..., Any]) -> tuple[str, Plant]:
    return "skipping.py", around("_SkippedCycles", method, wrong)


def whole_pool_weighs(right: Any, distribution: Any, near: Any, limit: float) -> Any:
    pool = right(distribution, near, limit)
    return pool._replace(mass=float(distribution[near].sum())) if pool.codes else pool


def pool_without_its_code(right: Any, pooled: Any, residual: Any, token: int, total: float) -> Any:
    pool = right(pooled, residual, token, total)
    return pool._replace(mass=pool.mass - float(residual[token]))


def code_in_its_own_pool(pooled: Any) -> np.ndarray:
    return np.column_stack([np.arange(len(pooled.neighbours)), pooled.neighbours])


def target_of_points(module: ModuleType) -> list[np.ndarray]:
    """The distribution that `Pooling.try_points` was given, while it runs."""
    targets = list[np.ndarray]()

    def try_points(right: Any, pooled: Any, tree: Any, node: int, children: Any, distribution: Any, chance: Any) -> Any:
        targets.append(distribution)
        tried = right(pooled, tree, node, children, distribution, chance)
        targets.clear()
        return tried

    around("Pooling", "try_points", try_points)(module)
    return targets


def before_rejections(module: ModuleType) -> None:
    targets = target_of_points(module)
    wrapped("pool", lambda right, distribution, *args: right(targets[-1] if targets else distribution, *args))(module)


def fallback_is_the_target(module: ModuleType) -> None:
    def take_out(right: Any, pooled: Any, residual: Any, *args: Any) -> float:
        gone = right(pooled, residual, *args)
        if pooled.residual == "released" and not residual.any():
            residual[:] = targets[-1]
        return float(gone)

    targets = target_of_points(module)
    around("Pooling", "take_out", take_out)(module)


def flips_out_of_one(
    right: Any, pooled: Any, tree: Any, node: int, children: Any, distribution: Any, chance: Any
) -> Any:
    unscaled = SimpleNamespace(flip=lambda chance_of, at, out_of: chance.flip(chance_of, at))
    return right(pooled, tree, node, children, distribution, unscaled)


def only_the_token_goes(right: Any, pooled: Any, residual: Any, token: int, pooled_mass: Any) -> float:
    token_mass = float(residual[token])
    right(pooled, residual, token, pooled_mass)
    return token_mass


def token_stays(right: Any, pooled: Any, residual: Any, token: int, pooled_mass: Any) -> float:
    token_mass = float(residual[token])
    gone = right(pooled, residual, token, pooled_mass)
    residual[token] = token_mass
    return float(gone)


def all_k_go(right: Any, pooled: Any, *args: Any) -> Any:
    return right(pooled, *args[:-1], args[-1]._replace(codes=pooled.k))


def standard_as_paper(pooled: Any) -> str:
    return "paper" if pooled.residual == "standard" else str(pooled.residual)


def released_from_the_target(right: Any, pooled: Any, residual: Any, drafted: Any, token: int, pooled_mass: Any) -> Any:
    if pooled.residual != "released" or not pooled_mass.codes:
        return right(pooled, residual, drafted, token, pooled_mass)
    residual[pooled.neighbours[token, : pooled.k + 1]] = 0.0
    return np.maximum(residual - drafted, 0.0)


def standard_takes_nothing(right: Any, pooled: Any, residual: Any, *args: Any) -> Any:
    return residual if pooled.residual == "standard" else right(pooled, residual, *args)


def extra_from_the_root(right: Any, tree: Any, probs: Any, *args: Any) -> Verdict:
    return Verdict(right(tree, probs, *args).path, int(probs[0].argmax()))


def bonus_from_the_root(right: Any, rule: Any, tree: Any, probs: Any, chance: Any) -> Any:
    return right(rule, tree, probs, SimpleNamespace(draw=lambda row, at: chance.draw(probs[0], at)))


def mean_is_forgotten(right: Any, rule: Any, depth: int) -> Any:
    return tuple(factor / depth for factor in right(rule, depth)) if rule.mu is None else right(rule, depth)


def never_alone(right: Any, group: Any, target: Any, token: int) -> Any:
    rank = int(np.flatnonzero(group.order(target) == token)[0])
    cut_off = group.rising and rank < group.before
    return right(group._replace(window="paper"), -target, token) if cut_off else right(group, target, token)


def alone_is_never_accepted(right: Any, group: Any, target: Any, draft: Any) -> Any:
    accept = right(group, target, draft)
    if group.rising:
        accept[group.order(target)[: group.before]] = 0.0
    return accept


def ordered_the_other_way(right: Any, group: Any, target: Any, draft: Any) -> Any:
    order = group.order(target)
    return right(group, target, draft)[order][order]


def out_of_the_token(right: Any, group: Any, target: Any, draft: Any, token: int, place: int) -> Any:
    return right(group, target, draft, token, place)._replace(out_of=float(draft[token]))


def by_rounded_products(right: Any, codes: Any, k: int) -> Any:
    right(codes, k)  # it refuses what it should
    rough = (codes**2).sum(axis=1) - 2.0 * codes @ codes.T
    np.fill_diagonal(rough, np.inf)
    return rough.argsort(axis=1, kind="stable")[:, :k]


def keeps_its_old_distribution(
    right: Any, draft: Any, new: Any, cell: int, chance: Any, window: Any, noise: Any
) -> Any:
    again = right(draft, new, cell, chance, window, noise)
    return again if window.coupling == "maximal" else again._replace(distribution=draft.distribution)


def races(won: bool) -> Callable[..., Any]:
    """The share of a token is bounded only by the races that it has won, or lost."""
    return lambda right, past, distribution, token: right(
        [seen for seen in past if (seen.winner == token) is won], distribution, token
    )


class Around:
    """Another object with some attributes exchanged."""

    def __init__(self, other: Any, **changed: Any) -> None:
        self.__dict__.update(changed, other=other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.other, name)


def rows_from_the_first(right: Any, cycles: Any, *args: Any) -> Any:
    def score(tree: Any) -> Any:
        scored = target.score(tree)
        return scored._replace(probs=np.roll(scored.probs, len(cycles.pending), axis=0))

    target = cycles.target
    return with_attributes(right, cycles, args, target=Around(target, score=score))


def last_pending_is_lost(right: Any, cycles: Any, *args: Any) -> Any:
    def commit(tree: Any, whole: Any) -> None:
        target.commit(tree, whole._replace(path=tuple(node for node in whole.path if node != count)))

    target, count = cycles.target, len(cycles.pending)
    return with_attributes(right, cycles, args, target=Around(target, commit=commit))


def root_is_not_pending(right: Any, cycles: Any, *args: Any) -> Any:
    verdict = right(cycles, *args)
    cycles.pending = cycles.pending[1:]
    return verdict


def ends_in_its_first(right: Any, cycles: Any, tree: Any, chance: Any) -> Any:
    verdict = right(cycles, tree, chance)
    return verdict._replace(token=int(tree.tokens[verdict.path[0]])) if verdict.path else verdict


def stands_still(right: Any, drafter: Any, tokens: Any) -> None:
    above = drafter._above
    right(drafter, tokens)
    drafter._above = above


def two_in_a_row(right: Any, cycles: Any, tree: Any, number: int, chance: Any) -> Any:
    if cycles.pending and tree.size > 1 and cycles.accepted >= cycles.verified and cycles._is_due(tree, number):
        return cycles._skip(tree, chance), False
    return right(cycles, tree, number, chance)


def unlike_instead(right: Any, cycles: Any, *args: Any) -> bool:
    return bool(right(cycles, *args)) is (cycles.skipping.schedule == "uniform")


def over_all_pairs(right: Any, tree: Any, *args: Any) -> float:
    return float(right(tree, *args)) * (1.0 - 1.0 / len(tree.leaves))


def unit_levels(codes: Any) -> Any:
    lengths = np.linalg.norm(codes, axis=1, keepdims=True)
    return np.divide(codes, lengths, out=codes, where=lengths > 0.0)


LANTERN, GREEDY, COOL, TYPICAL = "accept/lantern.py", "accept/lantern_greedy.py", "accept/cool.py", "accept/typical.py"
MULO, NEAR, WINDOW, NOISE = "accept/mulo.py", "accept/neighbours.py", "spatial/jacobi.py", "coupling.py"
SKIPPING, SIMILARITY = "skipping.py", "path_similarity.py"

PLANTED: dict[str, tuple[str, Plant]] = {
    "lantern: points pool a code too many": pooling("try_points", with_fields(k=lambda pooled: pooled.k + 1)),
    "lantern: drawn tokens pool a code too many": pooling("try_drawn", with_fields(k=lambda pooled: pooled.k + 1)),
    "lantern: a code too few": pooling("pooled", with_fields(k=lambda pooled: pooled.k - 1)),
    "lantern: codes beyond the limit weigh too": (LANTERN, wrapped("pool", whole_pool_weighs)),
    "lantern: a code in its own pool": pooling("pooled", with_fields(neighbours=code_in_its_own_pool)),
    "lantern: the pool without its code": pooling("pooled", pool_without_its_code),
    "lantern: the limit of a whole distribution": pooling(
        "pooled", lambda right, pooled, residual, token, total: right(pooled, residual, token, 1.0)
    ),
    "lantern: what is left is not renormalised for the flip": pooling("try_points", flips_out_of_one),
    "lantern: a rejected pool counts as left": pooling("take_out", only_the_token_goes),
    "lantern: pools are measured before the rejections": (LANTERN, before_rejections),
    "lantern: all k go with a rejected point": pooling("take_out", all_k_go),
    "lantern: all k go with a rejected draw": pooling("rest", all_k_go),
    "lantern: the optimal residual takes the pool out of points": pooling(
        "take_out", with_fields(residual=standard_as_paper)
    ),
    "lantern: the optimal residual takes the pool out of draws": pooling(
        "rest", with_fields(residual=standard_as_paper)
    ),
    "lantern: the rejected token stays": pooling("take_out", token_stays),
    "lantern: as released, k go with a rejected point": pooling("take_out", with_fields(k=lambda pooled: pooled.k - 1)),
    "lantern: as released, k + 1 leave the target": pooling("rest", released_from_the_target),
    "lantern: as released, nothing left is the target again": (LANTERN, fallback_is_the_target),
    "lantern: the optimal residual takes nothing": pooling("rest", standard_takes_nothing),
    "lantern: delta bounds relative to the token": (
        LANTERN,
        instead("Lantern", "_limit", lambda rule, own, total: rule.delta * own),
    ),
    "lantern++: the factor bounds the neighbours alone": (
        LANTERN,
        instead("LanternPP", "_limit", lambda rule, own, total: rule.factor * own),
    ),
    "lantern: a delta above 1 passes": (LANTERN, instead("Lantern", "__post_init__", lambda rule: None)),
    "greedy: the pool without its code": (
        GREEDY,
        wrapped("outweighs", lambda right, p, top, token, pooled: right(p, top, token, pooled - float(p[token]))),
    ),
    "greedy: a tie is always won": (
        GREEDY,
        replaced("outweighs", lambda p, top, token, pooled: float(p[token]) + pooled >= float(p[top])),
    ),
    "greedy: a tie is always lost": (
        GREEDY,
        replaced("outweighs", lambda p, top, token, pooled: float(p[token]) + pooled > float(p[top])),
    ),
    "greedy: all columns are pooled": (GREEDY, around("LanternGreedy", "__call__", with_fields(k=lambda rule: 0))),
    "greedy: the extra token is the root's": (GREEDY, wrapped("greedy_verdict", extra_from_the_root)),
    "greedy: the factor bounds the neighbours alone": (
        GREEDY,
        around("LanternPPGreedy", "__call__", with_fields(factor=lambda rule: rule.factor + 1.0)),
    ),
    "cool: a rejection takes all of the draft": (
        COOL,
        instead("ScaledAcceptance", "taken", lambda scaled, target, draft, place: draft),
    ),
    "cool: every level has the first factor": (
        COOL,
        around("ScaledAcceptance", "odds", lambda right, scaled, p, q, token, place: right(scaled, p, q, token, 0)),
    ),
    "cool: the factors rise": (
        COOL,
        around("CoolSD", "factors", lambda right, rule, depth: right(rule, depth)[::-1]),
    ),
    "cool: the factors add up to delta": (COOL, around("CoolSD", "factors", mean_is_forgotten)),
    "gsd: the paper's window in the released order": (
        "accept/gsd.py",
        instead("GroupedAcceptance", "before", property(lambda group: (group.group - 1) // 2)),
    ),
    "gsd: a cut-off window is judged as a group": grouping("members", never_alone),
    "gsd: always in falling order": grouping("order", lambda right, group, p: np.argsort(-p, kind="stable")),
    "gsd: a token that is judged alone is never accepted": grouping("_accept", alone_is_never_accepted),
    "gsd: groups of any look": grouping("members", with_fields(distance=lambda group: 99.0)),
    "gsd: groups of any probability": grouping("members", with_fields(gap=lambda group: 9.0)),
    "gsd: the group out of the token's draft": grouping("odds", out_of_the_token),
    "gsd: the optimal residual is the paper's": grouping("taken", lambda right, group, p, q, place: q),
    "gsd: the residual's groups are of any look": grouping(
        "_accept", with_fields(distance=lambda group: 99.0, gap=lambda group: 9.0)
    ),
    "gsd: acceptances in the window's order": grouping("_accept", ordered_the_other_way),
    "typical: epsilon alone decides": (
        TYPICAL,
        instead("TypicalAcceptance", "threshold", lambda rule, row: rule.epsilon),
    ),
    "typical: the entropy has the wrong sign": (TYPICAL, wrapped("entropy", lambda right, row: -right(row))),
    "typical: the unlikeliest path": (TYPICAL, wrapped("log_likelihood", lambda right, *args: -right(*args))),
    "typical: the bonus is the root's": (TYPICAL, around("TypicalAcceptance", "__call__", bonus_from_the_root)),
    "mulo: the pool without its code": (
        MULO,
        wrapped(
            "pooled_mass", lambda right, p, tokens, near: right(p, tokens, near) - p[np.arange(tokens.size), tokens]
        ),
    ),
    "mulo: twice the threshold on a tree": (
        MULO,
        around("PooledThreshold", "__call__", with_fields(tau=lambda rule: 2.0 * rule.tau)),
    ),
    "mulo: all columns are pooled": (MULO, around("PooledThreshold", "__call__", with_fields(k=lambda rule: 0))),
    "neighbours: a code is its own nearest": (
        NEAR,
        wrapped(
            "nearest_codes",
            lambda right, codes, k: np.column_stack([np.arange(len(codes)), right(codes, k)[:, :-1]]),
        ),
    ),
    "neighbours: of equals the last": (
        NEAR,
        wrapped("nearest_codes", lambda right, codes, k: len(codes) - 1 - right(codes[::-1], k)[::-1]),
    ),
    "neighbours: in the order of their index": (
        NEAR,
        wrapped("nearest_codes", lambda right, *args: np.sort(right(*args), axis=1)),
    ),
    "neighbours: by distances that products round": (NEAR, wrapped("nearest_codes", by_rounded_products)),
    "neighbours: too many are not refused": (
        NEAR,
        wrapped("nearest_codes", lambda right, codes, k: right(codes, min(k, len(codes) - 1))),
    ),
    "neighbours: a code may be listed as its own": (NEAR, replaced("check_neighbours", lambda table, what: None)),
    "jacobi: a draft drawn anew has its old distribution": (WINDOW, wrapped("_redrawn", keeps_its_old_distribution)),
    "jacobi: coupling keeps every draft": (WINDOW, replaced("maximal_coupling", lambda token, *args: token)),
    "jacobi: where coupling fails, a draw from the target": (WINDOW, replaced("excess", lambda target, draft: target)),
    "race: others run from the start": (
        NOISE,
        wrapped("_outlasts", lambda right, edge, first, second: right(edge, 0.0 * first, second)),
    ),
    "race: a race won bounds nothing": (NOISE, wrapped("_between_two", races(won=False))),
    "race: a race lost bounds nothing": (NOISE, wrapped("_between_two", races(won=True))),
    "race: the weights slow down": (
        NOISE,
        around("SampledNoise", "race", lambda right, noise, weights, cell: right(noise, 1.0 / weights, cell)),
    ),
    "skipping: the rule sees the pending tokens' rows": skipping("_verify", rows_from_the_first),
    "skipping: the last pending token is not committed": skipping("_verify", last_pending_is_lost),
    "skipping: the root is not pending": skipping("_skip", root_is_not_pending),
    "skipping: a skipped cycle ends in its first token": skipping("_skip", ends_in_its_first),
    "skipping: drafts do not go on below what is pending": (
        SKIPPING,
        around("_UncommittedDrafter", "descend", stands_still),
    ),
    "skipping: the cycles behind those that are due": skipping(
        "_is_due", lambda right, cycles, tree, number: right(cycles, tree, number - 1)
    ),
    "skipping: two in a row": skipping("decide", two_in_a_row),
    "skipping: where paths are unlike": skipping("_is_due", unlike_instead),
    "skipping: leaves below one child count once": (
        SKIPPING,
        wrapped("skipped_distribution", lambda right, tree, size: (right(tree, size) > 0.0) / len(tree.leaves)),
    ),
    "similarity: a path counts as a pair with itself": (
        SIMILARITY,
        replaced("_pair_sums", lambda codes: (codes.sum(axis=0) ** 2).sum(axis=1)),
    ),
    "similarity: the mean over too many pairs": (SIMILARITY, wrapped("path_similarity", over_all_pairs)),
    "similarity: all levels weigh alike": (
        SIMILARITY,
        wrapped("path_similarity", lambda right, tree, codes, decay: right(tree, codes, 1.0)),
    ),
    "similarity: levels of length 1, not codes": (SIMILARITY, replaced("_unit", unit_levels)),
    "similarity: inner nodes end paths": (
        SIMILARITY,
        wrapped(
            "path_similarity",
            lambda right, tree, *args: right(Around(tree, leaves=list(range(1, tree.size))), *args),
        ),
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_rule_agrees_with_its_second_reading(name: str) -> None:
    CHECKS[name](load(name))


@pytest.mark.parametrize("bug", PLANTED)
def test_the_mutant_is_killed(bug: str) -> None:
    name, plant = PLANTED[bug]
    check_is_caught(CHECKS[name], name, plant)
