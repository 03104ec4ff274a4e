"""How often tokens part between passes of unequal width, by family and type: `python -m tests.runtime.live.rounding`.

Random weights give flat distributions, so near-ties are far more frequent here than in a trained model.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch

from tests.runtime.live.tiny_models import MODELS, grid_of
from underpaint.runtime.live.generate import AcceleratedModel, accelerate

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PICTURES = 12


class Rounding(NamedTuple):
    """tokens, flips: teacher-forced tokens compared with passes of one, and where another became the likeliest.

    parted: pictures at temperature 0 whose tokens by `jacobi-lookup` are not plain decoding's. apart: pictures by
    `jacobi-lookup` that are not float32's, and verified: the same with near-ties verified in float32.
    """

    family: str
    dtype: str
    tokens: int
    flips: int
    parted: int
    apart: int
    verified: int


def measure(family: str, dtype: torch.dtype, pictures: int = PICTURES) -> Rounding:
    tiny = MODELS[family]()
    whole, model = copy.deepcopy(tiny.model), tiny.model.to(dtype)
    rng = np.random.default_rng(0)
    prompts = [(tiny.prompt[0], *rng.integers(99, 118, 3).tolist(), *tiny.prompt[3:]) for _ in range(pictures)]

    def fast(loaded: object, method: str, **options: object) -> AcceleratedModel:
        return accelerate(loaded, method, family=family, grid=grid_of(family), **options)

    def drawn(by: AcceleratedModel) -> list[tuple[int, ...]]:
        return [by.generate(prompt, temperature=0, top_k=0, top_p=1).drawing.tokens for prompt in prompts]

    passes = list(fast(model, "ar").pipeline.check_passes())
    plain, wide, exact = drawn(fast(model, "ar")), drawn(fast(model, "jacobi-lookup")), drawn(fast(whole.float(), "ar"))
    verified = wide
    if dtype != torch.float32:
        # Weights in float32 arithmetic are those that were rounded to the type.
        exact = drawn(fast(copy.deepcopy(model).float(), "ar"))
        verified = drawn(fast(model, "jacobi-lookup", verify_near_ties="float32"))
    return Rounding(
        family,
        str(dtype).removeprefix("torch."),
        sum(one.tokens for one in passes),
        sum(one.flips for one in passes),
        sum(a != b for a, b in zip(wide, plain, strict=True)),
        sum(a != b for a, b in zip(wide, exact, strict=True)),
        sum(a != b for a, b in zip(verified, exact, strict=True)),
    )


def main() -> None:
    print("| family | type | flips of tokens | pictures that part from plain decoding | from float32 | verified |")
    print("|---|---|---|---|---|---|")
    for family in MODELS:
        for dtype in DTYPES:
            one = measure(family, dtype)
            share = f"{one.flips:,} of {one.tokens:,} ({one.flips / one.tokens:.2%})"
            counts = f"{one.parted} of {PICTURES} | {one.apart} | {one.verified}"
            print(f"| `{family}` | {one.dtype} | {share} | {counts} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
