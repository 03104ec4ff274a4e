"""Addressed randomness: one meaning for sampling, enumerating, scripted uniforms and given arrays."""

import numpy as np
import pytest
from hypothesis import given as holds
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import (
    At,
    Chance,
    Enumerating,
    Philox,
    Role,
    enumerate_outcomes,
    from_arrays,
    index_of,
    sampling,
    scripted,
)
from underpaint.strategies import distributions

BELOW_ONE = float(np.nextafter(1.0, 0.0))


@pytest.mark.parametrize("uniform", [0.0, 0.5, BELOW_ONE])
def test_the_impossible_is_never_accepted(uniform: float) -> None:
    chance = scripted({(0, Role.ACCEPT, 1): uniform})
    assert not chance.flip(0.0, At(Role.ACCEPT, 1))
    assert not chance.flip(0.0, At(Role.ACCEPT, 1), out_of=0.0)
    assert chance.flip(1.0, At(Role.ACCEPT, 1))
    assert chance.flip(0.3, At(Role.ACCEPT, 1), out_of=0.3)
    assert chance.flip(5e-324, At(Role.ACCEPT, 1), out_of=0.0)


def test_a_flip_is_strict_at_its_edge() -> None:
    chance = scripted({(0, Role.ACCEPT, 1): 0.25})
    assert not chance.flip(0.25, At(Role.ACCEPT, 1))
    assert chance.flip(float(np.nextafter(0.25, 1.0)), At(Role.ACCEPT, 1))


@holds(
    distribution=distributions(5),
    uniform=st.sampled_from([0.0, 5e-324, 0.25, 0.5, 1 / 3, BELOW_ONE]),
    dtype=st.sampled_from(["f4", "f8"]),
)
def test_a_token_of_no_mass_is_never_drawn(distribution: FloatArray, uniform: float, dtype: str) -> None:
    assert distribution[index_of(distribution.astype(dtype), uniform)] > 0.0


def test_a_draw_falls_on_the_right_token() -> None:
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    assert [index_of(weights, uniform) for uniform in (0.0, 0.2499, 0.25, 0.9, BELOW_ONE)] == [1, 1, 3, 3, 3]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [np.nan, 1.0], [-0.1, 1.1], [np.inf, 1.0]])
@pytest.mark.parametrize("chance", [sampling(0), Enumerating()], ids=["sampling", "enumerating"])
def test_what_is_no_distribution_cannot_be_drawn_from(weights: list[float], chance: Chance) -> None:
    with pytest.raises(ValueError, match="non-negative weights with a positive finite sum"):
        chance.draw(np.array(weights), At(Role.BONUS, 0))


ADDRESSES = [(cycle, At(role, node)) for cycle in (0, 3) for role in Role for node in (0, 1, 63, 64, 200)]


@holds(order=st.permutations(ADDRESSES))
def test_a_uniform_depends_on_its_address_alone(order: list[tuple[int, At]]) -> None:
    alone = {(cycle, at): sampling(7, 2).source(cycle, at) for cycle, at in ADDRESSES}
    shared = sampling(7, 2)
    assert {(cycle, at): shared.source(cycle, at) for cycle, at in order} == alone
    assert len(set(alone.values())) == len(ADDRESSES)


def test_pictures_and_seeds_have_noise_of_their_own() -> None:
    at = At(Role.ACCEPT, 1)
    uniforms = {sampling(seed, image).source(0, at) for seed in range(20) for image in range(20)}
    assert len(uniforms) == 400
    with pytest.raises(ValueError, match="seed >= 0"):
        sampling(-1)


def test_uniforms_are_uniform() -> None:
    uniforms = Philox(11).uniforms(0, Role.ACCEPT, 20_000)
    assert uniforms.min() >= 0.0
    assert uniforms.max() < 1.0
    counts, _ = np.histogram(uniforms, bins=20, range=(0.0, 1.0))
    assert float(((counts - 1000.0) ** 2 / 1000.0).sum()) < 50.0  # chi-square, 19 degrees of freedom, p = 1e-4


def decide(chance: Chance) -> tuple[object, ...]:
    """Three cycles of mixed decisions over more than one block of nodes."""
    decisions: list[object] = []
    for cycle in range(3):
        here = chance.cycle(cycle)
        for node in (0, 5, 70):
            decisions.append(here.flip(0.3 + 0.1 * cycle, At(Role.ACCEPT, node)))
            decisions.append(here.draw(np.arange(1.0, 9.0), At(Role.RESIDUAL, node)))
    return tuple(decisions)


def test_recorded_and_given_uniforms_replay_sampling() -> None:
    for seed in range(50):
        source = sampling(seed, 4)
        recorded = {
            (cycle, role, node): source.source(cycle, At(role, node))
            for cycle in range(3)
            for role in (Role.ACCEPT, Role.RESIDUAL)
            for node in (0, 5, 70)
        }
        assert decide(scripted(recorded)) == decide(source)
        handed = from_arrays({role: Philox(seed, 4).uniforms(0, role, 80) for role in Role})
        for node in range(80):
            at = At(Role.ACCEPT, node)
            assert handed.source(0, at) == source.source(0, at)


def test_a_script_that_lacks_an_address_says_so() -> None:
    with pytest.raises(KeyError):
        scripted({}).flip(0.5, At(Role.ACCEPT, 1))


@holds(distribution=distributions(4), share=st.sampled_from([0.0, 0.2, 1.0, 2.0]))
def test_enumeration_weighs_every_branch(distribution: FloatArray, share: float) -> None:
    def program(chance: Enumerating) -> tuple[int, bool]:
        return chance.draw(distribution, At(Role.BONUS, 0)), chance.flip(share, At(Role.ACCEPT, 0))

    outcomes = enumerate_outcomes(program)
    assert sum(outcomes.values()) == pytest.approx(1.0, abs=1e-15)
    for (token, accepted), weight in outcomes.items():
        assert weight == pytest.approx(
            distribution[token] * (min(1.0, share) if accepted else 1.0 - min(1.0, share)), abs=1e-15
        )
        assert weight > 0.0


def test_enumeration_agrees_with_sampling() -> None:
    def program(chance: Chance) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        for node in range(3):
            if chance.flip(0.6, At(Role.ACCEPT, node), out_of=0.8):
                tokens = (*tokens, chance.draw(np.array([1.0, 0.0, 2.0]), At(Role.DRAFT, node)))
        return tokens

    exact = enumerate_outcomes(program)
    samples = [program(sampling(1, image)) for image in range(4000)]
    for outcome, weight in exact.items():
        deviation = (weight * (1 - weight) / len(samples)) ** 0.5
        assert abs(samples.count(outcome) / len(samples) - weight) < 5 * deviation


def test_noise_asked_for_twice_has_no_distribution() -> None:
    def program(chance: Enumerating) -> bool:
        return chance.cycle(2).flip(0.5, At(Role.ACCEPT, 1)) == chance.cycle(2).flip(0.5, At(Role.ACCEPT, 1))

    with pytest.raises(RuntimeError, match=r"cycle 2.*asked for twice"):
        enumerate_outcomes(program)
