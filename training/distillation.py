"""Distils a drafter from its frozen target: EAGLE's features, unrolled like drafts (arXiv 2401.15077, 2408.15766).

The target provides features and logits by teacher forcing. Pass 1 reads the target's features. Pass k reads the
predictions of pass k - 1, under the mask of a draft that left the committed tokens k - 1 positions ago, so that deep
drafts are trained on the inputs that they will get.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.models.decoder import Decoder, StepOutput, causal_bias
from underpaint.training.loop import Loss
from underpaint.training.precision import autocast

DrafterLoss: TypeAlias = Literal["distillation", "lk-alpha", "lk-lambda"]
"""Name of the loss on a drafter's distributions; see `distribution_loss`."""
_LK_DECAY: Final = 3.0
"""Decay of the divergence's weight as acceptance grows: the paper's best value."""
_LEAST_ACCEPTANCE: Final = 1e-5


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """Batch, unrolling and weights of a drafter's loss.

    `drawn_share` is the share of a batch's rows that the target drew itself, if a run gets such drawings.
    """

    batch: int = 16
    passes: int = 3
    condition_dropout: float = 0.1
    feature_noise: float = 0.1
    logit_weight: float = 1.0
    feature_weight: float = 0.5
    pass_decay: float = 0.8
    validated: int = 64
    validated_passes: int = 4
    drawn_share: float = 0.5
    loss: DrafterLoss = "distillation"

    def __post_init__(self) -> None:
        if not 0 <= self.drawn_share <= 1:
            raise ValueError(f"drawn_share: expected a share from 0 to 1, got {self.drawn_share}")
        if self.loss not in get_args(DrafterLoss):
            raise ValueError(f"loss: expected one of {', '.join(get_args(DrafterLoss))}, got {self.loss!r}")


def unroll_bias(length: int, depth: int) -> Tensor:
    """Return the bias [length, (depth - 1) * length] of pass `depth` (from 1) over the passes before it.

    In pass 1, which read the target's features, it sees the committed positions, `depth - 1` and more back. In each
    later pass it sees only the node on the path from the last committed position to this one.
    """
    ahead = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    blocks = []
    for earlier in range(1, depth):
        back = depth - earlier
        seen = ahead >= back if earlier == 1 else ahead == back
        blocks.append(torch.where(seen, 0.0, float(MASKED_SCORE)))
    return torch.cat(blocks, dim=1) if blocks else torch.zeros(length, 0)


def unroll(
    drafter: Decoder, features: Tensor, tokens: Tensor, passes: int, *, prompt: int = 0, padding: Tensor | None = None
) -> list[StepOutput]:
    """Run `passes` passes over whole sequences.

    Args:
        drafter: Drafter with its target's codes and head.
        features: [B, T, F], the target's feature of the token before each of the T tokens.
        tokens: int64 [B, T], of a prompt's positions, then of cells 0 to T - prompt - 1.
        passes: Depth of the simulated draft.
        prompt: Number of prompt positions.
        padding: [B], number of masked positions at the start of each row; None for none.

    Returns:
        One output per pass; position j predicts the token of cell j - prompt + 1, from j = prompt + pass - 1 on.
    """
    length = tokens.shape[1]
    cells = torch.arange(-prompt, length - prompt, device=tokens.device)
    diagonal = torch.where(torch.eye(length, dtype=torch.bool), 0.0, float(MASKED_SCORE))
    keys, values = drafter.empty_cache(tokens.shape[0]), drafter.empty_cache(tokens.shape[0])
    outputs: list[StepOutput] = []
    for depth in range(1, passes + 1):
        among = causal_bias(length) if depth == 1 else diagonal
        bias = torch.cat([unroll_bias(length, depth), among], dim=1).to(tokens.device)
        if padding is not None:
            hidden = torch.arange(length, device=tokens.device) < padding[:, None]
            bias = bias + float(MASKED_SCORE) * hidden.repeat(1, depth)[:, None]
        out = drafter.step(tokens, cells, bias, keys, values, features=features)
        outputs.append(out)
        keys = [torch.cat([past.to(new.dtype), new], dim=2) for past, new in zip(keys, out.keys, strict=True)]
        values = [torch.cat([past.to(new.dtype), new], dim=2) for past, new in zip(values, out.values, strict=True)]
        features = torch.cat([torch.zeros_like(out.features[:, :1]), out.features[:, :-1]], dim=1)
    return outputs


class Taught(NamedTuple):
    """The outputs of a frozen target on whole sequences by teacher forcing; see `unroll` for `prompt` and `padding`.

    Attributes:
        tokens: int64 [B, T], of the prompt and of all cells except the last.
        seen: [B, T, F], the drafter's input: the target's feature before each of these tokens.
        logits: [B, cells, V], the target's logits before each cell.
        features: [B, cells, D], the features that the target's head reads there.
        prompt: Number of prompt positions.
        padding: [B], or None.
    """

    tokens: Tensor
    seen: Tensor
    logits: Tensor
    features: Tensor
    prompt: int = 0
    padding: Tensor | None = None

    def without_prompt(self) -> "Taught":
        """Return this without the prompt, for drafters that read only pictures, as exported ones do."""
        tokens, seen = (part[:, self.prompt :] for part in (self.tokens, self.seen))
        return self._replace(tokens=tokens, seen=seen, prompt=0, padding=None)


