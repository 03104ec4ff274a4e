"""The rules of 2025 and 2026: what they promise, what their authors' formulas give, and where a claim fails."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.utils import _speculative_sampling

from tests.exact.recent_rules import CHECKS, ROUNDING, TOY, chain, decoded, pairs
from tests.mutants.harness import load
from underpaint.algos.accept import RULES
from underpaint.algos.chance import Role, index_of, scripted


@pytest.mark.parametrize("name", CHECKS)
def test_the_rule_does_what_its_source_says(name: str) -> None:
    CHECKS[name](load(name))


@pytest.mark.parametrize("weight", [0.3, 0.8])
def test_the_ensemble_decides_as_transformers_does(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`_speculative_sampling` with `assistant_ensemble_weight`, on the same uniforms."""
    for seed in range(60):
        tree, probs = chain(4, 3, seed)
        uniforms = np.random.default_rng(seed).random(4)
        monkeypatch.setattr(torch, "rand_like", lambda ratio, u=uniforms: torch.tensor(u[:3]).reshape(ratio.shape))

        def draw(row: torch.Tensor, num_samples: int, u: Any = uniforms) -> torch.Tensor:
            return torch.tensor([[index_of(row[0].numpy(), float(u[3]))]])

        monkeypatch.setattr(torch, "multinomial", draw)
        tokens, kept = _speculative_sampling(
            torch.tensor(tree.tokens)[None],
            torch.tensor(tree.draft_probs).log()[None],
            3,
            torch.tensor(probs).log()[None],
            assistant_ensemble_weight=weight,
        )
        script = {(0, Role.ACCEPT, node): float(uniforms[node - 1]) for node in (1, 2, 3)}
        script |= {(0, role, node): float(uniforms[3]) for role in (Role.RESIDUAL, Role.BONUS) for node in range(4)}
        verdict = RULES["ensemble"].make(weight)(tree, probs, scripted(script))
        assert (len(verdict.path), verdict.token) == (int(kept), int(tokens[0, -1]))


def test_hsd_as_released_is_not_lossless() -> None:
    """The toy case of its README: as block verification for one token, then more is kept, at a bias."""
    rule, block = RULES["hsd"].make(), RULES["block"].make()
    assert decoded(rule, 1) == pytest.approx((2 / 3, 0.0), abs=ROUNDING)
    assert decoded(rule, 2) == pytest.approx((4 / 3, 1 / 9), abs=ROUNDING)
    assert decoded(rule, 3) == pytest.approx((16 / 9, 5 / 81), abs=ROUNDING)
    assert decoded(block, 2) == pytest.approx((11 / 9, 0.0), abs=ROUNDING)


def test_hsd_is_biased_wherever_it_keeps_more_than_block_verification() -> None:
    for pair in pairs(3, 6):
        (kept, missed), (most, none) = decoded(RULES["hsd"].make(), 2, pair), decoded(RULES["block"].make(), 2, pair)
        assert none < ROUNDING
        assert kept >= most - ROUNDING
        assert (missed > 1e-6) == (kept > most + 1e-6)


@pytest.mark.parametrize(
    ("share", "kept", "missed"), [(0.5, 5 / 3, 1 / 3), (0.8, 25 / 18, 1 / 6), (1.0, 25 / 18, 1 / 6)]
)
def test_sjd_sv_is_not_lossless(share: float, kept: float, missed: float) -> None:
    assert decoded(RULES["sjd_sv"].make(share), 1) == pytest.approx((2 / 3, 0.0), abs=ROUNDING)
    assert decoded(RULES["sjd_sv"].make(share), 2) == pytest.approx((kept, missed), abs=ROUNDING)


def test_sjd_sv_is_not_lossless_with_one_uniform_for_all_tries_either() -> None:
    """Toy case, two drafts, whole runs: code 0 comes first too often, whichever way the second try is read."""
    target, draft = TOY
    ratio = target / draft
    first_is_kept = draft[0] * draft[0] * max(min(1.0, ratio[0] ** 2), min(1.0, ratio[0]))  # u below the larger one
    first_is_kept += draft[0] * draft[1] * max(min(1.0, ratio[0] * ratio[1]), min(1.0, ratio[0]))
    assert np.maximum(target - draft, 0.0)[0] == 0.0  # so a rejection never draws code 0
    assert first_is_kept == pytest.approx(4 / 9, abs=ROUNDING)
    assert target[0] == pytest.approx(1 / 3)


def test_fly_forgives_by_enumeration() -> None:
    """Toy case: a rejection of code 0 is forgiven wherever code 1 follows or code 0 passes."""
    assert decoded(RULES["fly"].make(0.3, 1), 1) == pytest.approx((2 / 3, 0.0), abs=ROUNDING)
    assert decoded(RULES["fly"].make(0.3, 1), 2) == pytest.approx((14 / 9, 2 / 9), abs=ROUNDING)
    assert decoded(RULES["fly"].make(0.7, 1), 2)[1] == pytest.approx(0.0, abs=ROUNDING)  # entropy is 0.637
