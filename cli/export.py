"""`underpaint export` and `underpaint check`: export checkpoints, and compare the graphs with PyTorch."""

from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.algos.memory import free_bytes
from underpaint.algos.numbers import whole_number
from underpaint.cli.errors import bad_input
from underpaint.cli.invariance import check_passes
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import refuse_given
from underpaint.cli.options import Backend, grouped
from underpaint.cli.outputs import models_folder
from underpaint.cli.terminal import Format, FormatOption, JsonFile
from underpaint.cli.train.stages import stages
from underpaint.export.trained_names import OTHERS, OUT, RUNS, USUAL

if TYPE_CHECKING:
    from underpaint.artifacts.manifest import Manifest

_PUBLISHED = "A published checkpoint, with --kind"
_OWN = "Checkpoints of this project's own recipes, without --kind"


def _published(help_text: str, *names: str, least: int | None = None) -> Any:
    """Return an option of published checkpoints, shown in their panel of the help."""
    return typer.Option(*names, help=help_text, min=least, rich_help_panel=_PUBLISHED)


Heads = Annotated[
    int | None,
    _published("Attention heads, where the width is none of the published (llamagen-*, tar-dtok, drafters).", least=1),
]
Grid = Annotated[
    str | None,
    _published("Cells along a side: pixels / 16 (every target, and its drafter); rows x columns, as 48x64 (lumina)."),
]
Prefix = Annotated[
    int | None,
    _published("Condition positions (tar-dtok: 729, 169, 81), or the longest prompt (tar-lm, chameleon).", least=1),
]
FirstCode = Annotated[int | None, _published("Vocabulary id of code 0 (tar-lm).", least=0)]
PictureLayout = Annotated[
    Literal["anole", "lumina"],
    _published("What stands among the codes of a picture (chameleon): anole or lumina.", "--layout"),
]
UncondKeep = Annotated[
    tuple[int, int] | None,
    _published("Ids at a prompt's beginning and end that stay where it is left out (tar-lm; chameleon: 1 1)."),
]
_NO_LIVE = LiveOptions()
_MASKS: Final = 3
"""Number of masks over all pairs of cells that a comparison with torch holds in memory at once."""
LEAST_SIDE = 4
"""The fewest cells along a side, because a comparison with torch drafts a tree of 11 nodes."""
_KINDS = "llamagen-c2i, llamagen-t2i, tar-dtok, tar-lm, chameleon, eagle-drafter, vq, chameleon-vq or sampler"


