"""Comparison of methods on the same conditions and seeds, one drawing at a time, each method in turn first."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.manifest import digest
from underpaint.runtime.conditions import Condition, of_words
from underpaint.runtime.evaluation.drawing_log import DrawingKey
from underpaint.runtime.methods.method import DecodingMethod, ModelTables, PipelineModels
from underpaint.runtime.methods.registry import TUNED, build_method, resolve
from underpaint.runtime.models import OpenModels
from underpaint.zoo.load import takes_grammar
from underpaint.zoo.textured_prompts import THINGS, sample_textured

if TYPE_CHECKING:
    from underpaint.runtime.methods.preset_file import PresetFile

BASELINE: Final = "ar"
EAGER: Final = "ar-eager"
"""On a device, plain autoregression with the loop that papers time; the baseline there is one captured program."""
MOST_DRAWINGS: Final = 1_000_000
"""Largest number of drawings in one comparison; so many can take days, and their records some gigabytes."""
PROMPT_SEED: Final = 20251
"""Seed of the prompts that a comparison chooses itself."""
MOST_PROMPTS: Final = 10_000
"""Largest number of prompts to choose: finding them takes seconds, and the grammar has few more."""


class Variant(NamedTuple):
    """A method with settings, each `name=value`; its figures are reported under the label."""

    label: str
    method: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """The methods, prompts and seeds of a comparison.

    Attributes:
        sampling: As the user requested it (greedy rules read the distributions at temperature 1).
        preset: The preset that the methods' settings started from.
    """

    methods: tuple[DecodingMethod, ...]
    conditions: tuple[Condition, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParams
    preset: str | PresetFile = TUNED

    def __post_init__(self) -> None:
        for what, values in (
            ("method", [method.name for method in self.methods]),
            ("prompt", [condition.caption() for condition in self.conditions]),
            ("seed", [str(seed) for seed in self.seeds]),
        ):
            if not values:
                raise ValueError(f"compare: expected at least one {what}, got none")
            twice = sorted(value for value, count in Counter(values).items() if count > 1)
            if twice:
                raise ValueError(f"compare: {what} {', '.join(twice)} is named twice; keep one")
        if self.size > MOST_DRAWINGS:
            raise ValueError(
                f"compare: expected at most {MOST_DRAWINGS:,} drawings in all, got {self.size:,}: {len(self.methods)} "
                f"methods, {len(self.conditions)} prompts and {len(self.seeds):,} seeds; ask for fewer"
            )

    def with_tables(self, tables: ModelTables) -> ComparisonPlan:
        """The plan with its methods rebuilt, for example once pass costs are known."""
        built = tuple(build_method(method.name, method.config, tables) for method in self.methods)
        return dataclasses.replace(self, methods=built)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON; files of features are identified by their SHA-256."""
        files = {one.text: digest(one.features) for one in self.conditions if one.features is not None}
        return {
            "methods": {method.name: method.config.to_dict() for method in self.methods},
            "preset": str(self.preset),
            "prompts": [condition.caption() for condition in self.conditions],
            "seeds": list(self.seeds),
            **dataclasses.asdict(self.sampling),
            **({"features": files} if files else {}),
        }

    def jobs(self, model: int = 0) -> list[DrawingKey]:
        """Every drawing in order: by seed and condition, with the methods rotated by one each time.

        Args:
            model: The model's index in the run.
        """
        names, keys = [method.name for method in self.methods], list[DrawingKey]()
        for turn, (seed, condition) in enumerate(product(self.seeds, self.conditions)):
            first = turn % len(names)
            text = condition.caption()
            keys += [DrawingKey(name, text, seed, model) for name in names[first:] + names[:first]]
        return keys

    @property
    def images(self) -> int:
        """Number of drawings per method."""
        return len(self.conditions) * len(self.seeds)

    @property
    def size(self) -> int:
        """Total number of drawings."""
        return len(self.methods) * self.images


