"""Models in the layout of `transformers`: Chameleon (Anole, Lumina-mGPT), Qwen2 (Tar), and EAGLE drafters."""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.published import recipes
from underpaint.models.published.files import Checkpoint, CheckpointError, Recipe, refuse_extra, require
from underpaint.models.published.options import LoadOptions, Parts

_DIGITS: Final = {chr(ord("A") + digit): str(digit) for digit in range(10)}
_LONGEST_PROMPT: Final = 256
_DRAFTERS_OWN: Final = "embed_tokens.weight"
_TOKENIZER: Final = "model.vqmodel."
"""The name prefix of the image tokenizer in a Chameleon checkpoint, which `chameleon_vq` reads."""
_UNCOND_KEEP: Final = (1, 1)
"""For no condition, Chameleon's own code keeps only the prompt's begin token and the image token, without padding
(facebookresearch/chameleon: `ImageDecoder` in inference/chameleon.py, inference/model_adapter.py)."""
_PICTURE_BEGINS: Final = "<racm3:break>"
_LINE_ENDS: Final = "<reserved08799>"
_SIZES_FROM: Final = 8800
_CELLS_A_SIZE: Final = 2


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
    """Return the vocabulary ids of codes 0, 1, ... in Chameleon's map, whose names spell digits as letters."""
    spelt = {name[6:-1]: place for name, place in vocabulary.items() if name.startswith("IMGIMG")}
    odd = sorted(letters for letters in spelt if not letters or set(letters) - set(_DIGITS))
    if odd:
        raise CheckpointError(f"chameleon: expected image tokens spelt in A to J, got {odd[0]!r}; check vocabulary_map")
    id_by_code = {int("".join(map(_DIGITS.__getitem__, letters))): place for letters, place in spelt.items()}
    if sorted(id_by_code) != list(range(len(id_by_code))) or not id_by_code:
        raise CheckpointError(f"chameleon: expected image tokens for codes 0 to n - 1, got {len(id_by_code)} with gaps")
    return torch.tensor([id_by_code[code] for code in range(len(id_by_code))])


def _lumina(vocabulary: Mapping[str, int], options: LoadOptions) -> dict[str, Any]:
    """Return config values for the tokens around codes in Lumina-mGPT's images (`FlexARItemProcessor` in its code).

    An image begins with a begin token, its height and its width, in units of 32 pixels (two cells). A line token
    follows each row of codes. The unconditional prompt consists of these tokens only, from the begin token on
    (`inference_solver.py`).
    """
    rows = options.grid_side or 0
    columns = options.grid_width or rows
    if not rows or rows % _CELLS_A_SIZE or columns % _CELLS_A_SIZE:
        raise CheckpointError(
            "lumina: expected an even --grid, pixels / 16 (48 for Lumina-mGPT-7B-768, 48x64 for a wide picture), got "
            f"{f'{rows} x {columns}' if rows else 'none'}: sizes are named in units of 32 pixels"
        )
    if options.uncond_keep is not None:
        raise CheckpointError("lumina: leave --uncond-keep out; without a condition the picture's marks alone are left")
    sizes = [f"<reserved{_SIZES_FROM + side // _CELLS_A_SIZE:05d}>" for side in (rows, columns)]
    missing = sorted({name for name in (_PICTURE_BEGINS, *sizes, _LINE_ENDS) if name not in vocabulary})
    if missing:
        raise CheckpointError(f"lumina: {', '.join(missing)} not in vocabulary_map; check config.json and --grid")
    start_ids = tuple(int(vocabulary[name]) for name in (_PICTURE_BEGINS, *sizes))
    line = int(vocabulary[_LINE_ENDS])
    return {
        "image_start_ids": start_ids,
        "uncond_keep": (0, len(start_ids)),
        "eol_token": line,
        "grid_width": options.grid_width,
    }


