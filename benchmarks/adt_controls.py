"""The controls for ADT-Tree: trees of its mean depth that never adapt, measured beside it, and their parameters.

Run: python -m benchmarks.adt_controls [--engines DIR] [--prompts-count 16] [--prompts-skip 0] [--seeds 1] [--out FILE]

ADT-Tree adapts the depth of its tree. What that is worth shows beside trees of the same mean depth that do not:
`adt-control-chain`, which has as many nodes too because tuned ADT-Tree never forks, and `adt-control-tree`. At each
temperature this chooses their `mean_depth` so that the mean over all cycles is ADT-Tree's, to within 0.1 levels, and
then measures all of them on the same prompts and seeds. Depths and nodes are counts: they do not depend on the machine
or on its load. The last line is JSON; --out holds it whole. The exit status is 1 where the settings that the methods
have now (`runtime.methods.trees.presets`) miss ADT-Tree's mean depth by more than 0.1.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from benchmarks.models import engines_option, open_models
from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.drawing import Drawing, draw
from underpaint.runtime.evaluation.comparison import read_conditions
from underpaint.runtime.methods.method_config import usual_preset
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline

ADT: Final = "adt"
CONTROLS: Final = ("adt-control-chain", "adt-control-tree")
NEAR: Final = 0.1
"""Levels by which a control's mean depth may differ from ADT-Tree's."""
STEPS: Final = 4
"""Corrections of `mean_depth`: the last cycles of an image have no room for deep trees, so it is not the mean found."""


def drawn(
    pipeline: Pipeline, name: str, sampling: SamplingParams, prompts: Sequence[Condition], seeds: int, *settings: str
) -> list[Drawing]:
    config = resolve(name, sampling.temperature, None, settings, usual_preset(pipeline.index.family))
    method = build_method(name, config, pipeline.tables)
    return [draw(pipeline, method, sampling, prompt, seed) for seed in range(seeds) for prompt in prompts]


def counts(name: str, drawings: Sequence[Drawing], **more: Any) -> dict[str, Any]:
    cycles = [
        cycle for one in drawings for cycle in zip(one.accepted or (), one.depths or (), one.nodes or (), strict=True)
    ]
    accepted, depths, nodes = (np.array(column, dtype=np.float64) for column in zip(*cycles, strict=True))
    return {
        "method": name,
        "mean_depth": float(depths.mean()),
        "mean_nodes": float(nodes.mean()),
        "tokens_per_cycle": 1.0 + float(accepted.mean()),
        "target_nfe": float(np.mean([one.target_nfe for one in drawings])),
        "drafter_nfe": float(np.mean([one.drafter_nfe for one in drawings])),
        **more,
    }


def at_temperature(
    pipeline: Pipeline, sampling: SamplingParams, prompts: Sequence[Condition], seeds: int
) -> list[dict[str, Any]]:
    """ADT-Tree, and for each control its present setting and the one that meets ADT-Tree's mean depth."""
    rows = [counts(ADT, drawn(pipeline, ADT, sampling, prompts, seeds))]
    wanted = rows[0]["mean_depth"]
    for name in CONTROLS:
        config = resolve(name, sampling.temperature, preset=usual_preset(pipeline.index.family)).to_dict()
        present_depth = config["policy_settings"]["mean_depth"]
        present = counts(name, drawn(pipeline, name, sampling, prompts, seeds), setting=present_depth, chosen=False)
        rows.append(present)
        asked, found = float(present_depth), present
        for _ in range(STEPS):
            if abs(found["mean_depth"] - wanted) <= NEAR / 4:
                break
            asked = round(max(1.0, asked + wanted - found["mean_depth"]), 2)
            again = drawn(pipeline, name, sampling, prompts, seeds, f"mean_depth={asked}")
            found = counts(name, again, setting=asked, chosen=True)
        if found is not present:
            rows.append(found)
    return rows


def show(temperature: float, rows: Sequence[dict[str, Any]]) -> None:
    print(
        f"temperature {temperature:g}\nmethod              mean_depth setting  depth   nodes  tokens/cycle  target NFE"
    )
    for row in rows:
        setting = f"{row['setting']:.2f}{' *' if row['chosen'] else ''}" if "setting" in row else "-"
        print(
            f"{row['method']:20s} {setting:>16s} {row['mean_depth']:7.3f} {row['mean_nodes']:7.3f} "
            f"{row['tokens_per_cycle']:13.3f} {row['target_nfe']:11.1f}"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = options("adt_controls", __doc__)
    engines_option(parser)
    parser.add_argument("--resolution", type=int, choices=(64, 128), default=128)
    parser.add_argument("--prompts-count", type=at_least(1), default=16)
    parser.add_argument("--prompts-skip", type=at_least(0), default=0, help="chosen prompts left out")
    parser.add_argument("--seeds", type=at_least(1), default=1)
    asked = parse(parser, arguments)
    with refusing(parser):
        pipeline = open_models(asked, asked.resolution)
        prompts = read_conditions(pipeline, (), asked.prompts_count, asked.prompts_skip)
    shipped = pipeline.sampling
    found: dict[str, list[dict[str, Any]]] = {}
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(shipped.guidance, temperature, shipped.top_k, shipped.top_p)
        found[f"{temperature:g}"] = at_temperature(pipeline, sampling, prompts, asked.seeds)
        show(temperature, found[f"{temperature:g}"])
    missed = [
        (temperature, row["method"])
        for temperature, rows in found.items()
        for row in rows[1:]
        if not row["chosen"] and abs(row["mean_depth"] - rows[0]["mean_depth"]) > NEAR
    ]
    report = {
        "resolution": asked.resolution,
        "prompts": asked.prompts_count,
        "prompts_skip": asked.prompts_skip,
        "seeds": asked.seeds,
        "sampling": {"guidance": shipped.guidance, "top_k": shipped.top_k, "top_p": shipped.top_p},
        "vocab_size": pipeline.tables.vocab_size,
        "model": dict(pipeline.fingerprint()),
        "missed": missed,
        "temperatures": found,
    }
    finish(report, asked.out)
    if missed:
        raise SystemExit(f"not at ADT-Tree's mean depth: {missed}; take the settings marked *")


if __name__ == "__main__":
    main()
