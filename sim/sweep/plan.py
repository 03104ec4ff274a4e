"""The plan of a sweep: all fitting combinations of model, policy, rule and settings, checked before any work."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final

from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.settings import check_limits
from underpaint.algos.fit import fits
from underpaint.algos.memory import check_memory
from underpaint.algos.registry import suggest
from underpaint.artifacts.files import read_regular
from underpaint.sim.batched.decoding import MOST_NODES, Scheme, make_scheme, run_loop, working_bytes
from underpaint.sim.latency.machines import machine_file
from underpaint.sim.latency.run_times import CURVE, InCycleTimes, RunTimes, latency_model_of, run_times_of
from underpaint.sim.replay.trace import load, replay
from underpaint.sim.synthetic.field import SYNTHETIC_MODELS, make_synthetic_model
from underpaint.sim.synthetic.table_model import TableModel
from underpaint.sim.synthetic.windows import WindowRecipe, WindowScheme, make_window_scheme, run_windows

TRACE: Final = ".npz"
"""Ending of the names of traces, which are the paths of their files."""
TREES: Final = "tree"
"""The value of `Job.loop` for a tree policy and a rule."""
MOST_JOBS: Final = 10_000
"""Largest number of jobs of a sweep; this many take a day on two cores."""
_PARTS: Final = ("model", "policy", "rule")
_BY_MODEL: Final = frozenset(("neighbours", "codebook"))
"""Settings of rules that the model provides."""


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation: a policy and a rule on a model or trace. Settings are sorted JSON, to compare and send jobs.

    Attributes:
        model: Name of a synthetic model, or path of a trace.
        model_settings: Settings of the model.
        policy: Name of the policy; for a window recipe, of the method.
        policy_settings: Settings of the policy; for a window recipe, the recipe's.
        rule: Name of the rule.
        rule_settings: Settings of the rule.
        loop: `TREES`, or the loop of a window recipe.
        temperature: See `WindowRecipe`; for trees, the temperature is part of the rule.
    """

    model: str
    model_settings: str
    policy: str
    policy_settings: str
    rule: str
    rule_settings: str
    loop: str = TREES
    temperature: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON; trees keep the format from before windows existed."""
        values = asdict(self)
        if self.loop == TREES:
            del values["loop"], values["temperature"]
        return values

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "Job":
        """Read the job of a result line."""
        return cls(**{field.name: line[field.name] for field in fields(cls) if field.name in line})

    @property
    def key(self) -> str:
        """A short hash that identifies the job."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The job's name in progress and error messages: model, policy and rule."""
        return f"{self.model}: {self.policy} {self.rule}"

    @property
    def recipe(self) -> WindowRecipe | None:
        """The recipe of a window; None for trees."""
        if self.loop == TREES:
            return None
        parts = (self.policy, self.loop, self.policy_settings, self.rule, self.rule_settings)
        return WindowRecipe(*parts, self.temperature)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
        models: Names of synthetic models, or paths of traces.
        policies: Names of policies.
        rules: Names of rules.
        machines: "machine/model", or paths of cost curves.
        vary: Maps settings such as "policy.depth" to their values; applies to each model, policy or rule that has it.
        precision: Target for half the 95 % interval of every speedup, as a share of the speedup.
        most_images: Largest number of images per simulation.
        seed: Seed of the noise.
        windows: Jacobi methods at each setting to try, in addition to the policies and rules, which may be empty then.
    """

    models: tuple[str, ...]
    policies: tuple[str, ...]
    rules: tuple[str, ...]
    machines: tuple[str, ...]
    vary: Mapping[str, tuple[Any, ...]]
    precision: float = 0.02
    most_images: int = 1024
    seed: int = 0
    windows: tuple[WindowRecipe, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON, with SHA-256 hashes of all files of the plan; OSError if one is missing."""
        named = [name for name in self.models if name.endswith(TRACE)]
        named += [name for name in self.machines if name.endswith(CURVE)]
        named += [str(file) for file in map(machine_file, self.machines) if file is not None]
        hashes = {name: hashlib.sha256(read_regular(Path(name))).hexdigest() for name in named}
        values = json.loads(json.dumps(asdict(self)))
        if not self.windows:
            del values["windows"]  # the format from before windows existed
        return {**values, "files": hashes}