def export(
    context: typer.Context,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]... or CHECKPOINT",
            help=f"Without --kind, which of {', '.join(USUAL)}; all of these if none is named; only if named: "
            f"{', '.join(OTHERS)}. With --kind, the checkpoint: a file or folder, or a hub name: owner/model, "
            "owner/model/file.",
            show_default=False,
            autocompletion=lambda: [*USUAL, *OTHERS],
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=models_folder,
            help=f"Folder of models; {OUT} without --kind. One folder holds a target, its drafter, its tokenizer.",
        ),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the recipes' runs: RUNS/<stage>/checkpoint.pt, where <stage> is one of `train world`, or a "
            f"sampler's run such as sampler_up_gan. Default: {RUNS}.",
            show_default=False,
            rich_help_panel=_OWN,
        ),
    ] = None,
    guidance: Annotated[
        float | None,
        typer.Option(
            help="Default guidance of the folder's models. If left out: 3 for target_pair, 1 for other targets, which "
            "have it trained in; for other models the folder's own, or 1.",
            show_default=False,
            rich_help_panel=_OWN,
        ),
    ] = None,
    kind: Annotated[str | None, _published(f"What it is: {_KINDS}.")] = None,
    precision: Annotated[
        Literal["fp32", "fp16", "bf16"], _published("fp32, fp16 or bf16: of weights, caches and hidden states.")
    ] = "fp32",
    target: Annotated[str | None, _published("The checkpoint that a drafter was trained for (eagle-drafter).")] = None,
    target_kind: Annotated[str | None, _published("Its kind.")] = None,
    neighbours: Annotated[
        int | None,
        _published(
            "Nearest codes kept of each, for LANTERN (vq, chameleon*). Default: 1000, or all of fewer codes.", least=1
        ),
    ] = None,
    heads: Heads = None,
    grid: Grid = None,
    prefix: Prefix = None,
    first_code: FirstCode = None,
    layout: PictureLayout = "anole",
    uncond_keep: UncondKeep = None,
    eight_bits: Annotated[
        bool, _published("Multiply in 8 bits: quicker on a CPU, a little less alike (drafters).", "--eight-bits")
    ] = False,
) -> None:
    """Export checkpoints to ONNX (needs PyTorch): those of this project's recipes, or a published one with --kind.

    Every graph is compared with its PyTorch module before it is written. Each model gets a JSON manifest, and the
    folder an index. Weights from this project's recipes are rounded to float16, and the matrices of a target to 8 bits
    with a scale per row.
    """
    if kind is None:
        with bad_input():
            _refuse_options_of_kind(context)
        _export_trained(tuple(given or ()), runs, out, guidance)
        return
    from underpaint.artifacts.files import check_folder_writable
    from underpaint.export.checkpoint import Request, export_checkpoint
    from underpaint.models.published.load import find
    from underpaint.models.published.options import LoadOptions

    with bad_input():
        if given is None or len(given) != 1:
            named = " ".join(given or ()) or "none"
            raise ValueError(f"--kind exports one checkpoint: expected its file, folder or hub name, got {named}")
        if out is None:
            raise ValueError("--kind needs --out, a folder for the models")
        own_options = {"--runs": runs is not None, "--guidance": guidance is not None}
        for option in (name for name, is_set in own_options.items() if is_set):
            raise ValueError(f"{option} works only with this project's own checkpoints; leave out {option}, or --kind")
        _refuse_options_of_others(context, kind, target_kind)
        options = LoadOptions(heads, *_read_grid(grid), prefix, first_code, layout, uncond_keep)
        check_folder_writable(out)
        if (target is None) != (target_kind is None):
            raise ValueError("expected both --target and --target-kind, got one; add the other, or leave both out")
        pair = None if target is None or target_kind is None else (target_kind, find(target))
        arguments = (kind, find(given[0]), precision, options, pair, options, neighbours, eight_bits)
        written = export_checkpoint(Request(*arguments), out)
    for manifest in written:
        _tell(manifest)
    typer.echo(f"{out}: check with `underpaint check {out}`, build with `underpaint engine {out}`")


def _export_trained(names: tuple[str, ...], runs: Path | None, out: Path | None, guidance: float | None) -> None:
    from underpaint.artifacts.files import check_folder_writable
    from underpaint.export.trained_models import export_all

    folder = out or OUT
    with bad_input(), stages() as report_stage:
        check_folder_writable(folder)
        written = export_all(runs or RUNS, folder, names, report_stage, guidance)
    for manifest in written:
        _tell(manifest)
    files = {manifest.weights.file: manifest.weights.bytes for manifest in written if manifest.weights}
    total = sum(manifest.bytes for manifest in written) + sum(files.values())
    typer.echo(f"in all {total / 2**20:.2f} MiB in {folder}")


def _refuse_options_of_kind(context: typer.Context) -> None:
    """Raise ValueError if an option of published checkpoints was given without --kind."""
    published = [one.name for one in context.command.params if getattr(one, "rich_help_panel", None) == _PUBLISHED]
    refuse_given(context, published, "needs --kind, the kind of the checkpoint; add it")


