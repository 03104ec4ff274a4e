"""Run sweeps: simulate each fitting combination of model, policy, rule and settings once, for all latency models.

A simulation is split into blocks of images. The split depends only on the plan, so all workers give the same results.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple

from underpaint.artifacts.run_log import RunLog, RunStore
from underpaint.artifacts.strict_json import is_version
from underpaint.artifacts.workers import RayWorkers, Workers, local_workers
from underpaint.sim.batched.decoding import Lockstep, lockstep_block, run_lockstep, run_loop, run_plain
from underpaint.sim.exact.bias import alignment, token_bias
from underpaint.sim.latency.run_times import latency_model_of, run_times_of
from underpaint.sim.report.statistics import Estimate, ImageTimes, Runs, Totals, plain_ms
from underpaint.sim.sweep.plan import (
    Job,
    SweepPlan,
    jobs,
    scheme_of,
    synthetic_model_of,
    times_chains,
    window_scheme_of,
)
from underpaint.sim.sweep.result_line import BlockFigures, check_line, read_block
from underpaint.sim.synthetic.table_model import TableModel
from underpaint.sim.synthetic.windows import run_windows

_FIRST_IMAGES: Final = 32
_LOOP_IMAGES: Final = 4
_LOOP_BLOCK: Final = 64
"""Number of images in a block of the decoding loop: about a second of work."""
_MOST_SHARE: Final = 1e6
"""Largest factor by which an interval may count as too wide."""


class Work(NamedTuple):
    """A block of a job's images to simulate, with the machines and the seed of the plan."""

    job: Job
    machines: tuple[str, ...]
    seed: int
    first: int
    images: int

    def __str__(self) -> str:
        return f"{self.job.name}, images {self.first:,} to {self.first + self.images - 1:,}"


def workers(on: str = "local", jobs: int = 1, address: str | None = None) -> Workers[Work, BlockFigures]:
    """Create the workers of a sweep; the results do not depend on them.

    Args:
        on: One of `artifacts.workers.WORKER_KINDS`.
        jobs: Number of processes, at least 1; with 1, this process does the work.
        address: Address of a Ray cluster; None starts a local one.
    """
    known_errors = (ValueError, OSError)
    if on == "ray":
        return RayWorkers(simulate, jobs, address, known_errors=known_errors)
    return local_workers(simulate, jobs, known_errors)


def simulate(work: Work) -> BlockFigures:
    """Draw a block of images, and price them on every machine. The decoding loop draws fewer in the first block."""
    job = work.job
    model = synthetic_model_of(job.model, job.model_settings)
    trees = window_scheme_of(model, job) is None
    block = lockstep_block(model) if trees and scheme_of(model, job).vectorised else _LOOP_BLOCK
    if work.first == 0 and block == _LOOP_BLOCK:
        work = work._replace(images=min(work.images, _LOOP_IMAGES))
    drawn = _of_trees(model, work) if trees else _of_windows(model, work)
    overlap = None
    if work.first == 0:
        overlap = alignment(model, drawn.lockstep or run_plain(model, _FIRST_IMAGES, work.seed), work.seed)
    engine: Literal["loop", "lockstep"] = "loop" if drawn.lockstep is None else "lockstep"
    totals = Totals.of(drawn.runs, drawn.times)
    return BlockFigures(job.key, work.first, block, totals, engine, overlap, drawn.token_bias)


class _Drawn(NamedTuple):
    """Drawn images of a job, their times by machine, the next token's bias (None: unknown), and the lockstep if any."""

    runs: Runs
    times: Mapping[str, ImageTimes]
    token_bias: float | None
    lockstep: Lockstep | None = None


def _of_trees(model: TableModel, work: Work) -> _Drawn:
    scheme = scheme_of(model, work.job)
    prices = {machine: run_times_of(machine) for machine in work.machines}
    chains = times_chains(prices.values())
    lockstep, bias = None, 0.0 if scheme.lossless else None
    if scheme.batched_policy is None or scheme.batched_rule is None:
        runs = run_loop(model, scheme, work.images, work.seed, work.first, chains=chains)
    else:
        lockstep = run_lockstep(model, scheme, work.images, work.seed, work.first, chains)
        runs = lockstep.runs
        if work.first == 0:
            bias = token_bias(model, scheme, scheme.batched_policy.most_children, lockstep, work.seed)
    return _Drawn(runs, {name: one.times(scheme, runs) for name, one in prices.items()}, bias, lockstep)


