"""How much a method's settings matter on a shipped model: variants of one method beside AR, interleaved.

Run: python -m benchmarks.settings adt+lantern --temperature 0 --variant "beta=0.3" --variant "beta=0.7 step_depth=2"
     python -m benchmarks.settings adt --temperature 1 --adt   (one setting of ADT-Tree at a time, around the default)

Every variant draws the same prompts and seeds beside AR, in an order that rotates; a stopped run goes on where it
was. Reported, as `underpaint compare` finds it: speed-up, tokens per cycle, mean depth, prompt accuracy and its
difference to AR's, the share of pictures equal to AR's at temperature 0, the share of the host; and how many times as
fast a variant is as the method's default, picture by picture. The last line is JSON; --out writes it to a file too.
What is chosen here is to be reported on other prompts: `compare --prompts-skip`.
"""

from pathlib import Path
from typing import Any

from benchmarks.models import models_option, open_models
from benchmarks.report import at_least, finish, options, parse, progress, refusing
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.model_index import family_of
from underpaint.runtime.evaluation.comparison import (
    BASELINE,
    ComparisonPlan,
    check_opens,
    read_conditions,
)
from underpaint.runtime.evaluation.drawer import run
from underpaint.runtime.evaluation.drawing_log import DrawingKey
from underpaint.runtime.evaluation.picture_judge import judge_of
from underpaint.runtime.evaluation.plan import RunPlan
from underpaint.runtime.evaluation.report import ReportRow, Speedup, make_report, speedup
from underpaint.runtime.files import check_folder_writable
from underpaint.runtime.methods.method_config import usual_preset
from underpaint.runtime.methods.registry import build_method, resolve

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


DEFAULT = "default"
"""The variant that changes no setting."""


def to_dict(row: ReportRow, over_default: Speedup) -> dict[str, Any]:
    return {
        "variant": row.method,
        "speedup": row.speedup,
        "speedup_low": row.speedup_low,
        "speedup_high": row.speedup_high,
        "over_default": over_default.ratio,
        "over_default_low": over_default.low,
        "over_default_high": over_default.high,
        "tokens_per_cycle": row.tokens_per_cycle,
        "mean_depth": row.mean_depth,
        "prompt_accuracy": row.prompt_accuracy,
        "accuracy_over_ar": row.accuracy_over_ar,
        "accuracy_over_ar_low": row.accuracy_over_ar_low,
        "accuracy_over_ar_high": row.accuracy_over_ar_high,
        "identical_to_ar": row.identical_share,
        "overhead_share": row.overhead_share,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'variant':44s} speed-up  over default  tokens/cycle  depth  accuracy  less AR's  identical  overhead")
    for row in rows:
        shown = [
            "-".rjust(width) if row[name] is None else format(row[name], f"{width}.{digits}f")
            for name, width, digits in (
                ("speedup", 8, 3),
                ("over_default", 13, 3),
                ("tokens_per_cycle", 13, 3),
                ("mean_depth", 6, 2),
                ("prompt_accuracy", 9, 3),
                ("accuracy_over_ar", 10, 3),
                ("identical_to_ar", 10, 3),
                ("overhead_share", 9, 3),
            )
        ]
        print(f"{row['variant']:44s} " + " ".join(shown))


def main(arguments: list[str] | None = None) -> None:
    parser = options("settings", __doc__)
    parser.add_argument("method")
    parser.add_argument("--variant", action="append", default=[], help="settings, 'name=value name=value'; repeat")
    parser.add_argument("--adt", action="store_true", help="ADT-Tree's open settings, one at a time")
    parser.add_argument("--rule", help="another rule for the method")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--guidance", type=float)
    models_option(parser)
    parser.add_argument("--resolution", type=int, choices=(64, 128), default=128)
    parser.add_argument("--prompts-count", type=at_least(1), default=8)
    parser.add_argument("--prompts-skip", type=at_least(0), default=0, help="chosen prompts left out")
    parser.add_argument("--seeds", type=at_least(1), default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/settings"), help="finished drawings")
    parser.add_argument("--fresh", action="store_true", help="discard the finished drawings")
    asked = parse(parser, arguments)
    with refusing(parser):
        check_folder_writable(asked.folder)
        preset = usual_preset(family_of(asked.models))
        configs = {BASELINE: resolve(BASELINE, asked.temperature)}
        for settings in ("", *asked.variant, *(ADT_VARIANTS if asked.adt else ())):
            own = settings.split()
            configs[settings or DEFAULT] = resolve(asked.method, asked.temperature, asked.rule, own, preset)
        pipeline = open_models(asked, asked.resolution)
        shipped = pipeline.sampling
        guidance = shipped.guidance if asked.guidance is None else asked.guidance
        sampler = SamplingParams(guidance, asked.temperature, shipped.top_k, shipped.top_p)
        methods = tuple(build_method(label, config, pipeline.tables) for label, config in configs.items())
        prompts = read_conditions(pipeline, (), asked.prompts_count, asked.prompts_skip)
        plan = ComparisonPlan(methods, prompts, tuple(range(asked.seeds)), sampler, preset)
        check_opens(pipeline, plan)
        whole = RunPlan.of(pipeline, plan, judge_of(pipeline))
        store = whole.open_log(asked.folder, fresh=asked.fresh)
    run(whole, store, progress)
    keys = [(one.caption(), seed) for one in plan.conditions for seed in plan.seeds]
    seconds = {
        method.name: [store.drawing(DrawingKey(method.name, *key)).seconds for key in keys] for method in methods
    }
    rows = [to_dict(row, speedup(seconds[DEFAULT], seconds[row.method])) for row in make_report(whole, store).rows]
    show(rows)
    found = {
        "method": asked.method,
        "temperature": asked.temperature,
        "resolution": asked.resolution,
        "guidance": guidance,
        "preset": preset,
        "prompts": asked.prompts_count,
        "prompts_skip": asked.prompts_skip,
        "seeds": asked.seeds,
        "model": dict(whole.models[0].fingerprint),
        "rows": rows,
    }
    finish(found, asked.out)


if __name__ == "__main__":
    main()
