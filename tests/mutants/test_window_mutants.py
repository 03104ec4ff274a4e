"""Planted bugs in Jacobi windows and their trees: stale noise, a wrong neighbour, tokens behind a rejection, a window
that is too long."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.exact.test_jacobi_released import step_by_step
from tests.exact.test_windows_beside_trees import check_kept, check_mixed
from tests.mutants.harness import Plant, around, caught, check_is_caught, load, with_attributes
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance, enumerate_outcomes, sampling
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
        held: list[int] = []
        for cycle in module.jacobi_cycles(
            SyntheticTarget(RandomDistribution(9), grid), RULE, sampling(2), window, None
        ):
            drafts = cycle.tree.tokens[1:].tolist()
            known = tokens + drafts
            assert len(known) < grid.cells
            for cell in range(len(tokens) + len(held), len(known)):
                row, column = divmod(cell, grid.width)
                above = row > 0 and (refill == "above" or column == 0)
                assert known[cell] == known[cell - grid.width if above else cell - 1]
            tokens.extend(emitted(cycle.tree, cycle.verdict))
            held = drafts[len(cycle.verdict.path) + 1 :]


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

MUTANTS: dict[str, tuple[str, str, str]] = {
    "the coupling's noise is the first cycle's": (
        "exact",
        "cell + place, chance, window, self.noise)",
        "cell + place, chance.cycle(0), window, self.noise)",
    ),
    "all cells race by one noise": ("exact", "noise.race(distribution, cell)", "noise.race(distribution, 0)"),
    "a race by the last distribution": (
        "exact",
        "return _drawn(distribution, cell, chance, noise)",
        "return WindowDraft(_drawn(draft.distribution, cell, chance, noise).token, distribution)",
    ),
    "the coupling judges by the distribution of the pass before last": (
        "exact",
        "maximal_coupling(draft.token, draft.distribution, distribution, chance, at), distribution)",
        "maximal_coupling(draft.token, draft.distribution, distribution, chance, at), draft.distribution)",
    ),
    "the tail's distributions are the parents'": (
        "redrawn",
        "row, left = self._said(probs[node]), int(",
        "row, left = self._said(probs[tree.parents[node]]), int(",
    ),
    "the tail begins where the path ended": (
        "exact",
        "held, known = drafts[done:last], list(self._tokens)",
        "held, known = drafts[done - 1 : last - 1], list(self._tokens)",
    ),
    "a copy counts as a uniform draw": (
        "exact",
        "distribution = _certain(token, vocab_size)",
        "distribution = np.full(vocab_size, 1.0 / vocab_size)",
    ),
    "left of a row's start is the end of the row above": ("refill", "or column == 0)", ")"),
    "above is the row's own width too far": ("refill", "cell - width if above", "cell - 2 * width if above"),
    "the left neighbour is two cells away": ("refill", "else cell - 1]", "else cell - 2]"),
    "above wherever there is a row above": ("refill", '(refill == "above" or column == 0)', "True"),
    "a window over the image's end": (
        "window",
        "min(self.window.length, length)",
        "min(self.window.length, length + 1)",
    ),
    "the last row's sample is dropped": ("released", "if window.last_row and", "if False and"),
    "it is dropped where the last draft is the rejected one": ("released", "done <= last", "done < last"),
    "it is kept as a draw from the row before": ("released", "self._said(probs[last])", "self._said(probs[last - 1])"),
    "a random token counts as a uniform draw": ("released", 'if refill == "random" else', "if False else"),
    "the window stops one short": ("window", "min(self.window.length, ", "min(self.window.length - 1, "),
}

BEHIND_MUTANTS = {
    "what stands behind a shorter pass is lost": ("self._drafts = drafts + behind", "self._drafts = drafts"),
    "what stands behind a shorter pass moves on a cell": ("drafts[max(done, last) :]", "drafts[max(done, last) + 1 :]"),
    "what the pass decided behind its drafts stays": ("drafts[max(done, last) :]", "drafts[last:]"),
}

LOOP_MUTANTS: dict[str, tuple[str, str, str]] = {
    "what was drafted is kept though it was rejected": (
        "exact",
        "verdict = rule(tree, probs, chance)",
        "verdict = rule(tree, probs, chance)\n"
        "        below = tree.children()[verdict.path[-1] if verdict.path else 0]\n"
        "        more = tree.depth > len(verdict.path)\n"
        "        verdict = verdict._replace(path=(*verdict.path, *below[:1])) if more else verdict",
    ),
    "a pass over another tree leaves the window as it was": (
        "kept",
        "window.pass_over(tree, verdict, probs)",
        "window._decide(tree, verdict, probs)",
    ),
    "the window is taken for one of the drafter's trees": (
        "mixed",
        "self.window_rule if is_window else self.drawn_rules.get(tree.drawn, self.rule)",
        "self.rule",
    ),
}


def too_heavy(right: Any, table: Any, known: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
    asked = (known, stale_left, distribution)
    mixed, alone = right(table, *asked), with_attributes(right, table, asked, weight=0.0)
    return mixed if mixed is alone else mixed + 2.0 * table.weight * distribution


def behind_any_token(right: Any, table: Any, known: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
    passes = {cell: {known[-1]: said[stale_left]} for cell, said in table._passes.items() if stale_left in said}
    return with_attributes(right, table, (known, stale_left, distribution), _passes=passes)


def above_and_left(right: Any, table: Any, known: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
    above = len(known) - table.grid.width
    said = table._beside.get((known[-1], known[above - 1]))
    beside = {} if said is None else {(known[-1], known[above]): said}
    return with_attributes(right, table, (known, stale_left, distribution), _beside=beside)


LOOKUP_MUTANTS: dict[str, Plant] = {
    "the weights add up to more than one": around("LookupTable", "redraft", too_heavy),
    "an earlier pass behind any token": around("LookupTable", "redraft", behind_any_token),
    "the neighbour above is the one above and left": around("LookupTable", "redraft", above_and_left),
    "all tokens on the left are taken for one": around(
        "LookupTable", "see", lambda right, table, cell, left, distribution: right(table, cell, 0, distribution)
    ),
    "a guess by the token above alone": around(
        "LookupTable", "guess", lambda right, table, known: with_attributes(right, table, (known,), _left={})
    ),
}


def check_lookup(lookup: ModuleType) -> None:
    """What is found is what was said beside the same tokens, and drafts are distributions."""
    said = [np.eye(4)[token] for token in range(4)]
    table = lookup.LookupTable(Grid(2, 3), use_passes=True, weight=0.75)
    tokens: list[int] = []
    for token, distribution in zip((1, 2, 3, 2), said, strict=True):
        tokens.append(token)
        table.decide(tokens, distribution)
    assert table.redraft(tokens, 2, said[0]) is said[0]
    assert table.redraft(tokens, 0, said[0]) is said[0]  # nothing was decided between 2 and 2
    assert table.guess(tokens) is said[2]
    assert table.guess([*tokens, 0]) is None
    table.see(4, 2, said[1])
    assert table.redraft(tokens, 0, said[0]) is said[1]
    table.decide([*tokens, 0], said[1])  # cell 4: 2 on the left, 2 above
    assert table.redraft([9, 2, 9, 2], 0, said[3]).tolist() == [0.0, 0.75, 0.0, 0.25]
    assert table.guess([9, 2, 9, 2]) is said[1]


TREE_MUTANTS = {
    "a candidate is drawn with replacement": ("left[tokens[-1]] = 0.0", "pass"),
    "the candidates are the likeliest": (
        "chance.draw(left, At(Role.CANDIDATE, address + place))",
        "int(left.argmax())",
    ),
    "the drafts stand in reverse": ("*(draft.token for draft in drafts)", "*(draft.token for draft in drafts[::-1])"),
    "candidates are judged by the next cell's distribution": (
        "rows[node] = place\n",
        "rows[node] = min(place + 1, count - 1)\n",
    ),
    "candidates of the next cell": ("proposals[place][held:]", "proposals[min(place + 1, count - 1)][held:]"),
    "the tail follows the last candidates": ("first.setdefault(parent, node)", "first[parent] = node"),
    "the tail stands one node too high": ("node = first.get(node, place)", "node = first.get(node, place - 1)"),
}


def with_window(window: ModuleType) -> ModuleType:
    """The decoding loop over another `jacobi_window`."""
    module: Any = load("spatial/jacobi.py")
    module.HeldWindow = window.HeldWindow
    return module  # type: ignore[no-any-return]


def with_tree(tree: ModuleType) -> ModuleType:
    """The decoding loop over another `window_tree`."""
    window: Any = load("spatial/jacobi_window.py")
    window.window_tree, window.tail_nodes = tree.window_tree, tree.tail_nodes
    return with_window(window)


def check_tree(tree: ModuleType) -> None:
    check_exact(with_tree(tree))
    drafts = [tree.WindowDraft(token, np.full(6, 1 / 6)) for token in (3, 1, 4, 0)]
    made = tree.window_tree(5, drafts, 2, 2, "without_replacement", 0, sampling(0))
    for node in range(made.size):
        nodes = tree.tail_nodes(made, made.path_to(node), 4)
        assert made.tokens[nodes].tolist() == [3, 1, 4, 0][made.depths()[node] : 3]


@pytest.mark.parametrize("name", CHECKS)
def test_windows_pass_before_a_bug_is_planted(name: str) -> None:
    CHECKS[name](jacobi)


@pytest.mark.parametrize("bug", MUTANTS)
def test_the_bug_in_a_window_is_caught(bug: str) -> None:
    check, old, new = MUTANTS[bug]
    module = with_window(load("spatial/jacobi_window.py", old, new))
    with caught():
        CHECKS[check](module)


@pytest.mark.parametrize("bug", LOOP_MUTANTS)
def test_the_bug_in_the_loop_is_caught(bug: str) -> None:
    check, old, new = LOOP_MUTANTS[bug]
    module = load("spatial/jacobi.py", old, new)
    with caught():
        CHECKS[check](module)


@pytest.mark.parametrize("bug", TREE_MUTANTS)
def test_the_bug_in_a_windows_tree_is_caught(bug: str) -> None:
    check_is_caught(check_tree, "spatial/window_drafts.py", *TREE_MUTANTS[bug])


@pytest.mark.parametrize("bug", LOOKUP_MUTANTS)
def test_the_bug_in_a_lookup_is_caught(bug: str) -> None:
    mutant = load("spatial/window_drafts.py")
    LOOKUP_MUTANTS[bug](mutant)
    with caught():
        check_lookup(mutant)


@pytest.mark.parametrize("bug", BEHIND_MUTANTS)
def test_the_bug_behind_a_shorter_pass_is_caught(bug: str) -> None:
    module = with_window(load("spatial/jacobi_window.py", *BEHIND_MUTANTS[bug]))
    with caught():
        check_kept(module)
