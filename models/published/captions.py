"""Caption features by the text encoder that a model was trained with: FLAN-T5 for LlamaGen (arXiv 2406.06525).

Needs `transformers` (the extra "chameleon") and the encoder's weights and tokenizer in a folder.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.artifacts.install import install_hint
from underpaint.models.published.files import CheckpointError

MOST_WORDS = 120
"""LlamaGen's longest caption, in the tokenizer's pieces."""


def caption_features(encoder: Path, text: str, most: int = MOST_WORDS) -> NDArray[np.float32]:
    """Features [n, C] of `text`, n <= `most`: the encoder's last hidden states, without padding.

    Weights are read in bfloat16, which is what FLAN-T5 was trained in and LlamaGen's features were made with; float16
    overflows in it. A longer text is cut. Raises FileNotFoundError; CheckpointError where the folder holds no such
    encoder; ValueError on an empty text.
    """
    try:
        from transformers import AutoTokenizer, T5EncoderModel
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"a text encoder needs {error.name}; install it with: {install_hint('chameleon')}"
        ) from error
    if not text.strip():
        raise ValueError(
            "caption: expected a text, got an empty one; what is drawn without a caption needs no features"
        )
    if not encoder.is_dir():
        raise FileNotFoundError(f"no text encoder at {encoder}; give the folder of FLAN-T5's weights and tokenizer")
    try:
        tokenizer = AutoTokenizer.from_pretrained(encoder, local_files_only=True)
        model: Any = T5EncoderModel.from_pretrained(encoder, dtype=torch.bfloat16, local_files_only=True)
    except Exception as error:  # the library's own exceptions share no base
        raise CheckpointError(
            f"{encoder}: no T5 encoder with its tokenizer ({error}); copy every file of it"
        ) from error
    pieces = tokenizer(text, truncation=True, max_length=most, return_tensors="pt").input_ids
    with torch.no_grad():
        hidden = model.eval()(input_ids=pieces).last_hidden_state[0]
    found: NDArray[np.float32] = hidden.float().numpy()
    return found
