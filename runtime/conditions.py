"""Conditions that pictures are drawn for (classes, prompts or text features), and their encoding for a target."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.algos.registry import suggest
from underpaint.artifacts.arrays import ArrayForm, read_npy
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.model_families import CONDITIONS, PROMPT_GRAMMAR
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.zoo.load import FOLDER, locate, names
from underpaint.zoo.textured_prompts import TexturedPrompt, parse_textured, scene_word_ids

_ID: Final = re.compile("-?[0-9]{1,18}")
"""An integer of at most 18 digits, which fits into 64 bits."""
_LARGEST: Final = float(np.finfo(np.float32).max)


def _no_attributes() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that a picture is drawn for: a class, a prompt or text features.

    Attributes:
        text: Shown to users; it also keys the noise of the picture.
        ids: One class, or a prompt in the model's own vocabulary.
        features: An .npy file with features [n, C], used instead of ids.
        uncond_ids: Ids of a negative prompt, for live models; None uses the model's own second (unconditional) row.
        attributes: Attributes that a judge may look for in the picture, by slot; empty if unknown.
    """

    text: str
    ids: tuple[int, ...] = ()
    features: Path | None = None
    uncond_ids: tuple[int, ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=_no_attributes, compare=False)

    def caption(self) -> str:
        """The text that is shown to users."""
        return self.text

    @property
    def noise_key(self) -> int:
        """A key that separates the noise of this condition from that of others with the same seed."""
        return zlib.crc32(self.text.encode())


def read_features(path: Path) -> NDArray[np.float32]:
    """Read a caption's features [n, C] from an .npy file; raises EngineError unless it holds finite 2-D numbers."""
    try:
        features = read_npy(path, ArrayForm(dimensions=2, low=-_LARGEST, high=_LARGEST))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path}: expected finite features [n, C] as numpy.save writes them ({error})") from error
    return features.astype(np.float32)


def of_words(prompt: TexturedPrompt) -> Condition:
    """The condition of a grammar prompt: the ids of its words, without the ids that a model adds itself."""
    return Condition(prompt.caption(), tuple(scene_word_ids(prompt).tolist()), attributes=prompt.attributes())


def is_typed(text: str) -> bool:
    """Whether a prompt is a list of ids separated by commas or the name of an .npy file, rather than words."""
    return text.endswith(".npy") or all(_ID.fullmatch(part.strip()) for part in text.split(","))


def parse_ids(text: str) -> Condition:
    """Parse a class ("207") or ids separated by commas; raises EngineError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(_ID.fullmatch(part) for part in parts):
        raise EngineError(
            f"condition {text[:60]!r}: expected a class such as 207, ids with commas between, or the .npy file of "
            "features; for words name the model's tokenizer or text encoder: --tokenizer FOLDER"
        )
    return Condition(text, tuple(int(part) for part in parts))


def parse_features(text: str) -> Condition:
    """The condition of an .npy file of features [n, C]; raises EngineError if the file is missing or invalid."""
    if not Path(text).is_file():
        raise EngineError(f"condition: no file at {text}; save features [n, C] with numpy.save")
    read_features(Path(text))
    return Condition(text, features=Path(text))


def parse_condition(text: str, kind: str) -> Condition:
    """Parse a user's text; `kind` is the `condition` of the folder's `model_index.json`.

    Raises ValueError, or EngineError (a ValueError), that says what was expected. For a prompt it names the unknown
    word and the nearest known one.
    """
    if kind not in CONDITIONS:
        raise EngineError(f"condition: there is no kind '{kind}'; {suggest(kind, CONDITIONS)}")
    if kind == PROMPT_GRAMMAR:
        return of_words(parse_textured(text))
    return parse_features(text) if text.endswith(".npy") else parse_ids(text)


class FeatureEmbedding(NamedTuple):
    """Embeds the features of a condition as input rows of a decoder.

    Attributes:
        positions: P, the largest number of features of a condition.
        width: C, the size of one feature.
        embed: Maps padded features [P, C] float32 to rows [2 P, D] float32: conditional rows, then unconditional ones.
    """

    positions: int
    width: int
    embed: Callable[[NDArray[np.float32]], NDArray[np.float32]]

    @classmethod
    def of_session(cls, session: Any) -> FeatureEmbedding:
        """The embedding that a condition graph on ONNX Runtime computes."""
        graph_input = session.get_inputs()[0]
        positions, width = graph_input.shape
        return cls(positions, width, lambda padded: session.run(None, {graph_input.name: padded})[0])


class EncodedCondition(NamedTuple):
    """The first positions of a picture: row 0 with the condition, row 1 without it.

    Attributes:
        tokens: [R, P] int64 rows of the embedding; R = 2 if the model has both rows.
        hidden: [R], the number of leading positions that each row never attends to.
        cond_rows: [C, D] float32 embedded rows, for a decoder that takes them as an input.
    """

    tokens: IntArray
    hidden: tuple[int, ...]
    cond_rows: NDArray[np.float32] | None = None


def load_encoder(
    config: DecoderConfig, folder: Path = FOLDER, context: EngineContext | None = None
) -> ConditionEncoder:
    """The encoder of conditions for a target; the folder's condition graph embeds features."""
    if not config.external_cond_rows or "condition" not in names(folder):
        return ConditionEncoder(config)
    session = open_session(locate("condition", "condition", folder).path, context)
    return ConditionEncoder(config, FeatureEmbedding.of_session(session))


