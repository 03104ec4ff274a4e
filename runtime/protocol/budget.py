"""Limits the number of prompts per method so that a protocol fits into a number of hours."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.methods.registry import PAPER
from underpaint.runtime.protocol.settings_search import drawings_of

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.protocol.protocol import Protocol
    from underpaint.runtime.protocol.tuning import Tuning

LEAST: Final = 4
"""Smallest number of prompts that a time budget leaves to a method."""


def limited(counts: Mapping[tuple[int, str], int], most: int) -> dict[tuple[int, str], int]:
    """Counts of at most `most` prompts, by (temperature index, label).

    Plain autoregression, if present, has as many as the most frequent other method.
    """
    fewer = {key: min(count, most) for key, count in counts.items()}
    others = {
        place: max((count for (at, name), count in fewer.items() if at == place and name != BASELINE), default=1)
        for place, _ in counts
    }
    return {(place, name): others[place] if name == BASELINE else count for (place, name), count in fewer.items()}


def most_within(counts: Mapping[tuple[int, str], int], budget: float, cost: Callable[[int], float]) -> int:
    """Return the largest number of prompts per method, at least `LEAST`, whose cost is within a budget.

    Slow methods get no fewer than fast ones, because their speedups are as uncertain. A larger budget only adds rounds.

    Args:
        counts: Wanted number of prompts, by (temperature index, label).
        budget: Seconds for all prompts.
        cost: Seconds of all prompts by the limit per method; never falls.
    """
    sizes = range(LEAST, max(LEAST, *counts.values()) + 1)
    return sizes[max(0, bisect_right(sizes, budget, key=cost) - 1)]


def search_seconds(
    seconds: Mapping[tuple[int, str], float], names: Sequence[str], candidates: int, prompts: int
) -> dict[tuple[int, str], float]:
    """Estimate the tuning time of each method in seconds per prompt, by (temperature index, method).

    The time of a candidate is estimated as 3/4 of the tuned settings' time plus 1/4 of the paper settings' time.

    Args:
        seconds: Seconds of one drawing; see `Protocol.seconds`.
        names: The methods.
        candidates: Number of settings tried per method.
        prompts: Number of prompts in the last round.
    """
    share = drawings_of(candidates, prompts) / prompts
    estimates = {}
    for place in sorted({place for place, _ in seconds}):
        for name in names:
            times = [seconds[key] for key in ((place, name), (place, f"{name} ({PAPER})")) if key in seconds]
            if times:
                estimates[place, name] = share * (0.75 * times[0] + 0.25 * times[-1]) + seconds[place, BASELINE]
    return estimates


def fit_protocol(
    first: Protocol, log: DrawingLog, hours: float | None, tuning: Tuning | None, curve_share: float = 0.0
) -> tuple[Protocol, dict[str, Any], str]:
    """Reduce a protocol to as many prompts as the hours allow; tuning gets its share, set in `tuning.counts`.

    A search of the tuning that has begun keeps its number of prompts.

    Args:
        first: The protocol with all prompts.
        log: Its drawings; at least the first round must be drawn.
        hours: Hours for drawing and tuning together; None sets no limit.
        tuning: Tuning that runs first, or None.
        curve_share: Share of the drawing time that measuring a cost curve takes.

    Returns:
        The reduced protocol, the entries for the record, and a line that reports the estimate.

    Raises:
        ValueError: The first round is not drawn yet, or a search's record of drawings is damaged.
    """
    seconds = first.seconds(log)
    if any(key not in seconds for key in first.counts):
        raise ValueError(f"{log.folder}: the first round is not drawn yet; leave --no-draw out")
    drawing = first.total_seconds(seconds) / (1.0 - curve_share)
    each, counts = dict[tuple[int, str], float](), dict[tuple[int, str], int]()
    if tuning is not None:
        each = search_seconds(seconds, tuning.names, tuning.most, len(tuning.conditions))
        counts = dict.fromkeys(each, len(tuning.conditions))
    searching = sum(counts[key] * each[key] for key in counts)
    both = drawing + searching
    share = inf if hours is None or 3600.0 * hours >= both else 3600.0 * hours / both
    whole = first.fitted(seconds, share * drawing * (1.0 - curve_share))
    record: dict[str, Any] = {"estimated_hours": round(both / 3600, 2)}
    if tuning is not None:
        if hours is not None:
            wanted = dict(counts)

            def cost(most: int) -> float:
                return sum((count + 1) * each[key] for key, count in limited(wanted, most).items())

            counts = limited(wanted, most_within(wanted, share * searching, cost))
        heats = [model.comparison.sampling.temperature for model in first.run.models]
        tuning.counts = {(name, heats[place]): count for (place, name), count in counts.items()}
        counts = {(place, name): tuning.size(name, heats[place]) for place, name in counts}
        searching = sum(counts[key] * each[key] for key in counts)
        record["tuned_on"] = {f"{name} at temperature {heats[place]:g}": n for (place, name), n in counts.items()}
    cut = whole.total_seconds(seconds) / (1.0 - curve_share)
    estimate = f"tuning {searching / 3600:.2f} h, " if tuning is not None else ""
    estimate = f"estimate for this machine: {estimate}drawing {cut / 3600:.2f} h"
    if cut + searching < 0.99 * both:
        most = max(whole.counts.values())
        estimate += f"; the whole protocol would take {both / 3600:.2f} h, so every method gets at most {most} prompts"
    if hours is not None and cut + searching > 3600.0 * hours:
        estimate += (
            f". This is more than --hours {hours:g}, because every method gets at least {LEAST} prompts, and a search "
            "that has begun keeps its prompts"
        )
    return whole, record, estimate