def _of_windows(model: TableModel, work: Work) -> _Drawn:
    scheme = window_scheme_of(model, work.job)
    assert scheme is not None
    runs = run_windows(scheme, work.images, work.seed, work.first)
    times = {machine: runs.times(latency_model_of(machine)) for machine in work.machines}
    return _Drawn(runs, times, 0.0 if scheme.lossless else None)


class _Simulation:
    """A job that runs in rounds of blocks until its precision is reached; each round sets the size of the next."""

    def __init__(self, job: Job, plan: SweepPlan, steps_ms: Mapping[str, float]) -> None:
        self.job, self._plan, self._steps_ms = job, plan, steps_ms
        self._round: dict[int, BlockFigures | None] = {}
        self._totals: Totals | None = None
        self._first: BlockFigures | None = None

    @property
    def images(self) -> int:
        """Number of images in completed rounds."""
        return 0 if self._totals is None else self._totals.images

    @property
    def done(self) -> bool:
        """Whether enough images are drawn for the precision."""
        return self._totals is not None and not self._round

    def start(self) -> list[Work]:
        """Start the first round and return its blocks."""
        return self._blocks(min(self._plan.most_images, _FIRST_IMAGES), _FIRST_IMAGES)

    def take(self, block: BlockFigures) -> list[Work]:
        """Add a finished block; return the next round's blocks if its round is complete and more images are needed."""
        self._round[block.first] = block
        blocks = [one for _, one in sorted(self._round.items()) if one is not None]
        if len(blocks) < len(self._round):
            return []
        for one in blocks:
            self._first = self._first or one
            self._totals = one.totals if self._totals is None else self._totals.and_more(one.totals)
        return self._blocks(self._estimated_images(), block.block)

    def _blocks(self, image_count: int, size: int) -> list[Work]:
        starts = range(self.images, image_count, size)
        self._round = dict.fromkeys(starts)
        machines, seed = self._plan.machines, self._plan.seed
        return [Work(self.job, machines, seed, first, min(size, image_count - first)) for first in starts]

    def _speedups(self, totals: Totals) -> dict[str, Estimate]:
        return {name: totals.speedup(name, step_ms) for name, step_ms in self._steps_ms.items()}

    def _estimated_images(self) -> int:
        """Estimate the total number of images for the precision, from the finished ones."""
        totals, plan = self._totals, self._plan
        assert totals is not None
        worst = max(one.half_width for one in self._speedups(totals).values())
        if worst <= plan.precision or totals.images >= plan.most_images:
            return totals.images
        share = min(worst / plan.precision, _MOST_SHARE)
        needed = int(1.15 * totals.images * share**2) + 1
        return min(plan.most_images, max(needed, totals.images + 8), 8 * totals.images)

    def line(self) -> dict[str, Any]:
        """The result line of the job."""
        totals, first = self._totals, self._first
        assert totals is not None
        assert first is not None
        return {
            "key": self.job.key,
            **self.job.to_dict(),
            "images": totals.images,
            "tokens_per_cycle": (totals.accepted + totals.cycles) / totals.cycles,
            "mean_depth": totals.depth / totals.cycles,
            "nodes_per_pass": totals.nodes / totals.target_passes,
            "target_passes": totals.target_passes / totals.images,
            "drafter_passes": totals.drafter_passes / totals.images,
            "speedup": {
                name: [round(float(part), 5) for part in speed] for name, speed in self._speedups(totals).items()
            },
            "cycle_ms": {name: [round(part, 6) for part in totals.cycle_ms(name)] for name in self._steps_ms},
            "engine": first.engine,
            "alignment": first.alignment,
            "token_bias": first.token_bias,
        }


