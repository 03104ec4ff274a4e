"""Lookup in what the target said before: better distributions to draft a Jacobi window's cells from, at no pass.

A draft behind a changed token was judged beside a token that is gone. What the target said of the same cell in an
earlier pass beside the token that now stands there, or of a decided cell between the same neighbours (n-gram lookup as
in prompt lookup decoding, with the target's distributions in place of tokens), is often nearer to what it will say.

Everything that is looked up was said of the cell itself, by tokens before it, or of decided cells, so a draft still has
the distribution that it is judged by, given all drafts before it.
"""

from dataclasses import dataclass, field

from underpaint.algos.arrays import FloatArray
from underpaint.algos.draft.spec import Grid


@dataclass(slots=True)
class LookupTable:
    """The distributions [V] of one image by the tokens beside their cells.

    use_passes, weight: `passes` and `beside` of `jacobi_window.JacobiWindow`.
    """

    grid: Grid
    use_passes: bool = False
    weight: float = 0.0
    _passes: dict[int, dict[int, FloatArray]] = field(default_factory=dict)
    _beside: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    _left: dict[int, FloatArray] = field(default_factory=dict)
    _above: dict[int, FloatArray] = field(default_factory=dict)

    def see(self, cell: int, left: int, distribution: FloatArray) -> None:
        """Keep what a pass said of `cell`, not decided yet, behind the token `left`."""
        if self.use_passes:
            self._passes.setdefault(cell, {})[left] = distribution

    def decide(self, tokens: list[int], distribution: FloatArray) -> None:
        """Keep what the target said of the last of `tokens`, which was drawn from it and is decided."""
        cell = len(tokens) - 1
        row, column = divmod(cell, self.grid.width)
        self._passes.pop(cell, None)
        if column:
            self._left[tokens[-2]] = distribution
        if row:
            self._above[tokens[cell - self.grid.width]] = distribution
        if row and column:
            self._beside[tokens[-2], tokens[cell - self.grid.width]] = distribution

    def redraft(self, known: list[int], stale_left: int, distribution: FloatArray) -> FloatArray:
        """What to draft the next cell from, behind `known`: the tokens decided and drafted before it.

        distribution: [V], of the last pass, when `stale_left` stood before the cell.
        """
        cell, left = len(known), known[-1]
        if left == stale_left:
            return distribution
        again = self._passes.get(cell, {}).get(left)
        if again is not None:
            return again
        row, column = divmod(cell, self.grid.width)
        weight = self.weight
        found = self._beside.get((left, known[cell - self.grid.width])) if weight and row and column else None
        return distribution if found is None else weight * found + (1.0 - weight) * distribution

    def guess(self, known: list[int]) -> FloatArray | None:
        """What to draft the next cell from, of which no pass said anything: by left and above, left, or above."""
        row, column = divmod(len(known), self.grid.width)
        above = known[len(known) - self.grid.width] if row else None
        found = self._beside.get((known[-1], above)) if column and above is not None else None
        if found is None and column:
            found = self._left.get(known[-1])
        return self._above.get(above) if found is None and above is not None else found