def distribution_loss(drafted: Tensor, target: Tensor, loss: DrafterLoss) -> Tensor:
    """Mean distance between the distributions of a drafter and of its target, given as logits [..., V].

    Codes that the drafter cannot draft have a logit of `MASKED_SCORE`. The target's distribution over the other codes
    is distilled. Acceptance is the sum of min(p, q), with p from the target's full distribution.

    Args:
        drafted: The drafter's logits.
        target: The target's logits.
        loss: "distillation" is the cross-entropy to the target. "lk-alpha" is the negative logarithm of acceptance.
            "lk-lambda" blends from the divergence to one minus acceptance as acceptance grows, with the weight
            exp(-3 acceptance). The last two are LK losses (arXiv 2602.23881), computed per position.
    """
    log_q = torch.log_softmax(drafted, dim=-1)
    shared: Tensor = target.masked_fill(drafted <= float(MASKED_SCORE) / 2, float(MASKED_SCORE)).softmax(dim=-1)
    cross = -(shared * log_q).sum(dim=-1)
    if loss == "distillation":
        return cross.mean()
    accepted = acceptance(drafted, target)
    if loss == "lk-alpha":
        return -accepted.clamp(min=_LEAST_ACCEPTANCE).log().mean()
    weight = torch.exp(-_LK_DECAY * accepted.detach())
    divergence = cross - torch.special.entr(shared).sum(dim=-1)
    blend: Tensor = weight * divergence + (1 - weight) * (1 - accepted)
    return blend.mean()


def acceptance(drafted: Tensor, target: Tensor) -> Tensor:
    """Probability [...] that a token drawn from the drafter is accepted: sum of min(p, q), from logits [..., V]."""
    accepted: Tensor = torch.minimum(drafted.softmax(dim=-1), target.softmax(dim=-1)).sum(dim=-1)
    return accepted


def drafter_loss(outputs: Sequence[StepOutput], logits: Tensor, features: Tensor, settings: DrafterSettings) -> Tensor:
    """The distance to the target's distributions plus the SmoothL1 distance to its features, summed over the passes.

    `logits` and `features` are the target's, [B, T + 1, ...]; a drafter's position j is compared with their j + 1.
    """
    total = logits.new_zeros(())
    for depth, out in enumerate(outputs):
        value = settings.logit_weight * distribution_loss(out.logits[:, depth:], logits[:, 1 + depth :], settings.loss)
        if settings.feature_weight:
            error = functional.smooth_l1_loss(out.features[:, depth:].float(), features[:, 1 + depth :])
            value = value + settings.feature_weight * error
        total = total + settings.pass_decay**depth * value
    return total


@torch.no_grad()
def by_depth(outputs: Sequence[StepOutput], logits: Tensor) -> dict[str, float]:
    """Mean figures of each depth K: "top1_K", how often the drafter's first choice equals the target's, and
    "acceptance_K", how often a token drawn from it would be accepted after K - 1 correct ones.
    """
    figures = {}
    for depth, out in enumerate(outputs):
        drafted, target = out.logits[:, depth:], logits[:, 1 + depth :]
        figures[f"top1_{depth + 1}"] = float((drafted.argmax(dim=-1) == target.argmax(dim=-1)).float().mean())
        figures[f"acceptance_{depth + 1}"] = float(acceptance(drafted, target).mean())
    return figures


@dataclass(frozen=True, slots=True)
class Distillation:
    """Trains and validates a drafter against its frozen target on one grid.

    Attributes:
        drafter: The drafter, which has its target's embeddings and head.
        settings: Passes and loss weights.
        place: Device of both modules.
    """

    drafter: Decoder
    settings: DrafterSettings
    place: torch.device

    def outputs(self, taught: Taught, passes: int, random: np.random.Generator | None = None) -> list[StepOutput]:
        """Run passes over the cells; `random` draws feature noise, for training."""
        seen, first = taught.seen, taught.prompt
        if random is not None:
            generator = torch.Generator(device=self.place).manual_seed(int(random.integers(2**62)))
            noise = 2 * torch.rand(seen.shape, generator=generator, device=self.place) - 1
            seen = seen + self.settings.feature_noise * noise
        with autocast(self.place):
            outputs = unroll(self.drafter, seen, taught.tokens, passes, prompt=first, padding=taught.padding)
        return [StepOutput(out.logits[:, first:], out.features[:, first:], [], []) for out in outputs]

    def loss(self, taught: Taught, random: np.random.Generator) -> Loss:
        """Return the loss of a batch, with the figures of every pass."""
        outputs = self.outputs(taught, self.settings.passes, random)
        value = drafter_loss(outputs, taught.logits, taught.features, self.settings)
        return Loss(value, by_depth(outputs, taught.logits))

    @torch.no_grad()
    def validated(self, batches: Iterable[Taught]) -> dict[str, float]:
        """Mean figures of each of `validated_passes` passes."""
        batch_figures, sizes = list[dict[str, float]](), list[int]()
        for taught in batches:
            batch_figures.append(by_depth(self.outputs(taught, self.settings.validated_passes), taught.logits))
            sizes.append(len(taught.logits))
        return {
            name: float(np.average([one[name] for one in batch_figures], weights=sizes)) for name in batch_figures[0]
        }
