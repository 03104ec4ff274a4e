"""Guidance, temperature, top-k and top-p on torch tensors, on the device of the logits."""

from __future__ import annotations

import torch
from torch import Tensor

from underpaint.algos.rows import SamplingParams


def guided_rows(logits: Tensor, sampler: SamplingParams) -> Tensor:
    """Apply guidance to logits [B, N, V] and return logits [N, V]; see `sampled_probs`."""
    return logits[0] if logits.shape[0] == 1 else logits[1] + sampler.guidance * (logits[0] - logits[1])


def sampled_probs(logits: Tensor, sampler: SamplingParams) -> Tensor:
    """Return token distributions as `algos.rows.sampling_probs` defines them.

    Args:
        logits: [B, N, V] float32; B is 1, or 2 for the guidance pair with the conditional row first.
        sampler: The sampling parameters.

    Returns:
        [N, V] float32; rows sum to 1 and are one-hot at temperature 0. A row with NaN among its logits is NaN.
    """
    rows = guided_rows(logits, sampler)
    if sampler.temperature == 0:
        best = torch.zeros_like(rows).scatter_(1, rows.argmax(dim=-1, keepdim=True), 1.0)
        return torch.where(rows.sum(dim=-1, keepdim=True, dtype=torch.float64).isfinite(), best, torch.nan)
    return filtered_probs(rows, sampler)


def filtered_probs(rows: Tensor, sampler: SamplingParams) -> Tensor:
    """Return distributions [N, V] from logits [N, V] at a temperature above 0; ties are as in `SamplingParams`."""
    if 0 < sampler.top_k < rows.shape[1]:
        rows = rows.masked_fill(rows < rows.topk(sampler.top_k, dim=-1).values[:, -1:], -torch.inf)
    probs = (rows / sampler.temperature).softmax(dim=-1)
    if sampler.top_p >= 1:
        return probs
    order = probs.argsort(dim=-1, descending=True, stable=True)
    falling = probs.gather(1, order).double()
    tail_mask = falling.cumsum(dim=-1) - falling >= sampler.kept_mass
    tail_mask[:, 0] = False
    probs = probs.masked_fill(torch.zeros_like(tail_mask).scatter(1, order, tail_mask), 0.0)
    return probs / probs.sum(dim=-1, keepdim=True)
