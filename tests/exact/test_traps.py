"""Traps, by name: where released code parts from its paper, and where a careless reading goes wrong."""

from itertools import product

import numpy as np
import pytest

from tests.acceptance import accepted_mass
from tests.exact.relaxed import KEEPS_DRAFTS, apart, codebook, make, next_token_distribution, point_distribution, star
from underpaint.algos.accept import RULES
from underpaint.algos.accept.gsd import GroupedAcceptance
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.accept.spec import Residual
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Role, sampling, scripted
from underpaint.algos.tree import Verdict

LINE = np.arange(6.0)[:, None]
LANTERNS = ("lantern", "lantern_pp")


def zero_noise(tokens: tuple[int, ...]) -> dict[tuple[int, Role, int], float]:
    accepts = {(0, Role.ACCEPT, child): 0.0 for child in range(1, len(tokens) + 1)}
    return accepts | {(0, Role.RESIDUAL, 0): 0.0, **{(0, Role.BONUS, node): 0.0 for node in range(len(tokens) + 1)}}


# LANTERN's neighbours


def test_released_lantern_zeroes_every_neighbour_though_few_were_pooled() -> None:
    """A rejection of code 0 pools code 1 alone, yet codes 1 to k + 1 lose their mass for good."""
    target = np.array([0.1, 0.1, 0.2, 0.2, 0.2, 0.2])
    near = nearest_codes(LINE, 5)
    settings = {"neighbours": near, "k": 3, "delta": 0.15}
    paper = point_distribution(make(RULES["lantern"], LINE, **settings), target, (0,))
    released = point_distribution(make(RULES["lantern"], LINE, residual="released", **settings), target, (0,))
    assert np.allclose(paper, [0.2, 0.0, 0.2, 0.2, 0.2, 0.2])
    assert np.allclose(released, [0.2, 0.0, 0.0, 0.0, 0.0, 0.8])  # k + 1 = 4 neighbours of 0: codes 1 to 4
    assert apart(paper, target) == pytest.approx(0.1)
    assert apart(released, target) == pytest.approx(0.7)


def test_released_lantern_zeroes_one_neighbour_more_than_k() -> None:
    """The table leaves out the code itself already, so k + 1 columns reach one code too far."""
    target = np.array([0.02, 0.08, 0.3, 0.2, 0.2, 0.2])
    rule = make(RULES["lantern"], LINE, k=1, delta=0.1, residual="released")
    assert point_distribution(rule, target, (0,))[2] == 0.0
    with pytest.raises(ValueError, match=r"zeroes k \+ 1 neighbours, the table has 2"):
        make(RULES["lantern"], LINE, neighbours=nearest_codes(LINE, 2), k=2, residual="released")


def test_released_lantern_kills_siblings_in_the_ball() -> None:
    """A sibling near a rejected code, likely under the target, is never kept: its mass is gone."""
    target = np.array([0.1, 0.1, 0.5, 0.1, 0.1, 0.1])
    paper, released = (
        point_distribution(make(RULES["lantern"], LINE, k=3, delta=0.1001, residual=residual), target, (0, 2))
        for residual in ("paper", "released")
    )
    assert paper[2] == pytest.approx(0.5)
    assert released[2] == 0.0


def test_released_static_lantern_counts_the_pool_twice() -> None:
    """On drawn siblings q is zeroed in place of p: the pooled codes keep all of p after paying for x.

    Code 0 is kept in place of code 1 (all of q that p lacks goes to pooling), and code 1 is drawn as if it were owed.
    """
    target, draft = np.array([0.1, 0.3, 0.6, 0.0]), np.array([0.7, 0.3, 0.0, 0.0])
    codes = np.array([[0.0], [1.0], [50.0], [99.0]])
    distributions = {
        residual: next_token_distribution(
            make(RULES["lantern"], codes, k=1, delta=0.35, residual=residual), target, draft, "without_replacement", 1
        )
        for residual in ("standard", "paper", "released")
    }
    accepted = np.minimum(draft, [0.4, 0.3, 0.0, 0.0])
    assert np.allclose(distributions["standard"], [0.4, 0.3, 0.3, 0.0])
    assert np.allclose(distributions["paper"], [0.4, 0.3, 0.3, 0.0])
    assert np.allclose(distributions["released"], accepted + 0.3 * np.array([0.0, 0.3, 0.6, 0.0]) / 0.9)
    assert distributions["released"][1] == pytest.approx(0.4)  # more than target and draft both give it


