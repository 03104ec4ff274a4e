"""Chameleon's released tokenizer, tiny: its names, and its pictures by plain torch functions.

Both follow the published VQGAN (arXiv 2012.09841): 32 groups in every norm, swish, a pad right and below before a map
is halved, nearest neighbours before it is doubled, attention in the middle, codes as they are, the nearest by distance.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tests.published.checkpoints import noise

CH, MULTIPLIERS, BLOCKS, LATENT, WIDTH = 128, (1, 2), 1, 8, 8
STRIDE = 2


def vqgan_weights(codes: int, attention: bool = False) -> dict[str, Tensor]:
    """Parameters by the names of `vqgan.ckpt`. attention: at the coarsest level too, as ImageNet's VQGAN has it."""
    state: dict[str, Tensor] = {"quantize.embedding.weight": noise(codes, WIDTH, scale=1.0)}
    widths, last = [CH * factor for factor in MULTIPLIERS], len(MULTIPLIERS) - 1

    def conv(name: str, before: int, after: int, side: int) -> None:
        scale = (before * side**2) ** -0.5
        state[f"{name}.weight"] = noise(after, before, side, side, scale=scale, seed=len(state))
        state[f"{name}.bias"] = noise(after, scale=0.1, seed=len(state))

    def norm(name: str, width: int) -> None:
        state[f"{name}.weight"] = 1 + noise(width, scale=0.1, seed=len(state))
        state[f"{name}.bias"] = noise(width, scale=0.1, seed=len(state))

    def residual(name: str, before: int, after: int) -> None:
        norm(f"{name}.norm1", before)
        conv(f"{name}.conv1", before, after, 3)
        norm(f"{name}.norm2", after)
        conv(f"{name}.conv2", after, after, 3)
        if before != after:
            conv(f"{name}.nin_shortcut", before, after, 1)

    def attend(name: str, width: int) -> None:
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    def level(name: str, index: int, before: int, blocks: int, resample: str | None) -> None:
        for block in range(blocks):
            residual(f"{name}.{index}.block.{block}", widths[index] if block else before, widths[index])
            if attention and index == last:
                attend(f"{name}.{index}.attn.{block}", widths[index])
        if resample is not None:
            conv(f"{name}.{index}.{resample}.conv", widths[index], widths[index], 3)

    for half in ("encoder", "decoder"):
        residual(f"{half}.mid.block_1", widths[last], widths[last])
        attend(f"{half}.mid.attn_1", widths[last])
        residual(f"{half}.mid.block_2", widths[last], widths[last])
    for index in range(last + 1):
        level("encoder.down", index, widths[max(index - 1, 0)], BLOCKS, "downsample" if index < last else None)
        level("decoder.up", index, widths[min(index + 1, last)], BLOCKS + 1, "upsample" if index else None)
    for name, before, after in (
        ("encoder.conv_in", 3, CH),
        ("encoder.conv_out", widths[last], LATENT),
        ("decoder.conv_in", LATENT, widths[last]),
        ("decoder.conv_out", CH, 3),
    ):
        conv(name, before, after, 3)
    norm("encoder.norm_out", widths[last])
    norm("decoder.norm_out", CH)
    conv("quant_conv", LATENT, WIDTH, 1)
    conv("post_quant_conv", WIDTH, LATENT, 1)
    return state


@torch.no_grad()
def decoded(state: dict[str, Tensor], codes: Tensor) -> Tensor:
    """Pixels [B, 3, H, W] of codes [B, h, w]."""
    hidden = functional.embedding(codes, state["quantize.embedding.weight"]).permute(0, 3, 1, 2)
    hidden = _conv(state, "decoder.conv_in", _conv(state, "post_quant_conv", hidden))
    hidden = _middle(state, "decoder", hidden)
    for index in reversed(range(len(MULTIPLIERS))):
        hidden = _level(state, f"decoder.up.{index}", hidden)
        if index:
            hidden = functional.interpolate(hidden, scale_factor=2.0, mode="nearest")
            hidden = _conv(state, f"decoder.up.{index}.upsample.conv", hidden)
    return _conv(state, "decoder.conv_out", _swished(state, "decoder.norm_out", hidden))


@torch.no_grad()
def encoded(state: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """Codes [B, h, w] of pixels [B, 3, H, W]."""
    hidden = _conv(state, "encoder.conv_in", pixels)
    for index in range(len(MULTIPLIERS)):
        hidden = _level(state, f"encoder.down.{index}", hidden)
        if index < len(MULTIPLIERS) - 1:
            padded = functional.pad(hidden, (0, 1, 0, 1))
            name = f"encoder.down.{index}.downsample.conv"
            hidden = functional.conv2d(padded, state[f"{name}.weight"], state[f"{name}.bias"], stride=2)
    hidden = _swished(state, "encoder.norm_out", _middle(state, "encoder", hidden))
    latents = _conv(state, "quant_conv", _conv(state, "encoder.conv_out", hidden)).permute(0, 2, 3, 1)
    apart = latents[..., None, :] - state["quantize.embedding.weight"]
    return apart.square().sum(dim=-1).argmin(dim=-1)


def _conv(state: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    weight = state[f"{name}.weight"]
    return functional.conv2d(hidden, weight, state[f"{name}.bias"], padding=weight.shape[2] // 2)


def _norm(state: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    return functional.group_norm(hidden, 32, state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-6)


def _swished(state: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    normed = _norm(state, name, hidden)
    return normed * torch.sigmoid(normed)


def _residual(state: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    update = hidden
    for part in "12":
        update = _conv(state, f"{name}.conv{part}", _swished(state, f"{name}.norm{part}", update))
    shortcut = f"{name}.nin_shortcut"
    return update + (_conv(state, shortcut, hidden) if f"{shortcut}.weight" in state else hidden)


def _attend(state: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    normed = _norm(state, f"{name}.norm", hidden)
    query, key, value = (_conv(state, f"{name}.{part}", normed).flatten(2) for part in "qkv")
    weights = torch.einsum("bci,bcj->bij", query, key).div(hidden.shape[1] ** 0.5).softmax(dim=-1)
    mixed = torch.einsum("bij,bcj->bci", weights, value).reshape(hidden.shape)
    return hidden + _conv(state, f"{name}.proj_out", mixed)


def _middle(state: dict[str, Tensor], half: str, hidden: Tensor) -> Tensor:
    hidden = _residual(state, f"{half}.mid.block_1", hidden)
    return _residual(state, f"{half}.mid.block_2", _attend(state, f"{half}.mid.attn_1", hidden))


def _level(state: dict[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    block = 0
    while f"{name}.block.{block}.conv1.weight" in state:
        hidden = _residual(state, f"{name}.block.{block}", hidden)
        if f"{name}.attn.{block}.q.weight" in state:
            hidden = _attend(state, f"{name}.attn.{block}", hidden)
        block += 1
    return hidden
