"""Plain sampling from a target, one token at a time: the reference that faster decoding is compared with."""

import torch
from torch import Tensor

from underpaint.models.layers import causal_bias
from underpaint.models.text import WordEncoder, caption_features
from underpaint.models.transformer import PREFIX_CELL, Transformer
from underpaint.zoo.prompts import PAD_WORD


def filter_logits(logits: Tensor, temperature: float, top_k: int) -> Tensor:
    """Probabilities [B, V] after temperature and top-k; temperature 0 puts everything on the argmax."""
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    kept = logits / temperature
    if 0 < top_k < logits.shape[-1]:
        least = kept.topk(top_k, dim=-1).values[..., -1:]
        kept = kept.masked_fill(kept < least, -torch.inf)
    return torch.softmax(kept, dim=-1)


@torch.no_grad()
def sample(
    words: WordEncoder,
    transformer: Transformer,
    word_ids: Tensor,
    *,
    guidance: float = 3.0,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> Tensor:
    """Codes int64 [B, block_size] for word ids int64 [B, cls_token_num].

    Args:
        words, transformer: from `models.checkpoints.load_target`.
        word_ids: captions.
        guidance: weight s in u + s (c - u) on the logits. 1 is no guidance, and runs one row a caption, not a pair.
        temperature: 0 is greedy.
        top_k: 0 keeps every token.
        seed: of the draws.

    The codes, like the word ids, are on the device of the models.
    """
    device = transformer.rotary.device
    generator = torch.Generator(device).manual_seed(seed)
    batch, cells = word_ids.shape[0], transformer.config.block_size
    prefix = transformer.config.cls_token_num
    rows = 1 if guidance == 1 else 2
    conditions = torch.cat([word_ids, torch.full_like(word_ids, PAD_WORD)][:rows])
    embeddings = transformer.embed_condition(caption_features(words, transformer, conditions))
    shape = (rows * batch, transformer.config.n_head, prefix + cells, transformer.config.head_dim)
    keys = [torch.zeros(shape, device=device) for _ in transformer.layers]
    values = [torch.zeros(shape, device=device) for _ in transformer.layers]
    past_bias = torch.zeros(prefix + cells, device=device)
    places = torch.full((prefix,), PREFIX_CELL, device=device)
    bias, filled = causal_bias(prefix).to(device), 0
    codes = torch.zeros(batch, cells, dtype=torch.int64, device=device)
    for cell in range(cells):
        out = transformer.step(
            embeddings,
            places,
            bias,
            [key[:, :, :filled] for key in keys],
            [value[:, :, :filled] for value in values],
            past_bias[:filled],
        )
        new = len(places)
        for layer, (key, value) in enumerate(zip(out.keys, out.values, strict=True)):
            keys[layer][:, :, filled : filled + new] = key
            values[layer][:, :, filled : filled + new] = value
        filled += new
        logits = out.logits[:batch, -1]
        if rows == 2:
            unconditional = out.logits[batch:, -1]
            logits = unconditional + guidance * (logits - unconditional)
        probs = filter_logits(logits, temperature, top_k)
        codes[:, cell] = torch.multinomial(probs, 1, generator=generator)[:, 0]
        embeddings = transformer.embed_tokens(codes[:, cell : cell + 1]).repeat(rows, 1, 1)
        places, bias = torch.tensor([cell], device=device), torch.zeros(1, 1, device=device)
    return codes
