"""`underpaint export CHECKPOINT --kind ...` and `underpaint check DIR`: published models in, compared graphs out."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.invariance import check_passes
from underpaint.cli.options import Backend
from underpaint.cli.root import HELP_NAMES
from underpaint.cli.terminal import Format, FormatOption, JsonFile

app = typer.Typer(context_settings=HELP_NAMES, help="Export a published checkpoint to ONNX.", add_completion=False)
check_app = typer.Typer(context_settings=HELP_NAMES, help="Compare exported models with torch.", add_completion=False)
caption_app = typer.Typer(context_settings=HELP_NAMES, help="Write the features of a caption.", add_completion=False)

Heads = Annotated[
    int | None,
    typer.Option(
        help="Attention heads, where the width is none of the published (llamagen-*, tar-dtok, drafters).", min=1
    ),
]
Grid = Annotated[
    str | None,
    typer.Option(
        help="Cells along a side: pixels / 16 (every target, and its drafter); rows x columns, as 48x64 (lumina)."
    ),
]
Prefix = Annotated[
    int | None,
    typer.Option(
        help="Condition positions (tar-dtok: 729, 169, 81), or the longest prompt (tar-lm, chameleon).", min=1
    ),
]
FirstCode = Annotated[int | None, typer.Option(help="Vocabulary id of code 0 (tar-lm).", min=0)]
PictureLayout = Annotated[
    Literal["anole", "lumina"],
    typer.Option("--layout", help="What stands among the codes of a picture (chameleon): anole or lumina."),
]
UncondKeep = Annotated[
    tuple[int, int] | None,
    typer.Option(help="Ids at a prompt's beginning and end that stay where it is left out (tar-lm; chameleon: 1 1)."),
]
LEAST_SIDE = 4
"""A comparison with torch draws a tree of 11 nodes."""
_KINDS = "llamagen-c2i, llamagen-t2i, tar-dtok, tar-lm, chameleon, eagle-drafter, vq, chameleon-vq or sampler"


@app.command()
def export(
    checkpoint: Annotated[str, typer.Argument(help="File or folder, or a hub name: owner/model, owner/model/file.")],
    kind: Annotated[str, typer.Option(help=f"What it is: {_KINDS}.")],
    out: Annotated[Path, typer.Option(help="Folder of models; one folder holds a target, its drafter, its tokenizer.")],
    precision: Annotated[
        Literal["fp32", "fp16", "bf16"], typer.Option(help="fp32, fp16 or bf16: of weights, caches and hidden states.")
    ] = "fp32",
    target: Annotated[
        str | None, typer.Option(help="The checkpoint that a drafter was trained for (eagle-drafter).")
    ] = None,
    target_kind: Annotated[str | None, typer.Option(help="Its kind.")] = None,
    top_k: Annotated[
        int, typer.Option(help="Tokens that the exported top-k sampler keeps (every target).", min=0)
    ] = 1000,
    neighbours: Annotated[
        int, typer.Option(help="Nearest codes kept of each, for LANTERN (vq, chameleon*).", min=1)
    ] = 1000,
    heads: Heads = None,
    grid: Grid = None,
    prefix: Prefix = None,
    first_code: FirstCode = None,
    layout: PictureLayout = "anole",
    uncond_keep: UncondKeep = None,
    eight_bits: Annotated[
        bool, typer.Option("--eight-bits", help="Multiply in 8 bits: quicker on a CPU, a little less alike (drafters).")
    ] = False,
) -> None:
    """Load, write the graphs, compare them with torch, and only then put them in place."""
    from underpaint.export.checkpoint import Request, export_checkpoint
    from underpaint.models.published.load import find
    from underpaint.models.published.options import LoadOptions
    from underpaint.runtime.files import check_folder_writable

    with bad_input():
        options = LoadOptions(heads, *_read_grid(grid), prefix, first_code, layout, uncond_keep)
        check_folder_writable(out)
        if (target is None) != (target_kind is None):
            raise ValueError("--target and --target-kind belong together")
        pair = None if target is None or target_kind is None else (target_kind, find(target))
        given = (kind, find(checkpoint), precision, options, pair, options, top_k, neighbours, eight_bits)
        request = Request(*given)
        written = export_checkpoint(request, out)
    for found in written:
        worst = max(found.parity.values(), default=0.0)
        typer.echo(f"{found.file}: {found.bytes / 2**20:.1f} MiB, largest difference from torch {worst:.2g}")
    typer.echo(f"{out}: check with `underpaint check {out}`, build with `underpaint engine {out}`")


def _read_grid(text: str | None) -> tuple[int | None, int | None]:
    """Rows, and columns where they are another number."""
    if text is None:
        return None, None
    parts = text.split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) >= LEAST_SIDE for part in parts):
        raise ValueError(
            f"--grid: expected cells along a side, {LEAST_SIDE} or more, or rows x columns as 48x64, got {text!r}"
        )
    rows, columns = int(parts[0]), int(parts[-1])
    return rows, None if rows == columns else columns


@check_app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A folder that `underpaint export --kind` wrote.")],
    greedy: Annotated[bool, typer.Option(help="Also draw a picture greedily and report where it parts.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.", min=0)] = 0,
    invariance: Annotated[
        bool,
        typer.Option(
            "--invariance",
            help="Instead compare passes over many positions and rows with passes over one, in any folder of models.",
        ),
    ] = False,
    model: Annotated[
        list[str] | None, typer.Option(help="With --invariance: this decoder only; repeat for more.")
    ] = None,
    backend: Backend = "cpu",
    json_file: JsonFile = None,
    form: FormatOption = Format.table,
) -> None:
    """Compare the decoders, the tokenizer and the samplers of a folder with torch, on random and adversarial inputs.

    With --invariance nothing but the engine is needed: does a token's distribution depend on the size of its pass?
    """
    if invariance:
        check_passes(folder, tuple(model or ()), backend, seed, json_file, form)
        return
    with bad_input():
        if model or json_file is not None or backend != "cpu" or form is not Format.table:
            raise ValueError("--model, --backend, --json and --format go with --invariance; add it, or leave them out")
    from underpaint.export.verify import verify

    with bad_input():
        results = list(verify(folder, greedy, seed))
    failed = False
    for result in results:
        for line in result.lines():
            typer.echo(line)
        failed = failed or not result.passed
    if failed:
        raise typer.Exit(1)


@caption_app.command()
def caption(
    encoder: Annotated[Path, typer.Argument(help="Folder of the text encoder: FLAN-T5's weights and tokenizer.")],
    text: Annotated[str, typer.Argument(help="The caption.")],
    out: Annotated[Path, typer.Option(help="The .npy file to write.")],
) -> None:
    """Write a caption's features, which `underpaint compare --engines` draws by, to a file."""
    import io

    import numpy as np

    from underpaint.artifacts.manifest import write_beside
    from underpaint.models.published.captions import caption_features
    from underpaint.runtime.files import check_file_writable

    with bad_input():
        if out.suffix != ".npy":
            raise ValueError(f"--out: expected a file that ends in .npy, got {out}")
        check_file_writable(out)
        features = caption_features(encoder, text)
        stream = io.BytesIO()
        np.save(stream, features)
        write_beside(out, stream.getvalue())
    typer.echo(f"{out}: features {list(features.shape)}")