def choose_prompts(count: int, skip: int = 0) -> tuple[Condition, ...]:
    """`count` prompts of the grammar's training pairs after the first `skip`, the same every time.

    A first thing repeats only after all others were used. `skip` separates prompts for tuning from reported ones.
    """
    rng = np.random.default_rng(PROMPT_SEED)
    if skip + count > MOST_PROMPTS:
        raise ValueError(
            f"prompts: expected at most {MOST_PROMPTS:,} to be skipped and chosen together, got {skip:,} and "
            f"{count:,}; name a file of prompts (--prompts) for more"
        )
    chosen: list[Condition] = []
    captions: set[str] = set()
    used_things: set[str] = set()
    while len(chosen) < skip + count:
        prompt = sample_textured(rng)
        if len(used_things) == len(THINGS):
            used_things.clear()
        if prompt.thing not in used_things and prompt.caption() not in captions:
            used_things.add(prompt.thing)
            captions.add(prompt.caption())
            chosen.append(of_words(prompt))
    return tuple(chosen[skip:])


def read_conditions(
    pipeline: OpenModels, texts: Sequence[str], count: int | None, skip: int = 0
) -> tuple[Condition, ...]:
    """Return the conditions of the texts; without texts, those of 8 chosen prompts of the grammar, or class 0.

    Args:
        pipeline: The opened models.
        texts: The texts of the conditions; empty to choose prompts.
        count: Number of prompts to choose; None for the default. See `choose_prompts`.
        skip: Number of prompts to leave out first.

    Raises:
        ValueError: Texts are given together with `count` or `skip`, or there is nothing to choose from: only folders
            with the prompt grammar have prompts to choose, and a live model without texts has none.
    """
    if texts:
        if count is not None or skip:
            raise ValueError(
                "--prompts-count and --prompts-skip choose prompts; leave them out, or leave the prompts out"
            )
        return tuple(pipeline.condition(text) for text in texts)
    folder_models = pipeline.folder_models()
    if folder_models is None:
        raise ValueError(
            "expected prompts, as a live model has none to choose from; type some, or name a file: --prompts FILE"
        )
    if takes_grammar(folder_models.index):
        return choose_prompts(count or 8, skip)
    if count is not None or skip:
        raise ValueError(
            f"--prompts-count and --prompts-skip choose prompts of the grammar, and {pipeline.folder} takes "
            f"{folder_models.index.condition}; name what to draw instead"
        )
    return (pipeline.condition("0"),)


def with_baseline(names: Sequence[str]) -> tuple[str, ...]:
    """The methods, with plain autoregression in front unless they include it: every speedup is relative to it."""
    return tuple(names) if BASELINE in names else (BASELINE, *names)


def with_eager_baseline(plan: ComparisonPlan) -> ComparisonPlan:
    """A plan for a device, with plain autoregression in the loop that papers time as an additional last method."""
    plain: Any = next(method for method in plan.methods if method.name == BASELINE)
    return dataclasses.replace(plan, methods=(*plan.methods, dataclasses.replace(plain, name=EAGER)))


def named_variants(names: Sequence[str], settings: Mapping[str, Sequence[str]] | None = None) -> list[Variant]:
    """Variants with the methods' own names; settings: `name=value` texts by method."""
    return [Variant(name, name, tuple((settings or {}).get(name, ()))) for name in names]


def build_methods(
    pipeline: OpenModels, variants: Sequence[Variant], temperature: float, preset: str | PresetFile = TUNED
) -> tuple[DecodingMethod, ...]:
    """Build methods without pass costs; raises as `resolve` and `build_method`."""
    return tuple(
        build_method(one.label, resolve(one.method, temperature, None, one.settings, preset), pipeline.tables)
        for one in variants
    )


def open_method(
    models: OpenModels,
    variant: Variant,
    condition: Condition,
    sampling: SamplingParams,
    tables: ModelTables,
    preset: str | PresetFile = TUNED,
) -> DecodingMethod:
    """Build a method and open it on a condition; raises ValueError if something does not fit.

    Args:
        models: The models that draw.
        variant: The method and its settings.
        condition: A condition that the models accept.
        sampling: Sampling parameters of the target.
        tables: The models' tables, with pass costs if the method chooses by them.
        preset: The preset that its settings start from.
    """
    config = resolve(variant.method, sampling.temperature, None, variant.settings, preset)
    method = build_method(variant.label, config, tables)
    method.open(models, condition, sampling)
    return method


def check_opens(models: PipelineModels, plan: ComparisonPlan) -> None:
    """Open every method and set every condition; raises ValueError, naming the method, if something does not fit."""
    for method in plan.methods:
        try:
            method.open(models, plan.conditions[0], plan.sampling)
        except ValueError as error:
            raise ValueError(f"method '{method.name}': {error}") from error
    for condition in plan.conditions[1:]:
        models.target(condition, plan.sampling)
