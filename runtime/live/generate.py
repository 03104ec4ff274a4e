"""Draws pictures with a live model and any decoding method; start with `accelerate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.drawing import Drawing, ImageTask, draw
from underpaint.runtime.engines.engine import rows_of
from underpaint.runtime.engines.images import encoded
from underpaint.runtime.live.batch import BatchDrawer
from underpaint.runtime.live.drafter import LiveDrafter
from underpaint.runtime.live.drafter_layouts import open_drafter
from underpaint.runtime.live.families import Family, family_of
from underpaint.runtime.live.model import LiveModel, LiveModelError
from underpaint.runtime.live.near_ties import NearTies, exact_model
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.methods import DEFAULT_METHOD
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.registry import PAPER, build_method, resolve

if TYPE_CHECKING:
    from PIL.Image import Image

    from underpaint.runtime.device.drawing import BatchProgram

__all__ = ["AcceleratedModel", "GeneratedImage", "LiveModel", "accelerate"]

Outcome = TypeVar("Outcome")
_PROMPT_UNIT: Final = 64
"""Prompt lengths of device programs are rounded up to a multiple of this."""


@dataclass(frozen=True, slots=True, repr=False)
class GeneratedImage:
    """One picture from a live model; notebooks display it.

    Attributes:
        drawing: The codes and their cost: passes and seconds.
        token_ids: int64, the ids that the model's own `generate` would return after the prompt.
        pixels: uint8 [H, W, 3]; None if the model has no picture decoder.
    """

    drawing: Drawing
    token_ids: IntArray
    pixels: NDArray[np.uint8] | None

    def __repr__(self) -> str:
        return f"<GeneratedImage: {self.drawing!r}>"

    @property
    def image(self) -> Image:
        """The picture as a PIL image; raises LiveModelError if the model has no picture decoder."""
        from PIL import Image

        if self.pixels is None:
            raise LiveModelError(
                "picture: this model has no picture decoder in transformers; pass token_ids to the authors' decoder"
            )
        return Image.fromarray(self.pixels)

    def _repr_png_(self) -> bytes | None:
        """Return the picture as a PNG file (IPython's rich display)."""
        return None if self.pixels is None else encoded(self.pixels)


class AcceleratedModel:
    """A live model that draws with one decoding method; create one with `accelerate`."""

    def __init__(
        self,
        pipeline: LivePipeline,
        method: str,
        settings: Sequence[str],
        preset: str,
        kernels: bool | None = None,
    ) -> None:
        """See `accelerate`."""
        self.pipeline, self.method, self._kernels = pipeline, method, kernels
        self._program: tuple[tuple[SamplingParams, int, int], BatchProgram] | None = None
        self._settings, self._preset = tuple(settings), preset
        self._drawer: BatchDrawer | None = None
        resolve(method, pipeline.live.sampling.temperature, None, self._settings, preset)

    def __repr__(self) -> str:
        return f"<AcceleratedModel {self.pipeline.live!r} by {self.method}>"

    @property
    def live(self) -> LiveModel:
        """The model."""
        return self.pipeline.live

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        negative_prompt: str | Sequence[int] | None = None,
        seed: int = 0,
        temperature: float | None = None,
        guidance: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> GeneratedImage: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[Sequence[int]],
        *,
        negative_prompt: str | Sequence[int] | None = None,
        seed: int | Sequence[int] = 0,
        temperature: float | None = None,
        guidance: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        batch: int = 1,
    ) -> list[GeneratedImage]: ...

    def generate(
        self,
        prompt: str | Sequence[int] | list[str] | list[Sequence[int]],
        *,
        negative_prompt: str | Sequence[int] | None = None,
        seed: int | Sequence[int] = 0,
        temperature: float | None = None,
        guidance: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        batch: int = 1,
    ) -> GeneratedImage | list[GeneratedImage]:
        """Draw one picture, or one picture per prompt of a list.

        Args:
            prompt: Text, if a processor was given; or the ids of a whole prompt, including the ids that start a
                picture. A list of either draws several pictures.
            negative_prompt: The prompt of the unconditional row for guidance; None uses the family's default.
            seed: Noise seed. A prompt and a seed always give the same picture. For a list of prompts, one seed for
                all, or one per prompt.
            temperature: 0 draws the most likely tokens. For this and the values below, None uses the published ones.
            guidance: Classifier-free guidance scale; 1 turns guidance off.
            top_k: Number of codes that are kept; 0 keeps all.
            top_p: Probability mass that is kept; 1 keeps all.
            batch: For a list, how many pictures are drawn at once in shared passes. Each picture advances at its own
                rate; the next starts in a batch slot when one ends. Time is divided among the pictures.

        Returns:
            The picture with its tokens and cost; for a list, one per prompt, in order.

        Raises:
            LiveModelError: A prompt that this model does not accept, or text without a processor.
            ValueError: A sampling value out of range, or a top_k beyond the codes.
        """
        defaults = self.live.sampling
        if top_k is not None and top_k > self.live.codes:
            raise LiveModelError(
                f"top_k: this model has {self.live.codes:,} codes, so at most {self.live.codes:,} can be kept, got "
                f"{top_k:,}; pass a smaller number, or 0 to keep all"
            )
        params = SamplingParams(
            guidance=defaults.guidance if guidance is None else guidance,
            temperature=defaults.temperature if temperature is None else temperature,
            top_k=defaults.top_k if top_k is None else top_k,
            top_p=defaults.top_p if top_p is None else top_p,
        )
        if isinstance(prompt, str | Path) or not prompt or not hasattr(prompt[0], "__len__"):
            one = cast("str | Sequence[int]", prompt)
            return self.draw(self.condition(one, negative_prompt), params, cast("int", seed))
        conditions = [self.condition(one, negative_prompt) for one in cast("list[str]", prompt)]
        seeds = [seed] * len(conditions) if isinstance(seed, int) else list(seed)
        if len(seeds) != len(conditions):
            raise LiveModelError(
                f"seed: expected one, or one for each of {len(conditions)} prompts, got {len(seeds)}; give as many"
            )
        return self.draw_all([ImageTask(*each) for each in zip(conditions, seeds, strict=True)], params, batch)

    def condition(self, prompt: str | Sequence[int], negative_prompt: str | Sequence[int] | None = None) -> Condition:
        """Return the prompt as a `Condition`; raises LiveModelError if the model does not accept it."""
        if self.live.features is not None:
            if negative_prompt is not None or not isinstance(prompt, str | Path):
                raise LiveModelError(
                    f"prompt: expected the .npy file of features, which {self.live.family} is conditioned on, and no "
                    "negative prompt, got something else; save features [n, C] with numpy.save"
                )
            return self.pipeline.condition(str(prompt))
        ids = self.live.check_prompt(self._ids(prompt))
        self.live.check_start(ids)
        uncond = None
        if negative_prompt is not None:
            uncond = self.live.check_prompt(self._ids(negative_prompt), "negative prompt")
        text = prompt if isinstance(prompt, str) else ",".join(map(str, ids))
        return Condition(text, ids, uncond_ids=uncond)

    def draw(self, condition: Condition, params: SamplingParams, seed: int) -> GeneratedImage:
        """Draw one condition with the given sampling; see `generate`."""
        drawings = self._on_device([ImageTask(condition, seed)], params, 1)
        if drawings is None:
            drawings = [draw(self.pipeline, self.build(params), params, condition, seed)]
        return self._image(drawings[0])

    def draw_all(self, tasks: Sequence[ImageTask], params: SamplingParams, batch: int) -> list[GeneratedImage]:
        """Draw several conditions, `batch` of them at once; see `generate`."""
        drawings = self._on_device(tasks, params, batch)
        if drawings is None:
            drawer = self._drawer
            if drawer is None or (drawer.lanes, drawer.rows) != (batch, rows_of(params)):
                drawer = self._drawer = BatchDrawer(self.pipeline, batch, rows_of(params))
            drawings = _in_order(drawer.draw(lambda: self.build(params), params, tasks))
        return [self._image(one) for one in drawings]

    def build(self, params: SamplingParams) -> DecodingMethod:
        """Build a fresh decoding method for this sampling."""
        config = resolve(self.method, params.temperature, None, self._settings, self._preset)
        return build_method(self.method, config, self.pipeline.tables)

    def _on_device(self, tasks: Sequence[ImageTask], params: SamplingParams, batch: int) -> list[Drawing] | None:
        """Draw on the device runtime; None if the host loop must draw."""
        kernels, weight = self._kernels, next(self.live.body.parameters())
        if kernels is False or (kernels is None and not weight.is_cuda):
            return None
        try:
            from underpaint.runtime.live.device import plan_live
        except ImportError as error:
            if kernels is None:
                return None
            raise LiveModelError(f"kernels: {error}; or leave kernels out") from error
        method = self.build(params)
        plan = plan_live(self.pipeline, [method], params, [one.condition for one in tasks], batch)
        if plan.gaps and kernels:
            raise LiveModelError(f"kernels: {method.name}: {plan.gaps[method.name]}; leave kernels out")
        if plan.gaps:
            return None
        key = params, batch, -(-plan.prefix // _PROMPT_UNIT) * _PROMPT_UNIT
        with torch.cuda.device(weight.get_device()):  # the device of kernel launches and graph capture
            if self._program is None or self._program[0] != key:
                self._program = None  # frees its buffers before the next program allocates
                self._program = key, replace(plan, prefix=key[2]).open().primed(method, params, tasks)
            outcomes = _in_order(self._program[1].draw_all(tasks))
        failed = [one.error for one in outcomes if not isinstance(one, Drawing)]
        if failed:
            raise LiveModelError(f"{len(failed)} of {len(outcomes)} pictures were not drawn: {failed[0]}")
        return [one for one in outcomes if isinstance(one, Drawing)]

    def _image(self, drawing: Drawing) -> GeneratedImage:
        tokens = drawing.tokens_array()
        pixels = None if self.live.decode is None else self.live.decode(tokens)
        return GeneratedImage(drawing, self.live.token_ids(tokens), pixels)

    def _ids(self, prompt: str | Sequence[int]) -> Sequence[int]:
        return self.pipeline.words(prompt) if isinstance(prompt, str) else prompt


def _in_order(numbered_outcomes: Iterable[tuple[int, Outcome]]) -> list[Outcome]:
    """Return the drawings in the order of their numbers; they arrive in the order in which they finished."""
    return [outcome for _, outcome in sorted(numbered_outcomes, key=itemgetter(0))]


def accelerate(
    model: Any,
    method: str = DEFAULT_METHOD,
    *,
    processor: Any = None,
    drafter: LiveDrafter | Path | str | None = None,
    family: str | Family | None = None,
    grid: tuple[int, int] | None = None,
    settings: Sequence[str] = (),
    preset: str = PAPER,
    longest_prompt: int = 1024,
    verify_near_ties: NearTies | None = None,
    compile: bool = False,
    kernels: bool | None = None,
) -> AcceleratedModel:
    """Accelerate a loaded `transformers` image model with a decoding method, without export or training.

    Args:
        model: A loaded image model; `runtime.live.families.FAMILIES` lists the supported ones.
        method: Name of the method, see `underpaint methods`; the default is lossless and needs no drafter.
        processor: The model's processor, needed for prompts as text.
        drafter: A drafter that was trained for this model, for methods that need one; or the folder of one trained
            by `underpaint train drafter`, SpecForge or speculators.
        family: A family name, or your own function that makes a `LiveModel`; None chooses by the model's class.
        grid: Rows and columns of tokens; None uses the family's usual size.
        settings: Texts `name=value`, as for `--set`.
        preset: "paper" or "tuned": the settings to start from.
        longest_prompt: Maximum number of prompt ids; the KV cache reserves room for them.
        verify_near_ties: "float32" recomputes rows of a bf16 or fp16 model in float32 if their most likely tokens
            are too close to separate; see `NearTieTarget`. It needs 4 more bytes per weight.
        compile: Whether to pad passes to a few sizes and compile the layers with `torch.compile`; on a CUDA device
            each size is also captured as a CUDA graph. The first passes of each size take longer.
        kernels: Whether the device runtime's kernels run whole cycles around the model's layers, captured as a CUDA
            graph if possible. None uses them on a GPU if the method has a device form. `Drawing.loop` reports it.

    Returns:
        A model with a `generate` method.

    Raises:
        LiveModelError: A model class without a family, or options that do not fit the model.
        ValueError: An unknown method or setting.
    """
    chosen = family_of(model, family)
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if attention is not None and ("flash" in attention or "flex" in attention):
        raise LiveModelError(
            f"model: expected attention that takes 4-D masks (sdpa or eager), got {attention}; load it "
            'with attn_implementation="sdpa"'
        )
    model.eval()
    size = None if grid is None else Grid(*grid)

    def make(loaded: Any) -> LiveModel:
        return chosen(loaded, processor, grid=size, longest_prompt=longest_prompt)

    live, exact = make(model), exact_model(verify_near_ties, model, make)
    if isinstance(drafter, str | Path):
        drafter = open_drafter(live, Path(drafter))
    pipeline = LivePipeline(live, drafter, processor, exact=exact, compiled=compile)
    return AcceleratedModel(pipeline, method, settings, preset, kernels)
