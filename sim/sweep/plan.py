"""What a sweep is to do: every fitting rule, policy, setting and synthetic model, all checked before any work."""

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
"""How the names of traces end, which are the paths of their files."""
TREES: Final = "tree"
"""The loop of a policy and a rule."""
MOST_JOBS: Final = 10_000
"""Of one sweep: as many take a day on two cores."""
_PARTS: Final = ("model", "policy", "rule")
_GIVEN: Final = frozenset(("neighbours", "codebook"))
"""Settings of rules that come from the model."""


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation: a scheme on a synthetic model. Settings are JSON text, sorted, so that jobs compare and
    travel.

    loop: `TREES`, or that of a window's recipe; then `policy` is the method's name, and the settings are the recipe's.
    temperature: see `WindowRecipe`; trees have it in their rules.
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
        """The job as JSON holds it; of trees as before there were windows."""
        told = asdict(self)
        if self.loop == TREES:
            del told["loop"], told["temperature"]
        return told

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> "Job":
        """The job of a line of results."""
        return cls(**{field.name: line[field.name] for field in fields(cls) if field.name in line})

    @property
    def key(self) -> str:
        """A short hash that names the job."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The model, the policy and the rule, as progress and errors call the job."""
        return f"{self.model}: {self.policy} {self.rule}"

    @property
    def recipe(self) -> WindowRecipe | None:
        """Of a window; None of trees."""
        if self.loop == TREES:
            return None
        parts = (self.policy, self.loop, self.policy_settings, self.rule, self.rule_settings)
        return WindowRecipe(*parts, self.temperature)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep. vary: "model.noise", "policy.depth", "rule.delta" to the values it takes, where it is known.

    machines: "machine/model" or the path of a cost curve. windows: methods of the Jacobi family, at each setting that
    is to be tried; they stand beside the pairs of policies and rules, of which there may be none then. precision: half
    the 95 % interval of every speed-up, as a share of it, at most; most_images: images at most to get there.
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
        """The plan as JSON holds it, with the SHA-256 of every trace and cost curve; OSError where one is gone."""
        named = [name for name in self.models if name.endswith(TRACE)]
        named += [name for name in self.machines if name.endswith(CURVE)]
        named += [str(file) for file in map(machine_file, self.machines) if file is not None]
        hashes = {name: hashlib.sha256(read_regular(Path(name))).hexdigest() for name in named}
        told = json.loads(json.dumps(asdict(self)))
        if not self.windows:
            del told["windows"]  # as before there were any
        return {**told, "files": hashes}


@lru_cache(maxsize=8)
def synthetic_model_of(name: str, settings: str) -> TableModel:
    """A synthetic model by name, or a trace by the path of its .npz."""
    if name.endswith(TRACE):
        return replay(load(Path(name)), Path(name).stem)
    return make_synthetic_model(name, json.loads(settings))


@lru_cache(maxsize=8)
def scheme_of(model: TableModel, job: Job) -> Scheme:
    """The job's policy and rule, ready for its model."""
    return make_scheme(model, job.policy, job.rule, json.loads(job.policy_settings), json.loads(job.rule_settings))


@lru_cache(maxsize=8)
def window_scheme_of(model: TableModel, job: Job) -> WindowScheme | None:
    """The job's window, ready for its model; None of trees."""
    recipe = job.recipe
    return None if recipe is None else make_window_scheme(model, recipe)


def settings_made_by(part: str, name: str) -> Callable[..., Any] | None:
    """The dataclass of the settings of a synthetic model, policy or rule; None for a trace. ValueError on an unknown
    name."""
    if part == "model":
        return None if name.endswith(TRACE) else SYNTHETIC_MODELS[name].make
    return POLICIES[name].make if part == "policy" else RULES[name].make


def settings_known(part: str, name: str) -> set[str]:
    """The settings that a synthetic model, policy or rule has, less those that come from the model."""
    make = settings_made_by(part, name)
    return {field.name for field in fields(make) if field.init} - _GIVEN if is_dataclass(make) else set()


