"""Models in the layout of `transformers`: Chameleon (Anole, Lumina-mGPT), Qwen2 (Tar), and drafters of EAGLE's type."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from models.published.decoder import DecoderConfig
from models.published.files import Checkpoint, CheckpointError, require
from models.published.options import LoadOptions, Parts, count_layers, half_split, repeat_heads

_DIGITS: Final = {chr(ord("A") + digit): str(digit) for digit in range(10)}
_LONGEST_PROMPT: Final = 256


def _setting(source: Checkpoint, name: str, kind: str) -> Any:
    if name not in source.settings:
        raise CheckpointError(f"{kind}: expected '{name}' in config.json beside the weights; copy that file too")
    return source.settings[name]


def _rope_base(settings: Mapping[str, Any]) -> float:
    nested = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if nested.get("rope_type", nested.get("type", "default")) != "default":
        raise CheckpointError(f"expected plain rotary positions, got {nested}; this variant is not supported")
    return float(nested.get("rope_theta", settings.get("rope_theta", 10000.0)))


def image_ids(vocabulary: Mapping[str, int]) -> Tensor:
    """Vocabulary ids of codes 0, 1, ... in Chameleon's map, whose names spell the code in letters for digits."""
    found = {}
    for name, place in vocabulary.items():
        if name.startswith("IMGIMG"):
            found[int("".join(_DIGITS[letter] for letter in name[6:-1]))] = place
    if sorted(found) != list(range(len(found))) or not found:
        raise CheckpointError(f"chameleon: expected image tokens for codes 0 to n - 1, got {len(found)} with gaps")
    return torch.tensor([found[code] for code in range(len(found))])


