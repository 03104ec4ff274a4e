"""Windows with candidates on the device: their trees, what follows an accepted path, and whole decodes."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.test_mutants import planted
from tests.runtime.device.test_windows import Drawn, method, on_device, on_host
from tests.runtime.device.trees import UNIFORMS
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Role, from_arrays
from underpaint.algos.spatial.jacobi_window import JacobiWindow, WindowDraft, tail_nodes, tree_nodes, window_tree
from underpaint.runtime.device.kernels.tree_meta import TreePlaces, tree_meta
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts
from underpaint.runtime.device.kernels.window_tree import add_candidates, follow
from underpaint.strategies import distributions

MOST, CELL = 3, 7
WINDOWS = {
    "sjd-pac": JacobiWindow(3, "maximal", "left", candidates=2, levels=2),
    "lookup": JacobiWindow(3, "maximal", "lookup", candidates=3, levels=1, passes=True, beside=0.85, last_row=True),
}


class Case(NamedTuple):
    """Drafts [W] of distributions [W, V] float32; uniforms [MOST, K] of the candidates; turns: a path's children."""

    drafts: tuple[int, ...]
    rows: FloatArray
    uniforms: FloatArray
    turns: tuple[int, ...]


class Made(NamedTuple):
    """A tree: its tokens and parents, the rows of the distributions below it, and the nodes behind a path."""

    tokens: list[int]
    parents: list[int]
    rows: list[int]
    followed: list[int]


@st.composite
def cases(draw: st.DrawFn, candidates: int) -> Case:
    length, vocab_size = draw(st.integers(1, MOST)), 3
    rows = np.stack([draw(distributions(vocab_size)) for _ in range(length)]).astype(np.float32)
    drafts = tuple(draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in rows)
    uniforms = np.array([draw(UNIFORMS) for _ in range(MOST * candidates)]).reshape(MOST, candidates)
    turns = tuple(draw(st.integers(0, candidates)) for _ in range(length))
    return Case(drafts, rows, uniforms, turns)


def path_of(parents: list[int], turns: tuple[int, ...]) -> list[int]:
    """The path that takes the child of each turn, as far as there is one."""
    path, node = list[int](), 0
    for turn in turns:
        below = [child for child, parent in enumerate(parents) if parent == node]
        if turn >= len(below):
            break
        node = below[turn]
        path.append(node)
    return path


def by_reference(case: Case, candidates: int, levels: int) -> Made:
    drafts = [WindowDraft(*pair) for pair in zip(case.drafts, case.rows.astype(np.float64), strict=True)]
    noise = np.zeros((CELL + MOST) * candidates)
    noise[CELL * candidates :] = case.uniforms.reshape(-1)
    chance = from_arrays({Role.CANDIDATE: noise})
    tree = window_tree(1, drafts, candidates, levels, "without_replacement", CELL, chance)
    parents = tree.parents.tolist()
    path = path_of(parents, case.turns)
    followed = [0, *path, *tail_nodes(tree, path, tree.depth)]
    return Made(tree.tokens.tolist(), parents, tree.draft_rows.tolist(), followed)


def by_device(cases: list[Case], candidates: int, levels: int) -> list[Made]:
    """All in one batch; what is unused is filled with rubbish."""
    batch, nodes, vocab_size = (
        len(cases),
        tree_nodes(MOST, candidates, levels),
        cases[0].rows.shape[1],
    )

    def whole(*shape: int, fill: int = 2) -> torch.Tensor:
        return torch.full(shape, fill, dtype=torch.int64)

    tokens, parents, rows, lengths = (
        whole(batch, nodes),
        whole(batch, nodes),
        whole(batch, nodes),
        whole(batch),
    )
    uniforms = torch.from_numpy(np.stack([case.uniforms[:levels] for case in cases]))
    drawn_from, first = torch.full((batch, MOST, vocab_size), 0.5), whole(batch, nodes)
    for place, case in enumerate(cases):
        lengths[place] = len(case.drafts)
        tokens[place, : len(case.drafts) + 1] = torch.tensor([1, *case.drafts])
        drawn_from[place, : len(case.drafts)] = torch.from_numpy(case.rows)
    none, counts = whole(1), lengths + 1
    probs = torch.zeros(batch, nodes, vocab_size)
    positions, depths, sibling, masks = (whole(batch, nodes) for _ in range(4))
    layout = TreePlaces(whole(batch), positions, depths)
    tree = BatchTree(tokens, first, sibling, masks, parents, counts, probs, drawn_from, rows, none)
    proposals, arrivals = torch.full(uniforms.shape, 7), torch.zeros(batch, dtype=torch.int32)
    add_candidates(tree, layout, lengths, uniforms, proposals, arrivals, most=99)
    laid = positions, depths, first, sibling, masks
    again = [torch.zeros_like(part) for part in laid]
    places = TreePlaces(layout.cells, *again[:2])
    tree_meta(tree._replace(first=again[2], sibling=again[3], masks=again[4]), places, MOST, 99)
    assert all(map(torch.equal, laid, again))
    paths = [
        path_of(parents[place, :count].tolist(), case.turns)
        for place, (case, count) in enumerate(zip(cases, counts.tolist(), strict=True))
    ]
    path, followed = whole(batch, nodes), whole(batch, MOST + 1)
    for place, one in enumerate(paths):
        path[place, : len(one)] = torch.tensor(one, dtype=torch.int64)
    new_counts = torch.tensor([len(one) + 1 for one in paths])
    follow(followed, tree, Verdicts(path, new_counts, none, none, none), lengths)
    trees = []
    for place, count in enumerate(counts.tolist()):
        one = [part[place, :count].tolist() for part in (tokens, parents, rows)]
        size = max(len(cases[place].drafts), len(paths[place]) + 1)
        trees.append(Made(*one, followed[place, :size].tolist()))
        if len(paths[place]) < len(cases[place].drafts):
            assert followed[place, len(cases[place].drafts)] == len(cases[place].drafts)
    return trees


