"""Measure the premises of papers, from the distributions of a target and its drafter at every cell.

Flat distributions and near-duplicate codes: arXiv 2410.03355 (LANTERN). Local difficulty, which lets a neighbouring
tree predict how deep to draft: ADT-Tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.protocols import Grid
from underpaint.algos.step import Drafter, Target
from underpaint.algos.transport import overlap
from underpaint.sim.premises.regions import REGIONS
from underpaint.sim.replay.recording import draw_image, entropy, record_image

NEAREST: Final = 10
"""Number of codes nearest to the drawn one whose mass is summed."""
_WINDOW: Final = 16
"""Largest difference in frequency rank between a code and its control, if enough codes are free."""
_RESAMPLES: Final = 2000
_SEED: Final = 11


class Figure(NamedTuple):
    """A value over all images, with its 95 % bootstrap interval over images; the ends are None for one image."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Premises:
    """Measurements on I images of C cells, with D drafter depths (tokens past the root; 0 without a drafter).

    Attributes:
        grid, vocab_size: The model's grid and vocabulary size.
        nearest: Number of near codes in `near_mass`.
        top_probability, entropy: [I, C], largest probability, and entropy in nats, of the target's distribution.
        near_mass: [I, C], the target's mass on the `nearest` codes next to the drawn one, without the drawn one.
        control_mass: [I, C], its mass on as many random codes, each about as frequent as the near code it replaces.
        acceptance: [I, D, C], the overlap 1 - TV of drafter and target.
        agreement: [I, D, C], whether drafter and target have the same likeliest token.
        draft_top, draft_entropy: [I, D, C], the same of the drafter's distribution.
        regions: [I, C] index in `REGIONS`; None if the images could not be decoded to pixels.
    """

    grid: Grid
    vocab_size: int
    nearest: int
    top_probability: FloatArray
    entropy: FloatArray
    near_mass: FloatArray
    control_mass: FloatArray
    acceptance: FloatArray
    agreement: BoolArray
    draft_top: FloatArray
    draft_entropy: FloatArray
    regions: IntArray | None

    @property
    def depths(self) -> int:
        """D, the number of drafter depths."""
        return int(self.acceptance.shape[1])

    def mean_top(self) -> Figure:
        """Mean probability of the likeliest token."""
        return mean_figure(self.top_probability)

    def perplexity(self) -> Figure:
        """exp of the mean entropy: the number of equally likely codes with the same entropy."""
        return _bootstrap(lambda rows: float(np.exp(self.entropy[rows].mean())), len(self.entropy))

    def near_ratio(self) -> Figure:
        """Mean mass of the near codes divided by that of their controls; infinite if the controls have no mass."""
        return _bootstrap(
            lambda rows: _ratio(self.near_mass[rows].mean(), self.control_mass[rows].mean()), len(self.near_mass)
        )

    def drafted(self, depth: int) -> slice:
        """The cells that a draft can reach `depth` tokens past its root (from 0)."""
        return slice(depth + 1, None)

    def acceptance_at(self, depth: int) -> Figure:
        """Mean overlap of drafter and target, `depth` tokens past the root (from 0)."""
        return mean_figure(self.acceptance[:, depth, self.drafted(depth)])

    def agreement_at(self, depth: int) -> Figure:
        """Share of cells where drafter and target have the same likeliest token."""
        return mean_figure(np.asarray(self.agreement[:, depth, self.drafted(depth)], np.float64))

    def draft_top_at(self, depth: int) -> Figure:
        """Mean probability of the drafter's likeliest token."""
        return mean_figure(self.draft_top[:, depth, self.drafted(depth)])

    def draft_entropy_at(self, depth: int) -> Figure:
        """Mean entropy of the drafter's distribution, in nats."""
        return mean_figure(self.draft_entropy[:, depth, self.drafted(depth)])

    def region_share(self, region: str) -> float:
        """Share of cells in a region; 0 if regions are unknown."""
        return 0.0 if self.regions is None else float((self.regions == REGIONS.index(region)).mean())

    def region_top(self, region: str) -> Figure | None:
        """Mean probability of the likeliest token in a region; None if the region has no cells."""
        return self._region_mean(self.top_probability, region)

    def region_entropy(self, region: str) -> Figure | None:
        """Mean entropy in a region, in nats; None if the region has no cells."""
        return self._region_mean(self.entropy, region)

    def region_factor(self) -> Figure | None:
        """Mean likeliest probability of the region with the largest mean, divided by that with the smallest. The two
        regions are chosen once, over all images, and kept when resampling. None with fewer than two regions.
        """
        tops = {name: one.value for name in REGIONS if (one := self.region_top(name)) is not None}
        if self.regions is None or len(tops) < 2:
            return None
        most, least = max(tops, key=tops.__getitem__), min(tops, key=tops.__getitem__)
        parts = [self._sums(self.top_probability, name) for name in (most, least)]

        def factor(rows: IntArray) -> float:
            means = [_ratio(total[rows].sum(), count[rows].sum()) for total, count in parts]
            return _ratio(*means)

        return _bootstrap(factor, len(self.regions))

    def locality(self, side: str) -> Figure | None:
        """Correlation of a cell's acceptance right after the root with that of the cell to the "left" or "above".

        "elsewhere" is a control: the left cell of another image, which shares only the position in the grid. It is 0 if
        the position alone has no influence. None without a drafter, on a grid without such a cell, and of a control if
        there is only one image.
        """
        if not self.depths or (side not in ("left", "above") and len(self.acceptance) < 2):
            return None
        acceptance = self.acceptance[:, 0].reshape(-1, *self.grid)
        if side == "above":
            pair = acceptance[:, 1:, :], acceptance[:, :-1, :]
        elif side == "left":
            pair = acceptance[:, :, 1:], acceptance[:, :, :-1]
        else:
            pair = acceptance[:, :, 1:], np.roll(acceptance, 1, axis=0)[:, :, :-1]
        if pair[0][0].size < 2:
            return None
        # The first cell is never drafted.
        keep = np.ones(pair[0].shape[1:], dtype=np.bool_)
        keep[0, 0] = False
        mine, its = pair[0][:, keep], pair[1][:, keep]
        return _bootstrap(lambda rows: _correlation(mine[rows], its[rows]), len(acceptance))

    def _region_mean(self, cells: FloatArray, region: str) -> Figure | None:
        if self.region_share(region) == 0.0:
            return None
        total, count = self._sums(cells, region)
        return _bootstrap(lambda rows: _ratio(total[rows].sum(), count[rows].sum()), len(cells))

    def _sums(self, cells: FloatArray, region: str) -> tuple[FloatArray, FloatArray]:
        assert self.regions is not None
        inside = np.equal(self.regions, REGIONS.index(region)).astype(np.float64)
        return (cells * inside).sum(axis=1), inside.sum(axis=1)


