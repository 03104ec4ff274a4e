"""Measures a pass over T positions, repeated alone: t_verify(T) of a target, t_draft(T) of its drafter.

A target pass is `score` on a chain of T nodes after half an image; a drafter pass is `expand` of T children of the
root. Times cover graph and host row maths, and the graph's share is stored too. All sizes take turns within each round,
so that a disturbance of the machine affects all of them.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.step import Scored
from underpaint.algos.tree import Verdict, chain_tree, root_only
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.engine import Engine
from underpaint.runtime.engines.target import EngineTarget

VERIFY_SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 16, 18, 20, 24, 32, 48, 64)
DRAFT_SIZES: Final = (1, 2, 4, 6, 8, 10, 12, 16)
_WARM_UP: Final = 2
"""Number of warm-up rounds, which are not kept."""


class PassSample(NamedTuple):
    """Time of one pass in ms: in total, and within the graph."""

    total_ms: float
    graph_ms: float


BySize: TypeAlias = dict[int, list[PassSample]]
"""Samples by the size of the pass."""
Columns: TypeAlias = dict[str, list[list[float]]]
"""[[size, ms], ...] by figure: median, p10, p90, least, and the median of the graph's share."""


def halfway(target: EngineTarget) -> Scored:
    """Begin an image and commit half of it; returns the last scores."""
    target.prepare(target.encoder.example())
    scored = target.begin()
    for cell in range(target.grid.cells // 2):
        tree = root_only(cell % target.vocab_size, target.vocab_size)
        scored = target.score(tree)
        target.commit(tree, Verdict((), 0))
    return scored


def verify_once(target: EngineTarget, count: int) -> PassSample:
    """One target pass over a chain of `count` nodes."""
    tree = chain_tree(np.arange(count) % target.vocab_size, target.vocab_size)
    return _timed(lambda: target.score(tree), target.engine)


def draft_once(drafter: EngineDrafter, scored: Scored, count: int) -> PassSample:
    """One drafter pass that expands `count` children of the root."""
    drafter.begin(scored)
    drafter.expand(np.array([0]), np.array([-1]))
    tokens, parents = np.arange(count) % drafter.vocab_size, np.zeros(count, dtype=np.int64)
    return _timed(lambda: drafter.expand(tokens, parents), drafter.engine)


def _timed(call: Callable[[], object], engine: Engine) -> PassSample:
    before = engine.cost.seconds
    start = time.perf_counter()
    call()
    total = time.perf_counter() - start
    return PassSample(1e3 * total, 1e3 * (engine.cost.seconds - before))


def rounds_in_all(rounds: int) -> int:
    """Number of rounds of `measure_passes`, including warm-up rounds."""
    return rounds + _WARM_UP


def measure_passes(
    target: EngineTarget,
    drafter: EngineDrafter,
    rounds: int,
    report: Callable[[], None],
    earlier_samples: tuple[BySize, BySize] = ({}, {}),
    keep: Callable[[BySize, BySize], None] = lambda verify, draft: None,
) -> tuple[BySize, BySize]:
    """Time target passes and drafter passes of every size that the engines support.

    Args:
        target: The target.
        drafter: Its drafter.
        rounds: Number of samples of each size.
        report: Called after each round.
        earlier_samples: Samples of an earlier measurement, which count towards `rounds`.
        keep: Called with all samples after each round that counts.
    """
    scored = halfway(target)
    verify_sizes, draft_sizes = sizes_of(target, drafter)
    verify: BySize = {count: list(earlier_samples[0].get(count, ())) for count in verify_sizes}
    draft: BySize = {count: list(earlier_samples[1].get(count, ())) for count in draft_sizes}
    done = min(len(samples) for samples in (*verify.values(), *draft.values()))
    for _ in range(min(done, rounds)):
        report()
    for turn in range(rounds_in_all(rounds - done) if done < rounds else 0):
        more = one_round(target, drafter, scored)
        if turn >= _WARM_UP:
            for samples, some in zip((verify, draft), more, strict=True):
                for count, sample in some.items():
                    samples[count].append(sample)
            keep(verify, draft)
        report()
    return verify, draft


def sizes_of(target: EngineTarget, drafter: EngineDrafter) -> tuple[list[int], list[int]]:
    """Sizes of target passes and of drafter passes that the engines support."""
    rows = target.engine.rows
    largest = min(target.grid.cells - target.grid.cells // 2, target.decoder.max_positions(rows) or VERIFY_SIZES[-1])
    widest = drafter.decoder.max_positions(rows) or DRAFT_SIZES[-1]
    return [size for size in VERIFY_SIZES if size <= largest], [size for size in DRAFT_SIZES if size <= widest]


def one_round(
    target: EngineTarget, drafter: EngineDrafter, scored: Scored
) -> tuple[dict[int, PassSample], dict[int, PassSample]]:
    """One target pass and one drafter pass of every size, after the scores of `halfway`."""
    verify, draft = dict[int, PassSample](), dict[int, PassSample]()
    verify_sizes, draft_sizes = sizes_of(target, drafter)
    for count in verify_sizes:
        verify_once(target, count)  # another size has emptied the processor's caches
        verify[count] = verify_once(target, count)
    for count in draft_sizes:
        draft_once(drafter, scored, count)
        draft[count] = draft_once(drafter, scored, count)
    return verify, draft


def columns(samples: BySize) -> Columns:
    """The statistics of every size."""
    columns: Columns = {"median": [], "p10": [], "p90": [], "least": [], "graph": []}
    for count, pass_samples in samples.items():
        totals = np.array([sample.total_ms for sample in pass_samples])
        graph = float(np.median([sample.graph_ms for sample in pass_samples]))
        low, median, high = np.percentile(totals, (10, 50, 90))
        figures = {"median": median, "p10": low, "p90": high, "least": totals.min(), "graph": graph}
        for name, figure in figures.items():
            columns[name].append([count, round(float(figure), 4)])
    return columns


def rising(curve: list[list[float]], weights: list[int]) -> list[list[float]]:
    """The nearest [[size, ms], ...], in weighted least squares, that never falls with the size.

    A larger pass costs no less; if it seems to, there were few samples or a disturbance. Neighbours that fall share
    their weighted mean (pool adjacent violators: Ayer and others, 1955).
    """
    pools: list[tuple[float, int, int]] = []  # mean, weight, sizes
    for (_, ms), weight in zip(curve, weights, strict=True):
        pools.append((ms, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, light, few), (high, heavy, many) = pools[-2:]
            pools[-2:] = [((low * light + high * heavy) / (light + heavy), light + heavy, few + many)]
    levels = [mean for mean, _, sizes in pools for _ in range(sizes)]
    return [[size, round(ms, 4)] for (size, _), ms in zip(curve, levels, strict=True)]
