"""Targets and drafters of one grid, each with a file of weights of its own."""

from pathlib import Path

from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoder_weights import round_to_half
from underpaint.export.decoders import SCRATCH, GraphFormat, export_decoder
from underpaint.export.store import Origin
from underpaint.models.decoder import Decoder
from underpaint.models.text import CaptionedTarget, with_condition_table


def export_captioned_target(name: str, target: CaptionedTarget, folder: Path, origin: Origin) -> Manifest:
    """Write a target that is conditioned on words; its weights are rounded to float16 in place."""
    round_to_half(target)
    return export_decoder(name, with_condition_table(target), None, GraphFormat(stored="fp16"), folder, origin)


def export_trained_drafter(
    name: str, drafter: Decoder, folder: Path, origin: Origin, scratch: int = SCRATCH, eight_bits: bool = False
) -> Manifest:
    """Write a drafter of such a target; its weights are rounded to float16 in place."""
    round_to_half(drafter)
    form = GraphFormat(stored="fp16", eight_bits=eight_bits)
    return export_decoder(name, drafter, None, form, folder, origin, scratch)
