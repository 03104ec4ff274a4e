"""The Jacobi loops that the authors released, written anew for tests: exact on a few cells, by enumeration.

They differ from the papers, and from `algos.spatial.jacobi`, in small ways. Each way is a setting of `ReleasedLoop`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from underpaint.algos.accept.walk import excess, normalised
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes
from underpaint.algos.enumeration import target_distribution, total_variation
from underpaint.algos.protocols import Grid
from underpaint.sim.synthetic.models import PrefixDistribution, SyntheticTarget

Tail: TypeAlias = Literal["fresh", "coupled", "ratio"]
"""How drafts behind a rejection are drafted again.

"fresh": drawn from the new distribution (SJD). "coupled": judged on, each kept or drawn from its residual (SCD).
"ratio": kept where the new distribution gives it more than half of the old probability, else drawn (PJD).
"""


@dataclass(frozen=True, slots=True)
class ReleasedLoop:
    """The settings of one released loop.

    length: rows of a pass, the committed token included, >= 1; the authors' "window".
    tail: how drafts behind a rejection are drafted again.
    old_scores: a draft kept behind a rejection keeps the distribution that it was first drawn from.
    one_hot_refill: random tokens at the window's end count as certain; False scores them as uniform draws.
    warp: applied to the residual after a rejection; the released SJD applies the sampling settings here once more.
    uniform_extra: after a full acceptance the extra token is drawn evenly from the vocabulary (SJD-PAC).
    """

    length: int
    tail: Tail = "fresh"
    old_scores: bool = False
    one_hot_refill: bool = True
    warp: Callable[[FloatArray], FloatArray] = normalised
    uniform_extra: bool = False


@dataclass(frozen=True, slots=True)
class _Draft:
    token: int
    scores: FloatArray


def decode(
    distribution: PrefixDistribution, cells: int, loop: ReleasedLoop, chance: Chance
) -> tuple[tuple[int, ...], int]:
    """The tokens of one image in raster order, and the target passes, the first cell's pass included."""
    first = distribution(())
    tokens, drafts, passes = [chance.draw(first, At(Role.BONUS, 0))], list[_Draft](), 1
    while len(tokens) < cells:
        chance, cell = chance.cycle(passes), len(tokens)
        passes += 1
        drafts = _refilled(drafts, min(loop.length - 1, cells - 1 - cell), cell, first.size, loop, chance)
        sequence = (*tokens, *(draft.token for draft in drafts))
        rows = [distribution(sequence[: cell + place]) for place in range(len(drafts) + 1)]
        count, drafts = _judge(drafts, rows, cell, loop, chance)
        tokens.extend(draft.token for draft in drafts[:count])
        drafts = drafts[count:]
    return tuple(tokens), passes


def _judge(
    drafts: list[_Draft], rows: list[FloatArray], cell: int, loop: ReleasedLoop, chance: Chance
) -> tuple[int, list[_Draft]]:
    """The tokens committed, and all tokens that the pass leaves: those first, then the drafts of the next pass."""
    new_drafts, committed = list[_Draft](), 0
    for place, (draft, row) in enumerate(zip(drafts, rows, strict=False)):
        at, token, old = cell + place, draft.token, float(draft.scores[draft.token])
        if committed and loop.tail == "fresh":
            new_drafts.append(_Draft(chance.draw(row, At(Role.DRAFT, at)), row))
            continue
        if committed and loop.tail == "ratio":
            accepted = float(row[token]) > 0.5 * old
        else:
            accepted = chance.flip(float(row[token]), At(Role.ACCEPT, at), out_of=old)
        if accepted:
            new_drafts.append(_Draft(token, draft.scores if loop.old_scores else row))
        elif committed and loop.tail == "ratio":
            new_drafts.append(_Draft(chance.draw(row, At(Role.DRAFT, at)), row))
        else:
            rest = excess(row, draft.scores)
            new_drafts.append(_Draft(chance.draw(loop.warp(rest), At(Role.RESIDUAL, at)), row))
            committed = committed or place + 1
    last, at = rows[-1], cell + len(drafts)
    extra = np.full(last.size, 1.0 / last.size) if loop.uniform_extra and not committed else last
    new_drafts.append(_Draft(chance.draw(extra, At(Role.BONUS, at)), last))
    return committed or len(new_drafts), new_drafts


def _refilled(
    drafts: list[_Draft], count: int, cell: int, vocab_size: int, loop: ReleasedLoop, chance: Chance
) -> list[_Draft]:
    drafts, even = drafts[:count], np.full(vocab_size, 1.0 / vocab_size)
    for place in range(len(drafts), count):
        token = chance.draw(even, At(Role.REFILL, cell + place))
        drafts.append(_Draft(token, np.eye(vocab_size)[token] if loop.one_hot_refill else even))
    return drafts


def bias_and_passes(distribution: PrefixDistribution, cells: int, loop: ReleasedLoop) -> tuple[float, float]:
    """The total variation of whole images from the target's distribution, and the mean target passes, both exact."""
    runs = enumerate_outcomes(lambda chance: decode(distribution, cells, loop, chance))
    images: dict[tuple[int, ...], float] = {}
    for (tokens, _), weight in runs.items():
        images[tokens] = images.get(tokens, 0.0) + weight
    exact = target_distribution(SyntheticTarget(distribution, Grid(1, cells)))
    return total_variation(images, exact), sum(passes * weight for (_, passes), weight in runs.items())
