"""Image tokenizers: LlamaGen's VQ, and Chameleon's VQGAN as released (`tokenizer/vqgan.ckpt`)."""

from typing import Final

import torch

from underpaint.models.published import recipes
from underpaint.models.published.files import Checkpoint, CheckpointError, Recipe, fill, require
from underpaint.models.vq import USAGE_LENGTH, VQConfig, VQModel

_LEAST_CHANNELS: Final = 128
"""The least width at which `models.vq_layers` uses 32 norm groups, as Chameleon's VQGAN does at every width."""
_MIDDLE: Final = ("block_1", "attn_1", "block_2")
_PARTS: Final = ("encoder.", "decoder.", "quantize.", "quant_conv.", "post_quant_conv.")
"""The parameters that images need; like the released code, this module ignores all others (losses, averages)."""
_INSIDE: Final = "model.vqmodel."
"""The name prefix of the tokenizer in a checkpoint with the layout of `transformers`."""
_CODES: Final = "quantize.embedding.weight"


def llamagen_vq(source: Checkpoint, dtype: torch.dtype) -> VQModel:
    """Read LlamaGen's VQ, whose parameter names this package uses."""
    kind, shapes = "vq", source.tensors.shapes
    config = _config(source, kind, "", ("encoder.conv_blocks", "decoder.conv_blocks"), "res", True)
    with torch.device("meta"):
        model = VQModel(config)
    tensors = {name: recipes.stored(source, name) for name in shapes if not name.startswith("loss.")}
    fill(model, tensors, source, kind, dtype)
    return model.eval()


def chameleon_vq(source: Checkpoint, dtype: torch.dtype) -> VQModel:
    """Read Chameleon's VQGAN (arXiv 2203.13131), with the parameter names of the original code (arXiv 2012.09841).

    Code i is row i of the codebook, which is the code that Chameleon's vocabulary spells as i. Raises CheckpointError,
    for example if the image decoder is missing, which the conversion of `transformers` omits.
    """
    kind, shapes = "chameleon-vq", source.tensors.shapes
    stem = _INSIDE if _INSIDE + _CODES in shapes else ""
    if stem and f"{stem}decoder.conv_in.weight" not in shapes:
        raise CheckpointError(
            f"{kind}: this checkpoint holds the codes and no picture decoder; give the release's tokenizer/vqgan.ckpt"
        )
    config = _config(source, kind, stem, ("encoder.down", "decoder.up"), "block", False)
    if config.ch < _LEAST_CHANNELS:
        raise CheckpointError(f"{kind}: expected at least {_LEAST_CHANNELS} channels, got {config.ch}")
    levels = len(config.encoder_ch_mult)
    attention = f"{stem}encoder.down.{levels - 1}.attn.0.norm.weight" in shapes
    with torch.device("meta"):
        model = VQModel(config, coarse_attention=attention, unit_codes=False)
    names = {
        parameter: f"{stem}{_released(parameter, levels)}"
        for parameter in model.state_dict()
        if parameter != "quantize.codebook_used"
    }
    require(source, kind, *names.values())
    tensors: dict[str, Recipe] = {parameter: recipes.stored(source, name) for parameter, name in names.items()}
    tensors["quantize.codebook_used"] = recipes.zeros(USAGE_LENGTH)
    parts = tuple(f"{stem}{part}" for part in _PARTS)
    rest = {name for name in shapes if name.startswith(parts)} - set(names.values())
    fill(model, tensors | {name: recipes.stored(source, name) for name in rest}, source, kind, dtype)
    return model.eval()


def _config(
    source: Checkpoint, kind: str, stem: str, levels: tuple[str, str], block: str, coarsest_first: bool
) -> VQConfig:
    """Derive the config from parameter shapes. levels, block: the name parts of levels (encoder, decoder) and blocks.

    coarsest_first: whether the decoder's levels are numbered in the order in which they run.
    """
    shapes = source.tensors.shapes
    codes, *ends = (f"{stem}{name}" for name in (_CODES, "encoder.conv_in.weight", "encoder.conv_out.weight"))
    counts = [max(1, recipes.count_layers(shapes, f"{stem}{level}.")) for level in levels]
    firsts = [
        [f"{stem}{level}.{index}.{block}.0.conv1.weight" for index in range(count)]
        for level, count in zip(levels, counts, strict=True)
    ]
    require(source, kind, codes, *ends, *firsts[0], *firsts[1])
    if len(shapes[codes]) != 2:
        raise CheckpointError(f"{kind}: expected {codes} [codes, width], got {list(shapes[codes])}")
    ch = shapes[ends[0]][0]
    encoder, decoder = (tuple(shapes[name][0] // ch for name in names) for names in firsts)
    return VQConfig(
        codebook_size=shapes[codes][0],
        codebook_embed_dim=shapes[codes][1],
        encoder_ch_mult=encoder,
        decoder_ch_mult=decoder[::-1] if coarsest_first else decoder,
        z_channels=shapes[ends[1]][0],
        ch=ch,
        num_res_blocks=recipes.count_layers(shapes, f"{stem}{levels[0]}.0.{block}."),
    )


def _released(parameter: str, levels: int) -> str:
    """Return the name that Chameleon's VQGAN gives to `parameter` of `models.vq.VQModel`."""
    half, *rest = parameter.split(".")
    if rest[0] == "mid":
        rest[1] = _MIDDLE[int(rest[1])]
    elif rest[0] == "conv_blocks":
        coarseness = int(rest[1]) if half == "encoder" else levels - 1 - int(rest[1])
        rest[:2] = ["down" if half == "encoder" else "up", str(coarseness)]
        rest[2] = "block" if rest[2] == "res" else rest[2]
    return ".".join((half, *rest))
