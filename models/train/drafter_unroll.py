"""Whole sequences drafted at once, as training a drafter needs them: EAGLE's unrolling of draft time.

With guidance (arXiv 2207.12598) drafts are mixed from a pair of rows, as the target's passes are.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.decoder import Decoder, StepOutput, causal_bias
from underpaint.models.sample import guidance_pair, mix_pair
from underpaint.models.text import CaptionedTarget
from underpaint.models.train.precision import autocast


def unroll_bias(length: int, depth: int) -> Tensor:
    """What pass `depth` (from 1) may see of the passes before it: [length, (depth - 1) * length].

    Of pass 1, read from the target's features: the committed positions, `depth - 1` and more back. Of each later
    pass: the one node on the way from the last committed position to this one.
    """
    ahead = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    blocks = []
    for earlier in range(1, depth):
        back = depth - earlier
        seen = ahead >= back if earlier == 1 else ahead == back
        blocks.append(torch.where(seen, 0.0, float(MASKED_SCORE)))
    return torch.cat(blocks, dim=1) if blocks else torch.zeros(length, 0)


def unroll(drafter: Decoder, features: Tensor, tokens: Tensor, passes: int) -> list[StepOutput]:
    """Run `passes` passes over whole sequences.

    Args:
        drafter: with its target's codes and head.
        features: [B, T, D], the target's feature of the token before each of the T tokens.
        tokens: int64 [B, T], of cells 0 to T - 1.
        passes: depth of the draft that is imitated.

    Returns:
        One output a pass; position j predicts the token of cell j + 1, and is meaningful from j = pass - 1 on.
    """
    length = tokens.shape[1]
    cells = torch.arange(length, device=tokens.device)
    diagonal = torch.where(torch.eye(length, dtype=torch.bool), 0.0, float(MASKED_SCORE))
    keys, values = drafter.empty_cache(tokens.shape[0]), drafter.empty_cache(tokens.shape[0])
    outputs: list[StepOutput] = []
    for depth in range(1, passes + 1):
        among = causal_bias(length) if depth == 1 else diagonal
        bias = torch.cat([unroll_bias(length, depth), among], dim=1).to(tokens.device)
        out = drafter.step(tokens, cells, bias, keys, values, features=features)
        outputs.append(out)
        keys = [torch.cat([held.to(new.dtype), new], dim=2) for held, new in zip(keys, out.keys, strict=True)]
        values = [torch.cat([held.to(new.dtype), new], dim=2) for held, new in zip(values, out.values, strict=True)]
        features = torch.cat([torch.zeros_like(out.features[:, :1]), out.features[:, :-1]], dim=1)
    return outputs


@torch.no_grad()
def _taught(target: CaptionedTarget, codes: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features [B, cells, ...] of the frozen target in teacher forcing."""
    logits, features = target(codes, word_ids)
    return logits, features.float()


class DraftedSequences(NamedTuple):
    """Drafts of whole sequences, and what they are compared with.

    outputs: one a pass. logits, features: the target's, [B, T + 1, ...]. With guidance logits are mixed, those of
    `outputs` too, while features stay those of both rows [2 B, ...].
    """

    outputs: list[StepOutput]
    logits: Tensor
    features: Tensor


def draft_sequences(
    drafter: Decoder,
    teacher: CaptionedTarget,
    codes: Tensor,
    word_ids: Tensor,
    passes: int,
    guidance: float,
    noise: Callable[[torch.Size], Tensor] | None = None,
) -> DraftedSequences:
    """Draft along sequences, codes int64 [B, T + 1] under word ids int64 [B, prefix], as decoding with `guidance` does.

    noise: of a shape, added to the features that pass 1 reads.
    """
    if guidance != 1:
        codes, word_ids = guidance_pair(codes, word_ids)
    with autocast(codes.device):
        logits, features = _taught(teacher, codes, word_ids)
        seen = features if noise is None else features + noise(features.shape)
        outputs = unroll(drafter, seen[:, :-1], codes[:, :-1], passes)
    if guidance != 1:
        logits = mix_pair(logits, guidance)
        outputs = [one._replace(logits=mix_pair(one.logits, guidance)) for one in outputs]
    return DraftedSequences(outputs, logits, features)


def agreement(outputs: Sequence[StepOutput], logits: Tensor) -> list[float]:
    """Share of positions, per depth, at which the drafter's first choice is the target's."""
    wanted = logits[:, 1:].argmax(dim=-1)
    return [
        float((out.logits[:, depth:].argmax(dim=-1) == wanted[:, depth:]).float().mean())
        for depth, out in enumerate(outputs)
    ]
