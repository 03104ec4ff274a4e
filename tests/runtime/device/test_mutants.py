"""Planted bugs in the kernels are seen: each is one change of source, and a test case tells it from the reference."""

import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks.device_trees import random_tree
from tests.runtime.device import grown, trees
from tests.runtime.device.grown import MAX_NODES, MOST_LEVELS
from tests.runtime.device.tables import TableForward, Tables
from tests.runtime.device.trees import Case, by_device, by_reference
from underpaint.algos.accept import RULES
from underpaint.algos.chance import Role
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import DraftTree
from underpaint.runtime.device import cycle as cycles
from underpaint.runtime.device.kernels.probs import sampled_probs
from underpaint.runtime.methods.trees.device import TreeForm

KERNELS = "underpaint.runtime.device.kernels."


@contextmanager
def planted(name: str, old: str, new: str) -> Iterator[None]:
    """The kernel module `name` with `old` changed to `new`, for as long as the block runs."""
    module = importlib.import_module(KERNELS + name)
    source = "".join(linecache.getlines(str(module.__file__)))
    assert old in source, f"{name}: the source to change is not there: {old}"
    changed = ModuleType(module.__name__)
    file = f"<{name}: {new}>"
    text = source.replace(old, new)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    changed.__file__ = file
    exec(compile(text, file, "exec"), changed.__dict__)
    swapped: list[tuple[ModuleType, str, object]] = []
    for user in [part for part in sys.modules.values() if part is not None]:
        if user.__name__.startswith(("underpaint.runtime.device", "tests.runtime.device")):
            for attribute, value in list(vars(user).items()):
                home = getattr(getattr(value, "fn", value), "__module__", None)
                if home == module.__name__ and hasattr(changed, attribute):
                    swapped.append((user, attribute, value))
                    setattr(user, attribute, getattr(changed, attribute))
    try:
        yield
    finally:
        for user, attribute, value in swapped:
            setattr(user, attribute, value)
        del linecache.cache[file]


def case(
    drawn: str, parents: list[int], tokens: list[int], probs: list[list[float]], draft: list[float], **u: float
) -> Case:
    size, rows = len(parents), np.array([draft], dtype=np.float32)
    tree = DraftTree(np.array(tokens), np.array(parents), drawn, rows, np.zeros(size, dtype=np.int64))
    uniforms = {role: np.full(size, u.get(role.name.lower(), 0.4)) for role in trees.ROLES[1:]}
    return Case(tree, np.array(probs, dtype=np.float32), uniforms)


def verdicts_agree(rule: str, *cases: Case) -> Callable[[], bool]:
    def agree() -> bool:
        return by_device(RULES[rule].make(), cases) == by_reference(RULES[rule].make(), cases)

    return agree


def random_case(drawn: str, seed: int, chain: bool = False) -> Case:
    tree, probs = random_tree(drawn, chain, 8, 5, seed)
    uniforms = np.random.default_rng(seed).random((3, 8))
    return Case(tree, probs, dict(zip(trees.ROLES[1:], uniforms, strict=True)))


def random_verdicts_agree(rule: str, drawn: str, chain: bool = False, **settings: object) -> Callable[[], bool]:
    cases = [random_case(drawn, seed, chain) for seed in range(16)]

    def agree() -> bool:
        decided = RULES[rule].make(**settings)
        return by_device(decided, cases) == by_reference(decided, cases)

    return agree


CODES = np.arange(10.0).reshape(5, 2) % 3.0
EVEN = [0.25, 0.25, 0.5, 0.0]
IMPOSSIBLE = case("top_k", [-1, 0], [0, 3], [EVEN, EVEN], EVEN, accept=0.0)
SECOND = case("top_k", [-1, 0, 0], [0, 0, 1], [EVEN] * 3, EVEN, accept=0.3, residual=0.6, bonus=0.1)
DOWN = case("top_k", [-1, 0], [0, 2], [EVEN] * 2, EVEN, accept=0.9, residual=0.1, bonus=0.9)
OWED = case("without_replacement", [-1, 0, 0], [0, 2, 0], [[0.5, 0.25, 0.25, 0.0]] * 3, EVEN, accept=0.97)
OFFERED = case("without_replacement", [-1, 0, 0], [0, 2, 1], [[0.5, 0.375, 0.125, 0.0]] * 3, EVEN, accept=0.97)
LITTLE = case("without_replacement", [-1, 0, 0], [0, 0, 1], [[0.25, 0.25, 0.5, 0.0]] * 3, [1, 1e-20, 0, 0], accept=0.97)
LATE = case("top_k", [-1], [0], [[0.0, 0.5, 0.5, *[0.0] * 5]], [*EVEN, *[0.0] * 4], bonus=0.0)
FORKED = case("top_k", [-1, 0, 1, 0], [0, 1, 2, 2], [EVEN, [0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]], EVEN)


