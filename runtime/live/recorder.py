"""Record what a model's own `generate` draws: logits and tokens, in the file that `underpaint trace --from` reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.artifacts.files import check_file_writable, replacing
from underpaint.runtime.live.model import LiveModelError

_OTHER: Final = -1
"""Marks an id that is not an image code."""
_LARGEST: Final = 6e4
"""Bound of stored logits, to fit half precision; codes that a processor forbids (minus infinity) keep probability 0."""


class TraceRecorder:
    """Collects the logits of each step and the token drawn from them, image by image.

    For a `transformers` model, run its own `generate` inside `recording`:

        recorder = TraceRecorder(grid=(24, 24), code_ids=range(1000, 17384))
        with recorder.recording(model):
            model.generate(**inputs, do_sample=True)
        recorder.save("own.npz", codebook=codebook)

    In your own decoding loop, call `step` after each token instead.

    Steps that draw no image code, such as line ends, are skipped. An image ends after rows x columns codes; once all
    images of a batch have ended, the next code begins another batch.
    """

    def __init__(self, grid: tuple[int, int], code_ids: Sequence[int] | None = None) -> None:
        """Make a recorder.

        Args:
            grid: Rows and columns of an image, in codes.
            code_ids: The vocabulary id of each code, from code 0 on; None if logits cover only the codes.
        """
        self._grid = (int(grid[0]), int(grid[1]))
        self._ids = None if code_ids is None else np.asarray(code_ids, dtype=np.int64)
        if min(self._grid) < 1:
            raise LiveModelError(f"grid: expected rows and columns of at least 1, got {self._grid}")
        if self._ids is not None and (self._ids.ndim != 1 or np.unique(self._ids).size != self._ids.size):
            raise LiveModelError("code_ids: expected one vocabulary id for each code, each once")
        self._open: list[list[tuple[int, NDArray[np.float16]]]] = []
        """For each image in progress: its codes, and the logits that each was drawn from."""
        self._done: list[tuple[IntArray, NDArray[np.float16]]] = []

    @property
    def images(self) -> int:
        """Number of complete images."""
        return len(self._done)

    def step(self, logits: Any, tokens: Any) -> None:
        """Record one step of B images.

        Args:
            logits: `[B, V]` tensor or array, over the codes or the vocabulary; after guidance, before temperature,
                top-k and top-p.
            tokens: `[B]`, the ids drawn from them.

        Raises:
            LiveModelError: A different number of images than before in a batch, or wrong shapes.
        """
        rows, drawn = _array(logits, np.float32), _array(tokens, np.int64).reshape(-1)
        if rows.ndim != 2 or rows.shape[0] != drawn.size:
            raise LiveModelError(
                f"step: expected logits [B, V] and tokens [B], got {rows.shape} and {drawn.shape}; where guidance "
                "runs two rows an image, pass the guided logits"
            )
        codes, cells = self._codes(drawn, rows.shape[1]), self._grid[0] * self._grid[1]
        if all(len(image) == cells for image in self._open) and (codes != _OTHER).any():
            self.finish()
        if not self._open:
            self._open = [[] for _ in range(drawn.size)]
        if len(self._open) != drawn.size:
            raise LiveModelError(f"step: expected {len(self._open)} images, as in the step before, got {drawn.size}")
        if self._ids is not None:
            rows = rows[:, self._ids]
        for image, code in enumerate(codes.tolist()):
            if code != _OTHER and len(self._open[image]) < cells:
                self._open[image].append((code, rows[image].clip(-_LARGEST, _LARGEST).astype(np.float16)))

    def finish(self) -> None:
        """End the images in progress; raises LiveModelError if one has fewer codes than its grid."""
        rows, columns = self._grid
        images, self._open = self._open, []
        for image in images:
            if len(image) != rows * columns:
                raise LiveModelError(
                    f"recorded image: expected {rows} x {columns} = {rows * columns} codes, got {len(image)}; check "
                    "grid and code_ids, and let generate draw the whole image"
                )
            self._done.append((np.array([code for code, _ in image]), np.stack([row for _, row in image])))

    @contextmanager
    def recording(self, model: Any) -> Iterator[TraceRecorder]:
        """Record every image that `model.generate` draws in this context, at any batch size; results do not change.

        Raises:
            LiveModelError: `generate` does not return ids after the prompt, or processes the guidance rows separately.
        """
        original = model.generate

        def generate(*args: Any, **named: Any) -> Any:
            seen: list[Any] = []

            def see(ids: Any, scores: Any) -> Any:
                seen.append(scores.detach().float().cpu().numpy())
                return scores

            named["logits_processor"] = _LastStays([*(named.get("logits_processor") or ()), see])
            returned = original(*args, **named)
            self._take_in(seen, getattr(returned, "sequences", returned))
            return returned

        model.generate = generate
        try:
            yield self
        finally:
            del model.generate

    def _take_in(self, seen: list[Any], sequences: Any) -> None:
        """Record the steps of one call of `generate`; the last ids of `sequences` are the drawn ones."""
        ids = _array(sequences, np.int64)
        if not seen or ids.ndim != 2 or ids.shape[1] < len(seen):
            raise LiveModelError(
                f"generate: expected it to return ids [B, T] of the {len(seen)} steps it drew, got {ids.shape}"
            )
        drawn, rows = ids[:, ids.shape[1] - len(seen) :], seen[0].shape[0]
        if rows != len(ids):
            raise LiveModelError(
                f"generate: expected logits of {len(ids)} images, got {rows} rows: this model's generate guides after "
                "its processors; record its guided logits with step() in a loop of your own"
            )
        for place, scores in enumerate(seen):
            self.step(scores, drawn[:, place])
        self.finish()

    def save(
        self, path: Path | str, *, codebook: Any = None, draft_logits: Any = None, draft_probs: Any = None
    ) -> Path:
        """Write the complete images to a file for `underpaint trace --from`.

        Args:
            path: The .npz file.
            codebook: `[V, E]`, for acceptance rules that pool nearest codes; None leaves it out.
            draft_logits: `[I, D, C, V]`, the drafter's logits of each cell after d draft tokens; None leaves it out.
            draft_probs: The same as probabilities.

        Returns:
            The path.

        Raises:
            LiveModelError: No image is complete. OSError: The file cannot be written.
        """
        if self._open:
            self.finish()
        if not self._done:
            raise LiveModelError("save: expected at least one image, got none; draw inside recording(), or call step()")
        path = Path(path)
        check_file_writable(path)
        arrays: dict[str, Any] = {
            "tokens": np.stack([codes for codes, _ in self._done]),
            "target_logits": np.stack([rows for _, rows in self._done]),
            "grid": np.array(self._grid),
        }
        optional = {"codebook": codebook, "draft_logits": draft_logits, "draft_probs": draft_probs}
        arrays |= {name: _array(value, np.float32) for name, value in optional.items() if value is not None}
        with replacing(path) as file:
            np.savez(file, **arrays)
        return path

    def _codes(self, ids: IntArray, width: int) -> IntArray:
        if self._ids is None:
            return np.where((ids >= 0) & (ids < width), ids, _OTHER)
        if self._ids.max(initial=0) >= width:
            raise LiveModelError(f"code_ids: expected ids below {width}, the logits' width, got {self._ids.max()}")
        order = self._ids.argsort()
        place = np.searchsorted(self._ids, ids, sorter=order).clip(max=self._ids.size - 1)
        return np.where(self._ids[order[place]] == ids, order[place], _OTHER)


class _LastStays(list[Any]):
    """A list of logits processors whose last item stays last: Janus appends its guidance to the list that it gets."""

    def append(self, processor: Any) -> None:
        self.insert(len(self) - 1, processor)


def _array(value: Any, kind: Any) -> NDArray[Any]:
    """Convert a tensor of any device and dtype, or anything that NumPy reads, to an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if value.is_floating_point() else value.numpy()
    return np.asarray(value, dtype=kind)
