"""PJD's released loop over several rows, written anew for tests: exact on a few cells, by enumeration.

Line ends are left out: the authors feed one before each row, and no pass decides it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.accept.walk import excess
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.protocols import Grid
from underpaint.algos.tree import NO_TOKEN

Seen: TypeAlias = tuple[tuple[int, int], ...]
"""What a position of the model attends to: cells and their tokens, by rising cell."""
RowDistribution: TypeAlias = Callable[[Seen, int], FloatArray]
"""The distribution [V] of a cell, given what is seen."""


@dataclass(frozen=True, slots=True)
class ReleasedRows:
    """The settings of the released loop, and its two mistakes.

    window: the positions that one row of the grid takes in a pass, its last committed token included.
    lead: the tokens that a row of the grid has when the row below opens.
    judged_late: in the pass after a row has ended, the drafts of all rows are read one place too early: the last
        committed token is judged as the first draft, the first draft as the second, and so on. The model saw the
        drafts in their own places.
    mask_misplaced: the mask that hides the drafts of other rows is written for positions behind those of the third
        open row. False hides them from all rows, as the paper has it.
    """

    window: int
    lead: int
    judged_late: bool = True
    mask_misplaced: bool = True


@dataclass(frozen=True, slots=True)
class _Draft:
    token: int
    scores: FloatArray


class _Position(NamedTuple):
    """One position of a pass: the row of the grid, the cell, and the token fed, NO_TOKEN for the start of a row."""

    row: int
    cell: int
    token: int
    draft: bool


@dataclass(slots=True)
class _Row:
    """A row of the grid: what it has committed, behind its start, and its drafts."""

    committed: list[_Draft]
    drafts: list[_Draft] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.committed) - 1


class Drawn(NamedTuple):
    """tokens: of the image, in raster order. steps: for each target pass, the tokens committed by row of the grid."""

    tokens: tuple[int, ...]
    steps: tuple[tuple[tuple[int, int], ...], ...]


def decode(distribution: RowDistribution, vocab_size: int, grid: Grid, loop: ReleasedRows, chance: Chance) -> Drawn:
    """Draw one image."""
    rows = [_Row([_Draft(NO_TOKEN, np.zeros(vocab_size))]) for _ in range(grid.height)]
    cache: dict[int, int] = {}
    open_rows, ended, steps = [0], list[int](), list[tuple[tuple[int, int], ...]]()
    while rows[-1].count < grid.width:
        here = chance.cycle(len(steps))
        if steps:
            _refill(rows, open_rows, grid, loop, vocab_size, here)
        positions = _positions(rows, [*ended, *open_rows], grid, len(ended))
        scores = _score(distribution, positions, cache, open_rows, len(ended), loop)
        late = bool(ended) and loop.judged_late
        cache |= {one.cell: one.token for one in positions if one.row in ended}
        ended, step = [], list[tuple[int, int]]()
        for turn, number in enumerate(tuple(open_rows)):
            row = rows[number]
            fed = [one for one in positions if one.row == number]
            drafts = [row.committed[-1], *row.drafts][: len(row.drafts)] if late else row.drafts
            count, new_drafts = _judge(drafts, scores[number], fed[0].cell + 1, turn == 0, here)
            cache |= {one.cell: one.token for one in fed[:count] if one.token != NO_TOKEN}
            step.append((number, count))
            row.committed += new_drafts[:count]
            row.drafts = new_drafts[count:]
            if row.count >= loop.lead and number + 1 < grid.height and number + 1 not in open_rows:
                open_rows.append(number + 1)
            if row.count == grid.width:
                open_rows.remove(number)
                ended.append(number)
        steps.append(tuple(step))
    return Drawn(tuple(one.token for row in rows for one in row.committed[1:]), tuple(steps))


def _refill(
    rows: list[_Row], open_rows: list[int], grid: Grid, loop: ReleasedRows, vocab_size: int, chance: Chance
) -> None:
    """Drafts up to a cell behind the row above; random ones count as certain."""
    for number in open_rows:
        row, above = rows[number], rows[number - 1].count if number else grid.width
        length = min(above - row.count, loop.window) - 1
        row.drafts = row.drafts[:length]
        for place in range(len(row.drafts), length):
            even = np.full(vocab_size, 1.0 / vocab_size)
            token = chance.draw(even, At(Role.REFILL, number * grid.width + row.count + place))
            row.drafts.append(_Draft(token, np.eye(vocab_size)[token]))


def _positions(rows: list[_Row], fed: list[int], grid: Grid, ended: int) -> list[_Position]:
    """The last token of the rows that have ended, and the last tokens and drafts of the open ones."""
    positions = list[_Position]()
    for turn, number in enumerate(fed):
        row, cell = rows[number], number * grid.width + rows[number].count - 1
        positions.append(_Position(number, cell, row.committed[-1].token, False))
        if turn >= ended:
            positions += [_Position(number, cell + 1 + at, one.token, True) for at, one in enumerate(row.drafts)]
    return positions


def _score(
    distribution: RowDistribution,
    positions: list[_Position],
    cache: dict[int, int],
    open_rows: list[int],
    ended: int,
    loop: ReleasedRows,
) -> dict[int, list[FloatArray]]:
    """The distributions of one pass, by row of the grid: of the cells behind its positions."""
    hidden: dict[int, set[int]] = {place: set() for place in range(len(positions))}
    written = end = ended
    for number in open_rows:
        length = sum(one.row == number for one in positions)
        start = written if loop.mask_misplaced else end
        above = {one.cell for one in positions if one.draft and one.row < number}
        for place in range(start, min(start + length, len(positions))):
            hidden[place] |= above
        end += length
        written += end
    scores: dict[int, list[FloatArray]] = {number: [] for number in open_rows}
    for place, one in enumerate(positions):
        seen = cache | {
            other.cell: other.token
            for other in positions[: place + 1]
            if other.token != NO_TOKEN and (not other.draft or other.cell not in hidden[place])
        }
        if one.row in scores:
            context = tuple(sorted((cell, token) for cell, token in seen.items() if cell <= one.cell))
            scores[one.row].append(distribution(context, one.cell + 1))
    return scores


def _judge(
    drafts: list[_Draft], scores: list[FloatArray], cell: int, top: bool, chance: Chance
) -> tuple[int, list[_Draft]]:
    """How many tokens are committed, and all tokens that the pass leaves, those first.

    The top row commits the token behind its last kept draft too: redrawn, or the one after them all. The others leave
    it as a draft.
    """
    new_drafts, all_accepted = list[_Draft](), True
    count = len(drafts) + top
    for place, (draft, row) in enumerate(zip(drafts, scores, strict=False)):
        at, old = cell + place, float(draft.scores[draft.token]) if draft.token != NO_TOKEN else 0.0
        new = float(row[draft.token]) if old else 0.0
        accepted = old > 0 and (chance.flip(new, At(Role.ACCEPT, at), out_of=old) if all_accepted else new > 0.5 * old)
        if accepted:
            new_drafts.append(draft)
        elif all_accepted and top:
            rest = excess(row, draft.scores)
            new_drafts.append(_Draft(chance.draw(rest, At(Role.RESIDUAL, at)), rest / rest.sum()))
        else:
            new_drafts.append(_Draft(chance.draw(row, At(Role.DRAFT, at)), row))
        if not accepted and all_accepted:
            count, all_accepted = place + top, False
    last = scores[-1]
    new_drafts.append(_Draft(chance.draw(last, At(Role.DRAFT, cell + len(drafts))), last))
    return count, new_drafts
