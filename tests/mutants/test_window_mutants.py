"""Planted bugs in Jacobi windows and their trees: stale noise, a wrong neighbour, tokens behind a rejection, a window
that is too long."""

import dataclasses
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.exact.test_jacobi_released import step_by_step
from tests.exact.test_windows_beside_trees import check_kept, check_mixed
from tests.mutants.harness import Plant, around, check_is_caught, load, replaced, with_attributes, wrapped
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes, sampling
from underpaint.algos.coupling import EnumeratedNoise
from underpaint.algos.enumeration import target_distribution, total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial import jacobi
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.tree import emitted
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticTarget

RULE = RULES["without_replacement"].make()
WINDOWS = (
    (3, Grid(1, 5), JacobiWindow(3, "maximal", "left", 2, 2)),
    (3, Grid(2, 2), JacobiWindow(3, "maximal", "uniform", 2, 2)),
    (2, Grid(1, 5), JacobiWindow(3, "gumbel", "above", 1)),
)


def check_exact(module: ModuleType) -> None:
    for vocab_size, grid, window in WINDOWS:
        distribution = RandomDistribution(vocab_size, seed=7, sharpness=1.5)

        def program(
            chance: Chance,
            grid: Grid = grid,
            window: JacobiWindow = window,
            distribution: RandomDistribution = distribution,
        ) -> tuple[int, ...]:
            noise = EnumeratedNoise(chance) if window.coupling == "gumbel" else None
            target = SyntheticTarget(distribution, grid)
            return tuple(module.jacobi_decode(target, RULE, chance, window, noise).tokens.tolist())

        exact = target_distribution(SyntheticTarget(distribution, grid))
        assert total_variation(enumerate_outcomes(program), exact) < 1e-9


def check_refill(module: ModuleType) -> None:
    """A new cell of the window holds the token to its left or above, the other where there is none."""
    grid = Grid(3, 4)
    for refill in ("left", "above"):
        window, tokens = JacobiWindow(3, "maximal", refill), list[int]()
        old_drafts: list[int] = []
        for cycle in module.jacobi_cycles(
            SyntheticTarget(RandomDistribution(9), grid), RULE, sampling(2), window, None
        ):
            drafts = cycle.tree.tokens[1:].tolist()
            sequence = tokens + drafts
            assert len(sequence) < grid.cells
            for cell in range(len(tokens) + len(old_drafts), len(sequence)):
                row, column = divmod(cell, grid.width)
                above = row > 0 and (refill == "above" or column == 0)
                assert sequence[cell] == sequence[cell - grid.width if above else cell - 1]
            tokens.extend(emitted(cycle.tree, cycle.verdict))
            old_drafts = drafts[len(cycle.verdict.path) + 1 :]


def check_window(module: ModuleType) -> None:
    """A window ends with the image, however long it is, and draws all of it."""
    grid = Grid(2, 3)
    for length in (1, 4, 5, 9):
        window = JacobiWindow(length, "maximal", "left", 2, 1)
        target = SyntheticTarget(RandomDistribution(9), grid)
        done = list(module.jacobi_cycles(target, RULE, sampling(1), window, None))
        assert sum(len(cycle.verdict.path) + 1 for cycle in done) == grid.cells
        for cycle in done[1:]:
            assert cycle.tree.depth == min(length, grid.cells - cycle.cell - 1)


def check_redrawn(module: ModuleType) -> None:
    """Where a distribution depends on the cell alone, a draft that was redrawn from it is sure to be kept."""
    redrawn = 0
    cells = SyntheticTarget(lambda prefix: RandomDistribution(8)((len(prefix),)), Grid(1, 30))
    window = JacobiWindow(4, "maximal", "uniform", 2, 2)
    for cycle in module.jacobi_cycles(cells, RULE, sampling(0), window, None):
        assert len(cycle.verdict.path) >= min(redrawn, cycle.tree.depth)
        redrawn = cycle.tree.depth - len(cycle.verdict.path) - 1


