"""Trees for the device's walks: random ones, batches of them in one envelope, and verdicts by both runtimes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Role, from_arrays, sampling
from underpaint.algos.protocols import Budget, Rule
from underpaint.algos.tree import DraftTree, Drawn, Verdict
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, tree_meta
from underpaint.runtime.device.kernels.walk import BatchTree, Shape, Verdicts
from underpaint.runtime.device.rules import device_rule
from underpaint.strategies import Rows, ShapePolicy, chains, distributions, shapes

CPU = torch.device("cpu")
ROLES = (Role.DRAFT, Role.ACCEPT, Role.RESIDUAL, Role.BONUS)


class Case(NamedTuple):
    """A tree, the target's distributions [N, V] float32, and the uniforms [N] of each role."""

    tree: DraftTree
    probs: FloatArray
    uniforms: dict[Role, FloatArray]


BELOW_ONE = st.one_of(st.just(0.0), st.integers(0, 1048572).map(lambda n: n / 1048573.0))
UNIFORMS = st.one_of(BELOW_ONE, st.just(1 - 2.0**-53))
TRAVERSAL_FLIPS = st.one_of(BELOW_ONE, st.just(1 - 2.0**-48))
"""Traversal's chance is a product of quotients: where it is 1, either runtime may have rounded it to 1 - 2^-52."""


@st.composite
def cases(
    draw: st.DrawFn,
    vocab_size: int,
    drawn: Drawn,
    chain: bool,
    most: int = 6,
    flips: st.SearchStrategy[float] = UNIFORMS,
) -> Case:
    """A tree: ties, zeros, one-hot rows and u = 0 are common. Uniforms have a prime denominator: no other tie."""
    shape = draw(chains(most) if chain else shapes(most))
    rows = [draw(distributions(vocab_size)).astype(np.float32) for _ in range(len(shape) + 1)]
    policy = ShapePolicy(shape, drawn)
    tree = policy.grow(Rows(rows), 0, Budget(99, 99), sampling(draw(st.integers(0, 99))).cycle(0))
    probs = np.stack([draw(distributions(vocab_size)) for _ in range(tree.size)]).astype(np.float32)
    if draw(st.booleans()):  # the target is the drafter: residuals of rounding alone
        probs = np.stack([rows[node] for node in range(tree.size)])
    kinds = {role: flips if role is Role.ACCEPT else UNIFORMS for role in ROLES[1:]}
    uniforms = {role: np.array([draw(kind) for _ in range(tree.size)]) for role, kind in kinds.items()}
    return Case(tree, probs, uniforms)


def batch_of(cases: Sequence[Case], nodes: int) -> tuple[BatchTree, torch.Tensor, Verdicts, Shape]:
    """The cases in one envelope of `nodes`, what is unused filled with rubbish."""
    batch, vocab_size = len(cases), cases[0].probs.shape[1]
    drafts = max(1, *(case.tree.draft_probs.shape[0] for case in cases)) if batch > 1 else None
    drafts = drafts or max(1, cases[0].tree.draft_probs.shape[0])
    ints = {name: np.full((batch, nodes), 7 % vocab_size) for name in ("tokens", "parents", "draft_rows")}
    probs = np.full((batch, nodes, vocab_size), 0.5, dtype=np.float32)
    draft_probs = np.full((batch, drafts, vocab_size), 0.5, dtype=np.float32)
    uniforms = np.full((batch, len(ROLES), nodes), 0.5)
    for place, case in enumerate(cases):
        size = case.tree.size
        ints["tokens"][place, :size] = case.tree.tokens
        ints["parents"][place, :size] = case.tree.parents
        ints["draft_rows"][place, :size] = case.tree.draft_rows
        probs[place, :size] = case.probs
        draft_probs[place, : case.tree.draft_probs.shape[0]] = case.tree.draft_probs
        for role, values in case.uniforms.items():
            uniforms[place, ROLES.index(role), :size] = values
    tensors = {name: torch.from_numpy(array) for name, array in ints.items()}
    positions, depths, first, sibling, masks = (torch.zeros(batch, nodes, dtype=torch.int64) for _ in range(5))
    counts = torch.tensor([case.tree.size for case in cases])
    levels = max(case.tree.depth for case in cases)
    tree = BatchTree(
        tensors["tokens"],
        first,
        sibling,
        masks,
        tensors["parents"],
        counts,
        torch.from_numpy(probs),
        torch.from_numpy(draft_probs),
        tensors["draft_rows"],
        torch.from_numpy(uniforms),
    )
    layout = TreePlaces(torch.ones(batch, dtype=torch.int64), positions, depths)
    tree_meta(tree, layout, max(1, levels), 99)
    zeros = torch.zeros(batch, dtype=torch.int64)
    out = Verdicts(
        torch.full((batch, nodes), -1), zeros.clone(), zeros.clone(), zeros.clone(), torch.ones(batch, nodes).int()
    )
    children = max(len(below) for case in cases for below in case.tree.children())
    return tree, depths, out, Shape(batch, nodes, vocab_size, cases[0].tree.drawn, max(1, levels), max(1, children))


def by_device(rule: Rule, cases: Sequence[Case], nodes: int = 8) -> list[Verdict | int]:
    """Verdicts of the device runtime; an image's status where it ended with an error."""
    tree, depths, out, shape = batch_of(cases, nodes)
    device_rule(rule, shape, CPU)(tree, depths, out)
    verdicts: list[Verdict | int] = []
    for path, count, token, status in zip(out.path, out.taken.tolist(), out.token.tolist(), out.status, strict=True):
        verdicts.append(int(status) if status else Verdict(tuple(path[: count - 1].tolist()), token))
    return verdicts


def by_reference(rule: Rule, cases: Sequence[Case]) -> list[Verdict]:
    """Verdicts of the NumPy rule, given the same arrays."""
    return [
        Verdict(*(tuple(map(int, verdict.path)), int(verdict.token)))
        for verdict in (rule(case.tree, case.probs, from_arrays(case.uniforms)) for case in cases)
    ]