def test_a_neighbour_of_no_mass_counts_as_pooled_in_the_released_code() -> None:
    """So the released code is not exact at delta = 0: under top-k filtering most neighbours have no mass."""
    target = np.array([0.2, 0.0, 0.3, 0.5, 0.0, 0.0])
    exact, released = (
        point_distribution(make(RULES["lantern"], LINE, k=2, delta=0.0, residual=residual), target, (0,))
        for residual in ("paper", "released")
    )
    assert np.allclose(exact, target)
    assert np.allclose(released, [0.2 + 0.8 / 6, *[0.8 / 6] * 5])


def test_a_rejected_sibling_is_such_a_neighbour() -> None:
    """Nor is it exact at delta = 0 where every code has mass: a rejected sibling has none."""
    target = np.full(6, 1 / 6)
    released = make(RULES["lantern"], LINE, k=2, delta=0.0, residual="released")
    assert apart(point_distribution(released, target, (0,)), target) < 1e-12
    assert apart(point_distribution(released, target, (0, 1)), target) > 0.2


@pytest.mark.parametrize("name", LANTERNS)
def test_an_empty_support_falls_back_on_every_code(name: str) -> None:
    """Zeroing neighbours can leave nothing; the released code then draws uniformly, codes of probability 0 included."""
    target = np.array([0.4, 0.3, 0.3, 0.0, 0.0, 0.0])
    strength = {"delta": 0.35} if name == "lantern" else {"factor": 1.9}
    distributions: dict[Residual, FloatArray] = {
        residual: point_distribution(make(RULES[name], LINE, k=3, residual=residual, **strength), target, (0,))
        for residual in ("paper", "released", "standard")
    }
    assert np.allclose(distributions["released"], [0.7 + 0.05, *[0.05] * 5])
    assert np.all(distributions["paper"][3:] == 0.0)
    assert np.all(distributions["standard"][3:] == 0.0)


def test_delta_above_one_means_another_rule() -> None:
    """The released code reads delta = 3 as LANTERN++ with factor 3, unsaid; here it says so."""
    with pytest.raises(ValueError, match="rule 'lantern_pp' with factor = delta"):
        make(RULES["lantern"], LINE, delta=3.0)
    with pytest.raises(ValueError, match="'lantern_pp_greedy' with factor = delta"):
        make(RULES["lantern_greedy"], LINE, delta=3.0)
    target = np.array([0.1, 0.15, 0.25, 0.2, 0.2, 0.1])
    distribution = point_distribution(make(RULES["lantern_pp"], LINE, factor=3.0), target, (0,))
    assert distribution[0] == pytest.approx(0.25)  # code 1 fits under (3 - 1) * 0.1, code 2 does not
    everything = point_distribution(make(RULES["lantern"], LINE, delta=1.0), target, (0,))
    assert everything[0] == pytest.approx(1.0)


def test_the_greedy_likeliest_token_cannot_be_pooled_above_delta() -> None:
    """Right beside the argmax and yet rejected: 0.5 does not fit under delta = 0.4, and the next prefix is shut."""
    target = np.array([0.2, 0.5, 0.3, 0.0, 0.0, 0.0])
    tree = star((0,), "top_k", target)
    rows = np.tile(target, (2, 1))
    shut = make(RULES["lantern_greedy"], LINE, delta=0.4)
    assert shut(tree, rows, sampling(0)) == Verdict((), 1)
    wide = make(RULES["lantern_greedy"], LINE, delta=0.5)
    assert wide(tree, rows, sampling(0)) == Verdict((1,), 1)


def test_the_pool_is_measured_in_what_the_siblings_left() -> None:
    """After a rejection the distribution is renormalised: code 3's neighbour grows from 0.2 to 1/3 and no longer
    fits."""
    target = np.array([0.4, 0.0, 0.1, 0.1, 0.2, 0.2])
    codes = np.array([[0.0], [100.0], [200.0], [10.0], [10.5], [30.0]])
    rule = make(RULES["lantern"], codes, k=1, delta=0.25, residual="standard")
    assert point_distribution(rule, target, (3,))[3] == pytest.approx(0.3)
    assert point_distribution(rule, target, (0, 3))[3] == pytest.approx((1.0 - 0.5) * 0.1 / 0.6)


# GSD's groups


def test_gsd_groups_overlap_so_a_token_may_be_kept_less_than_exactly() -> None:
    """Hence [p - q]_+ is not the least biased residual here, though it is for rules that only ever keep more."""
    target, draft = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    codes = np.zeros((4, 1))
    rule = GroupedAcceptance(codes, 3, 1.0, 1.0, "paper", "paper")
    accept = accepted_mass(rule, target, draft) / draft
    assert accept[1] == 1.0
    assert accept[3] > target[3] / draft[3]
    target, draft = np.array([0.3, 0.29, 0.41, 0.0]), np.array([0.2, 0.7, 0.1, 0.0])
    accept = accepted_mass(rule._replace(group=2), target, draft)[:3] / draft[:3]
    assert accept[0] < min(1.0, target[0] / draft[0])


