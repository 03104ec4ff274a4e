"""Caption features from the text encoder that a model was trained with: FLAN-T5 for LlamaGen (arXiv 2406.06525).

It needs `transformers` (the extra "chameleon") and a folder with the encoder's weights and tokenizer.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.artifacts.install import install_hint
from underpaint.models.published.caption_text import clean_caption
from underpaint.models.published.files import CheckpointError

MOST_WORDS = 120
"""The length of LlamaGen's longest caption, in tokens of the text encoder."""


class CaptionEncoder:
    """A text encoder that is loaded once and encodes any number of captions."""

    def __init__(self, folder: Path) -> None:
        """Load the weights and the tokenizer in `folder`.

        Weights are read in bfloat16: FLAN-T5 was trained and LlamaGen's features were computed in this type. float16
        overflows.

        Raises:
            FileNotFoundError: There is no such folder.
            CheckpointError: The folder has no such encoder, or `transformers` is not installed.
        """
        try:
            from transformers import AutoTokenizer, T5EncoderModel
        except ModuleNotFoundError as error:
            raise CheckpointError(
                f"a text encoder needs {error.name}; install it with: {install_hint('chameleon')}"
            ) from error
        if not folder.is_dir():
            raise FileNotFoundError(f"no text encoder at {folder}; give the folder of FLAN-T5's weights and tokenizer")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model: Any = T5EncoderModel.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True)
        except Exception as error:  # the library's own exceptions share no base
            raise CheckpointError(
                f"{folder}: no T5 encoder with its tokenizer ({error}); copy every file of it"
            ) from error
        self._model = model.eval()

    @torch.no_grad()
    def features(self, text: str, most: int = MOST_WORDS) -> NDArray[np.float32]:
        """Clean a caption and return its features [n, C]: the encoder's last hidden states, without padding.

        Args:
            text: The caption; it is truncated to `most` tokens.
            most: The largest n.

        Raises:
            ValueError: The text is empty after cleaning.
        """
        cleaned = clean_caption(text)
        if not cleaned:
            raise ValueError(
                f"caption: expected a text, got {text[:40]!r}, of which cleaning leaves nothing; what is drawn without "
                "a caption needs no features"
            )
        pieces = self._tokenizer(cleaned, truncation=True, max_length=most, return_tensors="pt").input_ids
        features: NDArray[np.float32] = self._model(input_ids=pieces).last_hidden_state[0].float().numpy()
        return features
