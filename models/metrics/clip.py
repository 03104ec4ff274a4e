"""CLIP's features of pictures and texts (arXiv 2103.00020), by transformers; HPSv2's weights in OpenCLIP's names too.

open_clip itself needs torchvision; transformers does not, and the same published models come in its format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from underpaint.models.metrics.weights import check_weights, load_weights

_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)


class Clip:
    """CLIP out of a folder on this machine."""

    def __init__(self, folder: Path, open_clip_weights: Path | None = None) -> None:
        """Load it. open_clip_weights: a checkpoint of the same shape in OpenCLIP's names, such as HPSv2's.

        Raises ValueError where a file is missing or of another shape.
        """
        from transformers import CLIPModel, CLIPTokenizer

        check_weights(folder, "clip")
        kept = None if open_clip_weights is None else load_weights(open_clip_weights, "hps")
        try:
            self._model: Any = CLIPModel.from_pretrained(folder, local_files_only=True)
            self._model.train(False)
            self._tokenizer: Any = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(f"{folder}: expected a CLIP in the format of transformers ({str(error)[:300]})") from error
        if kept is not None:
            try:
                self._model.load_state_dict(renamed(kept), strict=True)
            except (RuntimeError, KeyError) as error:
                raise ValueError(
                    f"{open_clip_weights}: does not fit the CLIP of {folder}; {str(error)[:300]}"
                ) from error

    @torch.inference_mode()
    def of_pictures(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.float64]:
        """[n, F] of unit length, of pictures [h, w, 3]: the shorter side resized (bicubic), the middle cut out."""
        side = int(self._model.config.vision_config.image_size)
        pixels = torch.stack([_pixels(Image.fromarray(one), side) for one in pictures])
        seen = self._model.vision_model(pixel_values=pixels).pooler_output
        return _unit(self._model.visual_projection(seen))

    @torch.inference_mode()
    def of_texts(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """[n, F] of unit length; texts longer than CLIP reads are cut."""
        most = int(self._model.config.text_config.max_position_embeddings)
        read = self._tokenizer(list(texts), padding="max_length", truncation=True, max_length=most, return_tensors="pt")
        seen = self._model.text_model(input_ids=read["input_ids"]).pooler_output
        return _unit(self._model.text_projection(seen))


def _unit(features: Tensor) -> NDArray[np.float64]:
    found = features.double()
    unit: NDArray[np.float64] = (found / found.norm(dim=-1, keepdim=True)).numpy()
    return unit


def _pixels(picture: Image.Image, side: int) -> Tensor:
    width, height = picture.size
    ratio = side / min(width, height)
    resized = picture.convert("RGB").resize(
        (max(side, round(width * ratio)), max(side, round(height * ratio))), Image.Resampling.BICUBIC
    )
    left, top = (resized.width - side) // 2, (resized.height - side) // 2
    shares = np.asarray(resized.crop((left, top, left + side, top + side)), dtype=np.float32) / 255.0
    mean, deviation = np.array(_MEAN, dtype=np.float32), np.array(_DEVIATION, dtype=np.float32)
    return torch.from_numpy((shares - mean) / deviation).permute(2, 0, 1)


_PLAIN: Final = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final": "text_model.final_layer_norm",
    "logit_scale": "logit_scale",
}
_INSIDE: Final = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under OpenCLIP's names as transformers names and shapes them; KeyError for a name that it has not."""
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name in ("visual.proj", "text_projection"):
            found["visual_projection.weight" if name == "visual.proj" else "text_projection.weight"] = (
                value.T.contiguous()
            )
            continue
        if "resblocks." not in name:
            stem, _, last = name.rpartition(".")
            found[_PLAIN[name] if name in _PLAIN else f"{_PLAIN[stem]}.{last}"] = value
            continue
        before, _, after = name.partition("resblocks.")
        number, _, inner = after.partition(".")
        layer = f"{'vision_model' if before.startswith('visual') else 'text_model'}.encoder.layers.{number}"
        part, _, last = inner.rpartition(".")
        if inner.startswith("attn.in_proj_"):
            for which, one in zip("qkv", value.chunk(3), strict=True):
                found[f"{layer}.self_attn.{which}_proj.{inner.removeprefix('attn.in_proj_')}"] = one
        else:
            found[f"{layer}.{_INSIDE[part]}.{last}"] = value
    return found
