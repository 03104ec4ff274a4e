"""Plain sampling from a target, one token at a time; the reference for faster decoding."""

import torch
from torch import Tensor

from underpaint.models.decoder import causal_bias
from underpaint.models.text import CaptionedTarget
from underpaint.models.typed import call
from underpaint.zoo.textured_prompts import PAD_WORD


def filter_logits(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """Return probabilities [B, V] after temperature and top-k; at temperature 0 they are one-hot at the argmax."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    scaled = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        least = scaled.topk(top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    return torch.softmax(scaled, dim=-1)


def mix_pair(logits: Tensor, guidance: float) -> Tensor:
    """Return uncond + guidance * (cond - uncond) [B, ...]; logits [2 B, ...] have conditional rows first."""
    cond, uncond = logits.chunk(2)
    return uncond + guidance * (cond - uncond)


@torch.no_grad()
def sample(
    target: CaptionedTarget,
    word_ids: Tensor,
    *,
    guidance: float = 3.0,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> Tensor:
    """Draw codes int64 [B, cells] for word ids int64 [B, prefix], both on the device of the model.

    Args:
        target: The target, from `models.checkpoints.load_target`.
        word_ids: The captions.
        guidance: Weight s in u + s (c - u) on the logits. 1 turns guidance off and runs one row per caption instead of
            two.
        temperature: Sampling temperature; 0 is greedy.
        top_k: The number of tokens kept; 0 keeps all.
        seed: Seed of the random draws.
    """
    decoder = target.decoder
    device, config = decoder.head.weight.device, decoder.config
    generator = torch.Generator(device).manual_seed(seed)
    batch, prefix = word_ids.shape[0], word_ids.shape[1]
    rows = 1 if guidance == 1 else 2
    hidden = target.condition(torch.cat([word_ids, torch.full_like(word_ids, PAD_WORD)][:rows]))
    keys = decoder.empty_cache(rows * batch, prefix + config.cells)
    values = decoder.empty_cache(rows * batch, prefix + config.cells)
    places, bias, filled = torch.arange(-prefix, 0, device=device), causal_bias(prefix).to(device), 0
    codes = torch.zeros(batch, config.cells, dtype=torch.int64, device=device)
    for cell in range(config.cells):
        past = [[part[:, :, :filled] for part in parts] for parts in (keys, values)]
        out = decoder.step_rows(hidden, places, bias, *past)
        new = len(places)
        for layer, (key, value) in enumerate(zip(out.keys, out.values, strict=True)):
            keys[layer][:, :, filled : filled + new] = key
            values[layer][:, :, filled : filled + new] = value
        filled += new
        logits = out.logits[:, -1] if rows == 1 else mix_pair(out.logits[:, -1], guidance)
        probs = filter_logits(logits, temperature, top_k)
        codes[:, cell] = torch.multinomial(probs, 1, generator=generator)[:, 0]
        hidden = call(decoder.codes, codes[:, cell : cell + 1]).repeat(rows, 1, 1)
        places, bias = torch.tensor([cell], device=device), torch.zeros(1, filled + 1, device=device)
    return codes
