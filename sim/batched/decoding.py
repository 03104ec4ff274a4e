"""Decode images of a table model, with the decoding loop or with many images in lockstep, for the same statistics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.accept.neighbours import nearest_codes, table_columns
from underpaint.algos.arrays import IntArray
from underpaint.algos.batched.sparse_table import SparseTable
from underpaint.algos.batched.spec import BatchedPolicy, BatchedRule
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.fit import check_fits
from underpaint.algos.protocols import Policy, Rule
from underpaint.algos.registry import build
from underpaint.algos.step import decode
from underpaint.sim.batched.images import TableBatch, lookups
from underpaint.sim.report.statistics import Runs
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

MOST_NODES = 128
"""Number of nodes of the largest tree, including its root."""
_MOST_TOGETHER = 1 << 25
"""Approximate largest number of elements in an array of a lockstep batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Scheme:
    """A tree policy and an acceptance rule that fit each other, built for one model."""

    policy_name: str
    rule_name: str
    policy: Policy
    rule: Rule
    lossless: bool
    batched_policy: BatchedPolicy | None = field(repr=False)
    batched_rule: BatchedRule | None = field(repr=False)

    @property
    def vectorised(self) -> bool:
        """Whether many images can run in lockstep; otherwise only the decoding loop works."""
        return self.batched_policy is not None and self.batched_rule is not None


def make_scheme(
    model: TableModel,
    policy: str,
    rule: str,
    policy_settings: Mapping[str, Any] | None = None,
    rule_settings: Mapping[str, Any] | None = None,
) -> Scheme:
    """Build a policy and a rule by name. The model provides `neighbours` and `codebook`.

    Raises ValueError on an unknown name or setting, if the two do not fit, and if the model has no drafter or codebook.
    """
    rule_spec, policy_spec = RULES[rule], POLICIES[policy]
    check_fits(rule_spec, policy_spec)
    if not len(model.draft):
        raise ValueError(
            f"policy '{policy}' needs a drafter, and the trace '{model.name}' has none; add the array draft_logits "
            "[I, D, C, V] and trace it again"
        )
    acceptance_rule = make_rule(model, rule, rule_settings or {})
    shape = {key: tuple(value) if isinstance(value, list) else value for key, value in (policy_settings or {}).items()}
    tree_policy = build(policy_spec.make, shape, f"policy '{policy}'")
    batched_policy = policy_spec.batched(tree_policy)
    if batched_policy is not None and batched_policy.deepest >= model.grid.width:
        batched_policy = None  # in a tree that reaches the next row, upper tokens can be the tree's own
    if batched_policy is not None and batched_policy.most_nodes > MOST_NODES:
        batched_policy = None
    batched_rule = rule_spec.batched(acceptance_rule, policy_spec.drawn)
    lossless = rule_spec.is_lossless(dict(rule_settings or {}))
    return Scheme(policy, rule, tree_policy, acceptance_rule, lossless, batched_policy, batched_rule)


def make_rule(model: TableModel, rule: str, settings: Mapping[str, Any]) -> Rule:
    """Build a rule; the model provides `neighbours` and `codebook`. ValueError on an unknown name or setting."""
    spec, rule_settings = RULES[rule], dict(settings)
    if (spec.codebook or spec.embeddings) and not model.codebook.shape[1]:
        raise ValueError(
            f"rule '{rule}' pools over nearest codes, and the trace '{model.name}' has no codebook; add the array "
            "'codebook' [V, E] and trace it again"
        )
    if spec.codebook:
        rule_settings.setdefault("neighbours", _near_codes(model))
    if spec.embeddings:
        rule_settings.setdefault("codebook", model.codebook)
    return build(spec.make, rule_settings, f"rule '{rule}'")


@lru_cache(maxsize=4)
def _near_codes(model: TableModel) -> IntArray:
    """[V, k] nearest codes, cached: they take seconds for thousands of codes, and all jobs of a sweep share them."""
    return nearest_codes(model.codebook, table_columns(model.vocab_size))


def run_loop(
    model: TableModel,
    scheme: Scheme,
    images: int,
    seed: int,
    first_image: int = 0,
    max_nodes: int = MOST_NODES,
    chains: bool = False,
) -> Runs:
    """Decode images one by one with the decoding loop.

    Args:
        model: The table model.
        scheme: The policy and the rule.
        images: Number of images, at least 1.
        seed: Seed of the noise.
        first_image: Number of the first image.
        max_nodes: Largest number of nodes of a tree.
        chains: Whether the drafter drafts a chain of its likeliest tokens in one call.

    Returns:
        The counts of each image.

    Raises:
        ValueError: There is no image to decode.
    """
    if images < 1:
        raise ValueError(f"runs: expected at least one image, got {images}")
    runs = Runs.zeros(model.grid.cells, images, MOST_NODES)
    for place in range(images):
        image = first_image + place
        target, drafter = TableTarget(model, image), TableDrafter(model, image, chains)
        decoded = decode(target, drafter, scheme.policy, scheme.rule, sampling(seed, image), max_nodes)
        drafted = decoded.cycles[1:]
        runs.cycles[place] = len(drafted)
        runs.accepted[place] = sum(len(cycle.verdict.path) for cycle in drafted)
        runs.depth[place] = sum(cycle.tree.depth for cycle in drafted)
        runs.verify[place] = np.bincount(target.passes, minlength=MOST_NODES + 1)
        runs.draft[place] = np.bincount(drafter.passes, minlength=MOST_NODES + 1)
        runs.chained[place] = np.bincount(drafter.chained, minlength=MOST_NODES + 1)
    return runs


