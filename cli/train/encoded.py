"""What the recipes of `underpaint train` read before they start: encoded scenes, and the target of a drafter."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from underpaint.cli.terminal import Advance, note, progress
from underpaint.cli.train.options import Pair, Scenes
from underpaint.cli.train.stages import stages
from underpaint.models.checkpoints import read, vq_config
from underpaint.models.data.scenes import Split
from underpaint.models.decoder_config import DecoderConfig
from underpaint.models.train.pictures import SCENE_SEED, EmojiPictures, FolderPictures, Pictures
from underpaint.models.train.sampler import PairedCodes, PairedScenes, settings_for
from underpaint.models.train.start import widths
from underpaint.models.train.target import SETTINGS, STRIDE
from underpaint.models.train.tokens import TokenSet, encode_pictures, encode_scenes
from underpaint.runtime.files import check_folder_writable


def encoded(scenes: Scenes, resolution: int, device: str) -> tuple[TokenSet, TokenSet]:
    """Training and validation codes at a resolution, encoded on `device`."""
    read(scenes.tokenizer_from, "tokenizer")
    _tell(scenes, f"{resolution} px")
    settings = SETTINGS[resolution]
    with stages() as told:
        pictures = EmojiPictures(report=told)
    wanted = (scenes.tokens, scenes.tokenizer_from, pictures)

    def codes(split: Split, count: int) -> TokenSet:
        with _encoding(resolution) as advance:
            return encode_scenes(
                *wanted, resolution=resolution, scenes=count, split=split, device=device, report=advance
            )

    return codes("train", settings.scenes), codes("seen", settings.validation_scenes)


def encoded_pairs(scenes: Scenes, pair: Pair, device: str) -> PairedScenes:
    """Training and validation codes at both resolutions, their tokenizer, the pictures, and the two grids."""
    pair.check()
    sides = pair.low, pair.high
    grids = pair.grids(vq_config(scenes.tokenizer_from).stride)
    settings = settings_for(pair.high, grids.high.cells)
    own = None if pair.pictures_from is None else FolderPictures(pair.pictures_from)
    _tell(scenes, f"{sides[0]} and {sides[1]} px")
    with stages() as told:
        pictures: Pictures = EmojiPictures(report=told) if own is None else own
    source = {"seed": SCENE_SEED} if own is None else own.source

    def pairs(split: Split, wanted: int) -> PairedCodes:
        count = wanted if own is None else min(wanted, own.count(split))

        def codes(side: int) -> NDArray[np.int16]:
            with _encoding(side) as told:
                where = (scenes.tokens, scenes.tokenizer_from, pictures)
                return encode_pictures(*where, side, count, split, source, device, told)

        return PairedCodes(*(codes(side) for side in sides))

    data, validation = pairs("train", settings.scenes), pairs("seen", settings.validation_scenes)
    return PairedScenes(data, validation, scenes.tokenizer_from, pictures, grids)


def trained_target(path: Path, resolution: int) -> DecoderConfig:
    """The widths of the target at `path`; OSError or ValueError, before any work, unless it draws `resolution`."""
    config = widths(path, read(path, "target"), DecoderConfig)
    if config.grid_side * STRIDE != resolution:
        side = config.grid_side * STRIDE
        raise ValueError(f"{path} draws {side} px; wanted {resolution}: say --resolution {side}, or another --target")
    return config


def _tell(scenes: Scenes, sizes: str) -> None:
    check_folder_writable(scenes.tokens)
    note(f"codes at {sizes} in {scenes.tokens} (encoded on first use)")


@contextmanager
def _encoding(side: int) -> Iterator[Callable[[int, int], None]]:
    """Progress of encoding; nothing is shown where the codes are there."""
    with ExitStack() as opened:
        shown: list[Advance] = []

        def told(done: int, total: int) -> None:
            if not shown:
                shown.append(opened.enter_context(progress(f"encoding pictures of {side} px", total)))
            shown[0](done)

        yield told