def check_released(module: ModuleType) -> None:
    """With `last_row`, every pass is the released loop's."""
    distribution = RandomDistribution(2, seed=9, sharpness=1.5)
    for refill in ("uniform", "random"):
        window = JacobiWindow(2, "independent", refill, last_row=True)
        assert step_by_step(distribution, Grid(1, 5), window, module) < 1e-9


CHECKS: dict[str, Callable[[ModuleType], None]] = {
    "exact": check_exact,
    "refill": check_refill,
    "window": check_window,
    "redrawn": check_redrawn,
    "mixed": check_mixed,
    "kept": check_kept,
    "released": check_released,
}


def reads_all_zero(right: Any, distribution: Any, cell: int, chance: Any, noise: Any) -> Any:
    return right(distribution, cell if noise is None else 0, chance, noise)


def races_by_the_last(
    module: Any, right: Any, draft: Any, new: Any, cell: int, chance: Any, window: Any, noise: Any
) -> Any:
    if window.coupling == "maximal":
        return right(draft, new, cell, chance, window, noise)
    return module._drawn(draft.distribution, cell, chance, noise)._replace(distribution=new)


def judged_by_the_pass_before_last(
    right: Any, draft: Any, new: Any, cell: int, chance: Any, window: Any, *args: Any
) -> Any:
    again = right(draft, new, cell, chance, window, *args)
    return again._replace(distribution=draft.distribution) if window.coupling == "maximal" else again


def begins_where_the_path_ended(right: Any, window: Any, *args: Any) -> None:
    window._drafts = [window._drafts[0], *window._drafts[:-1]]
    right(window, *args)


def without_last_row(right: Any, window: Any, *args: Any) -> None:
    with_attributes(right, window, args, window=dataclasses.replace(window.window, last_row=False))


def without_the_rejected(right: Any, window: Any, tree: Any, verdict: Any, *args: Any) -> None:
    plays = without_last_row if len(verdict.path) + 1 == tree.depth else lambda right, *args: right(*args)
    plays(right, window, tree, verdict, *args)


def from_the_row_before(right: Any, window: Any, tree: Any, verdict: Any, probs: Any, chance: Any) -> None:
    rows = probs.copy()
    rows[tree.depth] = rows[tree.depth - 1]
    right(window, tree, verdict, rows, chance)


def behind(tree: Any, verdict: Any) -> int:
    """Where the drafts begin that a pass over `tree` neither saw nor decided."""
    return max(len(verdict.path) + 1, int(tree.depth))


def behind_is_lost(right: Any, window: Any, tree: Any, verdict: Any, *args: Any) -> None:
    window._drafts = window._drafts[: behind(tree, verdict)]
    right(window, tree, verdict, *args)


def behind_moves_on(right: Any, window: Any, tree: Any, verdict: Any, *args: Any) -> None:
    place = behind(tree, verdict)
    del window._drafts[place : place + 1]
    right(window, tree, verdict, *args)


def what_was_decided_stays(right: Any, window: Any, tree: Any, verdict: Any, *args: Any) -> None:
    if len(verdict.path) == tree.depth < len(window._drafts):
        window._drafts.insert(tree.depth, window._drafts[tree.depth])
    right(window, tree, verdict, *args)


def held(method: str, wrong: Callable[..., Any]) -> Plant:
    return around("WindowState", method, wrong)


def copied(wrong: Callable[[Any, int, int, str], int]) -> Plant:
    """Another cell that is copied, given the right function."""
    return wrapped("_copied_cell", wrong)


COPY_IS_UNIFORM = replaced("_certain", lambda token, vocab_size: np.full(vocab_size, 1.0 / vocab_size))