class Lockstep(NamedTuple):
    """Images decoded in lockstep.

    Attributes:
        runs: The counts of the images.
        canvas: [images, cells], their tokens.
        images: [images], their pool indices.
    """

    runs: Runs
    canvas: IntArray
    images: IntArray


def run_plain(model: TableModel, images: int, seed: int, first_image: int = 0) -> Lockstep:
    """Draw images in lockstep by plain autoregression, one token per target pass; works with any model and grid."""
    if images < 1:
        raise ValueError(f"runs: expected at least one image, got {images}")
    tables, cells = lookups(model, 1), model.grid.cells
    batch = TableBatch(tables, first_image, images, np.random.default_rng([seed, first_image]))
    every, none = np.arange(images), np.zeros(images, dtype=np.int64)
    batch.canvas[:, 0] = tables.draw(batch.first_rows(), batch.draws.random(images))
    batch.cell[:] = 1
    for _ in range(1, cells):
        rows = batch.rows_after(every, 0, batch.roots(every))
        batch.commit(every, none[:, None], none, tables.draw(rows, batch.draws.random(images)))
    verify = np.zeros((images, MOST_NODES + 1), dtype=np.int64)
    verify[:, 1] = cells
    drafted = np.zeros_like(verify)
    runs = Runs(cells, np.full(images, cells - 1), none, none, verify, drafted, drafted)
    return Lockstep(runs, batch.canvas, batch.images)


def lockstep_block(model: TableModel) -> int:
    """The best number of images in lockstep: with more, arrays exceed the processor's caches, or memory."""
    return int(np.clip(_MOST_TOGETHER // max(model.vocab_size, model.grid.cells), 1024, 4096))


def working_bytes(model: TableModel, scheme: Scheme) -> int:
    """Approximate largest memory, in bytes, that a process needs to draw images with a scheme."""
    if not scheme.vectorised or scheme.batched_policy is None:
        return model.nbytes
    rows, vocab_size, depths = *model.target.shape, len(model.draft)
    image = 4 * model.grid.cells + 3 * MOST_NODES + 6 * vocab_size
    looked_up = rows * (2 * depths * scheme.batched_policy.most_children + depths + 2)
    if not isinstance(model.target, SparseTable):
        looked_up += rows * (depths + 1) * vocab_size
    working: int = 8 * (lockstep_block(model) * image + looked_up)
    return model.nbytes + working


def run_lockstep(
    model: TableModel, scheme: Scheme, images: int, seed: int, first_image: int = 0, chains: bool = False
) -> Lockstep:
    """Decode images in lockstep, with the same distributions as `run_loop` but other noise.

    The arguments are those of `run_loop`.

    Returns:
        The counts of the images, their tokens and their pool indices.

    Raises:
        ValueError: There is no image to decode, or the scheme has no vectorised form (see `Scheme.vectorised`).
    """
    if images < 1:
        raise ValueError(f"runs: expected at least one image, got {images}")
    if scheme.batched_policy is None or scheme.batched_rule is None:
        raise ValueError(
            f"policy '{scheme.policy_name}' with rule '{scheme.rule_name}' has no vectorised form at these settings; "
            "use the decoding loop"
        )
    batched_policy, batched_rule = scheme.batched_policy, scheme.batched_rule
    tables = lookups(model, batched_policy.most_children)
    batch = TableBatch(tables, first_image, images, np.random.default_rng([seed, first_image]))
    batched_policy.begin(images, model.grid.cells)
    counts = {name: np.zeros(images, dtype=np.int64) for name in ("cycles", "accepted", "depth")}
    verify = np.zeros((images, MOST_NODES + 1), dtype=np.int64)
    draft, chained = np.zeros_like(verify), np.zeros_like(verify)
    rows = batch.first_rows()
    greedy = RULES[scheme.rule_name].greedy
    batch.canvas[:, 0] = tables.best[rows] if greedy else tables.draw(rows, batch.draws.random(images))
    batch.cell[:] = 1
    verify[:, 1] = 1
    while (running := batch.running()).size:
        trees = batched_policy.grow(batch, running)
        active = trees.images
        verdicts = batched_rule(batch, trees)
        batch.commit(active, verdicts.path, verdicts.accepted, verdicts.extra)
        batched_policy.observe(trees, verdicts.accepted)
        counts["cycles"][active] += 1
        counts["accepted"][active] += verdicts.accepted
        counts["depth"][active] += trees.depth
        verify[active, trees.nodes] += 1
        if chains:
            called = trees.one_call & (trees.depth > 0)
            chained[active[called], trees.depth[called]] += 1
        for expanded in trees.passes:
            draft[active[: expanded.size], expanded] += expanded > 0
    runs = Runs(model.grid.cells, counts["cycles"], counts["accepted"], counts["depth"], verify, draft, chained)
    return Lockstep(runs, batch.canvas, batch.images)
