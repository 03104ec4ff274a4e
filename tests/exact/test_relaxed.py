"""Relaxed rules: exact total variation, the promised bound, the support, and no loss at neutral settings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.distributions import assert_argmax, assert_exact
from tests.exact.relaxed import (
    STRENGTHS,
    apart,
    codebook,
    make,
    next_token_distribution,
    point_distribution,
    residuals,
    siblings_of,
    star,
)
from tests.strategies import ShapePolicy, chains, distributions, pools, shapes
from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.accept.cool import CoolSD
from underpaint.algos.accept.gsd import Grouped
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.accept.relaxed import accepted_mass
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import enumerate_outcomes, sampling
from underpaint.algos.draft import POLICIES, Grid, PolicySpec
from underpaint.algos.enumeration import emitted
from underpaint.algos.step import decode
from underpaint.algos.tree import Drawn
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget

RELAXED = [spec for spec in RULES if spec.promise != "lossless"]
SAMPLED = [spec for spec in RELAXED if not spec.greedy]
ROUNDING = 1e-12


def cases(specs: list[RuleSpec]) -> list[Any]:
    """Every rule, with every kind of tree and every residual it knows."""
    return [
        pytest.param(spec, drawn, options, id="-".join([spec.name, drawn, *options.values()]))
        for spec in specs
        for drawn in sorted(spec.drawn)
        for options in residuals(spec, drawn)
    ]


Bound = Callable[[dict[str, Any], Drawn, int], float]


def _lantern(options: dict[str, Any], drawn: Drawn, count: int) -> float:
    if options["residual"] == "released" or drawn != "top_k":
        return 1.0
    return 1.0 - (1.0 - float(options["delta"])) ** count


def _lantern_pp(options: dict[str, Any], drawn: Drawn, count: int) -> float:
    if options["residual"] == "released" or (options["residual"] == "paper" and drawn != "top_k"):
        return 1.0
    return 1.0 - 1.0 / float(options["factor"])


def _cool(options: dict[str, Any], drawn: Drawn, count: int) -> float:
    return max(0.0, 1.0 - 1.0 / CoolSD(**options).factors(1)[0])


BOUNDS: dict[str, Bound] = {"lantern": _lantern, "lantern_pp": _lantern_pp, "cool": _cool}


def test_every_relaxed_rule_has_settings_and_every_promise_a_bound() -> None:
    assert set(STRENGTHS) == {spec.name for spec in RELAXED}
    assert set(BOUNDS) == {spec.name for spec in SAMPLED if spec.promise == "bounded"}
    for spec in RELAXED:
        assert spec.bound
        assert spec.neutral


@pytest.mark.parametrize(("spec", "drawn", "options"), cases(SAMPLED))
@settings(max_examples=12)
@given(data=st.data())
def test_the_promised_bound(spec: RuleSpec, drawn: Drawn, options: dict[str, Any], data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(3, 4))
    target, draft = data.draw(distributions(vocab_size)), data.draw(distributions(vocab_size))
    count = data.draw(st.integers(1, 6 - vocab_size))
    chosen = data.draw(STRENGTHS[spec.name]) | options
    rule = make(spec, codebook(vocab_size, data.draw(st.integers(0, 5))), **chosen)
    distribution = next_token_distribution(rule, target, draft, drawn, count)
    assert distribution.sum() == pytest.approx(1.0, abs=ROUNDING)
    if spec.promise == "bounded":
        assert apart(distribution, target) <= BOUNDS[spec.name](chosen, drawn, count) + ROUNDING


@pytest.mark.parametrize(("spec", "drawn", "options"), cases(RELAXED))
@settings(max_examples=6)
@given(data=st.data())
def test_neutral_settings_lose_nothing(
    spec: RuleSpec, drawn: Drawn, options: dict[str, Any], data: st.DataObject
) -> None:
    codes = codebook(3, data.draw(st.integers(0, 5)))
    released = options.get("residual") == "released"  # neutral without zeros and siblings only: see test_traps.py
    worlds = st.builds(RandomDistribution, st.just(3), st.integers(0, 99)) if released else pools(3)
    target = SyntheticTarget(data.draw(worlds), Grid(1, 4))
    drafter = SyntheticDrafter(data.draw(pools(3)))
    policy = ShapePolicy(data.draw(chains(3) if spec.needs_chain or released else shapes(3)), drawn)
    rule = make(spec, codes, **spec.neutral, **options)
    (assert_argmax if spec.greedy else assert_exact)(target, drafter, policy, rule, cycle_count=2)


@pytest.mark.parametrize(("spec", "drawn", "options"), cases(SAMPLED))
@settings(max_examples=8)
@given(data=st.data())
def test_support(spec: RuleSpec, drawn: Drawn, options: dict[str, Any], data: st.DataObject) -> None:
    """What was not drafted comes from the target's support; what was kept is in it, or stands for codes that are."""
    if options.get("residual") == "released":
        return  # may fall back on the uniform distribution: see test_traps.py
    target, draft = data.draw(distributions(4)), data.draw(distributions(4))
    rule = make(spec, codebook(4), **(data.draw(STRENGTHS[spec.name]) | options))
    pools_codes = spec.codebook or spec.embeddings

    def program(chance: Any) -> tuple[tuple[int, ...], int, bool]:
        tree = star(siblings_of(drawn, draft, 2, chance), drawn, draft)
        verdict = rule(tree, np.tile(target, (tree.size, 1)), chance)
        return tuple(tree.tokens[1:].tolist()), emitted(tree, verdict)[0], bool(verdict.path)

    for (drafted, token, kept), weight in enumerate_outcomes(program).items():
        assert weight > 0.0
        assert token in drafted or not kept
        assert target[token] > 0.0 or (kept and pools_codes)


