"""Build traces of any model from user-supplied arrays: drawn tokens, and logits of the target and the drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.memory import check_memory, free_bytes
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.artifacts.arrays import ArrayFile, ArrayForm
from underpaint.sim.replay.recording import MOST_CODES_NEAR, Recorder
from underpaint.sim.replay.trace import Trace

_ROUNDING: Final = 1e-3
"""Tolerance for the sum of a row of probabilities, which may be in half precision."""
_MOST_CODES: Final = 1 << 24
_FILTERED: Final = 1e6
"""Distance from a row's largest logit to a filtered one; at any temperature, its probability becomes 0."""
_LEAST: Final = 1e-12
"""Replaces smaller probabilities, including 0, before taking logarithms."""
_GAP: Final = 0.3
"""Nats by which the drawn tokens may be less likely, on average, than their rows predict."""
_DEVIATIONS: Final = 6.0
_PAIRS: Final = ("logits", "probs")


def trace_of_own(paths: Sequence[Path], sampling: SamplingParams, grid: Grid | None, keep: int) -> Trace:
    """Read files of one model into a trace.

    Each file is an .npz with I images of C cells in raster order, V codes, and D depths of a drafter:

    - `tokens` [I, C], integers from 0 to V - 1: the drawn images.
    - `target_logits` [I, C, V] or `target_probs`: the rows that the tokens were drawn from, after guidance.
    - `draft_logits` [I, D, C, V] or `draft_probs`, optional: row d is the drafter's row for a cell that is d tokens
      past the root. Cells up to d have no such draft; their rows are not read.
    - `codebook` [V, E], optional: for rules that pool over nearest codes. The first file's is used.
    - `grid` [2], optional: rows and columns; the argument `grid` can replace it.

    Args:
        paths: One or more files; their images are concatenated.
        sampling: Applied to logits of target and drafter; probabilities are used unchanged. Its guidance is ignored.
            At temperature 0 the trace has the distributions at temperature 1, which greedy rules read.
        grid: Rows and columns of the image; None uses the files' own.
        keep: Number of likeliest tokens kept of each distribution, >= 1.

    Returns:
        A trace. It has no drafter (D is 0) or no codebook (E is 0) if the files have none.

    Raises:
        ValueError: An array is missing, has NaN or a wrong shape, rows do not sum to 1, sizes differ between files, or
            the memory does not suffice.
        OSError: A file cannot be read.
    """
    recorder: Recorder | None = None
    file: _OwnFile | None = None
    sizes: tuple[int, ...] = ()
    read = replace(sampling, temperature=1.0) if sampling.temperature == 0 else sampling
    for path in paths:
        file = None  # frees the arrays of the last file
        try:
            with ArrayFile(path) as arrays:
                if arrays.nbytes > (free := free_bytes()):
                    raise ValueError(
                        f"expected arrays that fit in memory, got {arrays.nbytes / 1e9:.1f} GB, where "
                        f"{free / 1e9:.1f} GB are free; store fewer images in a file"
                    )
                file = _OwnFile(arrays, grid, read)
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
    return recorder.trace({"model": {"target": paths[0].stem}, "sampler": asdict(sampling)})


def misplaced(trace: Trace) -> str | None:
    """A message if the tokens were probably not drawn from their rows, else None.

    A token drawn from its row has a mean log probability of minus the row's entropy; tokens drawn otherwise have less.
    """
    probs = trace.target_probs
    named = trace.target_tokens == trace.tokens[..., None]
    others = max(trace.vocab_size - probs.shape[-1], 1)
    even = np.maximum(1.0 - probs.sum(axis=-1), 0.0) / others
    token_probs = np.where(named.any(axis=-1), (probs * named).sum(axis=-1), even)
    logs, log_even = np.log(np.maximum(probs, _LEAST)), np.log(np.maximum(even, _LEAST))
    gaps = np.log(np.maximum(token_probs, _LEAST)) - (probs * logs).sum(axis=-1) - others * even * log_even
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
    """One file with checked shapes; distributions are computed image by image."""

    def __init__(self, arrays: ArrayFile, grid: Grid | None, sampling: SamplingParams) -> None:
        self._sampling = sampling
        target_name = _one_of(arrays, "target")
        if target_name is None:
            raise ValueError("expected an array target_logits or target_probs, got neither")
        draft_name = _one_of(arrays, "draft")
        self.tokens = arrays.read("tokens", ArrayForm("whole", 2, 0, _MOST_CODES)).astype(np.int64)
        images, cells = self.tokens.shape
        # Numbers are checked when rows are read: some rows are never read, and errors can then name the image.
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
        file_grid = arrays.read("grid", ArrayForm("whole", 1, 1, 1 << 12)).tolist() if "grid" in arrays else None
        rows = tuple(grid) if grid is not None else tuple(file_grid or ())
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
        """A recorder for the images of this file and of others with the same sizes."""
        _, _, codes, depths = self.sizes
        images, cells = self.tokens.shape
        check_memory("an image in work", "the drafter's depths", depths + 1, 3 * 8 * cells * codes)
        recorded = 2 * 16 * cells * (depths + 1) * min(keep, codes)
        check_memory("the recorded images of a file", "its images", images, recorded, "; or pass a smaller --keep")
        near = np.empty((codes, 0), dtype=np.int64)
        if self._codebook.shape[1]:
            near = nearest_codes(self._codebook, min(MOST_CODES_NEAR, codes - 1))
        return Recorder(self._codebook, near, depths, keep)

    def images(self) -> Iterator[tuple[IntArray, FloatArray, FloatArray]]:
        """Yield for each image its tokens [C] and the float64 distributions of target [C, V] and drafter [D, C, V]."""
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
        if logits:  # codes that were filtered out may be -inf, but not all codes of a row
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
    """Real numbers, including NaN and infinities."""

    def checked(self, array: FloatArray, name: str) -> FloatArray:
        if array.dtype.kind not in "fiu" or array.ndim != self.dimensions:
            expected = f"expected real numbers in {self.dimensions} dimensions"
            raise ValueError(f"{name}: {expected}, got {array.dtype} {array.shape}")
        return array


def _one_of(arrays: ArrayFile, part: str) -> str | None:
    names = [f"{part}_{kind}" for kind in _PAIRS if f"{part}_{kind}" in arrays]
    if len(names) > 1:
        raise ValueError(f"expected {names[0]} or {names[1]}, got both; leave one out")
    return names[0] if names else None
