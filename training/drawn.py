"""Sequences drawn by a target itself, stored as a memory map: the sequences that its drafter meets during decoding.

Medusa trains on the output of its own target (self-distillation, arXiv 2401.10774). EAGLE uses a fixed data set and is
not very sensitive to the choice (arXiv 2401.15077). Here `training.drafter` mixes the drawings into the encoded scenes.

For each target, a folder has `<fingerprint>.rows` int16 [scenes, prefix + cells], with each scene's word ids followed
by its codes (-1: not drawn yet), and a JSON file with the drawing settings. A changed target has another fingerprint,
so its drawings are never mixed with those of the old one. A stopped run continues to the same rows on the same device.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.artifacts.files import named
from underpaint.artifacts.lock import folder_lock
from underpaint.models.checkpoints import load_target
from underpaint.models.sample import sample
from underpaint.models.text import CaptionedTarget
from underpaint.training.grids import on_grid
from underpaint.training.interrupt import stop_on_interrupt
from underpaint.training.tokens import TokenSet, check_source

CHUNK: Final = 64
"""Number of rows that are drawn and written together."""


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """Draw settings: `greedy_share` of a chunk at temperature 0, the rest at `temperature` with `top_k`."""

    greedy_share: float = 0.5
    temperature: float = 1.0
    top_k: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.greedy_share <= 1 or self.temperature <= 0 or self.top_k < 0 or self.seed < 0:
            raise ValueError(
                "drawings: expected 0 <= greedy_share <= 1, temperature > 0, top_k >= 0 (0 keeps every token) "
                f"and seed >= 0, got {self}"
            )

    def greedy(self) -> NDArray[np.bool_]:
        """Which rows of a chunk are drawn at temperature 0: bool [CHUNK], evenly spaced."""
        rises: NDArray[np.float64] = np.diff(np.floor(np.arange(CHUNK + 1) * self.greedy_share))
        return np.greater(rises, 0)


class DrawnRows(NamedTuple):
    """The result of a run: number of drawn rows, and number of requested rows."""

    rows: int
    total: int


def fingerprint(target: CaptionedTarget) -> str:
    """Return a hash of everything that determines a target's drawings: its sizes and its weights."""
    digest = hashlib.sha256(repr(target.decoder.config).encode())
    for name, value in target.state_dict().items():
        digest.update(name.encode())
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _open(folder: Path, name: str, width: int, settings: DrawSettings, words: NDArray[np.int64]) -> NDArray[np.int16]:
    """Open the rows on disk: at least as many as `words`, with the words filled in."""
    folder.mkdir(parents=True, exist_ok=True)
    about, path = folder / f"{name}.json", folder / f"{name}.rows"
    described = {"target": name, "chunk": CHUNK, **asdict(settings)}
    check_source(about, described, "how the rows beside it were drawn", "Delete both, or choose another folder.")
    path.touch()
    cached_rows = path.stat().st_size // (2 * width)
    if cached_rows < len(words):
        fresh = np.full((len(words) - cached_rows, width), -1, np.int16)
        fresh[:, : words.shape[1]] = words[cached_rows:]
        with named(path), path.open("r+b") as file:
            file.seek(2 * width * cached_rows)  # overwrites an incomplete last row
            file.write(fresh.tobytes())
    rows: NDArray[np.int16] = np.memmap(path, np.int16, "r+", shape=(max(cached_rows, len(words)), width))
    if not np.array_equal(rows[: len(words), : words.shape[1]], words):
        raise ValueError(f"{path} was drawn from other captions. Delete it, or choose another folder.")
    return rows


def _draw_chunk(
    target: CaptionedTarget, word_ids: NDArray[np.int64], settings: DrawSettings, chunk: int
) -> NDArray[np.int16]:
    """Codes int16 [CHUNK, cells] of chunk number `chunk`."""
    codes = np.empty((CHUNK, target.decoder.config.cells), np.int16)
    greedy = settings.greedy()
    for rows, temperature in ((greedy, 0.0), (~greedy, settings.temperature)):
        if rows.any():
            words = torch.from_numpy(word_ids[rows]).to(target.decoder.head.weight.device)
            seed = int(np.random.default_rng([settings.seed, chunk]).integers(2**62))
            samples = sample(target, words, guidance=1, temperature=temperature, top_k=settings.top_k, seed=seed)
            codes[rows] = samples.cpu().numpy()
    return codes


def draw_scenes(
    folder: Path,
    target: Path,
    captions: Callable[[range], NDArray[np.int64]],
    scenes: int,
    *,
    grid_side: int | None = None,
    settings: DrawSettings | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] = lambda rows, total: None,
) -> DrawnRows:
    """Draw scenes 0 to `scenes` - 1 that the cache lacks, with one row per caption and no guidance.

    SIGINT finishes the current chunk and returns.

    Args:
        folder: Folder of the cache; created if missing.
        target: Checkpoint of the target, with guidance baked in.
        captions: Returns word ids int64 [N, prefix] for scene numbers.
        scenes: Number of scenes, rounded up to whole chunks.
        grid_side: Side in cells, for a target of several grids; default is the largest. Each grid has its own rows.
        settings: Temperatures and seed.
        device: "cpu" or "cuda".
        progress: Callback with the numbers of drawn and requested rows, at the start and after every chunk.

    Raises:
        ValueError: The cache was drawn with other settings or captions.
    """
    settings = settings or DrawSettings()
    model = load_target(target)
    model = model if grid_side is None else on_grid(model, grid_side)
    name = fingerprint(model)
    model.to(device)
    chunks = -(-scenes // CHUNK)
    word_ids = captions(range(chunks * CHUNK))
    rows = _open(folder, name, model.decoder.config.prefix + model.decoder.config.cells, settings, word_ids)
    places = [slice(chunk * CHUNK, (chunk + 1) * CHUNK) for chunk in range(chunks)]
    todo = [chunk for chunk in range(chunks) if (rows[places[chunk]] < 0).any()]
    drawn_count = (chunks - len(todo)) * CHUNK
    progress(drawn_count, len(word_ids))
    with folder_lock(folder), stop_on_interrupt() as stop_event:
        for chunk in todo:
            here = places[chunk]
            rows[here, word_ids.shape[1] :] = _draw_chunk(model, word_ids[here], settings, chunk)
            drawn_count += CHUNK
            progress(drawn_count, len(word_ids))
            if stop_event.is_set():
                break
    return DrawnRows(drawn_count, len(word_ids))


def load_drawn(folder: Path, target: CaptionedTarget) -> TokenSet:
    """Load the rows of `folder` that this target drew; scenes that are not drawn yet are skipped.

    Raises:
        FileNotFoundError: The folder has no rows of this target.
    """
    name, width = fingerprint(target), target.decoder.config.prefix + target.decoder.config.cells
    path = folder / f"{name}.rows"
    if not path.exists():
        others = ", ".join(sorted(other.stem for other in folder.glob("*.rows"))) or "nothing"
        raise FileNotFoundError(
            f"{folder} holds no drawings of target {name} (it holds {others}); "
            "`underpaint train world` draws them, from the target that the drafter is for"
        )
    cached_rows = path.stat().st_size // (2 * width)
    rows = np.fromfile(path, np.int16, cached_rows * width).reshape(cached_rows, width)
    finished_rows = rows[(rows >= 0).all(axis=1)]
    if not len(finished_rows):
        raise FileNotFoundError(f"{path} has no finished row; `underpaint train world` goes on with it")
    prefix = target.decoder.config.prefix
    return TokenSet(finished_rows[:, prefix:], finished_rows[:, :prefix].astype(np.int64))
