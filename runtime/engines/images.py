"""The tokenizer and the judge on ONNX Runtime: codes to images, images to codes, and scores of what images show."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.origin import GENERATOR
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.zoo.load import FOLDER, Located, locate

Picture: TypeAlias = NDArray[np.uint8]
"""An sRGB image, [height, width, 3]."""


class ImageDecoder:
    """Decodes codes to images."""

    def __init__(self, name: str = "vq_decoder", folder: Path = FOLDER, settings: EngineContext | None = None) -> None:
        located = runnable(locate(name, "image_decoder", folder))
        self.vocab_size = located.size("vocab_size")
        self._session: Any = open_session(located.path, settings)

    def __call__(self, codes: IntArray, grid: Grid) -> Picture:
        """Return the image [H, W, 3] of codes [cells] in raster order; raise EngineError on invalid codes."""
        codes = np.asarray(codes, dtype=np.int64)
        if codes.shape != (grid.cells,) or codes.min() < 0 or codes.max() >= self.vocab_size:
            raise EngineError(
                f"image: expected [{grid.cells}] codes from 0 to {self.vocab_size - 1}, got shape {codes.shape} "
                f"with codes from {codes.min(initial=0)} to {codes.max(initial=0)}"
            )
        pixels = self._session.run(None, {"codes": codes.reshape(1, grid.height, grid.width)})[0][0]
        return to_bytes(pixels)


class ImageEncoder:
    """Encodes images to codes."""

    def __init__(self, name: str = "vq_encoder", folder: Path = FOLDER, settings: EngineContext | None = None) -> None:
        located = runnable(locate(name, "image_encoder", folder))
        self.stride = located.size("stride")
        self._session: Any = open_session(located.path, settings)

    def __call__(self, picture: Picture) -> IntArray:
        """Return the codes [cells], in raster order, of an image [H, W, 3] whose sides are multiples of `stride`."""
        if picture.ndim != 3 or picture.shape[2] != 3 or any(side % self.stride for side in picture.shape[:2]):
            raise EngineError(
                f"image: expected [H, W, 3] with sides that {self.stride} divides, got {picture.shape}; resize it"
            )
        scores = self._session.run(None, {"pixels": to_unit(picture)[None]})[0]
        codes: IntArray = scores[0].argmax(axis=-1).ravel().astype(np.int64)
        return codes


def runnable(located: Located) -> Located:
    """Return `located`; raise EngineError on a bfloat16 graph, which ONNX Runtime cannot run on a CPU."""
    if located.manifest.settings.get("precision") == "bf16":
        raise EngineError(
            f"{located.path}: ONNX Runtime, which draws the pictures of every backend, runs no bfloat16 on the CPU; "
            "export the tokenizer again with --precision fp32 or fp16"
        )
    return located


def to_bytes(pixels: FloatArray) -> NDArray[np.uint8]:
    """Convert pixels [3, H, W] in [-1, 1] (clipped) to [H, W, 3] in 0 to 255."""
    scaled = np.clip(pixels.transpose(1, 2, 0) * 127.5 + 127.5, 0, 255)
    return np.ascontiguousarray(np.rint(scaled).astype(np.uint8))


def to_unit(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert pixels [H, W, 3] in 0 to 255 to [3, H, W] in [-1, 1]."""
    return np.ascontiguousarray(picture.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1)


def encoded(picture: Picture, form: Literal["PNG", "WEBP"] = "PNG") -> bytes:
    """Encode an image as a lossless file that names this program.

    A PNG names it in a text chunk `Software`, a WebP in a chunk that readers skip.

    Args:
        picture: The image [H, W, 3], 0 to 255.
        form: The file format.

    Returns:
        The content of the file.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    stream, texts = io.BytesIO(), PngInfo()
    texts.add_text("Software", GENERATOR)
    Image.fromarray(picture).save(stream, form, lossless=True, pnginfo=texts)
    content = stream.getvalue()
    if form == "PNG":
        return content
    name = GENERATOR.encode()
    chunk = name.ljust(len(name) + len(name) % 2, b" ")
    body = content[8:] + b"UPNT" + len(chunk).to_bytes(4, "little") + chunk
    return b"RIFF" + len(body).to_bytes(4, "little") + body


class Judged(NamedTuple):
    """The judge's output for a batch of images.

    Attributes:
        scores: Logits [B, classes] float32, by slot of the prompt grammar.
        features: [B, F] float32.
    """

    scores: dict[str, NDArray[np.float32]]
    features: NDArray[np.float32]


def _slots(located: Located, outputs: set[str]) -> tuple[str, ...]:
    """Return the slots of the prompt grammar that the graph scores; raise ManifestError if the manifest disagrees."""
    named = located.manifest.settings.get("slots")
    if not isinstance(named, list) or not all(isinstance(slot, str) for slot in named) or not outputs >= {*named}:
        raise ManifestError(
            f"{located.manifest.name}: its manifest's setting slots: expected outputs of its graph, got {named!r}; "
            "export the model again"
        )
    return tuple(named)


class OnnxJudge:
    """Scores images with the judge."""

    def __init__(self, name: str = "judge", folder: Path = FOLDER, settings: EngineContext | None = None) -> None:
        located = locate(name, "judge", folder)
        self.side = located.size("side")
        self._session: Any = open_session(located.path, settings)
        outputs = {each.name: each.shape[-1] for each in self._session.get_outputs()}
        self._slots = _slots(located, set(outputs))
        self.classes = {slot: outputs[slot] for slot in self._slots}
        """The number of scored classes of each slot."""

    def __call__(self, pictures: Sequence[NDArray[np.uint8]]) -> Judged:
        """Score square images [S, S, 3], S a multiple of `side`; larger images are reduced by area averages."""
        batch = np.stack([self._reduced(picture) for picture in pictures])
        *scores, features = self._session.run([*self._slots, "features"], {"pixels": batch})
        return Judged(dict(zip(self._slots, scores, strict=True)), features)

    def _reduced(self, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
        size = picture.shape[0]
        if picture.shape != (size, size, 3) or size % self.side or not size:
            raise EngineError(
                f"judge: expected [S, S, 3] with S a multiple of {self.side}, got {picture.shape}; resize the picture"
            )
        factor = size // self.side
        areas = to_unit(picture).reshape(3, self.side, factor, self.side, factor)
        return np.ascontiguousarray(areas.mean(axis=(2, 4)))
