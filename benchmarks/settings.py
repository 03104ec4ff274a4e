"""How much a method's settings matter on a shipped model: variants of one method beside AR, interleaved.

Run: python -m benchmarks.settings adt+lantern --temperature 0 --variant "beta=0.3" --variant "beta=0.7 step_depth=2"
     python -m benchmarks.settings adt --temperature 1 --adt   (one setting of ADT-Tree at a time, around the default)

Every variant draws the same prompts and seeds right after AR's own drawing of them, in an order that rotates.
Reported: speed-up (ratio of sums of seconds), tokens per cycle, mean depth, prompt accuracy by the judge, the share
of pictures equal to AR's. The last line is JSON; --out writes it to a file too.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from algos.rows import Sampler
from runtime.compare import choose_prompts
from runtime.embedded import EmbeddedStudio, open_studio
from runtime.machine import described
from runtime.methods import Built, build_method, resolve
from runtime.studio import Drawing, draw
from zoo.manifest import write_beside
from zoo.prompts import Prompt

ADT_VARIANTS = (
    "acceptance=length beta=1",
    "acceptance=length beta=2",
    "init=vertical",
    "init=random",
    "row_start=upper",
    "row_start=default",
    "acceptance_of=last_tree",
    "nodes=proportional",
    "beta=0.25",
    "beta=0.75",
    "beta=1.0",
    "step_depth=0",
    "step_depth=2",
    "step_width=0",
    "step_width=2",
    "start_depth=2",
    "min_depth=2",
    "max_depth=4",
    "max_width=2",
    "total_tokens=6",
    "total_tokens=20",
)


def run(
    studio: EmbeddedStudio, variants: dict[str, Built], prompts: tuple[Prompt, ...], seeds: range, sampler: Sampler
) -> dict[str, list[tuple[Prompt, Drawing]]]:
    done: dict[str, list[tuple[Prompt, Drawing]]] = {label: [] for label in variants}
    labels = list(variants)
    for built in variants.values():
        draw(studio, built, sampler, prompts[0], 0)
    for turn, (seed, prompt) in enumerate((seed, prompt) for seed in seeds for prompt in prompts):
        first = turn % len(labels)
        for label in labels[first:] + labels[:first]:
            done[label].append((prompt, draw(studio, variants[label], sampler, prompt, seed)))
        print(f"\r{turn + 1} of {len(seeds) * len(prompts)} prompts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return done


def right(studio: EmbeddedStudio, prompt: Prompt, drawing: Drawing) -> bool:
    reading = studio.read(studio.picture(drawing.tokens_array()))
    return reading.values["concept"] == prompt.concept and reading.values["style"] == prompt.style


def row(
    studio: EmbeddedStudio,
    label: str,
    drawn: list[tuple[Prompt, Drawing]],
    baseline: list[tuple[Prompt, Drawing]],
) -> dict[str, float | str]:
    seconds = sum(drawing.seconds for _, drawing in drawn)
    cycles = sum(len(drawing.accepted) for _, drawing in drawn)
    return {
        "variant": label,
        "speedup": sum(drawing.seconds for _, drawing in baseline) / seconds,
        "tokens_per_cycle": sum(len(drawing.tokens) - 1 for _, drawing in drawn) / cycles,
        "mean_depth": sum(sum(drawing.depths) for _, drawing in drawn) / cycles,
        "prompt_accuracy": float(np.mean([right(studio, prompt, drawing) for prompt, drawing in drawn])),
        "identical_to_ar": float(
            np.mean([one.tokens == other.tokens for (_, one), (_, other) in zip(drawn, baseline, strict=True)])
        ),
        "overhead_share": 1 - sum(d.target_seconds + d.drafter_seconds for _, d in drawn) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What a method's settings change, on a shipped model.")
    parser.add_argument("method")
    parser.add_argument("--variant", action="append", default=[], help="settings, 'name=value name=value'; repeat")
    parser.add_argument("--adt", action="store_true", help="ADT-Tree's open settings, one at a time")
    parser.add_argument("--rule", help="another rule for the method")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--resolution", type=int, default=128)
    parser.add_argument("--prompts-count", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    studio = open_studio(asked.resolution)
    shipped = studio.sampler
    guidance = shipped.guidance if asked.guidance is None else asked.guidance
    sampler = Sampler(guidance, asked.temperature, shipped.top_k, shipped.top_p)
    ar = build_method("ar", resolve("ar", asked.temperature), studio.codes)
    variants = {"ar": ar}
    for settings in ("", *asked.variant, *(ADT_VARIANTS if asked.adt else ())):
        recipe = resolve(asked.method, asked.temperature, asked.rule, settings.split())
        variants[settings or "default"] = build_method(asked.method, recipe, studio.codes)
    prompts = choose_prompts(asked.prompts_count)
    done = run(studio, variants, prompts, range(asked.seeds), sampler)
    rows = [row(studio, label, drawn, done["ar"]) for label, drawn in done.items()]
    print(f"{'variant':44s} speed-up  tokens/cycle  depth  accuracy  identical  overhead")
    for each in rows:
        print(
            f"{each['variant']:44s} {each['speedup']:8.3f} {each['tokens_per_cycle']:13.3f} {each['mean_depth']:6.2f} "
            f"{each['prompt_accuracy']:9.3f} {each['identical_to_ar']:10.3f} {each['overhead_share']:9.3f}"
        )
    found = {
        "method": asked.method,
        "temperature": asked.temperature,
        "resolution": asked.resolution,
        "guidance": guidance,
        "prompts": len(prompts),
        "seeds": asked.seeds,
        "machine": described(),
        "model": dict(studio.described()),
        "rows": rows,
    }
    line = json.dumps(found)
    if asked.out:
        write_beside(asked.out, line.encode())
    print(line)


if __name__ == "__main__":
    main()