def _layers(
    source: Checkpoint, stem: str, config: DecoderConfig, kv_heads: int, kind: str, turned: bool
) -> dict[str, Tensor]:
    """Renamed layers. `turned`: rotary pairs are neighbours, as in LlamaGen, and are moved half a head apart."""
    tensors: dict[str, Tensor] = {}
    groups = config.heads // kv_heads
    for index in range(config.layers):
        old, new = f"{stem}{index}.", f"layers.{index}."
        attention = [f"{old}self_attn.{part}_proj.weight" for part in "qkvo"]
        rest = [f"{old}mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
        norm, ffn_norm = f"{old}input_layernorm.weight", f"{old}post_attention_layernorm.weight"
        require(source, kind, *attention, *rest, ffn_norm)
        query, key, value, out = (source.tensors[name] for name in attention)
        gate, up, down = (source.tensors[name] for name in rest)
        key, value = (repeat_heads(part, kv_heads, groups) for part in (key, value))
        if turned:
            query, key = half_split(query, config.heads), half_split(key, config.heads)
        tensors |= {
            f"{new}qkv.weight": torch.cat([query, key, value]),
            f"{new}out.weight": out,
            f"{new}ffn_norm.weight": source.tensors[ffn_norm],
            f"{new}gate_up.weight": torch.cat([gate, up]),
            f"{new}down.weight": down,
        }
        if config.first_norm or index:
            require(source, kind, norm)
            tensors[f"{new}attention_norm.weight"] = source.tensors[norm]
        if config.qkv_bias:
            biases = [source.tensors[f"{old}self_attn.{part}_proj.bias"] for part in "qkv"]
            wide = [biases[0], *(repeat_heads(part, kv_heads, groups) for part in biases[1:])]
            tensors[f"{new}qkv.bias"] = torch.cat(wide)
        if config.qk_norm:
            tensors |= _head_norms(source, old, new, config, kind)
    return tensors


def _head_norms(source: Checkpoint, old: str, new: str, config: DecoderConfig, kind: str) -> dict[str, Tensor]:
    found = {}
    for part in "qk":
        names = [f"{old}self_attn.{part}_norm.{what}" for what in ("weight", "bias")]
        require(source, kind, *names)
        for name, what in zip(names, ("scale", "shift"), strict=True):
            rows = source.tensors[name]
            found[f"{new}{part}_{what}"] = rows.repeat_interleave(config.heads // rows.shape[0], dim=0)
    return found


def _text_model(source: Checkpoint, ids: Tensor, options: LoadOptions, kind: str, **own: Any) -> Parts:
    """A language model that draws with the vocabulary ids `ids`; every id can stand in the prompt."""
    settings, found = source.settings, source.tensors
    require(source, kind, "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.gate_proj.weight")
    table = found["model.embed_tokens.weight"]
    if int(ids.max()) >= table.shape[0]:
        raise CheckpointError(f"{kind}: image token {int(ids.max())} is beyond the {table.shape[0]} of the embedding")
    head = found.get("lm_head.weight", table)
    if "lm_head.weight" not in found and not settings.get("tie_word_embeddings"):
        raise CheckpointError(f"{kind}: lm_head.weight is missing and config.json does not tie it; copy every shard")
    heads = int(_setting(source, "num_attention_heads", kind))
    config = DecoderConfig(
        dim=table.shape[1],
        layers=count_layers(found, "model.layers."),
        heads=heads,
        hidden=found["model.layers.0.mlp.gate_proj.weight"].shape[0],
        vocab_size=len(ids),
        prefix=options.prefix or _LONGEST_PROMPT,
        norm_eps=float(_setting(source, "rms_norm_eps", kind)),
        rotary="line",
        rope_base=_rope_base(settings),
        condition="table",
        conditions=table.shape[0],
        **own,
    )
    expected = int(_setting(source, "num_hidden_layers", kind))
    if config.layers != expected:
        raise CheckpointError(f"{kind}: config.json says {expected} layers, the weights hold {config.layers}")
    tensors = {
        "codes.weight": table[ids],
        "conditions.weight": table,
        "norm.weight": found["model.norm.weight"],
        "head.weight": head[ids],
    }
    kv_heads = int(settings.get("num_key_value_heads", heads))
    return Parts(config, tensors | _layers(source, "model.layers.", config, kv_heads, kind, False))


def chameleon(source: Checkpoint, options: LoadOptions) -> Parts:
    """A Chameleon-type model; only image tokens can be drawn, which is the mask that Anole decodes under."""
    vocabulary = _setting(source, "vocabulary_map", "chameleon")
    own = {"qk_norm": True, "post_norm": bool(source.settings.get("swin_norm", False))}
    return _text_model(source, image_ids(vocabulary), options, "chameleon", grid_side=options.grid_side or 32, **own)


def tar_lm(source: Checkpoint, options: LoadOptions) -> Parts:
    """Tar's language model, which draws TA-Tok codes: consecutive ids from `first_code`."""
    settings = source.settings
    first = options.first_code if options.first_code is not None else settings.get("image_start_token_id")
    count = settings.get("num_image_tokens", 65536)
    if first is None:
        raise CheckpointError("tar-lm: expected the id of code 0; give --first-code (the tokenizer's id of <I0>)")
    ids = torch.arange(int(first), int(first) + int(count))
    return _text_model(source, ids, options, "tar-lm", grid_side=options.grid_side or 27, qkv_bias=True)


def eagle(source: Checkpoint, target: Parts, options: LoadOptions) -> Parts:
    """A released drafter for `target`: one or more layers on [embedding; feature], the target's head, no final norm.

    LlamaGen's drafters turn by the cell and pass their input to the first layer unnormalised; Anole's are Chameleon
    layers along the line. The condition's positions, which the released code also feeds, are left out.
    """
    kind = "eagle-drafter"
    require(source, kind, "fc.weight", "layers.0.mlp.gate_proj.weight")
    found, base = source.tensors, target.config
    dim = found["fc.weight"].shape[0]
    if dim != base.dim:
        raise CheckpointError(
            f"{kind}: it is {dim} wide, its target {base.dim}; give the target that it was trained for"
        )
    heads = options.heads or int(source.settings.get("num_attention_heads", base.heads))
    config = DecoderConfig(
        dim=dim,
        layers=count_layers(found, "layers."),
        heads=heads,
        hidden=found["layers.0.mlp.gate_proj.weight"].shape[0],
        vocab_size=base.vocab_size,
        grid_side=base.grid_side,
        prefix=1,
        norm_eps=float(source.settings.get("rms_norm_eps", 1e-6)),
        rotary=base.rotary,
        rope_base=base.rope_base,
        qk_norm="layers.0.self_attn.q_norm.weight" in found,
        first_norm="layers.0.input_layernorm.weight" in found,
        final_norm=False,
        condition="none",
        drafter=True,
    )
    kv_heads = int(source.settings.get("num_key_value_heads", heads))
    tensors = _layers(source, "layers.", config, kv_heads, kind, base.rotary == "grid")
    # Released as [embedding; feature]; the decoder reads [feature; embedding].
    embedding, feature = found["fc.weight"].chunk(2, dim=1)
    tensors["fc.weight"] = torch.cat([feature, embedding], dim=1)
    tensors["fc.bias"] = found["fc.bias"] if "fc.bias" in found else torch.zeros(dim)
    return Parts(
        config, tensors | {"codes.weight": target.tensors["codes.weight"], "head.weight": target.tensors["head.weight"]}
    )
