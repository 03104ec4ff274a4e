"""One picture of a model's premises: flatness, near-duplicates, drafts by depth, locality, and what passes cost."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from underpaint.algos.arrays import FloatArray
from underpaint.sim.premises.figures import Figure, Premises
from underpaint.sim.premises.regions import REGIONS

_BLUE: Final = "#1d6fb8"
_ORANGE: Final = "#b45309"
_GREEN: Final = "#2f8f5b"


def premises_png(
    found: Premises, title: str, passes: Sequence[tuple[int, float]] = (), knee: float | None = None
) -> bytes:
    """A PNG of eight panels.

    passes: (nodes, times a plain pass) of target passes, inside decoding cycles; knee: theirs, in nodes.
    """
    canvas = Canvas(figsize=(16.5, 7.2), layout="constrained")
    canvas.suptitle(title)
    panels = canvas.subplots(2, 4)
    _top(panels[0, 0], found)
    top = found.top_probability.mean(axis=0)
    _map(canvas, panels[0, 1], found, top, "Mean probability of the likeliest token, by cell", 1.0)
    nats = found.entropy.mean(axis=0)
    _map(canvas, panels[0, 2], found, nats, "Mean entropy in nats, by cell", float(np.log(found.vocab_size)))
    _regions(panels[0, 3], found)
    _codes(panels[1, 0], found)
    _drafts(panels[1, 1], found)
    _locality(panels[1, 2], found)
    _passes(panels[1, 3], passes, knee)
    held = io.BytesIO()
    canvas.savefig(held, format="png", dpi=110, metadata={"Software": None})
    return held.getvalue()


def _top(axes: Axes, found: Premises) -> None:
    axes.hist(found.top_probability.reshape(-1), bins=np.linspace(0, 1, 26).tolist(), density=True, color=_BLUE)
    axes.axvline(found.mean_top().value, color=_ORANGE)
    axes.set(title="Likeliest token: how sure the target is", xlabel="its probability", ylabel="density of cells")


def _map(canvas: Canvas, axes: Axes, found: Premises, cells: FloatArray, title: str, most: float) -> None:
    shown = axes.imshow(cells.reshape(found.grid), vmin=0, vmax=most, cmap="viridis")
    canvas.colorbar(shown, ax=axes, shrink=0.8)
    axes.set(title=title, xticks=[], yticks=[])


def _regions(axes: Axes, found: Premises) -> None:
    held = [(name, one) for name in REGIONS if (one := found.region_top(name)) is not None]
    axes.set(title="Likeliest token, by region", ylabel="mean probability")
    if not held:
        axes.text(0.5, 0.5, "no pictures", ha="center")
        return
    labels = [f"{name}\n{found.region_share(name):.0%} of cells" for name, _ in held]
    axes.bar(labels, [one.value for _, one in held], yerr=_bars([one for _, one in held]), color=_GREEN)


def _codes(axes: Axes, found: Premises) -> None:
    heights = [float(found.near_mass.mean()), float(found.control_mass.mean())]
    axes.bar([f"{found.nearest} nearest codes", f"{found.nearest} codes as frequent"], heights, color=[_BLUE, _ORANGE])
    axes.set(title="Near-duplicates of the drawn code", ylabel="mean mass")


def _drafts(axes: Axes, found: Premises) -> None:
    axes.set(title="Drafter, by tokens past the root", xlabel="tokens past the root", ylim=(0, 1))
    if not found.depths:
        axes.text(0.5, 0.5, "no drafter", ha="center")
        return
    places = np.arange(1, found.depths + 1)
    for name, figures, colour in (
        ("overlap with the target", [found.acceptance_at(depth) for depth in range(found.depths)], _BLUE),
        ("same likeliest token", [found.agreement_at(depth) for depth in range(found.depths)], _GREEN),
        ("its likeliest token", [found.draft_top_at(depth) for depth in range(found.depths)], _ORANGE),
    ):
        axes.errorbar(places, [one.value for one in figures], yerr=_bars(figures), label=name, color=colour, marker="o")
    axes.set_xticks(places)
    axes.legend(fontsize=8, loc="upper right")


def _locality(axes: Axes, found: Premises) -> None:
    axes.set(title="Overlap beside another cell's", ylabel="correlation")
    sides = {"left": "left cell", "above": "upper cell", "elsewhere": "another image's"}
    held = {label: one for side, label in sides.items() if (one := found.locality(side)) is not None}
    if not held:
        axes.text(0.5, 0.5, "not measured", ha="center")
        return
    axes.bar(list(held), [one.value for one in held.values()], yerr=_bars(list(held.values())), color=_GREEN)
    axes.axhline(0, color="black", linewidth=0.8)


def _passes(axes: Axes, passes: Sequence[tuple[int, float]], knee: float | None) -> None:
    axes.set(title="A target pass inside a cycle", xlabel="nodes", ylabel="times a plain pass")
    if passes:
        axes.plot([size for size, _ in passes], [times for _, times in passes], color=_BLUE, marker="o")
        axes.set_ylim(bottom=0)
        if knee is not None:
            axes.axvline(knee, color=_ORANGE, label=f"knee at {knee:.0f}")
            axes.legend(fontsize=8, loc="lower right")
    else:
        axes.text(0.5, 0.5, "not measured", ha="center")


def _bars(figures: Sequence[Figure]) -> list[list[float]]:
    """Lengths of error bars below and above; 0 without an interval."""
    ends = [(one.value if one.low is None else one.low, one.value if one.high is None else one.high) for one in figures]
    return [
        [max(0.0, one.value - low) for one, (low, _) in zip(figures, ends, strict=True)],
        [max(0.0, high - one.value) for one, (_, high) in zip(figures, ends, strict=True)],
    ]
