"""What the tests of relaxed rules share: settings for any of them, and the exact distribution of the token after a
node."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from underpaint.algos.accept import RuleSpec
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.accept.spec import Residual
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes
from underpaint.algos.protocols import Rule
from underpaint.algos.registry import build
from underpaint.algos.tree import DraftTree, Drawn, emitted

KEEPS_DRAFTS = {"ensemble", "sjd_sv"}
"""Rules that may keep a draft which the target rules out."""


def examples(spec: RuleSpec) -> st.SearchStrategy[dict[str, Any]]:
    """Settings of any strength that the spec brings, k and residual aside."""
    return st.sampled_from([dict(settings) for settings in spec.examples])


def codebook(vocab_size: int, seed: int = 0) -> FloatArray:
    """Codes [V, 2] on a small lattice, so that distances tie."""
    return np.random.default_rng(seed).integers(0, 3, size=(vocab_size, 2)).astype(np.float64)


def make(spec: RuleSpec, codes: FloatArray, **settings: Any) -> Rule:
    """The rule of `spec` over `codes` [V, E]."""
    if spec.codebook:
        settings.setdefault("neighbours", nearest_codes(codes, codes.shape[0] - 1))
    if spec.embeddings:
        settings.setdefault("codebook", codes)
    return build(spec.make, settings, spec.name)


def residuals(spec: RuleSpec, drawn: Drawn) -> tuple[dict[str, Residual], ...]:
    """One dictionary of settings per residual the rule has for such trees; one empty dictionary if it knows none."""
    return tuple({"residual": residual} for residual, kinds in spec.residuals.items() if drawn in kinds) or ({},)


def siblings_of(drawn: Drawn, distribution: FloatArray, count: int, chance: Chance) -> tuple[int, ...]:
    """Up to `count` siblings drawn from `distribution` [V]."""
    remaining_mass, tokens = distribution.astype(np.float64), list[int]()
    for node in range(1, count + 1):
        if drawn == "top_k":
            return tuple(np.argsort(-distribution, kind="stable")[:count].tolist())
        if not remaining_mass.any():
            break
        tokens.append(chance.draw(remaining_mass, At(Role.DRAFT, node)))
        if drawn == "without_replacement":
            remaining_mass[tokens[-1]] = 0.0
    return tuple(tokens)


def star(tokens: tuple[int, ...], drawn: Drawn, distribution: FloatArray) -> DraftTree:
    """The tree of a root and its children `tokens`."""
    count = len(tokens)
    return DraftTree(
        tokens=np.array([0, *tokens]),
        parents=np.array([-1, *[0] * count]),
        drawn=drawn,
        draft_probs=distribution[None, :],
        draft_rows=np.array([0, *[-1] * count]),
    )


def next_token_distribution(rule: Rule, target: FloatArray, draft: FloatArray, drawn: Drawn, count: int) -> FloatArray:
    """The exact distribution [V] of the token after a node with `count` children drawn from `draft`, the drawing
    included."""

    def program(chance: Chance) -> int:
        tree = star(siblings_of(drawn, draft, count, chance), drawn, draft)
        verdict = rule(tree, np.tile(target, (tree.size, 1)), chance)
        return emitted(tree, verdict)[0]

    distribution = np.zeros(target.size)
    for token, weight in enumerate_outcomes(program).items():
        distribution[token] = weight
    return distribution


def point_distribution(rule: Rule, target: FloatArray, tokens: tuple[int, ...]) -> FloatArray:
    """The exact distribution [V] of the token after a node with point proposals `tokens`."""
    tree = star(tokens, "top_k", target)
    distribution = np.zeros(target.size)
    for verdict, weight in enumerate_outcomes(
        lambda chance: rule(tree, np.tile(target, (tree.size, 1)), chance)
    ).items():
        distribution[emitted(tree, verdict)[0]] += weight
    return distribution


def apart(first: FloatArray, second: FloatArray) -> float:
    """Total variation of two distributions [V]."""
    return 0.5 * float(np.abs(first - second).sum())
