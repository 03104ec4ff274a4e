"""Sweeps: every fitting rule, policy, setting and world, simulated once and priced on every machine."""

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from algos.accept import RULES
from algos.draft import POLICIES
from algos.fit import fits
from algos.registry import suggest
from sim.bias import alignment, token_bias
from sim.executors import Executor
from sim.fast import Lockstep, Scheme, make_scheme, run_lockstep, run_loop
from sim.field import WORLDS, make_world
from sim.latency import Costs, load_costs
from sim.machines import roofline
from sim.statistics import Runs, mean_depth, ratio, speedup, tokens_per_cycle
from sim.table_world import TableWorld
from sim.trace import load, replay

FILE_NAME: Final = "results.jsonl"
_FIRST_IMAGES: Final = 32
_LOOP_IMAGES: Final = 4
_SETTINGS_PARTS: Final = ("world", "policy", "rule")


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation: a scheme in a world. Settings are JSON text, sorted, so that jobs compare and travel."""

    world: str
    world_settings: str
    policy: str
    policy_settings: str
    rule: str
    rule_settings: str

    @property
    def key(self) -> str:
        """A short hash that names the job."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Plan:
    """A sweep. vary: "world.noise", "policy.depth", "rule.delta" to the values it takes, where it is known.

    machines: "machine/model" or the path of a cost curve. precision: half the 95 % interval of every speed-up, as a
    share of it, at most; most_images: images at most to get there.
    """

    worlds: tuple[str, ...]
    policies: tuple[str, ...]
    rules: tuple[str, ...]
    machines: tuple[str, ...]
    vary: Mapping[str, tuple[Any, ...]]
    precision: float = 0.02
    most_images: int = 1024
    seed: int = 0

    def as_plain(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


class Work(NamedTuple):
    """A job and what the plan says of it."""

    job: Job
    machines: tuple[str, ...]
    precision: float
    most_images: int
    seed: int


def costs_of(machine: str) -> Costs:
    """A latency model by "machine/model" or by the path of a cost curve; ValueError or OSError where there is none."""
    return load_costs(Path(machine)) if machine.endswith(".json") else roofline(machine)


@lru_cache(maxsize=8)
def world_of(name: str, settings: str) -> TableWorld:
    """A world by name, or a trace by the path of its .npz."""
    if name.endswith(".npz"):
        return replay(load(Path(name)), Path(name).stem)
    return make_world(name, json.loads(settings))


def _known(part: str, name: str) -> set[str]:
    if part == "world":
        return set() if name.endswith(".npz") else {field.name for field in fields(WORLDS[name].make)}
    make = POLICIES[name].make if part == "policy" else RULES[name].make
    return {field.name for field in fields(make) if field.init} - {"neighbours", "codebook"}  # type: ignore[arg-type]


def _variants(part: str, name: str, vary: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """The settings of one name: the product over those varied settings that it knows."""
    known = _known(part, name)
    own = {key.partition(".")[2]: values for key, values in vary.items() if key.partition(".")[0] == part}
    axes = {key: values for key, values in own.items() if key in known}
    found = itertools.product(*axes.values())
    return [json.dumps(dict(zip(axes, values, strict=True)), sort_keys=True) for values in found]


def jobs(plan: Plan) -> list[Job]:
    """All jobs whose rule fits the policy, each built once to see that its settings make sense.

    Raises ValueError on an unknown world, policy, rule, machine or setting, and if no rule fits a policy.
    """
    for machine in plan.machines:
        costs_of(machine)
    _check_vary(plan)
    found: list[Job] = []
    for world, policy, rule in itertools.product(plan.worlds, plan.policies, plan.rules):
        if not fits(RULES[rule], POLICIES[policy]):
            continue
        parts = (_variants(*pair, plan.vary) for pair in zip(_SETTINGS_PARTS, (world, policy, rule), strict=True))
        for of_world, of_policy, of_rule in itertools.product(*parts):
            found.append(Job(world, of_world, policy, of_policy, rule, of_rule))
    if not found:
        raise ValueError(f"sweep: no rule of {', '.join(plan.rules)} fits a policy of {', '.join(plan.policies)}")
    checked: set[tuple[str, ...]] = set()
    for job in found:
        scheme = (job.policy, job.policy_settings, job.rule, job.rule_settings)
        if scheme not in checked:
            _scheme(world_of(job.world, job.world_settings), job)
            checked.add(scheme)
    return found


def _check_vary(plan: Plan) -> None:
    names = {"world": plan.worlds, "policy": plan.policies, "rule": plan.rules}
    for key, values in plan.vary.items():
        part, dot, setting = key.partition(".")
        if not dot or part not in names:
            raise ValueError(f"--vary {key}: expected world.setting, policy.setting or rule.setting")
        known = set().union(*(_known(part, name) for name in names[part]))
        if setting not in known:
            raise ValueError(f"--vary {key}: no {part} of the sweep has it; {suggest(setting, known)}")
        if not values:
            raise ValueError(f"--vary {key}: expected at least one value")


def _scheme(world: TableWorld, job: Job) -> Scheme:
    return make_scheme(world, job.policy, job.rule, json.loads(job.policy_settings), json.loads(job.rule_settings))


def simulate(work: Work) -> dict[str, Any]:
    """One line of results: the job's figures, and its speed-up on every machine."""
    job = work.job
    world = world_of(job.world, job.world_settings)
    scheme = _scheme(world, job)
    prices = {machine: costs_of(machine) for machine in work.machines}
    runs: Runs | None = None
    first: Lockstep | None = None
    while True:
        done = 0 if runs is None else runs.images
        wanted = _images_wanted(runs, prices, work, scheme.vectorised)
        if wanted <= done:
            break
        if scheme.vectorised:
            lockstep = run_lockstep(world, scheme, wanted - done, work.seed, done)
            first, more = first or lockstep, lockstep.runs
        else:
            more = run_loop(world, scheme, wanted - done, work.seed, done)
        runs = more if runs is None else runs.and_more(more)
    assert runs is not None
    children = scheme.grower.most_children if scheme.grower is not None else 0
    seen = first or run_lockstep(world, plain_scheme(world), _FIRST_IMAGES, work.seed)
    return {
        "key": job.key,
        **asdict(job),
        **_figures(runs, prices),
        "engine": "loop" if first is None else "lockstep",
        "alignment": alignment(world, seen, work.seed),
        "token_bias": None if first is None else token_bias(world, scheme, children, first, work.seed),
    }


def plain_scheme(world: TableWorld) -> Scheme:
    """A lossless scheme that shows where the target's own images go."""
    return make_scheme(world, "chain", "chain")


def _images_wanted(runs: Runs | None, prices: Mapping[str, Costs], work: Work, vectorised: bool) -> int:
    """Images in all that the precision should take, from those that are done."""
    if runs is None:
        return min(work.most_images, _FIRST_IMAGES if vectorised else _LOOP_IMAGES)
    worst = max(speedup(runs, costs).half_width for costs in prices.values())
    if worst <= work.precision or runs.images >= work.most_images:
        return runs.images
    needed = int(1.15 * runs.images * (worst / work.precision) ** 2) + 1
    return min(work.most_images, max(needed, runs.images + 8), 8 * runs.images)


def _figures(runs: Runs, prices: Mapping[str, Costs]) -> dict[str, Any]:
    speeds = {machine: speedup(runs, costs) for machine, costs in prices.items()}
    return {
        "images": runs.images,
        "tokens_per_cycle": tokens_per_cycle(runs).mean,
        "mean_depth": mean_depth(runs).mean,
        "nodes_per_pass": ratio(runs.verify @ range(runs.verify.shape[1]), runs.verify.sum(axis=1)).mean,
        "target_passes": float(runs.verify.sum() / runs.images),
        "drafter_passes": float(runs.draft.sum() / runs.images),
        "speedup": {name: [round(float(part), 5) for part in speed] for name, speed in speeds.items()},
    }


class Results:
    """Finished jobs of one sweep, in `folder/results.jsonl`. The first line is the plan."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Take up what the folder holds; ValueError where that is another sweep, or no sweep."""
        self.path = folder / FILE_NAME
        self._plan = plan
        self.lines: list[dict[str, Any]] = []
        self._sound = 0
        if self.path.exists():
            self._take_up()

    def _take_up(self) -> None:
        held = self.path.read_bytes()
        sound = held[: held.rfind(b"\n") + 1]  # a killed process may have left a part of a line
        try:
            lines = [json.loads(line) for line in sound.decode().splitlines()]
            head = lines[0]["plan"] if lines else None
            self.lines = [line for line in lines[1:] if line["key"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is no sweep ({error!r}); choose another --out or delete it") from error
        if head is not None and head != self._plan.as_plain():
            now = self._plan.as_plain()
            differs = sorted(key for key in head.keys() | now.keys() if head.get(key) != now.get(key))
            raise ValueError(
                f"{self.path} belongs to another sweep (it differs in {', '.join(differs)}); repeat that command to go "
                "on with it, or choose another --out folder"
            )
        self._sound = len(sound)

    def missing(self, wanted: Sequence[Job]) -> list[Job]:
        """Those of `wanted` that are not finished."""
        done = {line["key"] for line in self.lines}
        return [job for job in wanted if job.key not in done]

    def add(self, line: dict[str, Any]) -> None:
        """Append a finished job; it is on the disk when this returns."""
        if not self._sound:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"plan": self._plan.as_plain()})
        self._append(line)
        self.lines.append(line)

    def _append(self, value: Mapping[str, Any]) -> None:
        line = json.dumps(value).encode() + b"\n"
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._sound)
            file.seek(self._sound)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._sound += len(line)


def run(plan: Plan, results: Results, where: Executor, report: Callable[[dict[str, Any]], None]) -> None:
    """Simulate what `results` does not hold yet. A stop leaves every finished job in it."""
    todo = [
        Work(job, plan.machines, plan.precision, plan.most_images, plan.seed) for job in results.missing(jobs(plan))
    ]
    finished: Iterator[dict[str, Any]] = where.run(simulate, todo)
    for line in finished:
        results.add(line)
        report(line)