def _variants(part: str, name: str, vary: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """The settings of one name: the product over those varied settings that it knows."""
    known = settings_known(part, name)
    own = {key.partition(".")[2]: values for key, values in vary.items() if key.partition(".")[0] == part}
    axes = {key: values for key, values in own.items() if key in known}
    found = itertools.product(*axes.values())
    return [json.dumps(dict(zip(axes, values, strict=True)), sort_keys=True) for values in found]


def _variant_count(part: str, name: str, vary: Mapping[str, tuple[Any, ...]]) -> int:
    """How many `_variants` there are."""
    known = settings_known(part, name)
    return prod(
        len(values) for key, values in vary.items() if key.partition(".")[0] == part and key.partition(".")[2] in known
    )


def jobs(plan: SweepPlan) -> list[Job]:
    """All jobs whose rule fits the policy.

    Raises ValueError on an unknown synthetic model, policy, rule or setting, and if no rule fits a policy.
    """
    _check_vary(plan)
    found: list[Job] = []
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
            found.append(Job(model, of_model, policy, of_policy, rule, of_rule))
    for name in plan.models if plan.windows else ():
        for of_model, one in itertools.product(_variants("model", name, plan.vary), plan.windows):
            window = (one.method, one.settings, one.rule, one.rule_settings, one.loop, one.temperature)
            found.append(Job(name, of_model, *window))
    if not found:
        raise ValueError(f"sweep: no rule of {', '.join(plan.rules)} fits a policy of {', '.join(plan.policies)}")
    return found


def _check_vary(plan: SweepPlan) -> None:
    names = {"model": plan.models, "policy": plan.policies, "rule": plan.rules}
    for key, values in plan.vary.items():
        part, dot, setting = key.partition(".")
        if not dot or part not in names:
            raise ValueError(f"--vary {key}: expected model.setting, policy.setting or rule.setting")
        known = set().union(*(settings_known(part, name) for name in names[part]))
        if setting not in known:
            hint = suggest(setting, known) if known else "none has settings"
            raise ValueError(f"--vary {key}: no {part} of the sweep has it; {hint}")
        if not values or len(set(map(str, values))) != len(values):
            raise ValueError(f"--vary {key}: expected at least one value, each once")


def check(plan: SweepPlan, wanted: Sequence[Job], processes: int = 0) -> None:
    """Build every synthetic model, scheme and latency model of `wanted` once, so that nothing of it fails later.

    Measured machines are asked for the price of one image by each scheme. Raises ValueError or OSError, naming what
    is wrong: a setting, a trace, a cost curve, the sizes that it lacks, or the memory for `processes` of this machine.
    """
    prices = {machine: run_times_of(machine) for machine in plan.machines}
    for machine, one in prices.items() if plan.windows else ():
        if isinstance(one, InCycleTimes):
            raise ValueError(
                f"{machine}: measured inside cycles that draft, which says nothing of Jacobi windows: they have no "
                "drafter; price them on a roofline, such as a100/llamagen-xl, or by a curve of passes alone"
            )
    measured = [prices[machine] for machine in plan.machines if machine.endswith(CURVE)]
    checked: set[tuple[Any, ...]] = set()
    for job in sorted(wanted, key=lambda job: (job.model, job.model_settings)):
        model = synthetic_model_of(job.model, job.model_settings)
        parts = (model.grid, model.vocab_size, job.policy, job.policy_settings, job.rule, job.rule_settings)
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
    """Ask measured machines for the price of one image."""
    curves = [latency_model_of(machine) for machine in plan.machines if machine.endswith(CURVE)]
    if curves:
        runs = run_windows(scheme, 1, plan.seed)
        for costs in curves:
            runs.image_ms(costs)


def times_chains(prices: Iterable[RunTimes]) -> bool:
    """Whether runs have to tell chains in one call apart, for one of these prices."""
    return any(one.fuses_chains for one in prices)