@pytest.mark.parametrize(
    ("spec", "drawn"), [(spec, drawn) for spec in SAMPLED if spec.residuals for drawn in sorted(spec.drawn)]
)
@settings(max_examples=10)
@given(data=st.data())
def test_no_residual_beats_the_optimal_one(spec: RuleSpec, drawn: Drawn, data: st.DataObject) -> None:
    target, draft = data.draw(distributions(4)), data.draw(distributions(4))
    chosen, codes = data.draw(STRENGTHS[spec.name]), codebook(4, data.draw(st.integers(0, 5)))
    missed = {}
    for options in residuals(spec, drawn):
        rule = make(spec, codes, **chosen, **options)
        missed[options["residual"]] = apart(next_token_distribution(rule, target, draft, drawn, 1), target)
    assert missed["optimal"] <= min(missed.values()) + ROUNDING


def brute_pool(distribution: FloatArray, codes: FloatArray, token: int, limit: float) -> float:
    """The mass pooled with `token`, worked out one neighbour at a time from the codes themselves."""
    distances = ((codes - codes[token]) ** 2).sum(axis=1)
    others = sorted((float(distances[code]), code) for code in range(distribution.size) if code != token)
    mass = 0.0
    for _, code in others:
        if mass + distribution[code] > limit:
            break
        mass += distribution[code]
    return mass


@pytest.mark.parametrize("residual", ["paper", "optimal"])
@pytest.mark.parametrize("name", ["lantern", "lantern_pp"])
@given(distributions(5), st.integers(0, 5), st.integers(0, 4), st.data())
def test_lantern_misses_by_exactly_what_it_pools(
    name: str, residual: str, target: FloatArray, seed: int, token: int, data: st.DataObject
) -> None:
    """One point proposal: x is kept with p(x) + p(A), and the rest keeps its proportions."""
    chosen, codes = data.draw(STRENGTHS[name]), codebook(5, seed)
    limit = chosen["delta"] if name == "lantern" else (chosen["factor"] - 1.0) * target[token]
    pooled = brute_pool(target, codes, token, limit)
    distribution = point_distribution(make(RULES[name], codes, residual=residual, **chosen), target, (token,))
    assert distribution[token] == pytest.approx(min(1.0, target[token] + pooled), abs=ROUNDING)
    assert apart(distribution, target) == pytest.approx(pooled, abs=ROUNDING)


@pytest.mark.parametrize("name", ["lantern", "lantern_pp"])
@given(distributions(4), distributions(4), st.integers(0, 5), st.data())
def test_lantern_on_a_drawn_token(
    name: str, target: FloatArray, draft: FloatArray, seed: int, data: st.DataObject
) -> None:
    """With the optimal residual a drawn proposal misses by sum([q accept - p]_+), at most sum(min(pool, [q - p]_+))."""
    chosen, codes = data.draw(STRENGTHS[name]), codebook(4, seed)
    pooled = np.array(
        [
            brute_pool(target, codes, token, chosen["delta"] if name == "lantern" else (chosen["factor"] - 1) * own)
            for token, own in enumerate(target)
        ]
    )
    rule = make(RULES[name], codes, residual="optimal", **chosen)
    missed = apart(next_token_distribution(rule, target, draft, "iid", 1), target)
    assert missed == pytest.approx(np.maximum(np.minimum(draft, target + pooled) - target, 0.0).sum(), abs=ROUNDING)
    assert missed <= np.minimum(pooled, np.maximum(draft - target, 0.0)).sum() + ROUNDING


def test_the_additive_bound_does_not_hold_for_drawn_tokens() -> None:
    """Every code may gain delta: two codes that the drafter overrates double the bound (no residual can help)."""
    target, draft = np.array([0.1, 0.1, 0.2, 0.2, 0.2, 0.2]), np.array([0.5, 0.5, 0.0, 0.0, 0.0, 0.0])
    codes = np.array([[0.0], [10.0], [0.1], [10.1], [30.0], [40.0]])
    rule = make(RULES["lantern"], codes, delta=0.25, k=1, residual="optimal", neighbours=nearest_codes(codes, 1))
    assert apart(next_token_distribution(rule, target, draft, "iid", 1), target) == pytest.approx(0.4)