@lru_cache(maxsize=8)
def synthetic_model_of(name: str, settings: str) -> TableModel:
    """Build a synthetic model by name, or load a trace by its path."""
    if name.endswith(TRACE):
        return replay(load(Path(name)), Path(name).stem)
    return make_synthetic_model(name, json.loads(settings))


@lru_cache(maxsize=8)
def scheme_of(model: TableModel, job: Job) -> Scheme:
    """Build the job's policy and rule for its model."""
    return make_scheme(model, job.policy, job.rule, json.loads(job.policy_settings), json.loads(job.rule_settings))


@lru_cache(maxsize=8)
def window_scheme_of(model: TableModel, job: Job) -> WindowScheme | None:
    """Build the job's window for its model; None for trees."""
    recipe = job.recipe
    return None if recipe is None else make_window_scheme(model, recipe)


def settings_class(part: str, name: str) -> Callable[..., Any] | None:
    """The dataclass with the settings of a model, policy or rule; None for a trace. ValueError on unknown names."""
    if part == "model":
        return None if name.endswith(TRACE) else SYNTHETIC_MODELS[name].make
    return POLICIES[name].make if part == "policy" else RULES[name].make


def setting_names_of(part: str, name: str) -> set[str]:
    """Names of the settings of a synthetic model, policy or rule, without those that the model provides."""
    make = settings_class(part, name)
    return {field.name for field in fields(make) if field.init} - _BY_MODEL if is_dataclass(make) else set()


def all_settings_of(part: str, name: str) -> dict[str, Any]:
    """The default settings of a policy or rule by name, without those that the model provides."""
    make = settings_class(part, name)
    names = setting_names_of(part, name)
    return {field.name: field.default for field in fields(make) if field.name in names} if is_dataclass(make) else {}


