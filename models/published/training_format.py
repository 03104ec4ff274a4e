"""Checkpoints of the project's own recipes in their first form: LlamaGen's parameter names and its settings' names."""

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.published.llamagen import layer_state

_TARGET: Final = {
    "transformer.cls_embedding.cap_proj.fc1.weight": "conditioner.first.weight",
    "transformer.cls_embedding.cap_proj.fc2.weight": "conditioner.second.weight",
    "transformer.cls_embedding.uncond_embedding": "conditioner.absent",
    "transformer.tok_embeddings.weight": "decoder.codes.weight",
    "transformer.norm.weight": "decoder.norm.weight",
    "transformer.output.weight": "decoder.head.weight",
    "words.embedding.weight": "words.embedding.weight",
}


def llamagen_width(dim: int, multiple_of: int = 256) -> int:
    """The width of LlamaGen's SwiGLU layer: two thirds of 4 dim, rounded up to `multiple_of`."""
    return -(-int(2 * 4 * dim / 3) // multiple_of) * multiple_of


def format_1_config(values: Mapping[str, Any]) -> DecoderConfig:
    """The sizes of a target, under LlamaGen's names, as ours."""
    return DecoderConfig(
        dim=values["dim"],
        layers=values["n_layer"],
        heads=values["n_head"],
        hidden=llamagen_width(values["dim"], values.get("multiple_of", 256)),
        vocab_size=values["vocab_size"],
        grid_side=round(values["block_size"] ** 0.5),
        prefix=values["cls_token_num"],
        norm_eps=values.get("norm_eps", 1e-5),
        rope_base=values.get("rope_base", 10000.0),
        condition="external",
    )


def format_1_target(saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """The parameters of a target's checkpoint by the names of `models.text.CaptionedTarget`."""
    state, config = saved["model"], format_1_config(saved["config"]["transformer"])
    found = {new: state[old] for old, new in _TARGET.items()}
    for index in range(config.layers):
        layer = layer_state(state, f"transformer.layers.{index}.", config.heads)
        found |= {f"decoder.layers.{index}.{name}": value for name, value in layer.items()}
    return found


def format_1_drafter(saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """The parameters that a drafter's checkpoint holds, by the names of `models.decoder.Decoder`."""
    state, config = saved["model"], format_1_config(saved["config"]["transformer"])
    layer = layer_state(state, "layers.0.", config.heads)
    found = {f"layers.0.{name}": value for name, value in layer.items()}
    return found | {name: state[name] for name in ("fc.weight", "norm.weight")}