class PremiseRecorder:
    """Records images with their full distributions, and computes the measurements.

    neighbours: [V, k] from `algos.accept.neighbours.nearest_codes`, with k at least `nearest`. depths: number of tokens
    past the root to follow the drafter. ValueError if `neighbours` has too few columns or too few codes.
    """

    def __init__(self, neighbours: IntArray, depths: int, nearest: int = NEAREST) -> None:
        if not 1 <= nearest <= neighbours.shape[1]:
            raise ValueError(f"premises: expected 1..{neighbours.shape[1]} nearest codes, got {nearest}")
        if 2 * nearest + 2 > neighbours.shape[0]:
            raise ValueError(
                f"premises: of {neighbours.shape[0]} codes, {nearest} near ones leave too few to compare with; "
                f"expected at most {neighbours.shape[0] // 2 - 1}"
            )
        self._near, self._depths = neighbours[:, :nearest], depths
        self._distributions: list[NDArray[np.float32]] = []
        self._tokens: list[IntArray] = []
        self._drafts: list[tuple[FloatArray, BoolArray, FloatArray, FloatArray]] = []
        self._regions: list[IntArray] = []
        self._grid = Grid(0, 0)

    def add(self, target: Target, drafter: Drafter | None, chance: Chance) -> IntArray:
        """Draw an image by plain autoregression, run the drafter (if any) along it, and return its tokens [C]."""
        self._grid = target.grid
        if drafter is None:
            image = draw_image(target, chance, greedy=False)
            tokens, distributions = image.tokens, np.stack([scored.probs[0] for scored in image.scored])
            drafted = np.zeros((0, *distributions.shape))
        else:
            tokens, distributions, drafted = record_image(target, drafter, chance, self._depths, greedy=False)
        self._tokens.append(tokens)
        self._distributions.append(distributions.astype(np.float32))
        self._drafts.append(
            (
                overlap(distributions[None], drafted),
                np.equal(drafted.argmax(axis=-1), distributions.argmax(axis=-1)[None]),
                drafted.max(axis=-1),
                entropy(drafted),
            )
        )
        return tokens

    def place(self, regions: IntArray) -> None:
        """Set the regions of the last added image: [C] indices in `REGIONS`."""
        self._regions.append(regions)

    def premises(self) -> Premises:
        """Compute all measurements; ValueError if nothing was added."""
        if not self._tokens:
            raise ValueError("premises: nothing was drawn; add an image first")
        distributions, tokens = np.stack(self._distributions), np.stack(self._tokens)
        near = self._near[tokens]
        frequency = distributions.mean(axis=(0, 1), dtype=np.float64)
        controls = matched_codes(tokens, near, frequency, np.random.default_rng(_SEED))
        acceptance, agreement, draft_top, draft_entropy = (np.stack(part) for part in zip(*self._drafts, strict=True))
        return Premises(
            grid=self._grid,
            vocab_size=distributions.shape[-1],
            nearest=near.shape[-1],
            top_probability=distributions.max(axis=-1).astype(np.float64),
            entropy=np.stack([entropy(one.astype(np.float64)) for one in distributions]),
            near_mass=np.take_along_axis(distributions, near, -1).sum(axis=-1, dtype=np.float64),
            control_mass=np.take_along_axis(distributions, controls, -1).sum(axis=-1, dtype=np.float64),
            acceptance=acceptance,
            agreement=agreement,
            draft_top=draft_top,
            draft_entropy=draft_entropy,
            regions=np.stack(self._regions) if len(self._regions) == len(self._tokens) else None,
        )


