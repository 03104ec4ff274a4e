"""Methods and model sizes at which the device's programs are counted, compiled and timed."""

from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.choice import NOTHING, Choice
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.protocols import Rule
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import WindowPlan
from underpaint.algos.spatial.jacobi_front import JacobiFronts
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.spatial.mulo import Repair
from underpaint.algos.tree import Drawn
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.device.cycle import DraftForm
from underpaint.runtime.device.forms import DeviceForm
from underpaint.runtime.methods.fronts.device import FrontForm, JacobiFrontForm
from underpaint.runtime.methods.multi_scale.device import RepairForm
from underpaint.runtime.methods.trees.device import TreeForm
from underpaint.runtime.methods.windows.device import WindowForm

XL: Final = DecoderConfig(
    dim=1280, layers=36, heads=20, hidden=3584, vocab_size=16384, grid_side=32, prefix=1, cond_ids=1001
)
"""LlamaGen-XL at 512 px (arXiv 2406.06525, table 1), class-conditional."""
SEVEN_B: Final = DecoderConfig(
    dim=4096,
    layers=32,
    heads=32,
    hidden=11008,
    vocab_size=8192,
    grid_side=32,
    prefix=64,
    rope="line",
    qk_norm=True,
    cond_ids=65536,
)
"""Chameleon's 7B sizes (arXiv 2405.09818) with 8,192 image codes, at 512 px."""

LOOKUP: Final[dict[str, Any]] = {"refill": "lookup", "passes": True, "beside": 0.85, "last_row": True}
"""Draft settings of `jacobi-lookup`."""
_PAPERS: Final = SamplingParams(guidance=4.0, top_k=1000)
WINDOW: Final = "window"
"""Stands for a policy in `METHODS`: a Jacobi window and its settings."""
FRONTS: Final = "fronts"
"""Stands for a policy in `METHODS`: row fronts, which need no rule."""
METHODS: Final[dict[str, tuple[str | None, str, dict[str, Any]]]] = {
    "ar": (None, "point", {}),
    "ar-greedy": (None, "greedy", {}),
    "chain": ("chain", "chain", {"length": 5}),
    "block": ("chain", "block", {"length": 5}),
    "eagle1": ("eagle1", "without_replacement", {}),
    "eagle2": ("eagle2", "point", {}),
    "eagle2-greedy": ("eagle2", "greedy", {}),
    "typical": ("eagle2", "typical", {}),
    "adt": ("adt", "point", {}),
    "lantern": ("eagle2", "lantern", {"residual": "paper"}),
    "lantern-greedy": ("eagle2", "lantern_greedy", {}),
    "lantern++": ("eagle2", "lantern_pp", {"residual": "paper"}),
    "lantern-eagle1": ("eagle1", "lantern", {"residual": "paper"}),
    "adt+lantern": ("adt", "lantern", {"residual": "paper"}),
    "static": ("static_top_k", "point", {}),
    "sequoia": ("sequoia", "without_replacement", {"verify_ms": ((1, 1.03), (60, 1.13)), "draft_ms": 0.07}),
    "opt-tree": ("opt", "point", {}),
    "scheduled": ("scheduled", "point", {"mean_depth": 3.5, "top_k": 10}),
    "traversal": ("eagle1", "traversal", {}),
    "traversal-eagle2": ("eagle2", "traversal", {}),
    "gsd": ("eagle1", "gsd", {"residual": "paper"}),
    "gsd-eagle2": ("eagle2", "gsd", {"residual": "paper"}),
    "sjd": (WINDOW, "chain", {"length": 16}),
    "scd-maximal": (WINDOW, "chain", {"length": 32, "coupling": "maximal", "refill": "left"}),
    "scd-gumbel": (WINDOW, "chain", {"length": 32, "coupling": "gumbel", "refill": "above"}),
    "jacobi-lookup": (
        WINDOW,
        "chain",
        {"length": 14, "coupling": "maximal", **LOOKUP},
    ),
    "sjd-pac": (
        WINDOW,
        "without_replacement",
        {"length": 45, "coupling": "maximal", "candidates": 4, "levels": 2},
    ),
    "delayed": ("delayed", "multi_round", {"paths": 3, "trunk": 3, "branch": 5}),
    "fly": ("chain", "fly", {"length": 5}),
    "sjd-sv": (WINDOW, "sjd_sv", {"length": 16}),
    "sjd++": (WINDOW, "chain", {"length": 16, "coupling": "confidence"}),
    "gsd-window": (WINDOW, "gsd", {"length": 16, "residual": "paper"}),
    "zipar": (FRONTS, "", {"window": 4}),
    "zipar-adaptive": (FRONTS, "", {"window": 4, "adaptive": True}),
    "pjd": (FRONTS, "", {"lead": 6, "window": 6}),
}
"""Policy, rule and settings (with a rule's residual) of each method, at the papers' tree (60 nodes) and window size.

Sequoia's tree is planned for the pass times that this program predicts for an H200 and LlamaGen-XL."""


