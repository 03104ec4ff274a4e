"""Export one target, or one drafter, of several grids: a graph of each, and one file of weights for all of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoder_weights import round_to_half
from underpaint.export.decoders import GraphFormat, export_decoders
from underpaint.export.store import Origin
from underpaint.export.weight_file import SUFFIX
from underpaint.models.decoder import Decoder
from underpaint.models.text import CaptionedTarget, with_condition_table
from underpaint.models.weights import round_to_stored
from underpaint.training.grids import decoder_on_grid, on_grid


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
    """Write `target<side>` for each side into `folder`, and `target<side>_int8` for each that a larger one follows.

    All of them stand on the weights in `target.safetensors`. Those of int8 draft for larger sides (MuLo-SD): their
    products are in 8 bits, of the same numbers, as what they draw is verified anyway. With `eight_bits` every target's
    are, and none is written beside it.

    target: its weights are rounded in place. side_words: by the side of pictures in pixels, the id of the word that
    ends every prompt for such pictures; a graph's manifest names it, so that one prompt serves all sides. stride:
    pixels a code, a side. eight_bits: products are taken in 8 bits; then each graph must be as near to the rounded
    target as a drafter's is, and the same graph exact in float32. Raises ParityError on a graph that does not compute
    what the rounded target does.
    """
    round_shared_target(target)
    decoders = {
        f"target{side}": with_condition_table(on_grid(target, side // stride), (word,))
        for side, word in side_words.items()
    }
    followed = [] if eight_bits else [side for side in side_words if side < max(side_words)]
    drafting = {f"target{side}_int8": decoders[f"target{side}"] for side in followed}
    form = GraphFormat(eight_bits=True) if eight_bits else GraphFormat(stored="fp16", scaled=True)
    file = folder / f"target{SUFFIX}"
    return export_decoders({**decoders, **drafting}, None, form, file, origin, drafting=drafting.keys())


def export_shared_drafter(
    drafter: Decoder, sides: Sequence[int], stride: int, folder: Path, origin: Origin, eight_bits: bool = True
) -> tuple[Manifest, ...]:
    """Write `drafter<side>` for each side into `folder`, all of them on the weights in `drafter.safetensors`.

    drafter: its codes and head are those of a rounded target, and stay as they are; its own weights are rounded to 16
    bits in place. stride: pixels a code, a side. eight_bits: products are taken in 8 bits; without, the files' names
    end in `_float`. Raises ParityError on a graph that does not compute what the rounded drafter does.
    """
    _round_own_to_half(drafter)
    ending = "" if eight_bits else "_float"
    decoders = {f"drafter{side}{ending}": decoder_on_grid(drafter, side // stride) for side in sides}
    form = GraphFormat(stored="fp16", eight_bits=eight_bits, scaled=True)
    return export_decoders(decoders, None, form, folder / f"drafter{ending}{SUFFIX}", origin)


def _round_own_to_half(drafter: Decoder) -> None:
    """Round, in place, what a drafter does not share with its target: all but its codes and head."""
    shared = (drafter.codes.weight, drafter.head.weight)
    before = [part.detach().clone() for part in shared]
    round_to_half(drafter)
    for part, held in zip(shared, before, strict=True):
        part.data.copy_(held)