WINDOW_MUTANTS: dict[str, tuple[str, Plant]] = {
    "the coupling's noise is the first cycle's": (
        "exact",
        wrapped(
            "_redrawn", lambda right, draft, new, cell, chance, *args: right(draft, new, cell, chance.cycle(0), *args)
        ),
    ),
    "all cells race by one noise": ("exact", wrapped("_drawn", reads_all_zero)),
    "a race by the last distribution": (
        "exact",
        lambda module: wrapped("_redrawn", partial(races_by_the_last, module))(module),
    ),
    "the coupling judges by the distribution of the pass before last": (
        "exact",
        wrapped("_redrawn", judged_by_the_pass_before_last),
    ),
    "the tail's distributions are the parents'": (
        "redrawn",
        wrapped("tail_nodes", lambda right, tree, *args: tree.parents[right(tree, *args)].tolist()),
    ),
    "the tail begins where the path ended": ("exact", held("redraft", begins_where_the_path_ended)),
    "a copy counts as a uniform draw": ("exact", COPY_IS_UNIFORM),
    "left of a row's start is the end of the row above": (
        "refill",
        copied(lambda right, cell, width, refill: cell - 1 if refill == "left" else right(cell, width, refill)),
    ),
    "above is the row's own width too far": (
        "refill",
        copied(
            lambda right, cell, width, refill: {cell - width: cell - 2 * width}.get(
                right(cell, width, refill), cell - 1
            )
        ),
    ),
    "the left neighbour is two cells away": (
        "refill",
        copied(lambda right, cell, width, refill: {cell - 1: cell - 2}.get(right(cell, width, refill), cell - width)),
    ),
    "above wherever there is a row above": (
        "refill",
        copied(lambda right, cell, width, refill: right(cell, width, "above")),
    ),
    "a window over the image's end": (
        "window",
        held("draft", lambda right, window, length, chance: right(window, length + 1, chance)),
    ),
    "the last row's sample is dropped": ("released", held("redraft", without_last_row)),
    "it is dropped where the last draft is the rejected one": ("released", held("redraft", without_the_rejected)),
    "it is kept as a draw from the row before": ("released", held("redraft", from_the_row_before)),
    "a random token counts as a uniform draw": ("released", COPY_IS_UNIFORM),
    "the window stops one short": (
        "window",
        held(
            "draft",
            lambda right, window, length, chance: right(window, min(length, window.window.length - 1), chance),
        ),
    ),
    "what stands behind a shorter pass is lost": ("kept", held("redraft", behind_is_lost)),
    "what stands behind a shorter pass moves on a cell": ("kept", held("redraft", behind_moves_on)),
    "what the pass decided behind its drafts stays": ("kept", held("redraft", what_was_decided_stays)),
}


def ruled(right: Any, cycles: Any, *args: Any) -> Any:
    """The decision of a cycle whose rule keeps the draft that it rejected."""

    def lenient(tree: Any, probs: Any, chance: Any) -> Any:
        verdict = cycles.window_rule(tree, probs, chance)
        below = tree.children()[verdict.path[-1] if verdict.path else 0]
        more = tree.depth > len(verdict.path)
        return verdict._replace(path=(*verdict.path, *below[:1])) if more else verdict

    return right(dataclasses.replace(cycles, window_rule=lenient), *args)


LOOP_MUTANTS: dict[str, tuple[str, Plant]] = {
    "what was drafted is kept though it was rejected": ("exact", around("WindowedCycles", "decide", ruled)),
    "a pass over another tree leaves the window as it was": (
        "kept",
        held("pass_over", lambda right, window, *args: window._decide(*args)),
    ),
    "the window is taken for one of the drafter's trees": (
        "mixed",
        around(
            "WindowedCycles",
            "decide",
            lambda right, cycles, *args: right(dataclasses.replace(cycles, window_rule=cycles.rule), *args),
        ),
    ),
}


