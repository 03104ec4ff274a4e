"""How often a draft of each rank is kept: what Sequoia plans its tree by.

Run: python -m benchmarks.rank_acceptance [--models DIR] [--prompts-count 24] [--prompts-skip 200] [--ranks 4]
         [--out FILE]

Sequoia (arXiv 2402.12374, section 3) takes the probability that, where a node's children are tried, the one of each
rank is kept. Here it is counted over the decoding of whole pictures along wide static trees: at temperature 1 siblings
are drawn without replacement and judged as such, at temperature 0 they are the likeliest tokens. Counts do not depend
on the machine. A rank that was never tried, as where top-k leaves no such sibling, is refused. The last line is JSON;
--out holds it whole. What it finds belongs in the settings of method `sequoia`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.draft.sequoia import acceptance_by_rank
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.evaluation.comparison import read_conditions
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import FOLDER

METHOD: Final = "eagle1"
"""A method with static trees; at temperature 0 they hold the likeliest tokens."""
LEVELS: Final = 3


def measured(
    pipeline: Pipeline, sampling: SamplingParams, prompts: Sequence[Condition], seeds: int, ranks: int
) -> dict[str, Any]:
    widths = ",".join([str(ranks)] + [str(3 * ranks)] * (LEVELS - 1))
    config = resolve(METHOD, sampling.temperature, settings=[f"widths={widths}"])
    method = build_method(METHOD, config, pipeline.tables)
    verified = []
    for prompt in prompts:
        for seed in range(seeds):
            cycles = method.open(pipeline, prompt, sampling).decode(noise_of(prompt, seed)).cycles or ()
            verified += [(cycle.tree, cycle.verdict) for cycle in cycles if cycle.tree.size > 1]
    return {
        "temperature": sampling.temperature,
        "draws_by": config.draws_by,
        "widths": widths,
        "cycles": len(verified),
        "acceptance": [round(rate, 4) for rate in acceptance_by_rank(verified, ranks)],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options("rank_acceptance", __doc__)
    parser.add_argument("--models", type=Path, default=FOLDER, help="folder of models; default: the shipped one")
    parser.add_argument("--resolution", type=int, choices=(64, 128), default=128)
    parser.add_argument("--prompts-count", type=at_least(1), default=24)
    parser.add_argument("--prompts-skip", type=at_least(0), default=200, help="chosen prompts left out")
    parser.add_argument("--seeds", type=at_least(1), default=1)
    parser.add_argument("--ranks", type=at_least(1), default=4, help="children that are told apart")
    args = parse(parser, arguments)
    with refusing(parser):
        pipeline = Pipeline.open(args.models, resolution=args.resolution)
        prompts = read_conditions(pipeline, (), args.prompts_count, args.prompts_skip)
    shipped = pipeline.sampling
    rows = []
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(shipped.guidance, temperature, shipped.top_k, shipped.top_p)
        with refusing(parser):
            rows.append(measured(pipeline, sampling, prompts, args.seeds, args.ranks))
        print(f"temperature {temperature:g}, {rows[-1]['draws_by']}: {rows[-1]['acceptance']}")
    report = {
        "resolution": args.resolution,
        "prompts": args.prompts_count,
        "prompts_skip": args.prompts_skip,
        "seeds": args.seeds,
        "sampler": {"guidance": shipped.guidance, "top_k": shipped.top_k, "top_p": shipped.top_p},
        "vocab_size": pipeline.tables.vocab_size,
        "model": dict(pipeline.fingerprint()),
        "rows": rows,
    }
    finish(report, args.out)


if __name__ == "__main__":
    main()
