"""Reads and writes EAGLE-3 drafters of SpecForge and speculators: folders with config.json and model.safetensors.

Both libraries draft over a reduced vocabulary of `draft_vocab_size` ids. `d2t` [K] holds the offset from each draft id
to its target id; `t2d` marks the target ids that it covers. SpecForge names the layer `midlayer` and counts the
target's layers from 0. speculators names it `layers.0` and counts hidden states, starting with the embedding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from underpaint.artifacts.strict_json import read_object
from underpaint.models.checkpoints import take_weights
from underpaint.models.eagle3 import Eagle3Config, Eagle3Decoder
from underpaint.models.published.files import read_checkpoint
from underpaint.models.published.mapped import Tensors
from underpaint.runtime.live.drafter import CHECKPOINT, LiveDrafter, drafter_config, read_drafter, with_ends
from underpaint.runtime.live.model import LiveModel, LiveModelError, is_target, target_fingerprint

Layout: TypeAlias = Literal["specforge", "speculators"]
_CONFIG: Final = "config.json"
_WEIGHTS: Final = "model.safetensors"
_LAYER: Final[Mapping[Layout, str]] = {"specforge": "midlayer.", "speculators": "layers.0."}
_ARCHITECTURE: Final[Mapping[Layout, str]] = {"specforge": "LlamaForCausalLMEagle3", "speculators": "Eagle3DraftModel"}
_NORMS: Final = {
    "input_layernorm": "layers.0.attention_norm",
    "hidden_norm": "feature_norm",
    "post_attention_layernorm": "layers.0.ffn_norm",
}
_JOINED: Final = {
    "layers.0.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "layers.0.out": ("self_attn.o_proj",),
    "layers.0.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "layers.0.down": ("mlp.down_proj",),
}
"""This project's matrices, and the matrices of both layouts that they stack vertically."""
_COMPARED: Final = 64
"""Number of embedding rows that are compared to check that a drafter was trained for a target."""


def open_drafter(live: LiveModel, path: Path) -> LiveDrafter:
    """Load a drafter for a live target from a folder of a training run, SpecForge or speculators.

    Raises:
        LiveModelError: It was trained for another target, or drafts in an unsupported way.
        ValueError: A damaged checkpoint.
    """
    foreign = path.is_dir() and (path / _CONFIG).is_file() and not (path / CHECKPOINT).is_file()
    drafter = read_layout(live, path) if foreign else read_drafter(live, path)
    return LiveDrafter(drafter, live.sampling)


def read_layout(live: LiveModel, folder: Path) -> Eagle3Decoder:
    """Load a drafter saved by SpecForge or speculators, for a live target whose codes are part of its vocabulary."""
    settings = read_object(folder / _CONFIG)
    layout: Layout = "speculators" if "speculators_model_type" in settings else "specforge"
    _check_layout(settings, layout, folder)
    sizes = settings["transformer_layer_config"] if layout == "speculators" else settings
    ids = code_ids(live)
    tensors = read_checkpoint(folder).tensors
    config = _config(live, settings, sizes, layout, tensors, folder)
    state, drafted = _state(live, config, tensors, layout, ids, folder)
    drafter = Eagle3Decoder(replace(config, drafted_codes=len(drafted)))
    state["drafted"] = torch.from_numpy(drafted)
    embed = _own_embedding(live, settings, tensors, ids, folder)
    drafter = cast(Eagle3Decoder, with_ends(drafter, live, embed))
    take_weights(drafter, state, folder)
    return drafter


def write_layout(
    live: LiveModel, drafter: Eagle3Decoder, folder: Path, layout: Layout, target: str | None = None
) -> None:
    """Write a drafter in the layout of SpecForge or speculators, with its target's embeddings.

    Args:
        live: The target.
        drafter: Its drafter.
        folder: Output folder for config.json and model.safetensors; created if missing.
        layout: The library's layout.
        target: Folder or hub name of the target; speculators needs it to open a drafter.

    Raises:
        LiveModelError: The target's codes are not part of its vocabulary, or the layout does not support an option.
    """
    from safetensors.torch import save_file

    ids, config = code_ids(live), drafter.eagle3
    if layout == "specforge" and (config.norm_before_residual or config.norm_output):
        raise LiveModelError(
            "specforge: expected a drafter whose features are not normalised, got one of norm_before_residual or "
            "norm_output; write it as speculators"
        )
    state = {name: value.detach().cpu() for name, value in drafter.state_dict().items()}
    targets = ids[state["drafted"].numpy()]
    order = np.argsort(targets)
    targets = targets[order]
    device = next(live.body.parameters()).device
    with torch.inference_mode():
        embeddings = live.embed_ids(torch.arange(live.vocabulary, device=device)).cpu()
    reached = torch.zeros(live.vocabulary, dtype=torch.bool)
    reached[torch.from_numpy(targets)] = True
    saved = {
        "embed_tokens.weight": embeddings.clone(),
        "fc.weight": state["fc.weight"],
        "norm.weight": state["norm.weight"],
        "lm_head.weight": state["head.weight"][torch.from_numpy(order)],
        "d2t": torch.from_numpy(targets - np.arange(len(targets))),
        "t2d": reached,
    }
    layer, sizes = _LAYER[layout], config.decoder
    saved |= {f"{layer}{name}.weight": state[f"{our_name}.weight"] for name, our_name in _NORMS.items()}
    rows = {
        "layers.0.qkv": [heads * sizes.head_dim for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)],
        "layers.0.gate_up": [sizes.hidden, sizes.hidden],
    }
    for our_name, names in _JOINED.items():
        matrix = state[f"{our_name}.weight"]
        parts = matrix.split(rows.get(our_name, [len(matrix)]))
        saved |= {f"{layer}{name}.weight": part for name, part in zip(names, parts, strict=True)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in saved.items()}, folder / _WEIGHTS, {"format": "pt"})
    described = json.dumps(_settings(live, config, layout, target), indent=2)
    (folder / _CONFIG).write_text(described + "\n", encoding="utf-8")


