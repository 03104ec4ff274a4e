"""Sweeps: every fitting rule, policy, setting and synthetic model, simulated once and timed by every latency model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from underpaint.algos.memory import usable_cores
from underpaint.artifacts.run_log import RunLog, RunStore
from underpaint.artifacts.strict_json import is_version
from underpaint.artifacts.workers import RayWorkers, Workers, local_workers
from underpaint.sim.batched.decoding import Lockstep, run_lockstep, run_loop, run_plain
from underpaint.sim.exact.bias import alignment, token_bias
from underpaint.sim.latency.run_times import latency_model_of, run_times_of, speedup
from underpaint.sim.report.statistics import Estimate, Runs, mean_depth, ratio, tokens_per_cycle
from underpaint.sim.report.statistics import speedup as speedup_alone
from underpaint.sim.sweep.plan import (
    Job,
    SweepPlan,
    jobs,
    scheme_of,
    synthetic_model_of,
    times_chains,
    window_scheme_of,
)
from underpaint.sim.sweep.result_line import check_line
from underpaint.sim.synthetic.table_model import TableModel
from underpaint.sim.synthetic.windows import WindowScheme, run_windows

_FIRST_IMAGES: Final = 32
_LOOP_IMAGES: Final = 4


class Work(NamedTuple):
    """A job and what the plan says of it."""

    job: Job
    machines: tuple[str, ...]
    precision: float
    most_images: int
    seed: int

    def __str__(self) -> str:
        return f"{self.job.model}: {self.job.policy} {self.job.rule}"


def workers(on: str = "local", jobs: int | None = None, address: str | None = None) -> Workers[Work, dict[str, Any]]:
    """Where a sweep is simulated; the results are the same everywhere.

    Args:
        on: One of `artifacts.workers.WORKER_KINDS`.
        jobs: Processes, at least 1: of one, this process. None takes as many as there are cores.
        address: Of a Ray cluster; None starts a local one.
    """
    count = usable_cores() if jobs is None else jobs
    known = (ValueError, OSError)
    if on == "ray":
        return RayWorkers(simulate, count, address, known=known)
    return local_workers(simulate, count, known)


def simulate(work: Work) -> dict[str, Any]:
    """One line of results: the job's figures, and its speed-up on every machine."""
    job = work.job
    model = synthetic_model_of(job.model, job.model_settings)
    window = window_scheme_of(model, job)
    found = _of_trees(model, work) if window is None else _of_windows(window, work)
    seen = found.lockstep or run_plain(model, _FIRST_IMAGES, work.seed)
    return {
        "key": job.key,
        **job.to_dict(),
        **_figures(found.runs, found.prices(found.runs)),
        "engine": "loop" if found.lockstep is None else "lockstep",
        "alignment": alignment(model, seen, work.seed),
        "token_bias": found.token_bias,
    }


class Priced(NamedTuple):
    """What runs come to on one machine: speed-up, and ms of a mean cycle by the parts of `PassTimes`."""

    speedup: Estimate
    cycle_ms: tuple[float, float, float, float]


Prices: TypeAlias = Callable[[Runs], Mapping[str, Priced]]
"""What runs come to on each machine."""


class _Simulated(NamedTuple):
    """A job's runs, its prices, how far it moves the next token (None: not known), and its first lockstep, if any."""

    runs: Runs
    prices: Prices
    token_bias: float | None
    lockstep: Lockstep | None = None


def _of_trees(model: TableModel, work: Work) -> _Simulated:
    scheme = scheme_of(model, work.job)
    times = {machine: run_times_of(machine) for machine in work.machines}
    chains = times_chains(times.values())
    first: Lockstep | None = None

    def prices(runs: Runs) -> dict[str, Priced]:
        return {
            machine: Priced(speedup(one, scheme, runs), one.times(scheme, runs).a_cycle(runs))
            for machine, one in times.items()
        }

    def more(images: int, done: int) -> Runs:
        nonlocal first
        if not scheme.vectorised:
            return run_loop(model, scheme, images, work.seed, done, chains=chains)
        lockstep = run_lockstep(model, scheme, images, work.seed, done, chains)
        first = first or lockstep
        return lockstep.runs

    runs = _precise(work, _FIRST_IMAGES if scheme.vectorised else _LOOP_IMAGES, more, prices)
    children = scheme.batched_policy.most_children if scheme.batched_policy is not None else 0
    bias = 0.0 if scheme.lossless else None
    if first is not None:
        bias = token_bias(model, scheme, children, first, work.seed)
    return _Simulated(runs, prices, bias, first)