def matched_codes(tokens: IntArray, near: IntArray, frequency: FloatArray, rng: np.random.Generator) -> IntArray:
    """Draw for each near code a random control code of similar frequency.

    The frequency rank of a control differs by at most 16, or by more if no code in that range is free. Requires
    2 k + 2 <= V.

    Args:
        tokens: [...], the tokens.
        near: [..., k], the near codes of each token.
        frequency: [V], the frequency of each code.
        rng: Generator of the random draws.

    Returns:
        [..., k] controls: distinct, not near, not the token.
    """
    by_rank = np.argsort(-frequency, kind="stable")
    rank = np.empty_like(by_rank)
    rank[by_rank] = np.arange(by_rank.size)
    controls = np.empty_like(near)
    for place in np.ndindex(tokens.shape):
        used_codes = {int(tokens[place]), *near[place].tolist()}
        for column, code in enumerate(near[place].tolist()):
            window = _WINDOW
            while True:
                start = max(0, int(rank[code]) - window)
                free = [one for one in by_rank[start : int(rank[code]) + window + 1].tolist() if one not in used_codes]
                if free:
                    break
                window *= 2
            chosen = free[int(rng.integers(len(free)))]
            used_codes.add(chosen)
            controls[(*place, column)] = chosen
    return controls


def mean_figure(cells: FloatArray) -> Figure:
    """The mean of values [I, ...], with a bootstrap interval over images."""
    means = cells.reshape(len(cells), -1).mean(axis=1)
    return _bootstrap(lambda rows: float(means[rows].mean()), len(cells))


def _bootstrap(figure: Any, images: int) -> Figure:
    """Evaluate `figure`, a function of image indices [n], on all images and on resampled ones."""
    value = float(figure(np.arange(images)))
    if images < 2:
        return Figure(value, None, None)
    resamples = np.random.default_rng(_SEED).integers(images, size=(_RESAMPLES, images))
    values = np.array([figure(rows) for rows in resamples])
    values = values[np.isfinite(values)]
    if not values.size:
        return Figure(value, None, None)
    low, high = np.quantile(values, [0.025, 0.975])
    return Figure(value, float(low), float(high))


def _ratio(upper: float, lower: float) -> float:
    if lower == 0.0:
        return float("nan") if upper == 0.0 else float("inf")
    return float(upper / lower)


def _correlation(left: FloatArray, right: FloatArray) -> float:
    """Pearson's correlation; 0 if one side is constant."""
    first, second = left.reshape(-1) - left.mean(), right.reshape(-1) - right.mean()
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale > 1e-12 else 0.0
