"""Describes a loaded torch decoder of image tokens in one value, `LiveModel`, for the live runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.conditions import FeatureEmbedding

Ids: TypeAlias = tuple[int, ...]
"""Token ids in the model's own vocabulary."""
_HASHED_WEIGHTS: Final = 256
"""Number of evenly spaced values of each tensor that a weights digest hashes, so that large models stay fast."""
_HASHED_CODES: Final = 64
"""Number of codes whose embeddings and logits a weights digest hashes."""
_HASHED_SIGNS: Final = 4096
"""Number of evenly spaced values of each tensor whose signs a target fingerprint hashes."""
_SCALES_APART: Final = 0.05
"""Largest relative difference of a target's logits that another precision may cause."""
_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"


class LiveModelError(ValueError):
    """A model, a prompt or a processor that the live runtime cannot use; the message says what to do."""


def plain_positions(places: Tensor, prompt: Tensor) -> Tensor:
    """Position ids [B, T] equal to the places [B, T] in the sequence."""
    return places


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LiveModel:
    """A decoder that is loaded in torch, with everything that differs between model families.

    A family is a function that builds a `LiveModel` from a model. `runtime.live.families` lists the built-in ones.

    Attributes:
        family: Name of the family.
        body: The decoder layers, called like those of `transformers`, with `inputs_embeds` [B, T, D], a 4-D
            additive `attention_mask` [B, 1, T, S], `position_ids` and `past_key_values`.
        config: The decoder's configuration: `hidden_size`, `intermediate_size`, `num_hidden_layers`,
            `num_attention_heads`, and `num_key_value_heads` and `head_dim` if it has them; or a `DecoderConfig`. Every
            layer must attend to all earlier positions of a prompt and its picture.
        grid: Rows and columns of the token image.
        codes: V, the number of image codes.
        vocabulary: Number of ids that `embed_ids` accepts.
        embed_codes: Embeddings [..., D] of codes 0 to V - 1.
        embed_ids: Embeddings [..., D] of vocabulary ids.
        head: Logits [..., V] of the codes, from hidden states [..., D].
        sampling: Guidance, temperature, top-k and top-p that the authors publish.
        code_ids: [V] int64, the vocabulary id of each code; None if codes are not part of the vocabulary.
        eol_id: The vocabulary id that ends each line except the last; None if lines have no end token.
        last_line_ends: Whether the output of `generate` also has `eol_id` after the last line.
        closing: Vocabulary ids that follow the last code, or the end of the last line.
        codebook: [V, E], for acceptance rules that pool nearby codes; None if the model has none.
        position_ids: Position ids of places [B, T] (0 is a row's first prompt token), given the prompt's length [B, 1].
        uncond: Returns the ids of the unconditional row for a prompt; None if the model is drawn without guidance.
        image_start: The ids that every prompt must end with.
        appended: The ids that are appended to every prompt.
        encode: Returns the ids of a text, with the model's processor; None if prompts must be given as ids.
        decode: Returns pixels uint8 [H, W, 3] of codes [cells]; None if the model has no picture decoder.
        longest_prompt: Maximum number of ids (or features) in a prompt.
        features: Embeds the features that replace prompt ids; None if prompts are ids.
        parts: The grids of a small preview and of the picture, whose cells follow each other in `grid`, a grid with
            one row; None for a picture with one grid.
    """

    family: str
    body: nn.Module
    config: Any
    grid: Grid
    codes: int
    vocabulary: int
    embed_codes: Callable[[Tensor], Tensor]
    embed_ids: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    code_ids: IntArray | None = None
    eol_id: int | None = None
    last_line_ends: bool = True
    closing: Ids = ()
    codebook: FloatArray | None = None
    position_ids: Callable[[Tensor, Tensor], Tensor] = plain_positions
    uncond: Callable[[Ids], Ids] | None = None
    image_start: Ids = ()
    appended: Ids = ()
    encode: Callable[[Any, str], Sequence[int]] | None = None
    decode: Callable[[IntArray], NDArray[np.uint8]] | None = None
    longest_prompt: int = 1024
    features: FeatureEmbedding | None = None
    parts: tuple[Grid, Grid] | None = None

    def __post_init__(self) -> None:
        """Raise LiveModelError if a layer would ignore its own attention pattern under the masks of passes."""
        _check_attention(self)

    def __repr__(self) -> str:
        return f"<LiveModel {self.family}: {self.grid.height} x {self.grid.width} cells, {self.codes:,} codes>"

    @property
    def decoder(self) -> DecoderConfig:
        """The sizes of the decoder, in the form that engines need."""
        config, grid = self.config, self.grid
        if isinstance(config, DecoderConfig):
            return replace(config, capacity=config.slots)
        rope = getattr(config, "rope_parameters", None) or {}
        eol = 0 if self.eol_id is None else grid.height - 1
        return DecoderConfig(
            dim=config.hidden_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            hidden=config.intermediate_size,
            vocab_size=self.codes,
            grid_side=grid.height,
            grid_width=grid.width,
            prefix=self.longest_prompt,
            norm_eps=getattr(config, "rms_norm_eps", 1e-5),
            rope="line",
            rope_base=float(rope.get("rope_theta", 10000.0)),
            cond_ids=self.vocabulary,
            uncond_keep=None if self.uncond is None else (0, 1),
            eol_token=self.eol_id,
            kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            capacity=self.longest_prompt + grid.cells + eol,
        )

    def embed(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """Embed tokens [B, T] as [B, T, D]: ids below V are codes; id V + i is vocabulary id i, or row i of `rows`."""
        is_code = tokens < self.codes
        if bool(is_code.all()):
            return self.embed_codes(tokens)
        behind = (tokens - self.codes).clamp(min=0)
        others = self.embed_ids(behind) if rows is None else rows[behind]
        if not bool(is_code.any()):
            return others
        return torch.where(is_code[..., None], self.embed_codes(tokens.clamp(max=self.codes - 1)), others)

    def hidden(self, layers: Sequence[int], **passed: Any) -> tuple[Tensor, Tensor]:
        """Run the decoder layers.

        Args:
            layers: Hidden states that a drafter reads: 0 is the embedding, i is the output of layer i, counted from 1;
                () selects the last hidden states.
            **passed: Arguments of the attention layers of `transformers`.

        Returns:
            The last hidden states [B, T, D], which the head reads, and the n chosen ones concatenated, [B, T, n D].
        """
        kind: Any = getattr(self.body, "_orig_mod", self.body).__class__
        if _calls_it_cache(kind):
            passed["cache"] = passed.pop("past_key_values")
        if not layers:
            last: Tensor = self.body(**passed).last_hidden_state
            return last, last
        output = self.body(**passed, output_hidden_states=True)
        return output.last_hidden_state, torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)

    def token_ids(self, tokens: IntArray) -> IntArray:
        """The ids that the model's own `generate` returns for codes [cells], including line ends and closing ids."""
        if self.code_ids is None:
            return tokens
        ids = self.code_ids[tokens]
        if self.eol_id is not None:
            ends = np.full((self.grid.height, 1), self.eol_id, dtype=np.int64)
            ids = np.concatenate([ids.reshape(self.grid.height, self.grid.width), ends], axis=1).ravel()
            ids = ids if self.last_line_ends else ids[:-1]
        return np.concatenate([ids, np.array(self.closing, dtype=np.int64)])

    def check_prompt(self, ids: Sequence[int], what: str = "prompt") -> Ids:
        """Return the ids of a prompt as a tuple; raises LiveModelError if they are out of range, too many or none."""
        checked = tuple(int(each) for each in ids)
        if not checked or min(checked) < 0 or max(checked) >= self.vocabulary:
            raise LiveModelError(
                f"{what}: expected ids from 0 to {self.vocabulary - 1:,}, got {list(checked)[:20]}; make them with the "
                "model's own tokenizer"
            )
        if len(checked) > self.longest_prompt:
            raise LiveModelError(
                f"{what}: expected at most {self.longest_prompt:,} ids, got {len(checked):,}; shorten it, or pass a "
                "larger longest_prompt"
            )
        return checked

    def check_start(self, ids: Ids) -> None:
        """Raise LiveModelError unless a prompt ends with `image_start`, the ids that begin a picture."""
        marks = self.image_start
        if marks and ids[-len(marks) :] != marks:
            raise LiveModelError(
                f"prompt: expected ids that end with {list(marks)}, which begin a picture of {self.family}, got "
                f"{list(ids[-len(marks) :])}; append them, or give the prompt as text with a processor"
            )