def _variants(part: str, name: str, vary: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """All settings of a model, policy or rule: the product over its varied settings."""
    setting_names = setting_names_of(part, name)
    part_axes = {key.partition(".")[2]: values for key, values in vary.items() if key.partition(".")[0] == part}
    axes = {key: values for key, values in part_axes.items() if key in setting_names}
    combinations = itertools.product(*axes.values())
    return [json.dumps(dict(zip(axes, values, strict=True)), sort_keys=True) for values in combinations]


def _variant_count(part: str, name: str, vary: Mapping[str, tuple[Any, ...]]) -> int:
    """Number of `_variants`."""
    setting_names = setting_names_of(part, name)
    return prod(
        len(values)
        for key, values in vary.items()
        if key.partition(".")[0] == part and key.partition(".")[2] in setting_names
    )


def jobs(plan: SweepPlan) -> list[Job]:
    """List all jobs whose rule fits the policy, and all jobs of windows. Raises ValueError on an unknown name or
    setting, on too many jobs, on windows for a trace, and if no rule fits a policy.
    """
    _check_vary(plan)
    trace = next((name for name in plan.models if name.endswith(TRACE)), None)
    if plan.windows and trace is not None:
        raise ValueError(
            f"--windows: {trace} is a trace, which has rows along the drawn tokens only; simulate windows on synthetic "
            "models, or record their drawings with `underpaint trace --methods`"
        )
    all_jobs: list[Job] = []
    fitting = [
        named
        for named in itertools.product(plan.models, plan.policies, plan.rules)
        if fits(RULES[named[2]], POLICIES[named[1]])
    ]
    count = sum(prod(_variant_count(*pair, plan.vary) for pair in zip(_PARTS, named, strict=True)) for named in fitting)
    count += sum(_variant_count("model", name, plan.vary) for name in plan.models) * len(plan.windows)
    if count > MOST_JOBS:
        raise ValueError(f"sweep: expected at most {MOST_JOBS:,} simulations, got {count:,}; vary fewer values")
    for named in fitting:
        model, policy, rule = named
        parts = (_variants(*pair, plan.vary) for pair in zip(_PARTS, named, strict=True))
        for of_model, of_policy, of_rule in itertools.product(*parts):
            all_jobs.append(Job(model, of_model, policy, of_policy, rule, of_rule))
    for name in plan.models if plan.windows else ():
        for of_model, one in itertools.product(_variants("model", name, plan.vary), plan.windows):
            window = (one.method, one.settings, one.rule, one.rule_settings, one.loop, one.temperature)
            all_jobs.append(Job(name, of_model, *window))
    if not all_jobs:
        raise ValueError(f"sweep: no rule of {', '.join(plan.rules)} fits a policy of {', '.join(plan.policies)}")
    return all_jobs


def _check_vary(plan: SweepPlan) -> None:
    names = {"model": plan.models, "policy": plan.policies, "rule": plan.rules}
    for key, values in plan.vary.items():
        part, dot, setting = key.partition(".")
        if not dot or part not in names:
            raise ValueError(f"--vary {key}: expected model.setting, policy.setting or rule.setting")
        setting_names = set().union(*(setting_names_of(part, name) for name in names[part]))
        if setting not in setting_names:
            hint = suggest(setting, setting_names) if setting_names else "none has settings"
            raise ValueError(f"--vary {key}: no {part} of the sweep has it; {hint}")
        if not values or len(set(map(str, values))) != len(values):
            raise ValueError(f"--vary {key}: expected at least one value, each once")


def check(plan: SweepPlan, jobs: Sequence[Job], processes: int = 0) -> None:
    """Build every model, scheme and latency model of `jobs` once, so that errors appear before any work.

    Measured machines must give a price for one image of each scheme. Raises ValueError or OSError, naming the cause: a
    setting, a trace, a cost curve, a size that it lacks, or too little memory for `processes` on this machine.
    """
    prices = {machine: run_times_of(machine) for machine in plan.machines}
    for machine, one in prices.items() if plan.windows else ():
        if isinstance(one, InCycleTimes):
            raise ValueError(
                f"{machine}: measured inside decoding loops, but without the host's time of Jacobi windows; price them "
                "on a roofline, such as a100/llamagen-xl, or by a curve of passes alone"
            )
    measured = [prices[machine] for machine in plan.machines if machine.endswith(CURVE)]
    checked: set[tuple[Any, ...]] = set()
    for job in sorted(jobs, key=lambda job: (job.model, job.model_settings)):
        model = synthetic_model_of(job.model, job.model_settings)
        trace = job.model if job.model.endswith(TRACE) else None  # traces may lack a drafter or a codebook
        parts = (trace, model.grid, model.vocab_size, job.policy, job.policy_settings, job.rule, job.rule_settings)
        if parts in checked:
            continue
        checked.add(parts)
        window = window_scheme_of(model, job)
        if window is not None:
            _check_window(window, plan)
            continue
        scheme = scheme_of(model, job)
        check_limits(json.loads(job.policy_settings), MOST_NODES, model.vocab_size)
        if processes:
            remedy = "; or take a trace of fewer pictures" if job.model.endswith(TRACE) else ""
            check_memory(f"simulating {job.name}", "--jobs", processes, working_bytes(model, scheme), remedy)
        if measured:
            runs = run_loop(model, scheme, 1, plan.seed, chains=times_chains(measured))
            for one in measured:
                one.times(scheme, runs)


def _check_window(scheme: WindowScheme, plan: SweepPlan) -> None:
    """Check that measured machines give a price for one image."""
    curves = [latency_model_of(machine) for machine in plan.machines if machine.endswith(CURVE)]
    if curves:
        runs = run_windows(scheme, 1, plan.seed)
        for costs in curves:
            runs.times(costs)


def times_chains(prices: Iterable[RunTimes]) -> bool:
    """Whether one of these prices needs chains that are drafted in one call to be counted separately."""
    return any(one.fuses_chains for one in prices)
