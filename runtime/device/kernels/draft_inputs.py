"""Inputs of a pass in one launch: each token's embedding, and for a drafter the feature of the token before it."""

from torch import Tensor

from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl, wait_for_earlier_kernels

NUMBERS = 8192
"""Most numbers that a program of `embed` copies."""


@kernel
def embed_kernel(tokens, codes, out, lines, T, batch, D, COUNT: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """One program per COUNT positions."""
    wait_for_earlier_kernels()
    line = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    there = line < lines
    token = tl.load(tokens + line // T % batch * T + line % T, there, other=0)
    place = tl.arange(0, BLOCK)[None, :]
    inside = there[:, None] & (place < D)
    embedding = tl.load(codes + token[:, None] * D + place, inside, other=0.0)
    tl.store(out + line[:, None].to(tl.int64) * D + place, embedding, inside)


def embed(tokens: Tensor, codes: Tensor, rows: int) -> Tensor:
    """Return the embeddings [rows * B, T, F] of tokens [B, T] int64, for each row in turn; codes [C, F]."""
    (batch, count), width = tokens.shape, codes.shape[1]
    assert codes.is_contiguous()
    lines, tokens = rows * batch * count, tokens.contiguous()
    out = codes.new_empty(rows * batch, count, width)
    block = min(max(1, NUMBERS // next_power_of_2(width)), next_power_of_2(lines))
    launch(
        embed_kernel,
        (-(-lines // block),),
        2 * lines * width * codes.element_size(),
        tokens,
        codes,
        out,
        lines,
        count,
        batch,
        width,
        COUNT=block,
        BLOCK=next_power_of_2(width),
        warps=4 if width <= 2048 else 8,
    )
    return out


@kernel
def draft_inputs_kernel(
    tokens,
    codes,
    features,
    parents,
    features_out,
    embeddings_out,
    T,
    K,
    batch,
    features_stride,
    embeddings_stride,
    D: tl.constexpr,
    PARENTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program per (position, row)."""
    wait_for_earlier_kernels()
    turn, row = tl.program_id(0), tl.program_id(1)
    image = row % batch
    token = tl.load(tokens + image * T + turn)
    above = turn.to(tl.int64)
    if PARENTS:
        above = tl.load(parents + image * T + turn)
    place = tl.arange(0, BLOCK)
    inside = place < D
    line = (row * T + turn).to(tl.int64)
    feature = tl.load(features + (row.to(tl.int64) * K + above) * D + place, inside, other=0.0)
    tl.store(features_out + line * features_stride + place, feature, inside)
    embedding = tl.load(codes + token * D + place, inside, other=0.0)
    tl.store(embeddings_out + line * embeddings_stride + place, embedding, inside)


def draft_inputs(
    tokens: Tensor,
    codes: Tensor,
    features: Tensor,
    parents: Tensor | None,
    features_out: Tensor,
    embeddings_out: Tensor,
) -> None:
    """Fill features_out and embeddings_out, each [R, T, F], halves of one buffer or two, for tokens [B, T] int64.

    codes [C, F]: embedding table. features [R, K, F]: features of the tokens before. parents [B, T] int64: which of the
    K precedes each token; None if it is the one at the token's own index.
    """
    rows, count, width = features_out.shape
    for out in (features_out, embeddings_out):
        assert out.stride(2) == 1
        assert out.stride(0) == count * out.stride(1)
    assert features.is_contiguous()
    assert features.shape[2] == codes.shape[1] == width, "a drafter is as wide as what it reads"
    launch(
        draft_inputs_kernel,
        (count, rows),
        4 * rows * count * width * codes.element_size(),
        tokens,
        codes,
        features,
        tokens if parents is None else parents,
        features_out,
        embeddings_out,
        count,
        features.shape[1],
        tokens.shape[0],
        features_out.stride(1),
        embeddings_out.stride(1),
        D=width,
        PARENTS=parents is not None,
        BLOCK=next_power_of_2(width),
        warps=4 if width <= 2048 else 8,
    )
