"""Reads text prompts for exported models, with the tokenizer or text encoder that their authors use."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any, Final

import numpy as np

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.files import check_file_writable, user_cache_folder
from underpaint.artifacts.manifest import write_beside
from underpaint.models.published.captions import CaptionEncoder
from underpaint.models.published.files import CheckpointError
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.live.parts import lumina_prompt, prompt_ids, turn_ids

_BEGINS: Final = "<racm3:break>"
"""The token that begins a picture in Chameleon's vocabulary."""
_TAR_SYSTEM: Final = "You are a helpful assistant."
_TAR_BEGINS: Final = "<im_start><S0>"
"""The text that begins a picture at the largest scale in Tar (`t2i_inference_sana.py`)."""
_SAYS: Final = {"llamagen-t2i": "T5 encoder", "chameleon": "tokenizer", "tar-lm": "tokenizer"}
"""The component that reads text prompts, by kind of checkpoint."""


class WordsReader:
    """Reads text prompts for one exported target; its tokenizer or encoder is loaded once, at first use."""

    def __init__(self, kind: str, layout: str, config: DecoderConfig, folder: Path) -> None:
        """Prepare to read text prompts.

        Args:
            kind: Kind of the target's checkpoint, as for `export --kind`.
            layout: Picture layout of a Chameleon model.
            config: The target's sizes: its grid, and the maximum number of caption positions.
            folder: Folder of the tokenizer's files, or of the text encoder and its tokenizer.

        Raises:
            EngineError: The target does not accept text, or the folder does not exist.
        """
        if kind not in _SAYS:
            raise EngineError(
                f"--tokenizer: expected a model that takes words ({', '.join(_SAYS)}), got "
                f"{kind or 'one of another kind'}; leave it out"
            )
        if not folder.is_dir():
            raise EngineError(f"--tokenizer {folder}: expected a folder with the {_SAYS[kind]} of {kind}, got none")
        self._kind, self._layout, self._config, self._folder = kind, layout, config, folder
        self._reader: Any = None

    def condition(self, text: str) -> Condition:
        """Return the condition of a text prompt; raises EngineError if the folder lacks the tokenizer or encoder."""
        if self._kind == "llamagen-t2i":
            return Condition(text, features=self._features(text))
        tokenizer = self._tokenizer()
        try:
            if self._kind == "tar-lm":
                chat = [{"role": "system", "content": _TAR_SYSTEM}, {"role": "user", "content": text}]
                turn = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
                ids = prompt_ids(tokenizer(turn + _TAR_BEGINS))
            elif self._layout == "lumina":
                ids = turn_ids(tokenizer, lumina_prompt(text, self._config.grid))
            else:
                ids = [*turn_ids(tokenizer, text), int(tokenizer.convert_tokens_to_ids(_BEGINS))]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineError(
                f"--tokenizer {self._folder}: expected the tokenizer of {self._kind}, got {type(tokenizer).__name__} "
                f"({error}); name the folder of the model's own"
            ) from error
        return Condition(text, tuple(ids))

    def _tokenizer(self) -> Any:
        if self._reader is None:
            from transformers import AutoTokenizer

            try:
                self._reader = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            except (OSError, ValueError, KeyError, TypeError) as error:
                lines = str(error).strip().splitlines()
                raise EngineError(
                    f"--tokenizer {self._folder}: it holds no tokenizer that transformers reads "
                    f"({lines[0] if lines else error}); copy every file of it"
                ) from error
        return self._reader

    def _features(self, text: str) -> Path:
        """The .npy file of a caption's features in the user's cache folder; each caption is encoded only once."""
        named = hashlib.sha256(f"{self._folder.resolve()}\n{self._config.prefix}\n{text}".encode()).hexdigest()[:24]
        path = user_cache_folder() / "captions" / f"{named}.npy"
        if path.is_file():
            return path
        try:
            if self._reader is None:
                self._reader = CaptionEncoder(self._folder)
            features = self._reader.features(text, self._config.prefix)
        except CheckpointError as error:
            raise EngineError(f"--tokenizer: {error}") from error
        stream = io.BytesIO()
        np.save(stream, features)
        path.parent.mkdir(parents=True, exist_ok=True)
        check_file_writable(path)
        write_beside(path, stream.getvalue())
        return path