def decoding(policy: str = "chain", rule: str = "chain", **settings: object) -> list[list[int]]:
    tables = Tables(4, 5, 1)
    draft_policy = POLICIES[policy].make(**(settings or {"length": 2}))
    how = TreeForm(RULES[rule].make(), SamplingParams(), policy=draft_policy)
    target = TableForward(tables, False)
    run = cycles.DeviceCycle(
        target, TableForward(tables.near(5, 0.4), True), how, Grid(2, 3), 1, 2, torch.device("cpu")
    )
    run.begin(target.embed(torch.tensor([[1], [1]])), torch.tensor([3, 3]), torch.tensor([0, 1]))
    while not bool((run.state.verdicts.status > 0).all()):
        run.run()
    return run.state.progress.decided.tolist()


DECODED: list[list[list[int]]] = []


def decode_as_before() -> bool:
    if not DECODED:
        DECODED.append(decoding())
    return decoding() == DECODED[0]


STATIC: list[list[list[int]]] = []


def static_as_before() -> bool:
    image_tokens = decoding("static_top_k", "point", widths=(2, 2))
    STATIC.append(image_tokens)
    return image_tokens == STATIC[0]


@cache
def trees_agree(policy: str, **settings: object) -> Callable[[], bool]:
    """Three images, two cycles, some seeds: rows with ties, zeros and certain tokens."""
    cases = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        weights = rng.choice([0, 0, 1, 1, 2, 5, 9], size=(5, 7)) + np.eye(5, 7)
        rows = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        room = rng.integers(0, MOST_LEVELS + 1, size=(2, 3)).tolist()
        cases.append((rows, room, rng.integers(0, 7, size=3).tolist(), rng.random((3, MAX_NODES))))

    def agree() -> bool:
        draft_policy = POLICIES[policy].make(**settings)
        return all(
            grown.by_device(draft_policy, rows, room, roots, uniforms)
            == [grown.by_host(draft_policy, rows, *of) for of in zip(room[1], roots, uniforms, strict=True)]
            for rows, room, roots, uniforms in cases
        )

    return agree


def few_agree() -> bool:
    """Rows of two tokens, of which three children are wanted."""
    rows = ((np.eye(5, 7) + np.roll(np.eye(5, 7), 1, axis=1)) / 2).astype(np.float32)
    policy, uniforms = POLICIES["eagle1"].make(widths=(3, 3)), np.full((1, MAX_NODES), 0.4)
    return grown.by_device(policy, rows, [[2]], [1], uniforms) == [grown.by_host(policy, rows, 2, 1, uniforms[0])]


def top_k_agrees() -> bool:
    """Of normal rows exactly as many tokens are kept as are asked for."""
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 8, 64)).astype(np.float32))
    support_sizes = [(sampled_probs(logits, SamplingParams(top_k=count)) > 0).sum(dim=1) for count in (1, 5, 20)]
    return all(bool((sizes == count).all()) for sizes, count in zip(support_sizes, (1, 5, 20), strict=True))


