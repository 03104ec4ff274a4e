"""What the host takes of a cycle beside the forward passes, on LlamaGen-B's shape with random weights.

Run: python -m benchmarks.host_share [--threads 2] [--guidance 4] [--top-k 1000] [--cycles 60] [--folder DIR]
    [--out FILE]

Three loops draw the same pictures: plain autoregression, EAGLE-2's tree of 6 nodes drafted in one call, and the same
tree drafted level by level. A cycle's time is that within the target's graph, that within the drafter's, and the
host's: the policy, the rule, the tree, copies and the loop. The machine should be quiet. The last line is JSON.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np

from benchmarks.llamagen_b import CONFIG, checkpoint, drafter_checkpoint
from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Drafter, Scored, cycles
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.artifacts.workers import usable_cores
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.engine import PassTimer
from underpaint.runtime.engines.target import EngineTarget

TREE = {"depth": 5, "top_k": 2, "total_tokens": 6}
"""EAGLE-2 as the shipped methods set it: 6 drafted nodes."""
_WARM_UP = 5
"""Cycles at the start of a loop that bind buffers."""


class CycleMs(NamedTuple):
    """One cycle in ms. positions: new positions of its target pass."""

    target: float
    drafter: float
    host: float
    positions: int


@dataclass(frozen=True, slots=True)
class ByLevel:
    """A drafter that fuses nothing, whatever its engine can."""

    drafter: EngineDrafter
    fuses_chains: bool = field(default=False, init=False)
    fuses_trees: bool = field(default=False, init=False)

    @property
    def vocab_size(self) -> int:
        return self.drafter.vocab_size

    def begin(self, scored: Scored) -> None:
        self.drafter.begin(scored)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        return self.drafter.expand(tokens, parents)

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        self.drafter.commit(tree, verdict, scored)


def measure(target: EngineTarget, drafter: Drafter | None, timer: PassTimer | None, count: int) -> list[CycleMs]:
    """The first `count` cycles of as many pictures as it takes, without those that warm up. timer: the drafter's."""
    found: list[CycleMs] = []
    image, drafting = 0, timer or PassTimer()
    while len(found) < count + _WARM_UP:
        before = target.engine.cost.seconds, drafting.seconds, target.engine.cost.positions
        start = perf_counter()
        for cycle in cycles(target, drafter, Eagle2(**TREE), PointProposals(), sampling(0, image), 64):
            end = perf_counter()
            now = target.engine.cost.seconds, drafting.seconds, target.engine.cost.positions
            if cycle.number and (drafter is None or cycle.tree.size == 1 + TREE["total_tokens"]):
                within = 1e3 * (now[0] - before[0]), 1e3 * (now[1] - before[1])
                found.append(CycleMs(*within, 1e3 * (end - start) - sum(within), now[2] - before[2]))
            before, start = now, perf_counter()
        image += 1
    return found[_WARM_UP : count + _WARM_UP]


def summary(samples: list[CycleMs]) -> dict[str, float]:
    """Medians of each part, and the host's share of their sum."""
    target, drafter, host = (float(np.median([getattr(one, part) for one in samples])) for part in CycleMs._fields[:3])
    return {
        "target_ms": round(target, 4),
        "drafter_ms": round(drafter, 4),
        "host_ms": round(host, 4),
        "host_share": round(host / (target + drafter + host), 4),
        "positions": float(np.mean([one.positions for one in samples])),
        "cycles": len(samples),
    }


def export_pair(work: Path) -> Path:
    """Export a random LlamaGen-B and a drafter of its width into a folder, unless they are there."""
    out = work / "out"
    if not (out / "drafter.json").is_file():
        work.mkdir(parents=True, exist_ok=True)
        target, drafter = work / "c2i_B_256.pt", work / "drafter.safetensors"
        checkpoint(target)
        drafter_checkpoint(drafter)
        options, pair = LoadOptions(grid_side=CONFIG.grid_side), ("llamagen-c2i", target)
        export_checkpoint(Request(*pair, options=options), out)
        request = Request("eagle-drafter", drafter, "fp32", LoadOptions(heads=CONFIG.heads), pair, options)
        export_checkpoint(request, out)
    return out


def main(arguments: list[str] | None = None) -> None:
    parser = options("host_share", __doc__)
    parser.add_argument("--threads", type=at_least(1), default=usable_cores(), help="of the pool that both share")
    parser.add_argument("--guidance", type=float, default=4.0, help="1 runs one row; more, a pair")
    parser.add_argument("--top-k", type=at_least(0), default=1000, help="likeliest tokens sampled from; 0 for all")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--cycles", type=at_least(1), default=60, help="of every loop")
    parser.add_argument("--folder", type=Path, help="make the export here, or take the one that is here")
    given = parse(parser, arguments)
    with nullcontext(given.folder) if given.folder else TemporaryDirectory() as work:
        with refusing(parser):
            params = SamplingParams(given.guidance, given.temperature, given.top_k)
            folder = export_pair(Path(work))
            context = EngineContext(threads=given.threads, pool="shared")
            target = EngineTarget.open("target", params, folder, context)
            drafter = EngineDrafter.open("drafter", params, folder, context)
        target.condition(Condition("a class", ids=(7,)))
        timer = drafter.engine.cost
        loops: dict[str, tuple[Drafter | None, PassTimer | None]] = {
            "ar": (None, None),
            "eagle2_one_call": (drafter, timer),
            "eagle2_by_level": (ByLevel(drafter), timer),
        }
        found = {name: summary(measure(target, *loop, given.cycles)) for name, loop in loops.items()}
    print(f"{'loop':18s} {'target ms':>10} {'drafter ms':>10} {'host ms':>10} {'host share':>10}")
    for name, parts in found.items():
        times = " ".join(f"{parts[part]:10.3f}" for part in ("target_ms", "drafter_ms", "host_ms"))
        print(f"{name:18s} {times} {parts['host_share']:10.1%}")
    finish(
        {
            "benchmark": "host_share",
            "threads": given.threads,
            "sampling": {"guidance": given.guidance, "temperature": given.temperature, "top_k": given.top_k},
            "tree": TREE,
            "vocab_size": target.vocab_size,
            "fuses_trees": drafter.fuses_trees,
            "loops": found,
        },
        given.out,
    )


if __name__ == "__main__":
    main()
