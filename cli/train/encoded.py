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
    folder_pictures = None
    if pair.pictures_from is not None:
        folder_pictures = FolderPictures(pair.pictures_from, settings.scenes, settings.validation_scenes)
    _tell(scenes, f"{sides[0]} and {sides[1]} px")
    if folder_pictures is not None:
        used = folder_pictures.count("train") + folder_pictures.count("seen")
        note(f"{used:,} of {folder_pictures.found:,} pictures used")
    with stages() as report_stage:
        pictures: Pictures = TexturedPictures(report=report_stage) if folder_pictures is None else folder_pictures
    source = TexturedPictures.source if folder_pictures is None else folder_pictures.source

    def pairs(split: Split, limit: int) -> PairedCodes:
        count = limit if folder_pictures is None else folder_pictures.count(split)

        def codes(side: int) -> NDArray[np.int16]:
            with _encoding(side) as advance:
                where = (scenes.tokens, scenes.tokenizer_from, pictures)
                return encode_pictures(*where, side, count, split, source, device, advance)

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
        bars: list[Advance] = []

        def report(done: int, total: int) -> None:
            if not bars:
                bars.append(opened.enter_context(progress(f"encoding pictures of {side} px", total)))
            bars[0](done)

        yield report
