"""Test your own acceptance rule or verifier: exact assertions, Hypothesis strategies and scripted noise.

    from underpaint.testing import assert_lossless

    def test_my_rule():
        assert_lossless(my_rule, drawn="top_k")

A rule is a function `rule(tree, probs, chance) -> Verdict` (docs/how-to/add-a-rule.md). For other verifiers, the
argument `interface` says how they are called: `function` for `verify(draft, uniforms)`, `session` for a drafter with
its verifier, or a layout of EAGLE, SGLang, FlashInfer, vLLM, TensorRT-LLM or transformers
(docs/how-to/certify-a-verifier.md). `scripted_noise` is for code that draws its own random numbers.

The strategies (`distributions`, `shapes`, `chains`, `draft_trees`, `windows`, `pools`, `verifier_cases`) need
Hypothesis: `pip install "underpaint[testing]"`.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from underpaint.algos.chance import sampling
from underpaint.algos.tree import Drawn, Verdict, emitted
from underpaint.artifacts.install import install_hint
from underpaint.sim.certify.adapters import COVERED, Interface, copied, verifier_of
from underpaint.sim.certify.case import DraftRequest, VerifierCase
from underpaint.sim.certify.certificate import Certificate, certify
from underpaint.sim.certify.layouts import LAYOUTS
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.noise import NoiseExhausted, scripted_noise
from underpaint.sim.certify.report import certificate_lines
from underpaint.sim.certify.search import cases_to_judge
from underpaint.sim.certify.verifier import Fault

if TYPE_CHECKING:
    from underpaint.strategies import (
        ShapePolicy,
        Window,
        chains,
        distributions,
        draft_trees,
        pools,
        shapes,
        verifier_cases,
        windows,
    )

__all__ = [
    "NoiseExhausted",
    "ShapePolicy",
    "VerifierCase",
    "Window",
    "assert_bounded",
    "assert_lossless",
    "assert_same_tokens",
    "chains",
    "distributions",
    "draft_trees",
    "pools",
    "scripted_noise",
    "shapes",
    "verifier_cases",
    "windows",
]
CASES: Final = {"ci": 16, "nightly": 200}
"""Number of cases that an assertion checks in each profile; `--underpaint-profile` chooses the profile."""
SEEDS: Final = 20
"""Number of noise seeds that `assert_same_tokens` tries on each draft."""
BOUNDARIES: Final = (0.0, 0.5, 1.0 - 2.0**-24)
"""Uniforms that `assert_same_tokens` tries in every combination, for drafts that need few uniforms."""
MOST_COMBINATIONS: Final = 81
_chosen: dict[str, str] = {"profile": "ci"}


def __getattr__(name: str) -> Any:
    """Load a strategy on first access, because Hypothesis is an optional dependency."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("underpaint.strategies"), name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        raise ModuleNotFoundError(
            f"underpaint.testing.{name} needs Hypothesis, which is not installed; {install_hint('testing')}"
        ) from error


def use_profile(name: str) -> None:
    """Choose the profile, "ci" or "nightly", which sets how many cases each assertion checks."""
    if name not in CASES:
        raise ValueError(f"profile: expected one of {', '.join(CASES)}, got {name!r}")
    _chosen["profile"] = name


def assert_lossless(
    rule: Callable[..., Any],
    *,
    drawn: Drawn = "top_k",
    chain: bool = False,
    interface: Interface = "rule",
    cycles: int = 1,
    bits: int | None = None,
    strict: bool = False,
    cases: int | None = None,
    seed: int = 0,
) -> Certificate:
    """Assert that a rule or a verifier emits the target's distribution, exactly.

    Args:
        rule: The acceptance rule or verifier.
        drawn: How sibling tokens are drawn: "iid", "without_replacement" or "top_k". Layouts of chains need "iid".
        chain: Whether to check chains only.
        interface: How `rule` is called; see the description of this module.
        cycles: Number of consecutive cycles, of a rule or a session.
        bits: 53, 24, 11 or 8 for float64, float32, float16 or bfloat16; None detects the precision.
        strict: Whether to fail on boundary findings too: a token of probability 0 at a uniform of exactly 0.
        cases: Number of cases to check; by default, the number of the profile.
        seed: Seed of the random cases, which follow the fixed ones.

    Returns:
        The certificate.

    Raises:
        AssertionError: The rule is biased or faulty; the message shows the smallest failing case.
        ValueError: The layout is not judged on trees that are drawn so.
    """
    certificate = _judge(rule, drawn, chain, interface, cycles, bits, cases, seed, None)
    if certificate.verdict != "lossless" and (strict or certificate.verdict != "lossless but for a boundary"):
        raise AssertionError("\n".join(certificate_lines(certificate, _name(rule))))
    return certificate


