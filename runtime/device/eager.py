"""Plain autoregression as papers time it: one call of the module per token, with a cache concatenated at every step.

Nothing is captured, and no kernel of this project runs. Published speedups use this baseline; the tuned baseline is the
captured cycle (`runner`). Both use the same addressed noise, so they draw the same pictures up to rounding.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import Philox, Role
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.models.decoder import Decoder, causal_bias
from underpaint.runtime.device.runner import Watch
from underpaint.runtime.engines.torch_sampling import filtered_probs, guided_rows

_MASKED: Final = -30000.0
"""Added to the score of a masked position."""


class EagerLoop:
    """Decodes batches token by token; `greedy` takes the likeliest token, whatever the sampler says."""

    def __init__(self, model: Decoder, rows: int, sampler: SamplingParams, greedy: bool, grid: Grid) -> None:
        self._model, self._rows, self._sampler, self._greedy, self._grid = model, rows, sampler, greedy, grid

    @torch.no_grad()
    def decode(
        self,
        condition: Tensor,
        seeds: Sequence[int],
        images: Sequence[int],
        hidden: Tensor,
        watch: Watch | None = None,
    ) -> IntArray:
        """Return tokens [n, cells]; see `DeviceRunner.begin` for condition [rows * n, P, F] and hidden [rows * n]."""
        model, count, length = self._model, len(images), condition.shape[1]
        device, cells, width = condition.device, self._grid.cells, self._grid.width
        eol = model.config.eol_token
        line = None if eol is None else model.config.vocab_size + eol
        noise = torch.from_numpy(_noise(seeds, images, cells)).to(device)
        places = torch.arange(length, device=device)
        unseen = torch.where(places < hidden[:, None], _MASKED, 0.0)
        diagonal = torch.eye(length, dtype=torch.bool, device=device)
        bias = torch.where(diagonal, 0.0, causal_bias(length).to(device) + unseen[:, None, :])
        past = model.empty_cache(condition.shape[0]), model.empty_cache(condition.shape[0])
        step = model.step_rows(condition, torch.arange(-length, 0, device=device), bias, *past)
        decided = []
        for cell in range(cells):
            _append(past[0], step.keys)
            _append(past[1], step.values)
            token = self._token(step.logits[:, -1].view(self._rows, count, -1), noise[:, cell])
            decided.append(token)
            if cell + 1 == cells:
                break
            if watch is not None:
                watch([cell + 1] * count)
            fed, fed_at = token.repeat(self._rows)[:, None], [cell]
            if line is not None and cell % width == width - 1:
                fed = torch.cat([fed, torch.full_like(fed, line)], dim=1)
                fed_at.append(cells + cell // width)
            count_fed = len(fed_at)
            seen = torch.zeros(condition.shape[0], count_fed, past[0][0].shape[2] + count_fed, device=device)
            seen[:, :, :length] = unseen[:, None, :]
            seen[:, :, -count_fed:] += causal_bias(count_fed).to(device)
            step = model.step(fed, torch.tensor(fed_at, device=device), seen, *past)
        tokens: IntArray = torch.stack(decided, dim=1).cpu().numpy()
        return tokens

    def _token(self, logits: Tensor, uniforms: Tensor) -> Tensor:
        """Draw a token [n] for each image from logits [rows, n, V]."""
        sampler = self._sampler
        rows = guided_rows(logits, sampler)
        if self._greedy or sampler.temperature == 0:
            return rows.argmax(dim=-1)
        probs = filtered_probs(rows, sampler)
        cumulated = probs.double().cumsum(dim=-1)
        drawn = torch.searchsorted(cumulated, (uniforms * cumulated[:, -1])[:, None], right=True)[:, 0]
        return drawn.clamp(max=rows.shape[1] - 1)


def _append(past: list[Tensor], new: list[Tensor]) -> None:
    """Append the keys, or values, of the new positions in every layer. One layer at a time exists twice."""
    for layer, each in enumerate(new):
        past[layer] = torch.cat([past[layer], each], dim=2)


def _noise(
    seeds: Sequence[int], images: Sequence[int], cells: int
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return uniforms [n, cells]; cell t uses the root's bonus noise of cycle t, as `algos.step.decode` does."""
    sources = [Philox(seed, image) for seed, image in zip(seeds, images, strict=True)]
    return np.array([[one.uniforms(cycle, Role.BONUS, 1)[0] for cycle in range(cells)] for one in sources])