@cache
def _calls_it_cache(body: Any) -> bool:
    """Whether the layers of a class name the KV cache `cache` instead of `past_key_values` (transformers 5.24)."""
    return "cache" in signature(body.forward).parameters


def _check_attention(live: LiveModel) -> None:
    """Raise LiveModelError unless every layer attends to all earlier positions.

    Layers of `transformers` apply a sliding window or chunks only through the masks that they make themselves, and
    passes give them 4-D masks instead. A window is accepted if it holds the longest prompt and the picture.
    """
    window = getattr(live.config, "sliding_window", None)
    kinds = getattr(live.config, "layer_types", None) or (_FULL if window is None else _SLIDING,)
    others = set(kinds) - {_FULL}
    if not others or (others == {_SLIDING} and window is not None and window >= live.decoder.capacity):
        return
    raise LiveModelError(
        f"{live.family}: expected layers that attend to all {live.decoder.capacity:,} positions of the longest prompt "
        f"and a picture, got {', '.join(sorted(others))} with sliding_window {window}, which the 4-D masks of passes "
        "would turn off; use another model, or a longest_prompt and a grid that fit into its window"
    )


def target_fingerprint(live: LiveModel) -> str:
    """Return a name of a drafter's target: a hash and a scale, see `is_target`.

    The hash is the SHA-256 of the signs of values sampled from every tensor of its layers, the scale the mean size of
    the head's logits of some codes' embeddings. Neither depends on the precision or the device that the model is loaded
    in, but for the scale's rounding.
    """
    digest = hashlib.sha256()
    for weight in live.body.state_dict().values():
        values = weight.detach().flatten()
        some = values[:: max(1, values.numel() // _HASHED_SIGNS)].float().cpu().numpy()
        digest.update(np.packbits(np.signbit(some)).tobytes())
    return f"{digest.hexdigest()}-{float(_ends(live)[1].float().abs().mean()):.4g}"


def is_target(live: LiveModel, fingerprint: str) -> bool:
    """Return whether a model is the one of a `target_fingerprint`: equal hashes, and scales within rounding."""
    (digest, _, scale), (own, _, own_scale) = fingerprint.partition("-"), target_fingerprint(live).partition("-")
    return digest == own and bool(scale) and abs(float(own_scale) - float(scale)) <= _SCALES_APART * float(own_scale)


def _ends(live: LiveModel) -> tuple[Tensor, Tensor]:
    """Return the embeddings of some codes and the head's logits of these, as the model itself computes them."""
    codes = torch.arange(min(_HASHED_CODES, live.codes), device=next(live.body.parameters()).device)
    with torch.inference_mode():
        embeds = live.embed_codes(codes)
        return embeds, live.head(embeds)


def _ends_digest(live: LiveModel) -> str:
    """Return the SHA-256 of `_ends`."""
    digest = hashlib.sha256()
    for part in _ends(live):
        digest.update(np.ascontiguousarray(part.float().cpu().numpy().round(3)).tobytes())
    return digest.hexdigest()


def weights_digest(live: LiveModel, module: nn.Module) -> str:
    """SHA-256 of a module's weights, by values sampled from every tensor, and of some codes' embeddings and logits.

    The digest changes when one training step changes the weights. Equal digests mean equal weights and dtypes, except
    for weights edited on purpose to keep the digest.
    """
    digest = hashlib.sha256(_ends_digest(live).encode())
    for name, weight in module.state_dict().items():
        values = weight.detach().flatten()
        step = max(1, values.numel() // _HASHED_WEIGHTS)
        some = values[::step].float().cpu().numpy()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(np.ascontiguousarray(some).tobytes())
    return digest.hexdigest()
