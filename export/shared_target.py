"""Export one target of several grids: a graph of each grid, and one file of weights that all of them point into."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoder_parity import compare
from underpaint.export.decoders import MOST_EIGHT_BITS, GraphFormat, compared, shape_of, write_graphs
from underpaint.export.parity import MOST
from underpaint.export.store import Origin, draft_manifest, finish, require_parity
from underpaint.export.weight_file import SUFFIX
from underpaint.models.decoder import Decoder
from underpaint.models.text import CaptionedTarget, with_condition_table
from underpaint.models.train.shared_target import on_grid
from underpaint.models.weights import round_to_stored

FILE: Final = f"target{SUFFIX}"
"""The weights of every grid's target."""


def round_shared_target(target: CaptionedTarget) -> None:
    """Round a target, in place, to what its file holds: matrices of 8 bits with a scale a row, all else of 16.

    The same numbers as the repository's weights (`models.weights`); ValueError where 16 bits do not hold one.
    """
    round_to_stored(target)


def export_shared_target(
    target: CaptionedTarget,
    side_words: Mapping[int, int],
    stride: int,
    folder: Path,
    origin: Origin,
    eight_bits: bool = False,
) -> tuple[Manifest, ...]:
    """Write `target<side>` for each side into `folder`, all of them on the weights in `FILE`.

    target: its weights are rounded in place. side_words: by the side of pictures in pixels, the id of the word that
    ends every prompt for such pictures; a graph's manifest names it, so that one prompt serves all sides. stride:
    pixels a code, a side. eight_bits: products are taken in 8 bits; then each graph must be as near to the rounded
    target as a drafter's is, and the same graph exact in float32. Raises ParityError on a graph that does not compute
    what the rounded target does.
    """
    round_shared_target(target)
    decoders = {
        folder / f"target{side}.onnx": with_condition_table(on_grid(target, side // stride), (word,))
        for side, word in side_words.items()
    }
    form = GraphFormat(eight_bits=True) if eight_bits else GraphFormat(stored="fp16", scaled=True)
    write_graphs(decoders, form, folder / FILE)
    return tuple(_finished(path, decoder.float(), form, origin) for path, decoder in decoders.items())


def _finished(path: Path, decoder: Decoder, form: GraphFormat, origin: Origin) -> Manifest:
    if form.eight_bits:
        compared(path.stem, decoder, None, GraphFormat())
    differences = compare(path, form.precision, decoder, None, greedy=False).worst()
    require_parity(path.stem, differences, MOST_EIGHT_BITS if form.eight_bits else MOST[form.precision])
    draft = draft_manifest(path.stem, "target", origin, asdict(shape_of(decoder, form.precision)))
    return finish(draft, path, differences, shared=path.parent / FILE, matrices="scaled_rows" if form.scaled else None)
