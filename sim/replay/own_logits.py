"""Traces of any model, from arrays that its owner wrote: drawn tokens, and the logits of target and drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.memory import check_memory
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.artifacts.arrays import ArrayFile, ArrayForm
from underpaint.sim.replay.trace import MOST_CODES_NEAR, Recorder, Trace

_ROUNDING: Final = 1e-3
"""By how much a row of probabilities, which may be in half precision, may miss a sum of 1."""
_MOST_CODES: Final = 1 << 24
_FILTERED: Final = 1e6
"""How far below a row's largest logit one lies that was filtered out: no temperature leaves it a probability."""
_LEAST: Final = 1e-12
"""What a probability of 0 counts as."""
_GAP: Final = 0.3
"""Nats by which tokens may be less likely than their rows say, in the mean."""
_DEVIATIONS: Final = 6.0
_PAIRS: Final = ("logits", "probs")


def trace_of_own(paths: Sequence[Path], sampling: SamplingParams, grid: Grid | None, keep: int) -> Trace:
    """Read files of one model into a trace.

    Each file is an .npz with images I, cells C in raster order, codes V, and depths D of a drafter:

    - `tokens` [I, C], integers from 0 to V - 1: the drawn images.
    - `target_logits` [I, C, V] or `target_probs`: what each cell's token was drawn from, guidance applied.
    - `draft_logits` [I, D, C, V] or `draft_probs`, optional: row d is what the drafter says of a cell when it stands d
      tokens past the root. Cells up to d have no such draft; their rows are not read.
    - `codebook` [V, E], optional: for rules that pool over nearest codes. The first file's counts.
    - `grid` [2], optional: rows and columns; `grid` of this function does as well.

    Args:
        paths: One file or more, images one after the other.
        sampling: Applied to logits, to target and drafter alike; probabilities are taken as they are. Its guidance is
            not used.
        grid: Rows and columns of the image; None takes the files' own.
        keep: Likeliest tokens kept of each distribution, >= 1.

    Returns:
        A trace. It has no drafter (D is 0) and no codebook (E is 0) where the files have none.

    Raises:
        ValueError: A file misses an array, has one of another shape or with NaN, rows that do not sum to 1, or sizes
            other than the first file's. OSError: a file cannot be read.
    """
    recorder: Recorder | None = None
    sizes: tuple[int, ...] = ()
    for path in paths:
        try:
            with ArrayFile(path) as arrays:
                file = _OwnFile(arrays, grid, sampling)
                if recorder is None:
                    sizes, recorder = file.sizes, file.recorder(keep)
                elif file.sizes != sizes:
                    raise ValueError(
                        "expected the sizes of the first file, "
                        f"{_described(sizes)}, got {_described(file.sizes)}; give the files of one model"
                    )
                for tokens, target, drafted in file.images():
                    recorder.add_distributions(Grid(*sizes[:2]), tokens, target, drafted)
        except ValueError as error:
            raise ValueError(f"--from {path}: {error}") from error
    if recorder is None:
        raise ValueError("--from: expected at least one .npz file, got none")
    return recorder.trace({"model": {"target": paths[0].stem}})


def misplaced(trace: Trace) -> str | None:
    """What tells that tokens were not drawn from their rows; None where nothing does.

    A token drawn from its row has a log probability of minus the row's entropy in the mean. Tokens of other rows, or
    drawn at other sampling settings, have less.
    """
    probs = trace.target_probs
    named = trace.target_tokens == trace.tokens[..., None]
    others = max(trace.vocab_size - probs.shape[-1], 1)
    even = np.maximum(1.0 - probs.sum(axis=-1), 0.0) / others
    drawn = np.where(named.any(axis=-1), (probs * named).sum(axis=-1), even)
    logs, log_even = np.log(np.maximum(probs, _LEAST)), np.log(np.maximum(even, _LEAST))
    gaps = np.log(np.maximum(drawn, _LEAST)) - (probs * logs).sum(axis=-1) - others * even * log_even
    mean = float(gaps.mean())
    if mean > -_GAP or mean * np.sqrt(gaps.size) > -_DEVIATIONS * float(gaps.std()):
        return None
    return (
        f"the drawn tokens are {-mean:.1f} nats less likely in the mean than their rows say; check that row c is the "
        "one that token c was drawn from, and that --temperature, --top-k and --top-p are those of your drawing"
    )


def _described(sizes: tuple[int, ...]) -> str:
    return "grid {}x{}, {} codes, {} draft depths".format(*sizes)