class ConditionEncoder:
    """Encodes conditions for one target; raises EngineError for a condition that the target does not accept."""

    def __init__(self, config: DecoderConfig, embed: FeatureEmbedding | None = None) -> None:
        """Create the encoder of a target.

        Args:
            config: The config of the target's decoder.
            embed: Embeds features; None if the condition consists of ids.
        """
        self._config = config
        self._embed = embed

    def accepts(self) -> str:
        """Describe the accepted conditions; two targets that accept the same conditions return the same text."""
        config = self._config
        if self._embed is not None:
            return f"features [1 to {self._embed.positions}, {self._embed.width}]"
        if config.prompted:
            return f"prompts of ids from 0 to {config.prompt_ids - 1}"
        return f"{self._count} id(s) from 0 to {config.prompt_ids - 1}"

    @property
    def _count(self) -> int:
        """Number of ids that a caller gives for a fixed-length condition; the target appends the others itself."""
        return self._config.prefix - len(self._config.image_start_ids)

    def example(self) -> EncodedCondition:
        """An arbitrary condition that this target accepts, for timing passes."""
        config = self._config
        if self._embed is not None:
            return self.of_features(np.zeros((1, self._embed.width), dtype=np.float32))
        if config.external_cond_rows:
            return self.of_rows(np.zeros((config.external_cond_rows, config.dim), dtype=np.float32))
        fewest = max(1, sum(config.uncond_keep or ()) - len(config.image_start_ids)) if config.prompted else self._count
        ids = np.zeros(max(fewest, len(config.prompt_end)), dtype=np.int64)
        ids[ids.size - len(config.prompt_end) :] = config.prompt_end
        return self.of_ids(ids)

    def encode(self, condition: Condition) -> EncodedCondition:
        """The input of the first pass for this condition."""
        if condition.features is None:
            return self.of_ids(np.array(condition.ids, dtype=np.int64))
        return self.of_features(read_features(condition.features), str(condition.features))

    def of_ids(self, ids: IntArray) -> EncodedCondition:
        """Encode a class, word ids [prefix] (all 0 means no prompt), or a prompt of up to `prefix` ids.

        Ids that begin the picture are appended to the condition and count towards `prefix`. One of them gives the
        side of the picture, so one prompt works for targets of several sides.
        """
        config = self._config
        ids = np.asarray(ids)
        if config.external_cond_rows:
            raise EngineError("condition: this model is asked by features, not by ids; give an .npy file of them")
        if config.prompted:
            return self._prompt(ids)
        if ids.shape != (self._count,) or ids.min() < 0 or ids.max() >= config.prompt_ids:
            got = ", ".join(map(str, ids.reshape(-1).tolist()[:20])) or "none"
            if self._count == 1:
                raise EngineError(
                    f"class must be between 0 and {config.prompt_ids - 1:,}, got {got}; give one of these numbers as "
                    "the prompt"
                )
            raise EngineError(
                f"prompt: expected {self._count} ids between 0 and {config.prompt_ids - 1:,}, got {ids.size}: {got}; "
                "give so many with commas between, or the words of a grammar that this model was trained on"
            )
        absent = np.array(config.uncond_ids, dtype=np.int64)
        tokens = absent if config.prefix > 1 and not ids.any() else self._tokens(ids)
        return EncodedCondition(np.stack([tokens, absent]), (0, 0))

    def _tokens(self, ids: IntArray) -> IntArray:
        """The tokens [P] int64 of a condition's ids, followed by the ids that begin the picture."""
        return self._config.vocab_size + np.array([*ids.tolist(), *self._config.image_start_ids], dtype=np.int64)

    def _prompt(self, ids: IntArray) -> EncodedCondition:
        """Encode a prompt of vocabulary ids; the unconditional row ends with the prompt tokens that it may see."""
        config = self._config
        image_start = list(config.image_start_ids)
        least, most = max(1, sum(config.uncond_keep or ())) - len(image_start), config.prefix - len(image_start)
        if ids.ndim != 1 or not least <= ids.size <= most or ((ids < 0) | (ids >= config.prompt_ids)).any():
            around = "begin mark" if image_start else "begin and image marks"
            raise EngineError(
                f"condition: expected {max(0, least)} to {most} ids from 0 to {config.prompt_ids - 1}, got "
                f"{ids.tolist()}; make them with the model's tokenizer, {around} included"
            )
        if image_start and ids[-len(image_start) :].tolist() == image_start:
            raise EngineError(
                f"condition: {image_start} begin the picture and are put behind every prompt; leave them out"
            )
        end = list(config.prompt_end)
        if end and ids[-len(end) :].tolist() != end:
            raise EngineError(
                f"condition: expected ids that end with {end}, which begin a picture, got {ids.tolist()[-len(end) :]}; "
                "append them, or give the prompt in words with --tokenizer FOLDER"
            )
        tokens = self._tokens(ids)
        if not config.uncond_keep:
            return EncodedCondition(tokens[None], (0,))
        first, last = config.uncond_keep
        hidden = tokens.size - first - last
        rows = np.stack([tokens, tokens])
        rows[1, hidden:] = np.concatenate([tokens[:first], tokens[tokens.size - last :]])
        return EncodedCondition(rows, (0, hidden))

    def of_features(self, features: NDArray[np.float32], name: str = "condition") -> EncodedCondition:
        """Encode the features of a condition; padding before them is hidden from attention.

        Args:
            features: [n, C] float32, n at most `prefix`.
            name: What error messages call the features.

        Raises:
            EngineError: The target takes ids, or the features have another shape.
        """
        if self._embed is None:
            raise EngineError(f"{name}: this model takes ids, not features")
        prefix, width = self._embed.positions, self._embed.width
        if features.ndim != 2 or features.shape[1] != width or not 1 <= features.shape[0] <= prefix:
            raise EngineError(f"{name}: expected features [1 to {prefix}, {width}], got {list(features.shape)}")
        padding = prefix - features.shape[0]
        padded = np.zeros((prefix, width), dtype=np.float32)
        padded[padding:] = features
        return self.of_rows(self._embed.embed(padded), padding)

    def of_rows(self, rows: NDArray[np.float32], padding: int = 0) -> EncodedCondition:
        """Encode embedded rows [2 * prefix, D], conditional then unconditional; hides the first `padding` of each."""
        config = self._config
        shape = (config.external_cond_rows, config.dim)
        if rows.shape != shape or not shape[0] or not 0 <= padding < config.prefix:
            raise EngineError(
                f"condition: expected rows {list(shape)} and padding below {config.prefix}, got {list(rows.shape)} "
                f"and {padding}; make them with the exported condition graph"
            )
        tokens = (config.vocab_size + np.arange(config.external_cond_rows)).reshape(2, -1)
        return EncodedCondition(tokens, (padding, padding), rows)