def code_ids(live: LiveModel) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the vocabulary ids of the codes; raises LiveModelError if codes are not vocabulary ids."""
    if live.code_ids is None:
        raise LiveModelError(
            "drafter: expected a target whose image codes are ids of its vocabulary, as SpecForge and speculators "
            f"draft ids, got {live.family}; use the checkpoint of `underpaint train drafter`"
        )
    return live.code_ids


def _check_layout(settings: Mapping[str, Any], layout: Layout, folder: Path) -> None:
    """Raise LiveModelError unless `Eagle3Decoder` can run the drafter."""

    def refuse(name: str, expected: str, got: object) -> None:
        raise LiveModelError(
            f"{folder / _CONFIG}: {name}: expected {expected}, got {got!r}; train an EAGLE-3 drafter of one Llama "
            "layer with SpecForge or speculators, or one with `underpaint train drafter`"
        )

    if layout == "speculators":
        if settings["speculators_model_type"] != "eagle3":
            refuse("speculators_model_type", "eagle3", settings["speculators_model_type"])
        if not isinstance(settings.get("transformer_layer_config"), dict):
            refuse("transformer_layer_config", "an object", settings.get("transformer_layer_config"))
        sizes = settings["transformer_layer_config"]
    else:
        if settings.get("architectures") != [_ARCHITECTURE[layout]]:
            refuse("architectures", f"[{_ARCHITECTURE[layout]}]", settings.get("architectures"))
        if settings.get("norm_output") is False:
            refuse("norm_output", "true, so that the head reads a normalised output", False)
        sizes = settings
    for name, expected in {"model_type": "llama", "num_hidden_layers": 1, "attention_bias": False}.items():
        if sizes.get(name, expected) != expected:
            refuse(name, str(expected), sizes[name])
    for name in ("fc_norm", "norm_before_fc"):
        if settings.get(name):
            refuse(name, "false", True)
    scaling = sizes.get("rope_parameters") or sizes.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        refuse("rope_type", "default", kind)


def _config(
    live: LiveModel,
    settings: Mapping[str, Any],
    sizes: Mapping[str, Any],
    layout: Layout,
    tensors: Tensors,
    folder: Path,
) -> Eagle3Config:
    """Sizes of the drafter; raises LiveModelError if they do not match this target."""
    dim, vocabulary = sizes.get("hidden_size"), sizes.get("vocab_size")
    if (dim, vocabulary) != (live.decoder.dim, live.vocabulary):
        raise LiveModelError(
            f"{folder}: expected a drafter of this {live.family} model, of hidden_size {live.decoder.dim} and "
            f"vocab_size {live.vocabulary}, got one of {dim} and {vocabulary}; train one for it"
        )
    eagle_settings = settings if layout == "speculators" else settings.get("eagle_config") or {}
    layers = eagle_settings.get("eagle_aux_hidden_state_layer_ids")
    count = live.decoder.layers
    if layers is None:  # the defaults of each library
        layers = [2, count // 2, count - 3] if layout == "speculators" else [1, count // 2 - 1, count - 4]
    states = tuple(layer + (layout == "specforge") for layer in layers)
    width = tensors.shapes.get("fc.weight", (0, 0))[1]
    if not states or min(states) < 0 or max(states) > count or width != len(states) * live.decoder.dim:
        raise LiveModelError(
            f"{folder}: expected features of layers of this model, which has {count}, in an fc of "
            f"{len(states) * live.decoder.dim} columns, got layers {layers} and {width}; train a drafter for it"
        )
    theta = sizes.get("rope_theta") or (sizes.get("rope_parameters") or {}).get("rope_theta", 10000.0)
    heads = int(sizes["num_attention_heads"])
    decoder = replace(
        drafter_config(live),
        heads=heads,
        kv_heads=int(sizes.get("num_key_value_heads") or heads),
        head_dim=int(sizes.get("head_dim") or live.decoder.dim // heads),
        hidden=int(sizes["intermediate_size"]),
        norm_eps=float(sizes.get("rms_norm_eps", 1e-6)),
        rope_base=float(theta),
    )
    options = {name: bool(settings.get(name)) for name in ("norm_before_residual", "norm_output")}
    if layout == "specforge":  # its norm_output means that the head reads a normalised output
        options = dict.fromkeys(options, False)
    return Eagle3Config(decoder, states, 0, **options)


def _state(
    live: LiveModel, config: Eagle3Config, tensors: Tensors, layout: Layout, ids: Any, folder: Path
) -> tuple[dict[str, Tensor], np.ndarray[Any, np.dtype[np.int64]]]:
    """Weights under this project's names, and the codes [K], ascending, of the head's rows."""
    layer = _LAYER[layout]
    needed = [f"{layer}{name}.weight" for names in (*_JOINED.values(), tuple(_NORMS)) for name in names]
    missing = [name for name in (*needed, "fc.weight", "norm.weight", "lm_head.weight") if name not in tensors]
    if missing:
        raise LiveModelError(
            f"{folder}: expected {missing[0]} among its weights, got none; copy the folder again, or convert it to the "
            f"layout of {layout}"
        )
    head = tensors["lm_head.weight"]
    targets = torch.arange(len(head))
    if "d2t" in tensors and len(head) != live.vocabulary:
        targets = targets + tensors["d2t"]
    row_of = np.full(live.vocabulary, -1, dtype=np.int64)
    if len(targets) != len(head) or int(targets.min()) < 0 or int(targets.max()) >= live.vocabulary:
        raise LiveModelError(
            f"{folder}: expected d2t to lead {len(head)} draft ids to ids from 0 to {live.vocabulary - 1}, got ids "
            f"from {int(targets.min())} to {int(targets.max())}; train a drafter for this model"
        )
    row_of[targets.numpy()] = np.arange(len(head))
    rows = row_of[ids]
    drafted = np.flatnonzero(rows >= 0)
    if not drafted.size:
        raise LiveModelError(
            f"{folder}: expected a drafter of image tokens, got one whose draft vocabulary holds none of this model's "
            f"{len(ids):,} image codes; train it on pictures"
        )
    state = {
        "fc.weight": tensors["fc.weight"],
        "norm.weight": tensors["norm.weight"],
        "head.weight": head[torch.from_numpy(rows[drafted])],
    }
    state |= {f"{our_name}.weight": tensors[f"{layer}{name}.weight"] for name, our_name in _NORMS.items()}
    for our_name, names in _JOINED.items():
        state[f"{our_name}.weight"] = torch.cat([tensors[f"{layer}{name}.weight"] for name in names])
    return state, drafted


def _own_embedding(live: LiveModel, settings: Mapping[str, Any], tensors: Tensors, ids: Any, folder: Path) -> Any:
    """Return the drafter's own embeddings if it trained them, else None (the target's are used).

    Both libraries freeze embeddings by default, so frozen embeddings that differ mean another target.
    """
    fingerprint = settings.get("underpaint", {}).get("target")
    if fingerprint is not None and not is_target(live, str(fingerprint)):
        raise _of_another(live, folder)
    if "embed_tokens.weight" not in tensors:
        return None
    table = tensors["embed_tokens.weight"]
    device = next(live.body.parameters()).device
    few = torch.from_numpy(ids[:_COMPARED])
    with torch.inference_mode():
        theirs = live.embed_ids(few.to(device)).float().cpu()
    if torch.allclose(table[few].float(), theirs, atol=1e-2 * float(theirs.abs().max()), rtol=1e-2):
        return None
    if not settings.get("embed_requires_grad"):
        raise _of_another(live, folder)
    table, codes = table.to(device), torch.from_numpy(ids).to(device)
    return lambda tokens: table[
        torch.where(tokens < live.codes, codes[tokens.clamp(max=live.codes - 1)], tokens - live.codes)
    ]


def _of_another(live: LiveModel, folder: Path) -> LiveModelError:
    return LiveModelError(
        f"{folder}: expected a drafter that was trained for this {live.family} model, got one whose embeddings are "
        "another target's, or one that an earlier version saved; train one for it"
    )


def _settings(live: LiveModel, config: Eagle3Config, layout: Layout, target: str | None) -> dict[str, Any]:
    """Return the contents of config.json."""
    sizes = config.decoder
    rope = {"rope_theta": sizes.rope_base, "rope_type": "default"}
    layer: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": sizes.dim,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": sizes.norm_eps,
        "rope_theta": sizes.rope_base,
        "rope_parameters": rope,
        "max_position_embeddings": sizes.slots,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": live.vocabulary,
    }
    common: dict[str, Any] = {
        "architectures": [_ARCHITECTURE[layout]],
        "draft_vocab_size": config.drafted_codes,
        "underpaint": {"target": target_fingerprint(live)},
    }
    if layout == "specforge":
        layers = [state - 1 for state in config.target_layers]
        eagle = {"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": True}
        return {**layer, **common, "torch_dtype": "float32", "pad_token_id": 0, "eagle_config": eagle}
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier: dict[str, Any] = {"name_or_path": target, "architectures": []}
    return {
        **common,
        "dtype": "float32",
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "norm_before_residual": config.norm_before_residual,
        "norm_output": config.norm_output,
        "eagle_aux_hidden_state_layer_ids": list(config.target_layers),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
    }
