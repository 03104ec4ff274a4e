"""Opens a live model, with an optional drafter, for decoding methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Drafter, Target
from underpaint.artifacts.decoder_config import Precision
from underpaint.runtime.conditions import Condition, parse_features
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget, under
from underpaint.runtime.evaluation.invariance import compare_passes
from underpaint.runtime.evaluation.pass_comparison import PassComparison
from underpaint.runtime.live.drafter import LiveDrafter, target_layers
from underpaint.runtime.live.engine import LiveDecoder, LiveEncoder
from underpaint.runtime.live.model import LiveModel, LiveModelError, weights_digest
from underpaint.runtime.live.near_ties import NearTieTarget
from underpaint.runtime.live.padded import PaddedPasses, check_compiled, pads_passes
from underpaint.runtime.live.preview import PartTarget, enlarged
from underpaint.runtime.live.words import WordsReader
from underpaint.runtime.methods.method import ModelTables, Preview, Timed
from underpaint.runtime.resampling.resampler import Resampler

BACKEND = "live"
"""Name of this backend in commands and records."""
MAX_NODES = 64
"""Number of nodes of the largest draft tree, including its root."""
_PRECISIONS: Final[Mapping[torch.dtype, Precision]] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}
_NO_LOW = (
    "MuLo-SD: expected a model that draws a preview of its pictures, as GLM-Image does, or an exported folder with a "
    "target of a lower resolution; use another method"
)


class LivePipeline:
    """Implements `runtime.models.OpenModels` with a live model."""

    max_nodes = MAX_NODES
    backend: str = BACKEND
    resolution: int | None = None

    def __init__(
        self,
        live: LiveModel,
        drafter: LiveDrafter | None = None,
        processor: Any = None,
        folder: Path = Path(),
        exact: LiveModel | None = None,
        compiled: bool = False,
        passes: PaddedPasses | None = None,
        lane: int = 0,
    ) -> None:
        """Open a pipeline.

        Args:
            live: The model.
            drafter: A drafter trained for the model; methods that need no drafter run without it.
            processor: The model's processor, for prompts as text.
            folder: The folder that the model was read from, for messages.
            exact: The same weights in float32, to decide near-ties; None does not verify them. See `near_ties`.
            compiled: Whether passes are padded to a few sizes and compiled; see `padded.PaddedPasses`.
            passes: Runs target passes together with those of other pipelines; None runs them alone.
            lane: The lane of `passes` that this pipeline uses.

        Raises:
            LiveModelError: The model cannot be compiled here.
        """
        if compiled:
            check_compiled(live)
        if drafter is not None and live.features is not None:
            raise LiveModelError(
                f"drafter: expected none for {live.family}, whose condition is features and no prompt that a drafter "
                "reads; leave it out"
            )
        self.live, self.loaded_drafter, self._processor, self._folder = live, drafter, processor, folder
        self._exact_model, self.compiled = exact, compiled
        read = None if drafter is None else target_layers(drafter.module)
        decoder = LiveDecoder(live, features=read, compiled=compiled, passes=passes, lane=lane)
        self.high = EngineTarget(decoder, live.sampling, LiveEncoder(live))
        if drafter is not None:
            drafter.follow(self.high)
        self._exact = None if exact is None else EngineTarget(LiveDecoder(exact), live.sampling, LiveEncoder(exact))
        self._tables: ModelTables | None = None

    def fork(self, passes: PaddedPasses | None = None, lane: int = 0) -> LivePipeline:
        """Return another pipeline with the same weights whose sessions run independently of this one's.

        Args:
            passes: Runs its target passes together with those of other pipelines; None runs them alone.
            lane: The lane of `passes` that it uses.
        """
        drafter, alone = None if self.loaded_drafter is None else self.loaded_drafter.fork(), passes is None
        models = self.live, drafter, self._processor, self._folder, self._exact_model if alone else None
        forked = LivePipeline(*models, compiled=self.compiled and alone, passes=passes, lane=lane)
        forked._tables = self.tables
        return forked

    @property
    def verifies_ties(self) -> bool:
        """Whether near-ties are decided in float32."""
        return self._exact is not None

    @property
    def shares_passes(self) -> bool:
        """Whether several drawings can share its passes; see `batch.SharedPasses`."""
        return not self.verifies_ties and pads_passes(self.live)

    @property
    def grid(self) -> Grid:
        """The image grid, in cells."""
        return self.live.grid

    @property
    def tables(self) -> ModelTables:
        """The codebook, and the nearest codes of each code once a rule needs them."""
        if self._tables is None:
            codebook = self.live.codebook
            codes = None if codebook is None else np.asarray(codebook, dtype=np.float32)
            self._tables = ModelTables.of(codes, self.live.codes)
        return self._tables

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        if self._exact is None:
            return Timed(under(self.high, condition, sampling), self.high.engine.cost)
        pair = under(self.high, condition, sampling), under(self._exact, condition, sampling)
        return Timed(NearTieTarget(*pair), self.high.engine.cost)

    def drafter(self, sampling: SamplingParams) -> Timed[Drafter]:
        if self.loaded_drafter is None:
            raise LiveModelError(
                "drafter: this method drafts with one, and none was given; pass drafter=..., or use a method that "
                "needs none: jacobi-lookup, sjd, scd-maximal"
            )
        self.loaded_drafter.sample_by(sampling)
        return Timed(self.loaded_drafter, self.loaded_drafter.engine.cost)

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        if self._exact is not None:
            raise LiveModelError(
                "verify_near_ties: expected a method that draws in raster order by trees or windows, got one that "
                "decides cells elsewhere; leave it out, or use another method, such as jacobi-lookup"
            )
        return Timed(EngineGridTarget(under(self.high, condition, sampling)), self.high.engine.cost)

    def low_target(
        self, condition: Condition, sampling: SamplingParams, ratio: int, cells: int = 1, int8: bool | None = None
    ) -> Timed[GridTarget]:
        raise LiveModelError(_NO_LOW)

    def resampler(self, kind: str, ratio: int) -> Resampler:
        raise LiveModelError(_NO_LOW)

    def preview(self, condition: Condition, sampling: SamplingParams) -> Preview | None:
        if self.live.parts is None:
            return None
        small, large = self.live.parts
        whole = self.grid_target(condition, sampling)
        return Preview(
            small,
            large,
            whole.timer,
            lambda greedy: PartTarget(whole.model, small, greedy=greedy),
            lambda tokens: PartTarget(whole.model, large, tokens),
            lambda tokens: enlarged(tokens, small, large),
        )

    @property
    def folder(self) -> Path:
        """The folder that the model was read from."""
        return self._folder

    @property
    def sampling(self) -> SamplingParams:
        """The sampling settings that the model's authors publish."""
        return self.live.sampling

    @property
    def decoder(self) -> Any:
        """Decodes codes to pictures; None if `transformers` has no picture decoder for the family."""
        return self.live.decode

    def title(self) -> str:
        """Return the family and its grid, for table headings."""
        return f"{self.live.family}, {self.grid.height} x {self.grid.width} codes"

    def fingerprint(self) -> dict[str, Any]:
        """Return the model, dtype, device and number of threads, as JSON values."""
        weight = next(self.live.body.parameters())
        drafter = self.loaded_drafter
        modules = {self.live.family: self.live.body}
        drafter_module = None if drafter is None else getattr(drafter.decoder, "module", None)
        if drafter is not None and drafter_module is not None:
            modules[drafter.decoder.name] = drafter_module
        return {
            "resolution": None,
            "grid": list(self.grid),
            "target": self.live.family,
            "drafter": None if drafter is None else drafter.decoder.name,
            "engine": self.backend,
            "precision": str(weight.dtype).removeprefix("torch."),
            "device": torch.cuda.get_device_name(weight.device) if weight.is_cuda else None,
            **({} if self._exact is None else {"near_ties": "float32"}),
            **({"compiled": True} if self.compiled else {}),
            "threads": torch.get_num_threads(),
            "sha256": {name: weights_digest(self.live, module) for name, module in modules.items()},
        }

    def condition(self, text: str) -> Condition:
        """Parse a prompt: text, comma-separated ids, or the path of an .npy file of features.

        Raises:
            LiveModelError: The model does not accept it.
        """
        live, parts = self.live, [part.strip() for part in text.split(",")]
        if live.features is not None:
            return self._of_features(text)
        ids: Sequence[int]
        if all(part.isdecimal() and part.isascii() for part in parts):
            ids = [int(part) for part in parts]
        else:
            ids = self.words(text)
        checked = live.check_prompt(ids)
        live.check_start(checked)
        return Condition(text, checked)

    def _of_features(self, text: str) -> Condition:
        if text.endswith(".npy"):
            return parse_features(text)
        if isinstance(self._processor, WordsReader):
            return self._processor.condition(text)
        assert self.live.features is not None
        raise LiveModelError(
            f"prompt {text[:40]!r}: expected an .npy file of features, at most {self.live.features.positions} x "
            f"{self.live.features.width} numbers, which {self.live.family} is conditioned on; save them with "
            "numpy.save, or name LlamaGen's text encoder with --tokenizer"
        )

    def words(self, text: str) -> Sequence[int]:
        """Return the ids of a text prompt; raises LiveModelError if there is no processor of the model."""
        if self.live.encode is None or self._processor is None:
            raise LiveModelError(
                f"prompt {text[:40]!r}: expected ids, as no processor was given; pass "
                "processor=AutoProcessor.from_pretrained(...) to accelerate(), or put the processor's files into the "
                "folder of --live"
            )
        try:
            return self.live.encode(self._processor, text)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LiveModelError(
                f"prompt {text[:40]!r}: expected the processor of a {self.live.family} model, got "
                f"{type(self._processor).__name__} ({error}); pass the model's own, or give the prompt as ids"
            ) from error

    def picture(self, tokens: IntArray) -> Picture:
        """Return the picture [H, W, 3] of codes [cells]; raises LiveModelError if the model has no picture decoder."""
        if self.live.decode is None:
            raise LiveModelError(
                f"picture: there is no picture decoder of {self.live.family} here; use the tokens with the authors' own"
            )
        return self.live.decode(tokens)

    def check_passes(
        self, seed: int = 0, report: Callable[[str], None] = lambda message: None
    ) -> Iterator[PassComparison]:
        """Compare passes over many positions and rows with one-position passes; see `evaluation.invariance`.

        Args:
            seed: Seed of the random tokens.
            report: Callback with a description of the next comparison.
        """
        if self.live.features is not None:
            raise LiveModelError(
                f"--invariance: expected a model of prompts, got {self.live.family}, which reads features; compare "
                "the passes of its export: check DIR --invariance"
            )
        decoder = LiveDecoder(self.live, logits=True)
        precision = _PRECISIONS[next(self.live.body.parameters()).dtype]
        prompt = LiveEncoder(self.live).example().tokens[0]
        return compare_passes(decoder, precision, prompt, seed, report)

    def folder_models(self) -> None:
        """See `runtime.models.OpenModels`; returns None, since a live model is not an exported folder."""

    def close(self) -> None:
        """Free the memory of the KV caches."""
        self.high.close()
        if self._exact is not None:
            self._exact.close()