PLANNED = {"acceptance": (0.7, 0.4, 0.1), "max_depth": 3, "verify_ms": ((1, 1.0), (9, 1.3)), "draft_ms": 0.1}
FORKS = {"acceptance": (0.5, 0.45, 0.4), "max_depth": 3, "verify_ms": ((1, 1.0), (9, 1.01)), "draft_ms": 0.01}
"""Two nodes and more are expanded a level."""
GAINS = {"total_tokens": 6, "threshold": 0.8117, "max_depth": 4}
FULL = {"total_tokens": 3, "threshold": 0.0, "max_depth": 4}
"""Most rows have more tokens."""
WIDE = {"total_tokens": 11, "threshold": 0.0, "max_depth": 4}
MUTANTS = {
    "a draw of 0 accepts an impossible token": (
        ("row_maths", "uniform * out_of < chance_of", "uniform * out_of <= chance_of"),
        verdicts_agree("point", IMPOSSIBLE),
    ),
    "a rejected sibling keeps its mass": (
        ("walk_longest", "whole_sum(row, V, BLOCK) - tl.sum(tried, axis=0)", "whole_sum(row, V, BLOCK)"),
        verdicts_agree("point", SECOND),
    ),
    "the residual is drawn by the bonus's noise": (
        ("walk_longest", "role = 3 - tl.max(tried.to(tl.int32), axis=0)", "role = 3"),
        verdicts_agree("point", DOWN),
    ),
    "the residual is not renormalised": (
        ("walk_drawn", "total, share = rest, 1.0 / rest", "total = rest"),
        verdicts_agree("without_replacement", OWED),
    ),
    "what was not offered yet is not renormalised": (
        ("residuals", "1.0 / tl.where(there, remaining, 1.0)", "1.0"),
        verdicts_agree("without_replacement", OFFERED),
    ),
    "a node sees its parent alone": (
        ("tree_meta", "own | tl.where(parent >= 0, tl.gather(mask, above, axis=0), 0)", "own"),
        verdicts_agree("greedy", FORKED),
    ),
    "a draw counts up to the token before": (
        ("row_maths", ".to(tl.int64), axis=0) <= goal", ".to(tl.int64), axis=0) < goal"),
        verdicts_agree("point", LATE),
    ),
    "a rejected child leaves its parent's weight": (
        ("walk_traversal", "weight = lowered(weight, weight * rest /", "_ = lowered(weight, weight * rest /"),
        random_verdicts_agree("traversal", "top_k"),
    ),
    "a token is accepted behind a rejected one": (
        ("siblings", "(mask & good) == mask", "((good >> here) & 1) == 1"),
        random_verdicts_agree("chain", "iid", chain=True),
    ),
    "a rejected child's offer stays lacking": (
        ("residuals", "taken * share + offer, evenly", "taken * share, evenly"),
        random_verdicts_agree("traversal", "iid"),
    ),
    "a later sibling is offered what the first one was": (
        (
            "walk_traversal",
            "offer, even = next_offer(untried_mass(line, tokens, turn, ",
            "_ = (untried_mass(line, tokens, turn, ",
        ),
        random_verdicts_agree("traversal", "without_replacement"),
    ),
    "a little that was not offered yet is nothing": (
        ("residuals", "tl.where(small, V, 0)", "tl.where(small, 0, 0)"),
        verdicts_agree("without_replacement", LITTLE),
    ),
    "a rejection is forgiven whatever follows": (
        ("walk_runs", "(behind == window)", "(behind <= window)"),
        random_verdicts_agree("fly", "iid", chain=True, threshold=0.0, window=1),
    ),
    "a whole run is judged": (
        ("walk_runs", "tail_mass < tl.load(share) * whole", "first > length + 1"),
        random_verdicts_agree("sjd_sv", "iid", chain=True, share=0.3),
    ),
    "independent siblings are drawn without those before them": (
        ("drawn_level", "count, sums, MOST, REPEATS, DRAW_BLOCK", "count, sums, MOST, 0, DRAW_BLOCK"),
        trees_agree("delayed", paths=3, trunk=1, branch=1),
    ),
    "a group reaches one token too far": (
        ("walk_gsd", "groups.group - groups.before - 1", "groups.group - groups.before"),
        random_verdicts_agree("gsd", "without_replacement", codebook=CODES, group=1, gap=0.9, distance=9.0),
    ),
    "the released window lies in falling order": (
        (
            "order",
            "return weights.to(tl.float64) if RISING else -weights.to(tl.float64)",
            "return -weights.to(tl.float64)",
        ),
        random_verdicts_agree("gsd", "iid", codebook=CODES, group=3, gap=0.9, distance=9.0, window="released"),
    ),
    "the released window is cut off at its beginning": (
        ("walk_gsd", "if (RISING == 1) & (other < 0):", "if other < -1:"),
        random_verdicts_agree("gsd", "top_k", codebook=CODES, group=4, gap=0.9, distance=9.0, window="released"),
    ),
    "a lane has one token": (
        ("order", "past = is_past(here, place, best, at, BEFORE)", "past = place < 0"),
        random_verdicts_agree("gsd", "top_k", codebook=CODES, group=5, gap=0.9, distance=9.0),
    ),
    "codes of any look are alike": (
        ("walk_gsd", "(apart < tl.load(groups.limit))", "(apart >= 0.0)"),
        random_verdicts_agree("gsd", "iid", codebook=CODES, group=3, gap=0.9, distance=1.5),
    ),
    "codes of any weight are alike": (
        ("walk_gsd", "< tl.load(groups.gap)", "< 9.0"),
        random_verdicts_agree("gsd", "top_k", codebook=CODES, group=3, gap=0.05, distance=9.0),
    ),
    "a level takes each node's second likeliest first": (
        ("children", "top = tl.max(packed, axis=1)\n", "top = tl.min(packed, axis=1)\n"),
        static_as_before,
    ),
    "the last program but one does what the last should": (
        ("children", 'sem="acq_rel") == count - 1', 'sem="acq_rel") == tl.maximum(count - 2, 0)'),
        trees_agree("eagle2", depth=2, top_k=3, total_tokens=7),
    ),
    "programs of the level before are counted again": (
        ("children", "tl.store(arrivals, 0)", "tl.store(arrivals, 1)"),
        trees_agree("sequoia_top_k", **PLANNED),
    ),
    "a level is fed the tokens of the first places": (
        ("static_shapes", "tl.load(tokens + place, inside,", "tl.load(tokens + lane, inside,"),
        trees_agree("sequoia_top_k", **FORKS),
    ),
    "every image draws by the first one's noise": (
        ("uniforms", "tl.load(noise.images + image)", "tl.load(noise.images)"),
        decode_as_before,
    ),
    "the extra token is forgotten": (("commit", "tl.where(lane == count - 1, last, token)", "token"), decode_as_before),
    "another cycle's noise": (("commit", "cycle + 1)", "cycle)"), decode_as_before),
    "every image has the shape of the first": (
        ("static_shapes", "tl.load(levels + image) * N", "tl.load(levels) * N"),
        trees_agree("sequoia", **PLANNED),
    ),
    "places of the last cycle are still there": (
        ("static_shapes", "tl.where(above > -2, there, 0)", "there"),
        trees_agree("sequoia_top_k", **PLANNED),
    ),
    "siblings of all nodes share their noise": (
        ("drawn_level", "number = counted + tl.sum(", "number = tl.sum("),
        trees_agree("sequoia", **PLANNED),
    ),
    "a row of few tokens counts as many children as it wants": (
        ("drawn_level", "have = tl.minimum(have, support_sizes.to(tl.int64))", "have += 0 * support_sizes"),
        few_agree,
    ),
    "a level is credited with those before it": (
        ("opt_tree", "length - past >=", "length >="),
        trees_agree("opt", **GAINS),
    ),
    "nodes are expanded without end": (
        ("opt_tree", "tl.minimum(new, most_rows - spent)", "new"),
        trees_agree("opt", **WIDE),
    ),
    "new candidates must beat the best that is kept": (
        ("opt_tree", "standing == total - 1", "standing == 0"),
        trees_agree("opt", **FULL),
    ),
    "of equal candidates the one found last is better": (
        ("opt_tree", "name[None, :] < name[:, None]", "name[None, :] > name[:, None]"),
        trees_agree("opt", **FULL),
    ),
    "top-k's last step is left out": (("probs", "(high_count == rank - 1.0)", "(high_count == rank)"), top_k_agrees),
}


@cache
def unchanged(agree: Callable[[], bool]) -> bool:
    """What it says of the kernels as they are."""
    return agree()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    change, agree = MUTANTS[name]
    assert unchanged(agree), "the kernels as they are agree"
    with planted(*change):
        assert not agree()


def test_roles_stand_where_the_walks_read_them() -> None:
    assert trees.ROLES == (Role.DRAFT, Role.ACCEPT, Role.RESIDUAL, Role.BONUS)