CHOICES: Final = {
    "plain": NOTHING,
    "chain": Choice("chain", 5),
    "drawn chain": Choice("drawn", shape=(-1, 0, 1), drawn="iid"),
    "drawn": Choice("drawn", shape=(-1, 0, 0, 0, 1, 1, 2, 4), drawn="without_replacement"),
    "window": Choice("window", 50),
}
"""The choices of `roofline`, by name."""


def roofline_of(temperature: float) -> TreeForm:
    """Return `roofline` without trees of likeliest tokens, at the largest tree size; temperature 0 samples nothing."""
    greedy = temperature == 0
    rule = RULES["greedy" if greedy else "point"].make()
    of_window = rule if greedy else RULES["chain"].make()
    drawn_rules: dict[Drawn, Rule] = {
        "iid": RULES["block"].make(),
        "without_replacement": RULES["without_replacement"].make(),
    }
    window = JacobiWindow(63, "maximal", **LOOKUP)
    policy = Roofline(((1, 1.03), (64, 1.13)), 0.07, chain_ms=((1, 0.07), (8, 0.5)), trees=False)
    sampler = SamplingParams(guidance=4.0) if greedy else _PAPERS
    beside = WindowPlan(window, of_window, greedy, {} if greedy else drawn_rules)
    return TreeForm(rule, sampler, policy=policy, beside=beside)


def method_of(name: str, vocab_size: int, top_k: int = 1000, guidance: float = 4.0) -> DeviceForm:
    """Return a named method. Codebook rules pool over 100 neighbours from a table that stands in for a real one."""
    policy, _, settings = METHODS[name]
    sampler = SamplingParams(guidance=guidance, top_k=top_k)
    if policy != FRONTS:
        return _drafting(name, vocab_size, sampler)
    return (
        JacobiFrontForm(JacobiFronts(**settings), sampler)
        if "lead" in settings
        else FrontForm(sampler=sampler, **settings)
    )


def islands_of(vocab_size: int, order: Literal["serial", "islands"], greedy: bool = False) -> RepairForm:
    """Return MuLo-SD with its paper's settings (arXiv 2601.05149): cells around rejected ones, fronts of 8 columns."""
    near = (np.arange(vocab_size)[:, None] + np.arange(1, 31)) % vocab_size
    drafting = _PAPERS if not greedy else replace(_PAPERS, temperature=0.0)
    return RepairForm(near, 0.3, Repair("local", 1, order, 8, greedy=greedy), 8, _PAPERS, drafting)


def _drafting(name: str, vocab_size: int, sampler: SamplingParams, near: int = 100) -> DraftForm:
    policy, rule, settings = METHODS[name]
    policy_settings = {key: value for key, value in settings.items() if key != "residual"}
    rule_settings: dict[str, Any] = {key: value for key, value in settings.items() if key == "residual"}
    if RULES[rule].codebook:
        steps = np.arange(1, near + 2)
        rule_settings["neighbours"] = (np.arange(vocab_size)[:, None] + steps) % vocab_size
        rule_settings["k"] = near
    if RULES[rule].embeddings:
        rule_settings["codebook"] = np.random.default_rng(0).standard_normal((vocab_size, 8)).astype(np.float32)
    if policy == WINDOW:
        return WindowForm(RULES[rule].make(**rule_settings), sampler, window=JacobiWindow(**policy_settings))
    tree_policy = None if policy is None else POLICIES[policy].make(**policy_settings)
    return TreeForm(RULES[rule].make(**rule_settings), sampler, policy=tree_policy)


def eagle2_of(depth: int, top_k: int, vocab_size: int) -> TreeForm:
    """Return EAGLE-2 with a tree of the given size and the rule for point proposals."""
    tree_policy = POLICIES["eagle2"].make(depth=depth, top_k=top_k, total_tokens=59)
    return TreeForm(_drafting("eagle2", vocab_size, _PAPERS).rule, _PAPERS, policy=tree_policy)


def chain_of(length: int, vocab_size: int) -> TreeForm:
    """Return the chain of `length` likeliest tokens, whose target pass has length + 1 nodes."""
    tree_policy = POLICIES["chain_top1"].make(length=length)
    return TreeForm(_drafting("eagle2", vocab_size, _PAPERS).rule, _PAPERS, policy=tree_policy)