def test_the_additive_bound_grows_with_siblings() -> None:
    """One sibling misses by delta at most; three by up to 1 - (1 - delta)^3, and nearly that much can happen."""
    target, codes = np.full(40, 1 / 40), np.arange(40.0)[:, None]
    rule = make(RULES["lantern"], codes, delta=0.101, residual="paper")
    one, three = (apart(point_distribution(rule, target, tokens), target) for tokens in ((0,), (0, 15, 30)))
    assert one == pytest.approx(0.1)
    assert 0.25 < three <= 1.0 - (1.0 - 0.101) ** 3


@given(distributions(4), distributions(4), st.data())
def test_scaled_and_grouped_acceptance_miss_by_what_is_kept_too_often(
    target: FloatArray, draft: FloatArray, data: st.DataObject
) -> None:
    chosen = data.draw(STRENGTHS["cool"])
    factor = CoolSD(**chosen).factors(1)[0]
    missed = apart(next_token_distribution(make(RULES["cool"], codebook(4), **chosen), target, draft, "iid", 1), target)
    assert missed == pytest.approx(np.maximum(np.minimum(draft, factor * target) - target, 0.0).sum(), abs=ROUNDING)

    chosen, codes = data.draw(STRENGTHS["gsd"]), codebook(4, data.draw(st.integers(0, 5)))
    rule = make(RULES["gsd"], codes, residual="optimal", **chosen)
    kept = accepted_mass(Grouped(codes, **chosen, residual="optimal"), target, draft)
    missed = apart(next_token_distribution(rule, target, draft, "iid", 1), target)
    assert missed == pytest.approx(np.maximum(kept - target, 0.0).sum(), abs=ROUNDING)


def test_cool_is_loose_first_and_tight_last() -> None:
    factors = CoolSD(delta=1.1, nu=0.7).factors(5)
    assert list(factors) == sorted(factors, reverse=True)
    assert np.mean(factors) == pytest.approx(1.1)
    assert np.allclose(np.array(factors[1:]) / factors[:-1], np.exp(-0.7))
    assert CoolSD(delta=1.1, nu=0.7, mu=0.0).factors(1)[0] == pytest.approx(1.1)


@given(distributions(5), st.integers(0, 4), st.data())
def test_deterministic_rules_keep_or_draw_from_the_target(target: FloatArray, token: int, data: st.DataObject) -> None:
    """A kept token is certain; a rejected one leaves the target's distribution untouched."""
    codes = codebook(5)
    epsilon, alpha, tau = data.draw(st.sampled_from([(0.09, 0.3, 0.2371), (0.31, 2.0, 0.5237)]))
    held = target[target > 0]
    least = min(epsilon, alpha * float(np.exp((held * np.log(held)).sum())))
    distribution = point_distribution(make(RULES["typical"], codes, epsilon=epsilon, alpha=alpha), target, (token,))
    assert np.allclose(distribution, np.eye(5)[token] if target[token] > least else target, atol=ROUNDING)
    near = nearest_codes(codes, 2)
    distribution = point_distribution(make(RULES["mulo"], codes, tau=tau, neighbours=near), target, (token,))
    passes = target[token] + target[near[token]].sum() >= tau
    assert np.allclose(distribution, np.eye(5)[token] if passes else target, atol=ROUNDING)


@pytest.mark.parametrize(("name", "strength"), [("lantern_greedy", "delta"), ("lantern_pp_greedy", "factor")])
@given(distributions(5), distributions(5), st.data())
def test_greedy_rules_keep_only_near_ties(
    name: str, strength: str, target: FloatArray, draft: FloatArray, data: st.DataObject
) -> None:
    chosen = data.draw(STRENGTHS[name])
    rule = make(RULES[name], codebook(5, data.draw(st.integers(0, 5))), **chosen)
    tree = star(siblings_of("top_k", draft, 3, sampling(0)), "top_k", draft)
    verdict = rule(tree, np.tile(target, (tree.size, 1)), sampling(0))
    best = float(target.max())
    if verdict.path:
        least = best - chosen["delta"] if strength == "delta" else best / chosen["factor"]
        assert target[tree.tokens[verdict.path[0]]] >= least - ROUNDING
    assert verdict.token == int(target.argmax())


@pytest.mark.parametrize(
    ("rule", "policy"),
    [
        pytest.param(rule, policy, id=f"{rule.name}-{policy.name}")
        for rule in RELAXED
        for policy in POLICIES
        if policy.drawn in rule.drawn and (policy.chain or not rule.needs_chain)
    ],
)
def test_every_policy(rule: RuleSpec, policy: PolicySpec) -> None:
    likely = RandomDistribution(8, seed=5)
    target = SyntheticTarget(likely, Grid(3, 4))
    drafter = SyntheticDrafter(Blend(likely, RandomDistribution(8, seed=6), 0.5))
    for options in residuals(rule, policy.drawn):
        made = make(rule, codebook(8), **options)
        assert decode(target, drafter, policy.make(), made, sampling(1), 12).tokens.size == 12
