"""Replaces the decoding loop of a `transformers` model: a function for `generate(custom_generate=...)`."""

from typing import Any

import torch

from underpaint.runtime.live.generate import AcceleratedModel, accelerate
from underpaint.runtime.live.model import LiveModelError
from underpaint.runtime.methods import DEFAULT_METHOD


def custom_generate(
    model: Any,
    input_ids: Any,
    generation_config: Any = None,
    *,
    underpaint: AcceleratedModel | None = None,
    method: str = DEFAULT_METHOD,
    negative_prompt_ids: Any = None,
    seed: int = 0,
    **_: Any,
) -> Any:
    """Draw a picture instead of a model's own loop: `model.generate(ids, custom_generate=underpaint.generate, ...)`.

    Args:
        model: The model that `generate` was called on.
        input_ids: [1, P], one prompt that ends with the ids that start a picture.
        generation_config: Its `do_sample`, `temperature`, `top_k`, `top_p` and `guidance_scale` are used.
        underpaint: The result of `accelerate`, to keep its cache between calls; None creates one.
        method: The decoding method if `underpaint` is None.
        negative_prompt_ids: [1, Q], the prompt of the unconditional row for guidance.
        seed: Noise seed.
        **_: Other arguments of `generate`; attention masks and logits processors are ignored.

    Returns:
        [1, P + n] int64: the prompt and the drawn ids, including line ends and closing ids.

    Raises:
        LiveModelError: More than one prompt, or one that the model does not accept.
    """
    if len(input_ids) != 1:
        raise LiveModelError(f"input_ids: expected one prompt [1, P], got {len(input_ids)}; call generate() for each")
    fast = underpaint or accelerate(model, method)
    sampled = getattr(generation_config, "do_sample", False)
    values = {
        name: getattr(generation_config, name, None) for name in ("temperature", "top_k", "top_p", "guidance_scale")
    }
    image = fast.generate(
        input_ids[0].tolist(),
        negative_prompt=None if negative_prompt_ids is None else negative_prompt_ids[0].tolist(),
        seed=seed,
        temperature=values["temperature"] if sampled else 0.0,
        top_k=None if values["top_k"] is None else min(values["top_k"], fast.live.codes),
        top_p=values["top_p"],
        guidance=values["guidance_scale"],
    )
    new = torch.as_tensor(image.token_ids, dtype=input_ids.dtype, device=input_ids.device)
    return torch.cat([input_ids, new[None]], dim=1)