def too_heavy(right: Any, table: Any, tokens: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
    args = (tokens, stale_left, distribution)
    mixed, alone = right(table, *args), with_attributes(right, table, args, weight=0.0)
    return mixed if mixed is alone else mixed + 2.0 * table.weight * distribution


def behind_any_token(
    right: Any, table: Any, tokens: list[int], stale_left: int, distribution: FloatArray
) -> FloatArray:
    passes = {
        cell: {tokens[-1]: by_left[stale_left]} for cell, by_left in table._passes.items() if stale_left in by_left
    }
    return with_attributes(right, table, (tokens, stale_left, distribution), _passes=passes)


def above_and_left(right: Any, table: Any, tokens: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
    above = len(tokens) - table.grid.width
    entry = table._beside.get((tokens[-1], tokens[above - 1]))
    beside = {} if entry is None else {(tokens[-1], tokens[above]): entry}
    return with_attributes(right, table, (tokens, stale_left, distribution), _beside=beside)


LOOKUP_MUTANTS: dict[str, Plant] = {
    "the weights add up to more than one": around("LookupTable", "redraft", too_heavy),
    "an earlier pass behind any token": around("LookupTable", "redraft", behind_any_token),
    "the neighbour above is the one above and left": around("LookupTable", "redraft", above_and_left),
    "all tokens on the left are taken for one": around(
        "LookupTable", "see", lambda right, table, cell, left, distribution: right(table, cell, 0, distribution)
    ),
    "a guess by the token above alone": around(
        "LookupTable", "guess", lambda right, table, tokens: with_attributes(right, table, (tokens,), _left={})
    ),
}


def check_lookup(lookup: ModuleType) -> None:
    """What is found is what was said beside the same tokens, and drafts are distributions."""
    distributions = [np.eye(4)[token] for token in range(4)]
    table = lookup.LookupTable(Grid(2, 3), use_passes=True, weight=0.75)
    tokens: list[int] = []
    for token, distribution in zip((1, 2, 3, 2), distributions, strict=True):
        tokens.append(token)
        table.decide(tokens, distribution)
    assert table.redraft(tokens, 2, distributions[0]) is distributions[0]
    assert table.redraft(tokens, 0, distributions[0]) is distributions[0]  # nothing was decided between 2 and 2
    assert table.guess(tokens) is distributions[2]
    assert table.guess([*tokens, 0]) is None
    table.see(4, 2, distributions[1])
    assert table.redraft(tokens, 0, distributions[0]) is distributions[1]
    table.decide([*tokens, 0], distributions[1])  # cell 4: 2 on the left, 2 above
    assert table.redraft([9, 2, 9, 2], 0, distributions[3]).tolist() == [0.0, 0.75, 0.0, 0.25]
    assert table.guess([9, 2, 9, 2]) is distributions[1]


def with_replacement(draft: Any, candidates: int, address: int, chance: Any) -> list[int]:
    places = range(1, candidates)
    return [draft.token, *(chance.draw(draft.distribution, At(Role.CANDIDATE, address + place)) for place in places)]


def likeliest(right: Any, draft: Any, candidates: int, address: int, chance: Any) -> Any:
    return right(draft, candidates, address, SimpleNamespace(draw=lambda weights, at: int(weights.argmax())))


def in_reverse(right: Any, root: int, drafts: Any, *args: Any) -> Any:
    tokens = [draft.token for draft in drafts[::-1]]
    tree = right(root, drafts, *args)
    return dataclasses.replace(tree, tokens=np.concatenate([[root], tokens, tree.tokens[1 + len(drafts) :]]))


def judged_by_the_next_cell(right: Any, root: int, drafts: Any, *args: Any) -> Any:
    tree = right(root, drafts, *args)
    rows = np.where(tree.draft_rows < 0, -1, np.minimum(tree.draft_rows + 1, len(drafts) - 1))
    return dataclasses.replace(tree, draft_rows=rows)


def candidates_of_the_next_cell(module: Any) -> None:
    def tree(right: Any, root: int, drafts: Any, *args: Any) -> Any:
        following.update({id(draft): after for draft, after in zip(drafts, [*drafts[1:], drafts[-1]], strict=True)})
        return right(root, drafts, *args)

    following = dict[int, Any]()
    wrapped("window_tree", tree)(module)
    wrapped("_proposals", lambda right, draft, *args: right(following[id(draft)], *args))(module)


def follows_the_last(right: Any, tree: Any, *args: Any) -> Any:
    return right(SimpleNamespace(children=lambda: [below[::-1] for below in tree.children()]), *args)


def one_node_too_high(right: Any, tree: Any, path: Any, length: int) -> list[int]:
    nodes, before = right(tree, path, length), path[-1] if path else 0
    for place, node in enumerate(nodes):
        if tree.parents[node] != before:  # the tree ended there
            return [*nodes[:place], *(later - 1 for later in nodes[place:])]
        before = node
    return list(nodes)


TREE_MUTANTS: dict[str, Plant] = {
    "a candidate is drawn with replacement": replaced("_proposals", with_replacement),
    "the candidates are the likeliest": wrapped("_proposals", likeliest),
    "the drafts stand in reverse": wrapped("window_tree", in_reverse),
    "candidates are judged by the next cell's distribution": wrapped("window_tree", judged_by_the_next_cell),
    "candidates of the next cell": candidates_of_the_next_cell,
    "the tail follows the last candidates": wrapped("tail_nodes", follows_the_last),
    "the tail stands one node too high": wrapped("tail_nodes", one_node_too_high),
}


def with_tree(tree: ModuleType) -> ModuleType:
    """The decoding loop over another `window_tree`."""
    module: Any = load("spatial/jacobi.py")
    module.window_tree, module.tail_nodes = tree.window_tree, tree.tail_nodes
    return module  # type: ignore[no-any-return]


def check_tree(tree: ModuleType) -> None:
    check_exact(with_tree(tree))
    drafts = [tree.WindowDraft(token, np.full(6, 1 / 6)) for token in (3, 1, 4, 0)]
    draft_tree = tree.window_tree(5, drafts, 2, 2, "without_replacement", 0, sampling(0))
    for node in range(draft_tree.size):
        nodes = tree.tail_nodes(draft_tree, draft_tree.path_to(node), 4)
        assert draft_tree.tokens[nodes].tolist() == [3, 1, 4, 0][draft_tree.depths()[node] : 3]


@pytest.mark.parametrize("name", CHECKS)
def test_windows_pass_before_a_bug_is_planted(name: str) -> None:
    CHECKS[name](jacobi)


@pytest.mark.parametrize("bug", WINDOW_MUTANTS)
def test_the_bug_in_a_window_is_caught(bug: str) -> None:
    check, plant = WINDOW_MUTANTS[bug]
    check_is_caught(CHECKS[check], "spatial/jacobi.py", plant)


@pytest.mark.parametrize("bug", LOOP_MUTANTS)
def test_the_bug_in_the_loop_is_caught(bug: str) -> None:
    check, plant = LOOP_MUTANTS[bug]
    check_is_caught(CHECKS[check], "spatial/jacobi.py", plant)


@pytest.mark.parametrize("bug", TREE_MUTANTS)
def test_the_bug_in_a_windows_tree_is_caught(bug: str) -> None:
    check_is_caught(check_tree, "spatial/jacobi_window.py", TREE_MUTANTS[bug])


@pytest.mark.parametrize("bug", LOOKUP_MUTANTS)
def test_the_bug_in_a_lookup_is_caught(bug: str) -> None:
    check_is_caught(check_lookup, "spatial/jacobi_window.py", LOOKUP_MUTANTS[bug])


def test_the_code_as_it_is_passes_as_a_copy() -> None:
    check_exact(load("spatial/jacobi.py"))
    check_tree(load("spatial/jacobi_window.py"))
    check_lookup(load("spatial/jacobi_window.py"))
