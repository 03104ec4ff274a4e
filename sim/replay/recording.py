"""Records traces: draws images by plain autoregression, and runs the drafter along them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.protocols import Grid
from underpaint.algos.step import Drafter, Scored, Target
from underpaint.algos.transport import overlap
from underpaint.algos.tree import Verdict, root_only
from underpaint.sim.replay.drawn_trace import DrawnTrace
from underpaint.sim.replay.row_trace import RowTrace
from underpaint.sim.replay.trace import ARRAYS, Trace

MOST_CODES_NEAR: Final = 20
"""Number of nearest codes whose mass is recorded together with the drawn token's own."""


class DrawnImage(NamedTuple):
    """Tokens [C] drawn one by one, and for each the target pass before it; row 0 of a pass is the distribution."""

    tokens: IntArray
    scored: list[Scored]


def record_image(
    target: Target, drafter: Drafter, chance: Chance, depths: int, greedy: bool
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Draw one image by plain autoregression, then run the drafter along it.

    Args:
        target: The target.
        drafter: The drafter.
        chance: The noise of the draws.
        depths: D, the number of drafter depths, >= 1.
        greedy: Whether to take the likeliest token, as the greedy rules do.

    Returns:
        The tokens [C], the target's distributions [C, V] and the drafter's [D, C, V]. Cells too close to the start for
        depth d repeat the nearest smaller depth.
    """
    image = draw_image(target, chance, greedy)
    cells = image.tokens.size
    distributions = np.stack([scored.probs[0] for scored in image.scored])
    drafted = np.zeros((depths, *distributions.shape))
    drafter.begin(image.scored[0])
    for cell in range(1, cells):
        root = int(image.tokens[cell - 1])
        drafted[0, cell] = drafter.expand(np.array([root]), np.array([-1]))[0]
        for depth in range(1, min(depths, cells - cell)):
            token = int(image.tokens[cell + depth - 1])
            drafted[depth, cell + depth] = drafter.expand(np.array([token]), np.array([depth - 1]))[0]
        tree = root_only(root, target.vocab_size)
        drafter.commit(tree, Verdict((), int(image.tokens[cell])), image.scored[cell])
    drafted[0, 0] = distributions[0]  # the first cell is never drafted
    for depth in range(1, depths):
        drafted[depth, : min(depth + 1, cells)] = drafted[depth - 1, : min(depth + 1, cells)]
    return image.tokens, distributions, drafted


def draw_image(target: Target, chance: Chance, greedy: bool) -> DrawnImage:
    """Draw one image by plain autoregression.

    Args:
        target: The target.
        chance: The noise of the draws.
        greedy: Whether to take the likeliest token, as the greedy rules do.

    Returns:
        Its tokens, and for each the target pass before it.
    """
    scored = [target.begin()]
    tokens: list[int] = []
    for cell in range(target.grid.cells):
        distribution = scored[-1].probs[0]
        tokens.append(
            int(distribution.argmax()) if greedy else chance.cycle(cell).draw(distribution, At(Role.BONUS, 0))
        )
        if cell + 1 < target.grid.cells:
            tree = root_only(tokens[-1], target.vocab_size)
            scored.append(target.score(tree))
            target.commit(tree, Verdict((), tokens[-1]))
    return DrawnImage(np.array(tokens, dtype=np.int64), scored)


def entropy(distributions: FloatArray) -> FloatArray:
    """[...] entropies, in nats, of distributions [..., V]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(distributions > 0.0, distributions * np.log(distributions), 0.0)
    nats: FloatArray = -parts.sum(axis=-1)
    return nats


class Recorder:
    """Records images into a trace, with the `keep` likeliest tokens of each distribution."""

    def __init__(self, codebook: FloatArray, neighbours: IntArray, depths: int = 5, keep: int = 128) -> None:
        if depths < 0 or keep < 1:
            raise ValueError(f"trace: expected depths >= 0 and keep >= 1, got {depths} and {keep}")
        self._codebook, self._near = codebook, neighbours[:, :MOST_CODES_NEAR]
        self._depths, self._keep = depths, min(keep, codebook.shape[0])
        self._parts: dict[str, list[Any]] = {name: [] for name in ARRAYS if name != "codebook"}
        self._grid = Grid(0, 0)

    def add(self, target: Target, drafter: Drafter, chance: Chance, greedy: bool) -> IntArray:
        """Record one image and return its tokens [C]. ValueError if the target and the codebook differ in size."""
        if target.vocab_size != self._codebook.shape[0]:
            raise ValueError(
                f"trace: the target draws {target.vocab_size} codes, the codebook holds {self._codebook.shape[0]}; "
                "take the codebook of the same model"
            )
        recorded = record_image(target, drafter, chance, self._depths, greedy)
        self.add_distributions(target.grid, *recorded)
        return recorded[0]

    def add_distributions(self, grid: Grid, tokens: IntArray, distributions: FloatArray, drafted: FloatArray) -> None:
        """Record one image from known distributions.

        Args:
            grid: Rows and columns of the image.
            tokens: `[C]` int64, the drawn tokens.
            distributions: `[C, V]` float64, the target's.
            drafted: `[D, C, V]` float64, the drafter's, by number of tokens past the root.
        """
        self._grid = grid
        cells, shape = np.arange(tokens.size), (self._depths, tokens.size, min(self._keep, distributions.shape[1]))
        likeliest, proposed = top(distributions, self._keep), [top(row, self._keep) for row in drafted]
        near = distributions[cells[:, None], self._near[tokens]].sum(axis=1) + distributions[cells, tokens]
        for name, value in (
            ("tokens", tokens),
            ("target_tokens", likeliest.tokens),
            ("target_probs", likeliest.probs),
            ("draft_tokens", np.array([one.tokens for one in proposed], dtype=np.int64).reshape(shape)),
            ("draft_probs", np.array([one.probs for one in proposed]).reshape(shape)),
            ("target_entropy", entropy(distributions)),
            ("draft_entropy", entropy(drafted)),
            ("neighbour_mass", near),
            ("acceptance", overlap(distributions[None], drafted)),
        ):
            self._parts[name].append(value)

    def trace(self, about: Mapping[str, Any], rows: Sequence[RowTrace] = (), drawn: Sequence[DrawnTrace] = ()) -> Trace:
        """Build the trace, with drafted rows and drawn images for its prompts; ValueError if nothing was recorded."""
        if not self._parts["tokens"]:
            raise ValueError("trace: nothing was recorded; add an image first")
        arrays: dict[str, Any] = {name: np.stack(parts) for name, parts in self._parts.items()}
        arrays |= {"codebook": self._codebook.astype(np.float32), "rows": tuple(rows), "drawn": tuple(drawn)}
        return Trace(dict(about), self._grid, self._codebook.shape[0], **arrays)
