"""How much of a difference in prompt accuracy is AR's own draw of the pictures.

Run: python -m benchmarks.accuracy_draws FOLDER SEEDS [--figures FILE] [--seeds-figures FILE]
         [--engines DIR] [--out FILE]

FOLDER is what `underpaint compare --out` wrote, with one seed: every method's accuracy is compared with that of the one
picture that AR drew of each prompt. SEEDS is a comparison of the same prompts, models and sampling, of AR alone with
several seeds. Here each lossless method is compared with AR's first seed, which is the same draw, and with the mean of
AR's other seeds; so is AR's first seed itself, and the mean of all lossless methods. Intervals: 95 %, bootstrap over
prompts. The last line is JSON; --out writes it to a file too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import engines_option, open_models
from benchmarks.report import finish, options, parse, refusing
from underpaint.algos.arrays import FloatArray
from underpaint.artifacts.run_log import RunLog
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.evaluation.drawing_log import FILE_NAME, drawing_of
from underpaint.runtime.evaluation.paired import paired_difference
from underpaint.runtime.evaluation.picture_quality import PictureViews
from underpaint.runtime.page.document import ComparisonFolder

_SHARED = ("prompts", "temperature", "guidance", "top_k", "top_p")


def unlike(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Models that both name, by hashes that differ: a comparison names those that its methods use."""
    return sorted(name for name in own.keys() & other.keys() if own[name] != other[name])


def read_folders(
    folder: Path, figures: Path | None, seeds_folder: Path, seeds_figures: Path | None
) -> tuple[ComparisonFolder, ComparisonFolder, dict[int, dict[str, Drawing]]]:
    """Both comparisons, and AR's drawings by seed and prompt.

    Raises ValueError where they do not share prompts, models and sampling, or there are fewer than three seeds.
    """
    compared, seeded = ComparisonFolder.read(folder, figures), ComparisonFolder.read(seeds_folder, seeds_figures)
    own, other = compared.results, seeded.results
    differs = [name for name in _SHARED if own["settings"][name] != other["settings"][name]]
    differs += unlike(own["model"]["sha256"], other["model"]["sha256"])
    if differs:
        raise ValueError(f"{folder} and {seeds_folder} differ in {', '.join(differs)}; compare the same of both")
    drawn: dict[int, dict[str, Drawing]] = {}
    for line in RunLog(seeds_folder / FILE_NAME).read()[1:]:
        one = drawing_of(line)
        if one.method == BASELINE:
            drawn.setdefault(one.seed, {})[one.prompt] = one
    if len(drawn) < 3:
        raise ValueError(f"{seeds_folder}: expected three seeds of `{BASELINE}` or more, got {len(drawn)}; --seeds 5")
    return compared, seeded, drawn


def difference_row(name: str, right: FloatArray, first: FloatArray, others: FloatArray) -> dict[str, Any]:
    """Accuracies [prompts] of a method, of AR's first seed, and the mean of AR's other seeds."""
    row: dict[str, Any] = {"method": name, "prompt_accuracy": float(right.mean())}
    for beside, baseline in (("first_seed", first), ("other_seeds", others)):
        found = paired_difference(baseline[None], right[None])
        row |= {f"over_{beside}": found.mean, f"over_{beside}_low": found.low, f"over_{beside}_high": found.high}
    return row


def difference_rows(
    right: Mapping[str, FloatArray], seeds: Sequence[FloatArray], lossless: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for AR's first seed, each lossless method and their mean.

    right: [prompts] by method, 1.0 where the judge reads the prompt. seeds: AR's, the first one's before the others.
    """
    first, others = seeds[0], np.mean(seeds[1:], axis=0)
    rows = [difference_row(f"{BASELINE}, first seed", first, first, others)]
    rows += [difference_row(name, right[name], first, others) for name in lossless]
    mean = np.mean([right[name] for name in lossless], axis=0)
    return [*rows, difference_row("mean of the lossless methods", mean, first, others)]


def main(arguments: list[str] | None = None) -> None:
    parser = options("accuracy_draws", __doc__)
    engines_option(parser)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=Path)
    parser.add_argument("--figures", type=Path, help="FOLDER's figures, where `compare --json` wrote them elsewhere")
    parser.add_argument("--seeds-figures", type=Path, help="those of SEEDS")
    asked = parse(parser, arguments)
    with refusing(parser):
        compared, seeded, drawn = read_folders(asked.folder, asked.figures, asked.seeds, asked.seeds_figures)
        results = compared.results
        pipeline = open_models(asked, results["model"]["resolution"])
        if pipeline.judge is None:
            raise ValueError("the folder of models holds no judge; name one that does")
        captions = results["settings"]["prompts"]
        differ = unlike(results["model"]["sha256"], pipeline.fingerprint()["sha256"])
        if differ:
            raise ValueError(
                f"{asked.folder} is of other models than {asked.engines}: {', '.join(differ)} differ; name "
                "theirs by --engines"
            )
        lossless = [row["method"] for row in results["rows"] if row["lossless"] and row["method"] != BASELINE]
        if not lossless or not compared.drawings:
            raise ValueError(f"{asked.folder}: expected drawings of lossless methods beside `{BASELINE}`; compare some")
        conditions = [pipeline.condition(caption) for caption in captions]
    judge, views = pipeline.judge, PictureViews(pipeline, conditions)

    def judged(drawings: Mapping[str, Drawing]) -> FloatArray:
        found = views.read_right([drawings[caption] for caption in captions], judge)[judge.grammar.accuracy]
        return found.astype(np.float64)

    by_method = {name: {prompt: compared.drawings[name, prompt] for prompt in captions} for name in lossless}
    seeds = [judged(drawn[seed]) for seed in sorted(drawn)]
    rows = difference_rows({name: judged(held) for name, held in by_method.items()}, seeds, lossless)
    for row in rows:
        print(f"{row['method']:30s} {row['prompt_accuracy']:.3f} {row['over_other_seeds']:+.3f}")
    told = {name: results[name] for name in ("command", "machine")}
    figures = {
        "model": results["model"],
        "compared": told,
        "seeds_command": seeded.results["command"],
        "ar_by_seed": [float(one.mean()) for one in seeds],
        "pictures": len(captions),
        "rows": rows,
    }
    finish(figures, asked.out)


if __name__ == "__main__":
    main()