class _OwnFile:
    """One file, its shapes checked; distributions are made image by image."""

    def __init__(self, arrays: ArrayFile, grid: Grid | None, sampling: SamplingParams) -> None:
        self._sampling = sampling
        target_name = _one_of(arrays, "target")
        if target_name is None:
            raise ValueError("expected an array target_logits or target_probs, got neither")
        draft_name = _one_of(arrays, "draft")
        self.tokens = arrays.read("tokens", ArrayForm("whole", 2, 0, _MOST_CODES)).astype(np.int64)
        images, cells = self.tokens.shape
        # Rows are checked when they are read: only then is it known where a number is none, or which no draft reaches.
        self._target = arrays.read(target_name, _AnyForm("real", 3))
        if self._target.shape[:2] != (images, cells) or not self._target.size:
            raise ValueError(f"{target_name}: expected [{images}, {cells}, V] as tokens say, got {self._target.shape}")
        codes = self._target.shape[2]
        if int(self.tokens.max()) >= codes:
            raise ValueError(f"tokens: expected 0 to {codes - 1}, the codes of {target_name}, got {self.tokens.max()}")
        self._draft = np.zeros((images, 0, cells, codes))
        if draft_name is not None:
            self._draft = arrays.read(draft_name, _AnyForm("real", 4))
        shape = self._draft.shape
        if (*shape[:1], *shape[2:]) != (images, cells, codes) or shape[1] >= cells:
            raise ValueError(
                f"{draft_name}: expected [{images}, D, {cells}, {codes}] with D below {cells}, got {shape}"
            )
        self._target_name, self._draft_name = target_name, draft_name or ""
        own = arrays.read("grid", ArrayForm("whole", 1, 1, 1 << 12)).tolist() if "grid" in arrays else None
        rows = tuple(grid) if grid is not None else tuple(own or ())
        if len(rows) != 2 or rows[0] * rows[1] != cells:
            raise ValueError(
                f"expected a grid of {cells} cells, the second size of tokens, got {'x'.join(map(str, rows)) or 'none'}"
                "; pass --grid ROWSxCOLUMNS or add an array 'grid'"
            )
        self.sizes = (*rows, codes, shape[1])
        self._codebook = np.empty((codes, 0))
        if "codebook" in arrays:
            self._codebook = arrays.read("codebook", ArrayForm("real", 2)).astype(np.float64)
        if self._codebook.shape[0] != codes:
            raise ValueError(f"codebook: expected {codes} codes, those of {target_name}, got {self._codebook.shape[0]}")

    def recorder(self, keep: int) -> Recorder:
        """What takes in the images of this file and of others like it."""
        _, _, codes, depths = self.sizes
        check_memory("an image in work", "the drafter's depths", depths + 1, 3 * 8 * self.tokens.shape[1] * codes)
        near = np.empty((codes, 0), dtype=np.int64)
        if self._codebook.shape[1]:
            near = nearest_codes(self._codebook, min(MOST_CODES_NEAR, codes - 1))
        return Recorder(self._codebook, near, depths, keep)

    def images(self) -> Iterator[tuple[IntArray, FloatArray, FloatArray]]:
        """Tokens [C], and float64 distributions of the target [C, V] and the drafter [D, C, V], for each image."""
        for image, tokens in enumerate(self.tokens):
            target = self._distributions(self._target[image], self._target_name, f"image {image}")
            drafted = np.zeros((self.sizes[3], *target.shape))
            for depth in range(self.sizes[3]):
                drafted[depth, : depth + 1] = target[: depth + 1] if depth == 0 else drafted[depth - 1, : depth + 1]
                rows = self._draft[image, depth, depth + 1 :]
                drafted[depth, depth + 1 :] = self._distributions(
                    rows, self._draft_name, f"image {image}, depth {depth}, from cell {depth + 1} on"
                )
            yield tokens, target, drafted

    def _distributions(self, rows: FloatArray, name: str, where: str) -> FloatArray:
        rows, logits = rows.astype(np.float64), name.endswith("logits")
        if logits:  # a code that was filtered out before has -inf, but not every code of a row
            bad = np.isnan(rows).any(axis=-1) | ~np.isfinite(rows.max(axis=-1, initial=-np.inf))
        else:
            bad = ~np.isfinite(rows).all(axis=-1)
        if bad.any():
            raise ValueError(
                f"{name}: expected finite numbers{', or -inf for codes that were filtered out' * logits}, "
                f"got NaN or infinity at {where}, row {int(np.argmax(bad))}"
            )
        if logits:
            return sampling_probs(np.maximum(rows, rows.max(axis=-1, keepdims=True) - _FILTERED)[None], self._sampling)
        sums = rows.sum(axis=-1)
        if float(rows.min()) < 0.0 or np.abs(sums - 1.0).max() > _ROUNDING:
            cell = int(np.abs(sums - 1.0).argmax())
            raise ValueError(
                f"{name}: expected rows of non-negative numbers that sum to 1, got a sum of {sums[cell]:.4g} and a "
                f"minimum of {float(rows.min()):.4g} at {where}, row {cell}; "
                f"store logits as {name.replace('probs', 'logits')}"
            )
        normalised: FloatArray = rows / sums[:, None]
        return normalised


class _AnyForm(ArrayForm):
    """Real numbers, NaN and infinities among them."""

    def checked(self, array: FloatArray, name: str) -> FloatArray:
        if array.dtype.kind not in "fiu" or array.ndim != self.dimensions:
            wanted = f"expected real numbers in {self.dimensions} dimensions"
            raise ValueError(f"{name}: {wanted}, got {array.dtype} {array.shape}")
        return array


def _one_of(arrays: ArrayFile, part: str) -> str | None:
    names = [f"{part}_{kind}" for kind in _PAIRS if f"{part}_{kind}" in arrays]
    if len(names) > 1:
        raise ValueError(f"expected {names[0]} or {names[1]}, got both; leave one out")
    return names[0] if names else None