def assert_bounded(
    rule: Callable[..., Any],
    *,
    tv: float,
    drawn: Drawn = "top_k",
    chain: bool = False,
    interface: Interface = "rule",
    cycles: int = 1,
    bits: int | None = None,
    cases: int | None = None,
    seed: int = 0,
) -> Certificate:
    """Assert that the total variation between the tokens of a cycle and the target's distribution is at most `tv`.

    The other arguments, the return value and the errors are those of `assert_lossless`.
    """
    certificate = _judge(rule, drawn, chain, interface, cycles, bits, cases, seed, tv)
    if certificate.verdict in ("biased", "faulty"):
        raise AssertionError("\n".join(certificate_lines(certificate, _name(rule))))
    return certificate


def assert_same_tokens(
    first: Callable[..., Any],
    second: Callable[..., Any],
    *,
    drawn: Drawn = "top_k",
    chain: bool = False,
    interface: Interface = "rule",
    cases: int | None = None,
    seed: int = 0,
) -> None:
    """Assert that two rules or verifiers make the same decisions from the same noise, as a fast form and its reference.

    Every draft of every case is decided with seeded noise. Functions also get uniforms at both ends of their range.

    Args:
        first: A rule or verifier.
        second: Another rule or verifier, called in the same way.
        drawn: How sibling tokens are drawn.
        chain: Whether to compare on chains only.
        interface: How both are called; a layout, "function" or "rule".
        cases: Number of cases to compare on; by default, the number of the profile.
        seed: Seed of the cases and of the noise.

    Raises:
        AssertionError: The decisions differ; the message shows the draft, the noise and both decisions.
    """
    count = CASES[_chosen["profile"]] if cases is None else cases
    for case in cases_to_judge(drawn, chain, count, seed):
        for _, draft in case.drafts:
            for noise, one, two in _pairs(first, second, draft, interface, seed):
                if one != two:
                    raise AssertionError(
                        f"{_name(first)} and {_name(second)} differ on the tree of tokens "
                        f"{draft.tree.tokens.tolist()}, parents {draft.tree.parents.tolist()}, {noise}: "
                        f"{_describe(draft, one)} and {_describe(draft, two)}\n  target {draft.target_probs.tolist()}\n"
                        f"  drafter {draft.tree.draft_probs.tolist()}"
                    )


def _pairs(
    first: Callable[..., Any], second: Callable[..., Any], draft: DraftRequest, interface: Interface, seed: int
) -> list[tuple[str, Any, Any]]:
    if interface == "rule":
        pairs: list[tuple[str, Any, Any]] = []
        for turn in range(SEEDS):
            one, two = (
                rule(clone.tree, clone.target_probs, sampling(seed, turn).cycle(1))
                for rule, clone in ((first, copied(draft)), (second, copied(draft)))
            )
            pairs.append((f"noise of seed {seed}, image {turn}", one, two))
        return pairs
    both = [verifier_of(verify, interface) for verify in (first, second)]
    if both[0].noise != "uniforms":
        raise ValueError(f"interface: expected one that takes uniforms, or 'rule', got {interface!r}")
    columns = draft.tree.size + 1
    noise = np.random.default_rng(seed).integers(0, 1 << 24, size=(SEEDS, columns)) * 2.0**-24
    if len(BOUNDARIES) ** columns <= MOST_COMBINATIONS:
        noise = np.concatenate([noise, list(product(BOUNDARIES, repeat=columns))])
    decided = [verifier.decide([draft] * len(noise), noise) for verifier in both]
    return [(f"noise {row.tolist()}", one, two) for row, one, two in zip(noise, *decided, strict=True)]


def _describe(draft: DraftRequest, decision: Verdict | Fault) -> str:
    if isinstance(decision, Fault):
        return f"{decision.kind} ({decision.detail})"
    return f"tokens {emitted(draft.tree, decision)}"


def _judge(
    rule: Callable[..., Any],
    drawn: Drawn,
    chain: bool,
    interface: Interface,
    cycles: int,
    bits: int | None,
    cases: int | None,
    seed: int,
    promise: float | None,
) -> Certificate:
    if interface in LAYOUTS and drawn not in COVERED[interface]:
        kinds = sorted(COVERED[interface])
        raise ValueError(
            f"drawn: interface {interface!r} is judged on {' or '.join(kinds)} trees, got {drawn!r}; pass "
            f"drawn={kinds[0]!r}"
        )
    count = CASES[_chosen["profile"]] if cases is None else cases
    verifier = verifier_of(rule, interface, bits)
    effort = replace(Effort(seed=seed, cycles=cycles, bits=bits), checks=512)
    only_chains = chain or interface == "session" or (interface in LAYOUTS and LAYOUTS[interface].chain)
    return certify(verifier, drawn, only_chains, count, seed, effort, shrink_seconds=5.0, promise=promise)


def _name(rule: Callable[..., Any]) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