def _of_windows(scheme: WindowScheme, work: Work) -> _Simulated:
    costs = {machine: latency_model_of(machine) for machine in work.machines}

    def prices(runs: Runs) -> dict[str, Priced]:
        return {
            machine: Priced(speedup_alone(runs, one), runs.times(one).a_cycle(runs)) for machine, one in costs.items()
        }

    runs = _precise(work, _LOOP_IMAGES, lambda images, done: run_windows(scheme, images, work.seed, done), prices)
    return _Simulated(runs, prices, 0.0 if scheme.lossless else None)


def _precise(work: Work, first: int, more: Callable[[int, int], Runs], prices: Prices) -> Runs:
    """As many images as the precision takes, `first` to begin with. more: so many images from a number on."""
    runs = more(min(work.most_images, first), 0)
    while (wanted := _images_wanted(runs, prices, work)) > runs.images:
        runs = runs.and_more(more(wanted - runs.images, runs.images))
    return runs


def _images_wanted(runs: Runs, prices: Prices, work: Work) -> int:
    """Images in all that the precision should take, from those that are done."""
    worst = max(one.speedup.half_width for one in prices(runs).values())
    if worst <= work.precision or runs.images >= work.most_images:
        return runs.images
    needed = int(1.15 * runs.images * (worst / work.precision) ** 2) + 1
    return min(work.most_images, max(needed, runs.images + 8), 8 * runs.images)


def _figures(runs: Runs, prices: Mapping[str, Priced]) -> dict[str, Any]:
    return {
        "images": runs.images,
        "tokens_per_cycle": tokens_per_cycle(runs).mean,
        "mean_depth": mean_depth(runs).mean,
        "nodes_per_pass": ratio(runs.verify @ range(runs.verify.shape[1]), runs.verify.sum(axis=1)).mean,
        "target_passes": float(runs.verify.sum() / runs.images),
        "drafter_passes": float(runs.draft.sum() / runs.images),
        "speedup": {name: [round(float(part), 5) for part in one.speedup] for name, one in prices.items()},
        "cycle_ms": {name: [round(part, 6) for part in one.cycle_ms] for name, one in prices.items()},
    }


class Results(RunStore[str, dict[str, Any]]):
    """Finished jobs of one sweep by their keys, in `folder/results.jsonl`."""

    NAME: ClassVar[str] = "results"
    VERSION: ClassVar[int] = 2
    WHAT: ClassVar[str] = "sweep"

    def __init__(self, folder: Path, plan: SweepPlan) -> None:
        """Take up what the folder holds; ValueError where that is another sweep, or no sweep."""
        self._plan = plan
        super().__init__(folder, plan.to_dict())

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The finished jobs, as they were finished."""
        return list(self)

    def read(self, line: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        check_line(line, self._plan.machines)
        return str(line["key"]), dict(line)

    def plain(self, record: dict[str, Any]) -> dict[str, Any]:
        return record

    def missing(self, wanted: Sequence[Job]) -> list[Job]:
        """Those of `wanted` that are not finished."""
        return [job for job in wanted if job.key not in self]


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a sweep's `results.jsonl`, whatever its settings.

    Raises:
        ValueError: The file is no record of a sweep, was edited, is of another version, or has no finished simulation.
        OSError: it cannot be read.
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


def run(
    plan: SweepPlan, results: Results, where: Workers[Work, dict[str, Any]], report: Callable[[dict[str, Any]], None]
) -> None:
    """Simulate what `results` does not hold yet. A stop leaves every finished job in it."""
    todo = [
        Work(job, plan.machines, plan.precision, plan.most_images, plan.seed) for job in results.missing(jobs(plan))
    ]
    for line in where.run(todo):
        results.add(line["key"], line)
        report(line)