def _kv_heads(settings: Mapping[str, Any], heads: int, kind: str) -> int:
    """Return the number of key and value heads; raise CheckpointError if it does not divide `heads`."""
    kv_heads = int(settings.get("num_key_value_heads") or heads)
    if kv_heads < 1 or heads % kv_heads:
        raise CheckpointError(f"{kind}: {heads} heads do not share {kv_heads} keys evenly; check config.json")
    return kv_heads


def _layers(source: Checkpoint, stem: str, config: DecoderConfig, kind: str, turned: bool) -> dict[str, Recipe]:
    """Return recipes for all layers. turned: rotary pairs are adjacent, as in LlamaGen, and must be reordered."""
    tensors: dict[str, Recipe] = {}

    def moved(recipe: Recipe, heads: int) -> Recipe:
        return recipes.reordered(recipe, lambda rows: recipes.half_split(rows, heads)) if turned else recipe

    def merged(stem: str, end: str) -> Recipe:
        query, key, value = (recipes.stored(source, f"{stem}self_attn.{part}_proj.{end}") for part in "qkv")
        return recipes.joined(moved(query, config.heads), moved(key, config.kv_heads), value)

    for index in range(config.layers):
        old, new = f"{stem}{index}.", f"layers.{index}."
        require(source, kind, *_layer_names(config, stem, index))
        rest = [f"{old}mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
        out, ffn_norm = f"{old}self_attn.o_proj.weight", f"{old}post_attention_layernorm.weight"
        tensors |= {
            f"{new}qkv.weight": merged(old, "weight"),
            f"{new}out.weight": recipes.stored(source, out),
            f"{new}ffn_norm.weight": recipes.stored(source, ffn_norm),
            f"{new}gate_up.weight": recipes.joined(*(recipes.stored(source, name) for name in rest[:2])),
            f"{new}down.weight": recipes.stored(source, rest[2]),
        }
        if config.first_norm or index:
            tensors[f"{new}attention_norm.weight"] = recipes.stored(source, f"{old}input_layernorm.weight")
        if config.qkv_bias:
            tensors[f"{new}qkv.bias"] = merged(old, "bias")
        if config.qk_norm:
            tensors |= _head_norms(source, old, new, config)
    return tensors


def _layer_names(config: DecoderConfig, stem: str, index: int) -> list[str]:
    """Return the published names of all parameters of one layer."""
    names = [f"self_attn.{part}_proj.weight" for part in "qkvo"]
    names += [f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
    names += ["post_attention_layernorm.weight"] + ["input_layernorm.weight"] * bool(config.first_norm or index)
    names += [f"self_attn.{part}_proj.bias" for part in "qkv" if config.qkv_bias]
    names += [f"self_attn.{part}_norm.{end}" for part in "qk" for end in ("weight", "bias") if config.qk_norm]
    return [f"{stem}{index}.{name}" for name in names]


def _refuse_extra(source: Checkpoint, config: DecoderConfig, stem: str, other_names: set[str], kind: str) -> None:
    layers = {name for index in range(config.layers) for name in _layer_names(config, stem, index)}
    refuse_extra(source, kind, other_names | layers, beside=(_TOKENIZER,))


def _head_norms(source: Checkpoint, old: str, new: str, config: DecoderConfig) -> dict[str, Recipe]:
    tensors = {}
    for part, heads in (("q", config.heads), ("k", config.kv_heads)):

        def repeated(rows: Tensor, heads: int = heads) -> Tensor:
            return rows.repeat_interleave(heads // rows.shape[0], dim=0)

        names = [f"{old}self_attn.{part}_norm.{what}" for what in ("weight", "bias")]
        for name, what in zip(names, ("scale", "shift"), strict=True):
            tensors[f"{new}{part}_{what}"] = recipes.reordered(recipes.stored(source, name), repeated)
    return tensors


def _text_model(source: Checkpoint, ids: Tensor, options: LoadOptions, kind: str, **config_fields: Any) -> Parts:
    """Return a language model that draws with the vocabulary ids `ids`; prompts may use every id."""
    settings, shapes = source.settings, source.tensors.shapes
    require(source, kind, "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.gate_proj.weight")
    table, head = "model.embed_tokens.weight", "lm_head.weight"
    count, dim = recipes.matrix(source, table, kind)
    if not ids.numel() or int(ids.min()) < 0 or int(ids.max()) >= count:
        between = f"{int(ids.min())} to {int(ids.max())}" if ids.numel() else "none"
        raise CheckpointError(f"{kind}: expected image tokens among the {count} of the embedding, got {between}")
    if head not in shapes and not settings.get("tie_word_embeddings"):
        raise CheckpointError(f"{kind}: lm_head.weight is missing and config.json does not tie it; copy every shard")
    heads = int(_setting(source, "num_attention_heads", kind))
    prefix = options.prefix or _LONGEST_PROMPT
    if prefix < sum(config_fields["uncond_keep"] or ()):
        raise CheckpointError(
            f"{kind}: expected --prefix from {sum(config_fields['uncond_keep'])}, the ids that stay, got {prefix}"
        )
    config = DecoderConfig(
        dim=dim,
        layers=recipes.count_layers(shapes, "model.layers."),
        heads=heads,
        kv_heads=_kv_heads(settings, heads, kind),
        head_dim=int(settings.get("head_dim") or 0),
        hidden=recipes.matrix(source, "model.layers.0.mlp.gate_proj.weight", kind)[0],
        vocab_size=len(ids),
        prefix=prefix,
        norm_eps=float(_setting(source, "rms_norm_eps", kind)),
        rope="line",
        rope_base=_rope_base(settings),
        condition="table",
        cond_ids=count,
        **config_fields,
    )
    expected = int(_setting(source, "num_hidden_layers", kind))
    if config.layers != expected:
        raise CheckpointError(f"{kind}: config.json says {expected} layers, the weights hold {config.layers}")
    _refuse_extra(source, config, "model.layers.", {table, head, "model.norm.weight"}, kind)
    tensors = {
        "codes.weight": recipes.reordered(recipes.stored(source, table), lambda rows: rows[ids]),
        "conditions.weight": recipes.stored(source, table),
        "norm.weight": recipes.stored(source, "model.norm.weight"),
        "head.weight": recipes.reordered(
            recipes.stored(source, head if head in shapes else table), lambda rows: rows[ids]
        ),
    }
    return Parts(config, tensors | _layers(source, "model.layers.", config, kind, False), ids=ids)


def chameleon(source: Checkpoint, options: LoadOptions) -> Parts:
    """Read a Chameleon-type model that can draw only image tokens, the same mask as in Anole's decoding."""
    require(source, "chameleon", "model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight")
    vocabulary = _setting(source, "vocabulary_map", "chameleon")
    config_fields: dict[str, Any] = {"qk_norm": True, "post_norm": bool(source.settings.get("swin_norm", False))}
    if options.layout == "lumina":
        config_fields |= _lumina(vocabulary, options)
    else:
        config_fields["uncond_keep"] = options.uncond_keep or _UNCOND_KEEP
        begins = vocabulary.get(_PICTURE_BEGINS)
        config_fields["prompt_end"] = () if begins is None else (int(begins),)
    return _text_model(
        source, image_ids(vocabulary), options, "chameleon", grid_side=options.grid_side or 32, **config_fields
    )


def tar_lm(source: Checkpoint, options: LoadOptions) -> Parts:
    """Read Tar's language model, which draws TA-Tok codes: consecutive ids from `first_code`.

    Tar's own code uses guidance only in the de-tokenizers (`t2i_inference_sana.py`). So there is no unconditional
    prompt unless `options.uncond_keep` defines it.
    """
    require(source, "tar-lm", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias")
    settings = source.settings
    first = options.first_code if options.first_code is not None else settings.get("image_start_token_id")
    count = settings.get("num_image_tokens", 65536)
    if first is None:
        raise CheckpointError("tar-lm: expected the id of code 0; give --first-code (the tokenizer's id of <I0>)")
    ids = torch.arange(int(first), int(first) + int(count))
    config_fields = {"qkv_bias": True, "uncond_keep": options.uncond_keep}
    return _text_model(source, ids, options, "tar-lm", grid_side=options.grid_side or 27, **config_fields)


def eagle(source: Checkpoint, target: Parts, options: LoadOptions) -> Parts:
    """Read a released drafter: one or more layers on [embedding; feature], the target's head, no final norm.

    LlamaGen's drafters rotate by the cell and have no norm before the first layer; Anole's are Chameleon layers that
    rotate by the place in the sequence. A drafter's own embeddings are used if it has any, because LlamaGen's drafters
    were trained on another table than their targets. Drafters of captioned targets read all caption positions but the
    last, as their `prefix` says; see `EngineDrafter.begin`. Line tokens are left out: codes rotate as in the target's
    sequence, and the feature before a row is that of its line token.
    """
    kind = "eagle-drafter"
    require(source, kind, "fc.weight", "layers.0.mlp.gate_proj.weight")
    shapes, base = source.tensors.shapes, target.config
    dim = recipes.matrix(source, "fc.weight", kind)[0]
    if dim != base.dim:
        raise CheckpointError(
            f"{kind}: it is {dim} wide, its target {base.dim}; give the target that it was trained for"
        )
    heads = options.heads or int(source.settings.get("num_attention_heads", base.heads))
    captions = base.condition == "external" and base.rope == "grid"
    config = DecoderConfig(
        dim=dim,
        layers=recipes.count_layers(shapes, "layers."),
        heads=heads,
        kv_heads=_kv_heads(source.settings, heads, kind),
        head_dim=int(source.settings.get("head_dim") or 0),
        hidden=recipes.matrix(source, "layers.0.mlp.gate_proj.weight", kind)[0],
        vocab_size=base.vocab_size,
        grid_side=base.grid_side,
        grid_width=base.grid_width,
        prefix=base.prefix if captions else 1,
        reads_condition=captions,
        norm_eps=float(source.settings.get("rms_norm_eps", 1e-6)),
        rope=base.rope,
        rope_base=base.rope_base,
        eol_token=base.eol_token,
        qk_norm="layers.0.self_attn.q_norm.weight" in shapes,
        first_norm="layers.0.input_layernorm.weight" in shapes,
        final_norm=False,
        condition="none",
        drafter=True,
    )
    _refuse_extra(source, config, "layers.", {"fc.weight", "fc.bias", _DRAFTERS_OWN}, kind)
    tensors = _layers(source, "layers.", config, kind, base.rope == "grid")
    tensors |= {
        # The release has [embedding; feature]; the decoder reads [feature; embedding].
        "fc.weight": recipes.reordered(
            recipes.stored(source, "fc.weight"), lambda rows: torch.cat(rows.chunk(2, dim=1)[::-1], dim=1)
        ),
        "fc.bias": recipes.stored(source, "fc.bias") if "fc.bias" in shapes else recipes.zeros(dim),
        "codes.weight": _drafters_codes(source, target, kind),
        "head.weight": target.tensors["head.weight"],
    }
    return Parts(config, tensors)


def _drafters_codes(source: Checkpoint, target: Parts, kind: str) -> Recipe:
    """Return the code embeddings: from the drafter's own table, by code or vocabulary id, or else the target's."""
    if _DRAFTERS_OWN not in source.tensors:
        return target.tensors["codes.weight"]
    count, _ = recipes.matrix(source, _DRAFTERS_OWN, kind)
    table, ids, base = recipes.stored(source, _DRAFTERS_OWN), target.ids, target.config
    if count == base.vocab_size:
        return table
    if ids is None or count != base.cond_ids:
        expected = f"{base.vocab_size} codes" + (f" or {base.cond_ids} ids" if ids is not None else "")
        raise CheckpointError(
            f"{kind}: expected {_DRAFTERS_OWN} of {expected}, got {count} rows; give the target that it was trained for"
        )
    return recipes.reordered(table, lambda rows: rows[ids])
