"""What a pass over T positions costs: t_verify(T) of a target, t_draft(T) of its drafter.

Run: python -m benchmarks.cost_curve [--target target64] [--drafter drafter64] [--threads 2] [--rounds 40]
    [--cycle-rounds 6] [--top-k 5] [--out FILE]

A target pass is `score` on a chain of T nodes behind half an image; a drafter pass is `expand` of T children of the
root: graph and host row maths together, with the share of the graph given beside. All sizes take turns within each
round, so that a disturbance of the machine falls on all alike. Tables show the median, the 10th and 90th percentile,
the least, and the ratio of medians to t_verify(1). The last line is JSON: `verify_ms` and `draft_ms` are
[[T, median ms], ...]; --out writes it to a file too. `in_cycle` is what the same passes and the host take inside real
decoding loops (see `benchmarks.in_cycle`), `in_grid` what passes over cells take in the loops of ZipAR and MuLo-SD (see
`benchmarks.in_grid`), of --cycle-rounds images each.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import in_cycle, in_grid
from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Scored
from underpaint.algos.tree import DraftTree, Verdict, root_only
from underpaint.artifacts.cost_curve import FORMAT
from underpaint.runtime.engines.context import EngineContext, usable_cores
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.engine import Engine
from underpaint.runtime.engines.target import EngineTarget
from underpaint.zoo.load import FOLDER

VERIFY_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
DRAFT_SIZES = (1, 2, 4, 6, 8, 10, 12, 16)


class Sample(NamedTuple):
    total_ms: float
    graph_ms: float


def chain(count: int, vocab_size: int) -> DraftTree:
    return DraftTree(
        tokens=np.arange(count) % vocab_size,
        parents=np.arange(-1, count - 1),
        drawn="top_k",
        draft_probs=np.empty((0, vocab_size)),
        draft_rows=np.full(count, -1),
    )


def timed(call: Callable[[], object], engine: Engine) -> Sample:
    before = engine.cost.seconds
    start = time.perf_counter()
    call()
    total = time.perf_counter() - start
    return Sample(1e3 * total, 1e3 * (engine.cost.seconds - before))


def halfway(target: EngineTarget) -> Scored:
    """Begin an image and commit half of it; what was scored last."""
    shape = target.engine.shape
    target.prepare(target.encoder.of_ids(np.zeros(shape.prefix, dtype=np.int64)))
    scored = target.begin()
    for cell in range(target.grid.cells // 2):
        tree = root_only(cell % target.vocab_size, target.vocab_size)
        scored = target.score(tree)
        target.commit(tree, Verdict((), 0))
    return scored


def verify_once(target: EngineTarget, count: int) -> Sample:
    tree = chain(count, target.vocab_size)
    return timed(lambda: target.score(tree), target.engine)


def draft_once(drafter: EngineDrafter, scored: Scored, count: int) -> Sample:
    drafter.begin(scored)
    drafter.expand(np.array([0]), np.array([-1]))
    tokens, parents = np.arange(count) % drafter.vocab_size, np.zeros(count, dtype=np.int64)
    return timed(lambda: drafter.expand(tokens, parents), drafter.engine)


def measure(target: EngineTarget, drafter: EngineDrafter, rounds: int) -> dict[str, dict[int, list[Sample]]]:
    scored = halfway(target)
    left = target.grid.cells - target.grid.cells // 2
    verify: dict[int, list[Sample]] = {count: [] for count in VERIFY_SIZES if count <= left}
    draft: dict[int, list[Sample]] = {count: [] for count in DRAFT_SIZES}
    for turn in range(rounds + 2):
        for count, samples in verify.items():
            verify_once(target, count)  # another size has emptied the processor's own caches
            found = verify_once(target, count)
            if turn >= 2:
                samples.append(found)
        for count, samples in draft.items():
            draft_once(drafter, scored, count)
            found = draft_once(drafter, scored, count)
            if turn >= 2:
                samples.append(found)
    return {"verify": verify, "draft": draft}


def table(samples: dict[int, list[Sample]], one_ms: float) -> dict[str, list[list[float]]]:
    columns: dict[str, list[list[float]]] = {"median": [], "p10": [], "p90": [], "least": [], "graph": []}
    for count, found in samples.items():
        totals = np.array([sample.total_ms for sample in found])
        graph = float(np.median([sample.graph_ms for sample in found]))
        low, median, high = np.percentile(totals, (10, 50, 90))
        figures = {"median": median, "p10": low, "p90": high, "least": totals.min(), "graph": graph}
        for name, figure in figures.items():
            columns[name].append([count, round(float(figure), 4)])
        print(
            f"{count:4d} {median:8.3f} {low:8.3f} {high:8.3f} {totals.min():8.3f} {graph:8.3f} {median / one_ms:8.2f}"
        )
    return columns


def main(arguments: list[str] | None = None) -> None:
    parser = options("cost_curve", __doc__)
    parser.add_argument("--target", default="target64", help="name of a target in the folder")
    parser.add_argument("--drafter", default="drafter64", help="name of its drafter")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of models (default: the zoo)")
    parser.add_argument(
        "--threads", type=at_least(1), default=usable_cores(), help="of the target; drafters run on one"
    )
    parser.add_argument("--rounds", type=at_least(1), default=40, help="samples of every size")
    parser.add_argument(
        "--cycle-rounds", type=at_least(0), default=6, help="images of every decoding loop; 0 runs none"
    )
    parser.add_argument(
        "--top-k", type=at_least(0), default=0, help="likeliest tokens that are sampled from; 0 for all"
    )
    parser.add_argument("--guidance", type=float, default=1.0, help="1 runs one row; more, a pair")
    given = parse(parser, arguments)
    with refusing(parser):
        context = EngineContext(threads=given.threads, pool="shared")
        sampler = SamplingParams(guidance=given.guidance, top_k=given.top_k)
        target = EngineTarget.open(given.target, sampler, given.folder, context)
        drafter = EngineDrafter.open(given.drafter, sampler, given.folder, context)
    samples = measure(target, drafter, given.rounds)
    one_ms = float(np.median([sample.total_ms for sample in samples["verify"][1]]))
    header = f"{'T':>4} {'median':>8} {'p10':>8} {'p90':>8} {'least':>8} {'graph':>8} {'ratio':>8}"
    result: dict[str, Any] = {
        "benchmark": "cost_curve",
        "format": FORMAT,
        "model": {"target": given.target, "drafter": given.drafter, "rows": target.engine.rows},
        "threads": given.threads,
        "rounds": given.rounds,
    }
    for part in ("verify", "draft"):
        print(f"{part}, ms\n{header}")
        columns = table(samples[part], one_ms)
        result[f"{part}_ms"] = columns.pop("median")
        result[f"{part}_spread_ms"] = columns
    if given.cycle_rounds:
        alone = result["draft_ms"]
        run = in_cycle.loops(target.vocab_size, result["verify_ms"], alone, drafter.fuses_chains, drafter.fuses_trees)
        found = in_cycle.measure(target, drafter, run, given.cycle_rounds, alone)
        result["in_cycle"] = in_cycle.to_dict(found, given.cycle_rounds)
        print(f"in cycles, ms\n{json.dumps(result['in_cycle'], indent=1)}")
        result["in_grid"] = in_grid.to_dict(in_grid.measure(target, given.cycle_rounds), given.cycle_rounds)
        print(f"in grids, ms\n{json.dumps(result['in_grid'])}")
    finish(result, given.out)


if __name__ == "__main__":
    main()