# A draw of exactly 0, the edges of a distribution, unset pairs


def test_a_draw_of_exactly_zero_keeps_nothing_impossible() -> None:
    """The released rules compare with <=, so a uniform of 0 keeps a token of probability 0 with no neighbours' help."""
    target, draft = np.array([0.0, 0.0, 0.0, 0.0, 0.4, 0.6]), np.full(6, 1 / 6)
    for spec, drawn in product(RULES, ("top_k", "iid", "without_replacement")):
        if drawn not in spec.drawn or spec.greedy or spec.name in KEEPS_DRAFTS:
            continue
        settings = {"k": 1} if spec.codebook else {}
        settings |= {"neighbours": nearest_codes(LINE, 2)} if spec.codebook else {}
        tree = star((0,), drawn, draft)
        verdict = make(spec, LINE, **settings)(tree, np.tile(target, (2, 1)), scripted(zero_noise((0,))))
        assert verdict.path == (), spec.name
        assert target[verdict.token] > 0.0, spec.name


def test_rounding_cannot_empty_a_distribution() -> None:
    """All of p is pooled, but its sum in another order is an ulp below 1: a rejection must not leave an empty
    distribution."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        target = generator.dirichlet(np.ones(9)).astype(np.float32).astype(np.float64)
        for residual in ("paper", "standard"):
            rule = make(RULES["lantern"], codebook(9), delta=1.0, residual=residual)
            assert point_distribution(rule, target, (0, 1)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("name", LANTERNS)
def test_the_released_code_says_nothing_of_iid_siblings(name: str) -> None:
    tree, rows = star((0,), "iid", np.full(6, 1 / 6)), np.full((2, 6), 1 / 6)
    with pytest.raises(ValueError, match="says nothing of 'iid' trees"):
        make(RULES[name], LINE, residual="released")(tree, rows, sampling(0))


def test_tables_and_settings_are_checked() -> None:
    near = nearest_codes(LINE, 3)
    tree, rows = star((0,), "top_k", np.full(6, 1 / 6)), np.full((2, 6), 1 / 6)
    for settings, message in (
        ({"neighbours": np.array([[0], [0]])}, "its own neighbour"),
        ({"neighbours": near.astype(float)}, "of integers"),
        ({"neighbours": near + 9}, "0 <= neighbour < V"),
        ({"neighbours": near, "k": 4}, r"k must be in 0\.\.3"),
        ({"residual": "best"}, "residual must be one of paper, released, standard"),
        ({"delta": -0.1}, "delta must be at least 0, got -0.1"),
        ({"delta": float("nan")}, "delta must be at least 0, got nan"),
        ({"depth": 2}, "unknown setting 'depth'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(RULES["lantern"], LINE, **settings)
    with pytest.raises(ValueError, match="one row per code, V = 6, got 5"):
        make(RULES["lantern"], LINE[:5])(tree, rows, sampling(0))
    for name, settings, message in (
        ("lantern_pp", {"factor": 0.9}, "factor must be at least 1, got 0.9"),
        ("lantern_pp", {"factor": float("inf")}, r"factor must be at most 1e\+06, got inf"),
        ("lantern_pp_greedy", {"factor": 0.0}, "factor must be at least 1, got 0.0"),
        ("lantern_greedy", {"choose": "best"}, "choose must be one of longest, first"),
        ("cool", {"delta": 0.0}, "delta must be above 0, got 0.0"),
        ("cool", {"mu": float("nan")}, "mu must be at least -50, got nan"),
        ("typical", {"epsilon": 0.0}, "epsilon must be above 0, got 0.0"),
        ("typical", {"choose": "all"}, "choose must be one of likeliest, first"),
        ("mulo", {"tau": 0.0}, "tau must be above 0, got 0.0"),
        ("mulo", {"k": 9}, r"k must be in 0\.\.5"),
        ("gsd", {"group": 0}, "group must be at least 1, got 0"),
        ("gsd", {"window": "open"}, "window must be one of paper, released"),
        ("gsd", {"codebook": np.full((6, 1), np.nan)}, "finite codebook"),
    ):
        with pytest.raises(ValueError, match=message):
            make(RULES[name], LINE, **settings)
    with pytest.raises(ValueError, match="a codebook of V = 6 codes, got 5"):
        make(RULES["gsd"], LINE[:5])(tree, rows, sampling(0))