class Results(RunStore[str, dict[str, Any]]):
    """The finished jobs of a sweep by key, stored in `folder/results.jsonl`.

    Attributes:
        blocks: The finished blocks of its other jobs.
    """

    NAME: ClassVar[str] = "results"
    VERSION: ClassVar[int] = 2
    WHAT: ClassVar[str] = "sweep"

    def __init__(self, folder: Path, plan: SweepPlan) -> None:
        """Load the results and blocks in the folder; ValueError if they are of another sweep, or of no sweep."""
        self._plan = plan
        super().__init__(folder, plan.to_dict())
        self.blocks = Blocks(folder, plan)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Result lines of the finished jobs, in the order in which they finished."""
        return list(self)

    def read(self, line: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        check_line(line, self._plan.machines)
        return str(line["key"]), dict(line)

    def plain(self, record: dict[str, Any]) -> dict[str, Any]:
        return record

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of `jobs` that are not finished."""
        return [job for job in jobs if job.key not in self]


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the lines of the `results.jsonl` of any sweep.

    Raises:
        ValueError: The file is missing, is not a sweep's record, was edited, has another version, or has no results.
        OSError: The file cannot be read.
    """
    if not path.is_file():
        raise ValueError(f"{path}: expected the results.jsonl that `underpaint simulate sweep` writes, got no file")
    try:
        head, *lines = RunLog(path).read() or [{}]
        machines = head.get("settings", {}).get("machines")
        if not isinstance(machines, list):
            raise ValueError("line 1: it has no machines")
        if not is_version(head.get("format"), Results.VERSION):
            raise ValueError(f"another version wrote it (format {head.get('format')!r}, expected {Results.VERSION})")
        for line in lines:
            check_line(line, machines)
    except ValueError as error:
        raise ValueError(
            f"{path}: expected the results.jsonl of `underpaint simulate sweep`: {error}; run the sweep again"
        ) from error
    if not lines:
        raise ValueError(f"{path}: expected at least one finished simulation, got none; let the sweep go on")
    return lines


class Blocks(RunStore[tuple[str, int], BlockFigures]):
    """The finished whole blocks of long simulations by job and first image, stored in `folder/blocks.jsonl`."""

    NAME: ClassVar[str] = "blocks"
    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "sweep"

    def __init__(self, folder: Path, plan: SweepPlan) -> None:
        """Load the blocks in the folder; ValueError if they are of another sweep, or of no sweep."""
        self._plan = plan
        super().__init__(folder, plan.to_dict())

    def read(self, line: Mapping[str, Any]) -> tuple[tuple[str, int], BlockFigures]:
        block = read_block(line, self._plan)
        return (block.key, block.first), block

    def plain(self, record: BlockFigures) -> dict[str, Any]:
        return asdict(record)


def run(plan: SweepPlan, results: Results, where: Workers[Work, BlockFigures], report: Callable[[str], None]) -> None:
    """Simulate all jobs of a plan that are missing from `results`.

    If stopped, the folder of `results` keeps all finished jobs, and all whole blocks of the others.

    Args:
        plan: The sweep to simulate.
        results: Stores each finished job.
        where: The workers that draw the blocks.
        report: Called after every block with a message about its job's progress.
    """
    blocks = results.blocks
    under_way: dict[str, _Simulation] = {}

    def to_draw(simulation: _Simulation, works: list[Work]) -> list[Work]:
        """The blocks of `works` that no earlier run drew; if it drew a whole round, those of the following rounds."""
        remaining = []
        for work in works:
            record = blocks.records.get((work.job.key, work.first))
            if record is None or record.totals.images != work.images:
                remaining.append(work)
            elif following := simulation.take(record):
                return to_draw(simulation, following)
        return remaining

    def take(block: BlockFigures) -> Iterable[Work]:
        simulation = under_way[block.key]
        if block.totals.images == block.block:
            blocks.add((block.key, block.first), block)
        following = to_draw(simulation, simulation.take(block))
        if simulation.done:
            results.add(block.key, simulation.line())
            del under_way[block.key]
        report(f"{simulation.job.name}, {simulation.images:,} images")
        return following

    of_trees = {name: run_times_of(name).plain_ms for name in plan.machines}
    of_windows = {name: plain_ms(latency_model_of(name)) for name in plan.machines if plan.windows}
    first: list[Work] = []
    for job in results.missing(jobs(plan)):
        under_way[job.key] = _Simulation(job, plan, of_trees if job.recipe is None else of_windows)
        first += under_way[job.key].start()
    for _ in where.run(first, take):
        pass
