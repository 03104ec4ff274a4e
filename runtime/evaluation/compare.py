"""Methods beside each other: the same prompts and seeds, one after the other, each in turn first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.evaluation.store import Cell, Store
from underpaint.runtime.studio import Built, Drawing, Studio, draw
from underpaint.zoo.prompts import Prompt, sample, seen_pairs

BASELINE: Final = "ar"
PROMPT_SEED: Final = 20251
"""Seed of the prompts that a comparison chooses by itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared. sampler: as the user asked for it (greedy rules use it at temperature 1)."""

    methods: tuple[Built, ...]
    prompts: tuple[Prompt, ...]
    seeds: tuple[int, ...]
    sampler: SamplingParams

    def __post_init__(self) -> None:
        for what, values in (
            ("method", [built.name for built in self.methods]),
            ("prompt", [prompt.caption() for prompt in self.prompts]),
            ("seed", [str(seed) for seed in self.seeds]),
        ):
            if not values:
                raise ValueError(f"compare: expected at least one {what}, got none")
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"compare: {what} {', '.join(twice)} is named twice; keep one")

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it."""
        return {
            "methods": {built.name: built.recipe.to_dict() for built in self.methods},
            "prompts": [prompt.caption() for prompt in self.prompts],
            "seeds": list(self.seeds),
            **dataclasses.asdict(self.sampler),
        }

    def turns(self) -> Iterator[tuple[Built, Prompt, int]]:
        """Every drawing in order: by prompt and seed, the methods rotated by one each time."""
        turn = 0
        for seed in self.seeds:
            for prompt in self.prompts:
                first = turn % len(self.methods)
                for built in self.methods[first:] + self.methods[:first]:
                    yield built, prompt, seed
                turn += 1

    @property
    def images(self) -> int:
        """Drawings of each method."""
        return len(self.prompts) * len(self.seeds)

    @property
    def size(self) -> int:
        """Drawings in all."""
        return len(self.methods) * len(self.prompts) * len(self.seeds)


class Done(NamedTuple):
    """Where a comparison stands: drawings finished of all, and the last one (None: the warm-up)."""

    finished: int
    size: int
    last: Drawing | None


def choose_prompts(count: int, skip: int = 0) -> tuple[Prompt, ...]:
    """`count` prompts of the training pairs after the first `skip`: the same ones every time.

    No concept comes twice while there are others. Settings are tuned on some prompts and reported on others by `skip`.
    """
    rng = np.random.default_rng(PROMPT_SEED)
    pairs = seen_pairs()
    chosen: list[Prompt] = []
    shown: set[str] = set()
    everything = {concept for concept, _ in pairs}
    while len(chosen) < skip + count:
        prompt = sample(rng, pairs)
        if shown >= everything:
            shown.clear()
        if prompt.concept not in shown and prompt not in chosen:
            shown.add(prompt.concept)
            chosen.append(prompt)
    return tuple(chosen[skip:])


def with_baseline(names: Sequence[str]) -> tuple[str, ...]:
    """The methods asked for, with plain AR first: every speed-up is against it."""
    return tuple(names) if BASELINE in names else (BASELINE, *names)


def check(studio: Studio, plan: Plan) -> None:
    """Open every method once: ValueError, naming it, where the studio lacks a model or settings do not fit its grid."""
    for built in plan.methods:
        try:
            built.open(studio, plan.prompts[0], plan.sampler)
        except ValueError as error:
            raise ValueError(f"method '{built.name}': {error}") from error


def run(studio: Studio, plan: Plan, store: Store, report: Callable[[Done], None]) -> None:
    """Draw what `store` does not hold yet. A stop (Ctrl-C) leaves every finished drawing in it."""
    missing = [turn for turn in plan.turns() if Cell(turn[0].name, turn[1].caption(), turn[2]) not in store]
    if not missing:
        return
    # First passes allocate and page in: one drawing of each method goes uncounted.
    for built in plan.methods:
        draw(studio, built, plan.sampler, plan.prompts[0], plan.seeds[0])
        report(Done(len(store), plan.size, None))
    for built, prompt, seed in missing:
        drawing = draw(studio, built, plan.sampler, prompt, seed)
        store.add(drawing)
        report(Done(len(store), plan.size, drawing))
