"""Inputs of the sampler recipes: pictures at two resolutions, as codes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from underpaint.artifacts.files import check_folder_writable
from underpaint.cli.terminal import Advance, note, progress
from underpaint.cli.train.options import Pair, Scenes
from underpaint.cli.train.stages import stages
from underpaint.models.checkpoints import vq_config
from underpaint.training.data.textured_scenes import Split
from underpaint.training.pictures import FolderPictures, Pictures, TexturedPictures
from underpaint.training.sampler import PairedCodes, PairedScenes, settings_for
from underpaint.training.tokens import encode_pictures


def encoded_pairs(scenes: Scenes, pair: Pair, device: str) -> PairedScenes:
    """Return training and validation codes at both resolutions, with the tokenizer, the pictures and both grids."""
    pair.check()
    sides = pair.low, pair.high
    grids = pair.grids(vq_config(scenes.tokenizer_from).stride)
    settings = settings_for(pair.high, grids.high.cells)
    own = None if pair.pictures_from is None else FolderPictures(pair.pictures_from)
    _tell(scenes, f"{sides[0]} and {sides[1]} px")
    with stages() as told:
        pictures: Pictures = TexturedPictures(report=told) if own is None else own
    source = TexturedPictures.source if own is None else own.source

    def pairs(split: Split, wanted: int) -> PairedCodes:
        count = wanted if own is None else min(wanted, own.count(split))

        def codes(side: int) -> NDArray[np.int16]:
            with _encoding(side) as told:
                where = (scenes.tokens, scenes.tokenizer_from, pictures)
                return encode_pictures(*where, side, count, split, source, device, told)

        return PairedCodes(*(codes(side) for side in sides))

    data, validation = pairs("train", settings.scenes), pairs("seen", settings.validation_scenes)
    return PairedScenes(data, validation, scenes.tokenizer_from, pictures, grids)


def _tell(scenes: Scenes, sizes: str) -> None:
    check_folder_writable(scenes.tokens)
    note(f"codes at {sizes} in {scenes.tokens} (encoded on first use)")


@contextmanager
def _encoding(side: int) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of encoding; nothing is shown if the codes exist already."""
    with ExitStack() as opened:
        shown: list[Advance] = []

        def told(done: int, total: int) -> None:
            if not shown:
                shown.append(opened.enter_context(progress(f"encoding pictures of {side} px", total)))
            shown[0](done)

        yield told
