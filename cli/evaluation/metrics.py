"""`underpaint metrics`: prepare the pictures of an evaluation for the scorers of GenEval and DPG-Bench."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.outputs import Commands, output_folder

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.drawing_log import DrawingLog, PlannedModel, StoredPicture
    from underpaint.runtime.evaluation.prompt_files import FilePrompt
    from underpaint.runtime.evaluation.prompt_source import PromptSource
    from underpaint.runtime.evaluation.scorers import BenchmarkPrompt

app = Commands(
    help="Score the pictures of an evaluation by GenEval and DPG-Bench, with their own scorers.",
    no_args_is_help=True,
)
BENCHMARKS = ("geneval", "dpg")


@app.command()
def write(
    benchmark: Annotated[str, typer.Argument(help="geneval or dpg.")],
    folder: Annotated[Path, typer.Argument(help="A folder of `underpaint evaluate`.")],
    prompts: Annotated[Path, typer.Option(help="The benchmark's file of prompts that the evaluation drew.")],
    out: Annotated[
        Path,
        typer.Option(parser=output_folder, help="Folder for the pictures, with a folder for each model and method."),
    ],
) -> None:
    """Write pictures in the layout that GenEval's or DPG-Bench's own scorer reads."""
    from underpaint.artifacts.files import check_folder_writable
    from underpaint.runtime.evaluation.drawing_log import DrawingLog
    from underpaint.runtime.evaluation.prompt_files import read_prompts
    from underpaint.runtime.evaluation.prompt_source import PromptSource
    from underpaint.runtime.evaluation.scorers import write_dpg, write_geneval

    with bad_input():
        _check_benchmark(benchmark)
        log = DrawingLog(folder, None)
        models, groups = log.models(), _by_method(log)
        check_folder_writable(out)
        source = PromptSource.read(prompts)
        _check_drawn(folder, source)
        listed = read_prompts(source, repeated="first")
        prompts_by_folder = {
            f"{models[model].target}-{model}-{method.replace(':', '_')}": _prompts_of(
                models[model], pictures, prompts, listed
            )
            for (model, method), pictures in groups.items()
        }
    for name, ready in prompts_by_folder.items():
        with bad_input():
            if benchmark == "geneval":
                write_geneval(out / name, ready)
                typer.echo(f"{out / name}: score it with GenEval's evaluation/evaluate_images.py {out / name}")
            else:
                side = write_dpg(out / name, ready)
                count = max(len(one.pictures) for one in ready)
                options = f"--image-root-path {out / name} --resolution {side} --pic-num {count}"
                typer.echo(f"{out / name}: score it with DPG-Bench's compute_dpg_bench.py {options}")


def _check_benchmark(name: str) -> None:
    from underpaint.algos.registry import suggest

    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark '{name}'; {suggest(name, BENCHMARKS)}")


def _by_method(log: "DrawingLog") -> "dict[tuple[int, str], list[StoredPicture]]":
    from underpaint.runtime.evaluation.drawing_log import stored_pictures

    groups: dict[tuple[int, str], list[StoredPicture]] = defaultdict(list)
    for one in stored_pictures(log):
        groups[one.model, one.method].append(one)
    if not groups:
        raise ValueError(
            f"{log.folder} has no pictures; run `underpaint evaluate` with models that have a picture decoder"
        )
    return groups


def _check_drawn(folder: Path, source: "PromptSource") -> None:
    """Raise ValueError if the results of a finished evaluation name another file of prompts."""
    from underpaint.artifacts.results import read_results

    path = folder / "evaluate.json"
    if not path.is_file():
        return
    results = read_results(path)
    for one in [part["results"] for part in results["runs"]] if "runs" in results else [results]:
        file = one.get("settings", {}).get("prompts_file") or {}
        if file.get("sha256", source.sha256()) != source.sha256():
            raise ValueError(
                f"{source.path}: the evaluation used another file of prompts, {file.get('name')} (sha256 "
                f"{file['sha256']}); pass that file"
            )


def _prompts_of(
    model: "PlannedModel", pictures: "list[StoredPicture]", path: Path, listed: "Sequence[FilePrompt]"
) -> "list[BenchmarkPrompt]":
    """Return the benchmark's prompts in its order, with their pictures by seed; ValueError if none was drawn.

    path: the file that lists them, for messages.
    """
    from underpaint.runtime.evaluation.scorers import BenchmarkPrompt

    keys = dict(zip(model.prompt_keys, model.prompts, strict=bool(model.prompt_keys)))
    by_caption: dict[str, list[StoredPicture]] = defaultdict(list)
    for one in pictures:
        by_caption[one.prompt].append(one)
    prompts = []
    for prompt in listed:
        prompt_pictures = by_caption.get(keys.get(prompt.key, ""), [])
        if prompt_pictures:
            pngs = [one.png() for one in sorted(prompt_pictures, key=lambda one: one.seed)]
            prompts.append(BenchmarkPrompt(prompt.key, prompt.text, prompt.details, pngs))
    if not prompts:
        raise ValueError(f"{path}: the evaluation drew none of its prompts; pass it to evaluate as --prompts")
    return prompts