@settings(max_examples=6)
@given(data=st.data())
@pytest.mark.parametrize(("candidates", "levels"), [(2, 1), (2, 3), (3, 2)])
def test_candidates_stand_where_the_reference_has_them(candidates: int, levels: int, data: st.DataObject) -> None:
    batch = [data.draw(cases(candidates)) for _ in range(2)]
    assert by_device(batch, candidates, levels) == [by_reference(case, candidates, levels) for case in batch]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_batch_is_the_reference_s_single_decodes(name: str, temperature: float) -> None:
    how = method(WINDOWS[name], temperature, "without_replacement")
    images = (2, 0, 1)
    assert on_device(how, images) == [on_host(how, image) for image in images]


def decoded() -> list[Drawn]:
    return on_device(method(WINDOWS["sjd-pac"], 1, "without_replacement"), (1, 2))


def decodes_agree() -> bool:
    how = method(WINDOWS["sjd-pac"], 1, "without_replacement")
    return decoded() == [on_host(how, 1), on_host(how, 2)]


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.ones(4), MOST).astype(np.float32)
    drafts, turns = rng.integers(0, 4, MOST), rng.integers(1, 3, MOST)
    turns[seed % 3 :] = 9
    return Case(tuple(drafts.tolist()), rows, rng.random((MOST, 3)), tuple(turns.tolist()))


def trees_agree() -> bool:
    cases = [random_case(seed) for seed in range(6)]
    return all(by_device(cases, 3, most) == [by_reference(case, 3, most) for case in cases] for most in (1, 2))


MUTANTS = {
    "a candidate is the draft again": (
        "window_tree",
        "weights = hide(row, draft, draft >= 0)",
        "weights = hide(row, draft, draft > V)",
    ),
    "a cell's candidates are drawn by another's noise": (
        "window_tree",
        "own = uniforms + (image * deepest + cell) * CANDIDATES",
        "own = uniforms + image * deepest * CANDIDATES",
    ),
    "candidates are offered again below others": (
        "window_tree",
        "tl.where(level + 1 < branching, level + 1, -1)",
        "level",
    ),
    "a candidate stands below the chain": ("window_tree", "first + above - 1", "level"),
    "what follows is the chain": (
        "window_tree",
        "tl.where(below < 0, place, below)",
        "place",
    ),
    "what was said of accepted candidates is that of the chain": (
        "window_tree",
        "accepted = tl.load(path + image * N + lane - 1, (lane > 0) & (lane < done), other=0)",
        "accepted = lane.to(tl.int64)",
    ),
    "what follows ends with the tree": (
        "window_tree",
        "tl.where(below < 0, place, below)",
        "below",
    ),
}


def test_the_kernels_as_they_are_agree() -> None:
    assert trees_agree()
    assert decodes_agree()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    with planted(*MUTANTS[name]):
        assert not trees_agree()


def test_candidates_are_drawn_by_the_noise_of_their_cell() -> None:
    with planted(
        "uniforms",
        "tl.load(cells + image) + lane",
        "tl.load(cells + image) + lane + 1",
    ):
        assert not decodes_agree()