def _refuse_options_of_others(context: typer.Context, kind: str, target_kind: str | None) -> None:
    """Raise ValueError if an option was given that `kind`, or a drafter's target of `target_kind`, does not take."""
    from underpaint.export.samplers import KIND as SAMPLER
    from underpaint.models.published.families import FAMILIES

    by_kind = {spec.name: spec.options for spec in FAMILIES} | {SAMPLER: ()}
    if kind not in by_kind:
        return  # loading says which kinds there are
    own = by_kind[kind]
    takes = ("precision", *own, *(by_kind.get(target_kind or "", ()) if "target_kind" in own else ()))
    others = {name for names in by_kind.values() for name in names} - set(takes)
    options = ", ".join(f"--{name.replace('_', '-')}" for name in dict.fromkeys(takes))
    refuse_given(context, others, f"does not go with --kind {kind}, which takes {options}; leave it out")


def _tell(manifest: "Manifest") -> None:
    worst = max(manifest.parity.values(), default=0.0)
    typer.echo(f"{manifest.file}: {manifest.bytes / 2**20:.2f} MiB, largest difference from torch {worst:.2g}")


def _read_grid(text: str | None) -> tuple[int | None, int | None]:
    """Return the number of rows, and that of columns if it differs."""
    if text is None:
        return None, None
    parts = text.split("x")
    try:
        rows, columns = [whole_number(part, LEAST_SIDE) for part in (parts if len(parts) == 2 else parts * 2)]
    except ValueError as error:
        raise ValueError(
            f"--grid: expected cells along a side, {LEAST_SIDE} or more, or rows x columns as 48x64, in digits 0 to 9, "
            f"got {text!r}"
        ) from error
    _check_mask(rows * columns)
    return rows, None if rows == columns else columns


def _check_mask(cells: int) -> None:
    """Raise ValueError if memory cannot hold the masks, float32 [cells, cells], of a comparison with torch."""
    free = free_bytes()
    if _MASKS * 4 * cells**2 > free:
        most = isqrt(isqrt(free // (_MASKS * 4)))
        raise ValueError(
            f"--grid: expected at most {most}x{most}, got {cells:,} cells; the comparison with PyTorch needs more than "
            f"the free memory, {free / 2**30:.0f} GiB"
        )


@grouped
def check(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A folder that `underpaint export --kind` wrote; with --invariance the shipped models by default."
        ),
    ] = None,
    greedy: Annotated[
        bool, typer.Option(help="Also draw a picture greedily, and report where its tokens first differ.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0, max=MOST_SEED)] = 0,
    invariance: Annotated[
        bool,
        typer.Option(
            "--invariance",
            help="Compare passes over many positions and rows with passes over one instead, in any folder of models "
            "or a live model.",
        ),
    ] = False,
    model: Annotated[
        list[str] | None, typer.Option(help="With --invariance: check only this decoder; repeat for more.")
    ] = None,
    live: LiveOptions = _NO_LIVE,
    backend: Backend = "cpu",
    json_file: JsonFile = None,
    form: FormatOption = Format.table,
) -> None:
    """Compare exported decoders, tokenizer and samplers with PyTorch, on random and adversarial inputs.

    Each available provider of ONNX Runtime runs them, and its result is one line.

    With --invariance, measure how much a token's distribution depends on the size of its pass. This needs no PyTorch.
    """
    if invariance:
        check_passes(folder, live, tuple(model or ()), backend, seed, json_file, form)
        return
    with bad_input():
        live.check(folder, None, None, backend)
        if live.live is not None:
            raise ValueError(
                "--live needs --invariance, because there is no export to compare with; add it, or leave --live out"
            )
        if folder is None:
            raise ValueError("expected the folder of exported models; the shipped ones are compared with --invariance")
        if model or json_file is not None or backend != "cpu" or form is not Format.table:
            raise ValueError("--model, --backend, --json and --format need --invariance; add it, or leave them out")
    from underpaint.export.verify import verify, verify_providers

    with bad_input():
        results = tuple(verify(folder, greedy, seed))
    for result in results:
        for line in result.lines():
            typer.echo(line)
    passed = True
    for provided in verify_providers(folder, seed, results):
        typer.echo(provided.line())
        passed = passed and provided.passed
    if not passed:
        raise typer.Exit(1)
