"""Runs live models on the device runtime: its kernels draft, sample and verify around the model's own layers.

A decoding cycle is one program, captured as a CUDA graph. If a model cannot be captured, its kernels are launched one
by one. The host loop draws everything that has no device form. `Drawing.loop` reports which of them ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.devices import device_name
from underpaint.runtime.device.drawing import BatchProgram, CapturedProgram, DeviceDrawer, NotDrawn
from underpaint.runtime.device.drawing_plan import MOST_BATCH
from underpaint.runtime.device.folder import EmbeddedBatch, embed_conditions
from underpaint.runtime.device.forms import DeviceError, form_of
from underpaint.runtime.device.forwards import Attend, CachedPass, Fill, Prefill
from underpaint.runtime.device.kernels.sees import write_sees
from underpaint.runtime.device.kernels.walk import MOST_TOKENS
from underpaint.runtime.device.runner import Watch
from underpaint.runtime.device.state import needed_bytes
from underpaint.runtime.drawing import Drawing, ImageTask, draw
from underpaint.runtime.engines.engine import rows_of
from underpaint.runtime.live.engine import LiveEncoder
from underpaint.runtime.live.model import LiveModel
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.live.published import DecoderBody
from underpaint.runtime.methods.method import DecodingMethod


class LiveForward:
    """Implements `device.forwards.DeviceDecoder` with a live model's own layers; rows: 1, or 2 for a guidance pair.

    Layers read committed and new keys side by side, so each pass copies the cache once.
    """

    places = None

    def __init__(self, live: LiveModel, rows: int) -> None:
        self.config, self.rows, self._live = live.decoder, rows, live
        self.dtype, self.line_token = next(live.body.parameters()).dtype, self.config.eol_id

    def embed(self, tokens: Tensor) -> Tensor:
        live, tokens = self._live, tokens.repeat(self.rows, 1)
        if self.line_token is None:
            return live.embed_codes(tokens)
        codes = live.embed_codes(tokens.clamp(max=live.codes - 1))
        others = live.embed_ids((tokens - live.codes).clamp(min=0))
        return torch.where((tokens < live.codes)[..., None], codes, others)

    @torch.no_grad()
    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        if isinstance(attend, Fill):
            raise ValueError("device: a live model makes no pass over a whole picture here; let the host draw it")
        cache, count = attend.cache, embeddings.shape[1]
        least = torch.finfo(self.dtype).min
        if isinstance(attend, Prefill):
            cache.prompts.copy_(count - cache.unseen)
            sees = attend.sees(count)
        else:
            rows, size = cache.unseen.shape[0], cache.committed.shape[4]
            sees = torch.empty(rows, 1, count, count + size, dtype=torch.bool, device=embeddings.device)
            unread = [torch.empty_like(cache.unseen) for _ in range(2)]
            write_sees(attend.lengths, cache.unseen, attend.masks, sees, unread[0], unread[1], count, 0, attend.filled)
        mask = torch.zeros(sees.shape, dtype=self.dtype, device=sees.device).masked_fill(~sees, least)
        hidden, _ = self._live.hidden(
            (),
            inputs_embeds=embeddings,
            attention_mask=mask,
            position_ids=self._position_ids(positions, cache.prompts[:, None]),
            past_key_values=_PassCache(attend, count),
            use_cache=True,
        )
        return hidden

    def _position_ids(self, positions: Tensor, prompts: Tensor) -> Tensor:
        """Position ids of cells [B, T] after prompts [R, 1]; cell ids from `cells` on are line tokens, one per line."""
        cells, width, offsets = positions.repeat(self.rows, 1), self.config.width, positions.repeat(self.rows, 1)
        if self.line_token is not None:
            lines = (cells - self.config.cells + 1) * (width + 1) - 1
            offsets = torch.where(cells >= self.config.cells, lines, cells + cells // width)
        places = prompts + torch.where(cells < 0, cells, offsets)
        return self._live.position_ids(places.clamp(min=0), prompts)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        raise ValueError("device: expected a drafter, got a live target")

    def logits(self, features: Tensor) -> Tensor:
        return self._live.head(features).float()


class _PassCache:
    """The `past_key_values` of `transformers` attention layers in a pass of the device runtime."""

    is_compileable = False

    def __init__(self, attend: CachedPass | Prefill, count: int) -> None:
        self._cache, self._first, self._count = attend.cache, 0 if isinstance(attend, Prefill) else attend.first, count
        self._prompt = isinstance(attend, Prefill)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values [R, K, T, D]; return all that the pass reads, the new ones first."""
        committed, new = self._cache.committed[layer], (key, value)
        buffers = committed if self._prompt else self._cache.slots[layer]
        for part, each in zip(buffers, new, strict=True):
            part.narrow(2, self._first, self._count).copy_(each)
        if self._prompt:
            return key, value
        return torch.cat([key, committed[0]], dim=2), torch.cat([value, committed[1]], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0; no layer needs it, because passes provide their own position ids."""
        return 0


class LiveDeviceModels:
    """A live model in the form that device programs need; see `device.folder.DeviceModels`."""

    drafter = None

    def __init__(self, live: LiveModel, rows: int) -> None:
        body = live.body
        self.target = DecoderForward(body.decoder, rows) if isinstance(body, DecoderBody) else LiveForward(live, rows)
        self.rows, self.device = rows, next(body.parameters()).device
        self._live, self._encoder = live, LiveEncoder(live)

    @torch.no_grad()
    def embed(self, conditions: Sequence[Condition]) -> EmbeddedBatch:
        """Embed conditions, padded on the left to the longest; raises LiveModelError if the model rejects one."""
        return embed_conditions(conditions, self._encoder, self._live.embed, self.target, self.device)


@dataclass(frozen=True, slots=True)
class LivePlan:
    """What a live model will draw on a device; create one with `plan_live`.

    Attributes:
        pipeline: The model.
        device: The device of the model's weights.
        batch: Number of images drawn together.
        rows: Rows per image: 2 with guidance, else 1.
        prefix: Maximum number of condition positions.
        needed: Size of the largest program's buffers, in bytes.
        gaps: Why the host loop must draw, by name of the method.
    """

    forward: ClassVar[str] = "torch"

    pipeline: LivePipeline
    device: torch.device
    batch: int
    rows: int
    prefix: int
    needed: int
    gaps: Mapping[str, str]

    def describe(self) -> str:
        """Return the device and the batch size, as text."""
        return f"{device_name(self.device)}, batches of {self.batch}"

    def open(self) -> LiveDrawer:
        """Create the drawer of this plan."""
        return LiveDrawer(self)


def plan_live(
    pipeline: LivePipeline,
    methods: Sequence[DecodingMethod],
    sampling: SamplingParams,
    conditions: Sequence[Condition],
    batch: int = 1,
) -> LivePlan:
    """Find out which methods can draw a live model with the device's kernels; the host loop draws the others.

    Args:
        pipeline: The model; it stays on the device of its weights.
        methods: The decoding methods.
        sampling: The sampling settings.
        conditions: All conditions that will be drawn; they determine the longest prompt.
        batch: Number of images drawn together.

    Raises:
        DeviceError: A batch out of range.
        ValueError: A condition that the model does not accept.
    """
    if not 1 <= batch <= MOST_BATCH:
        raise DeviceError(f"--batch: expected 1 to {MOST_BATCH} images, got {batch}")
    config, rows, encoder = pipeline.live.decoder, rows_of(sampling), LiveEncoder(pipeline.live)
    weight, model_gap = next(pipeline.live.body.parameters()), _model_gap(pipeline)
    prefix, needed, gaps = max(encoder.encode(one).tokens.shape[1] for one in conditions), 0, dict[str, str]()
    for method in methods:
        if model_gap is not None:
            gaps[method.name] = model_gap
            continue
        try:
            form = form_of(method, sampling, pipeline.grid)
            layout = form.layout(pipeline.grid, config.vocab_size, config.eol_id, batch)
            form.check(pipeline.grid, config.vocab_size, config.eol_id)
        except ValueError as error:
            gaps[method.name] = str(error)
            continue
        if form.drafts or form.low_key is not None:
            gaps[method.name] = "it drafts with another model, which the device feeds no prompt"
            continue
        sizes = (pipeline.grid.cells, prefix, config, None, rows, weight.dtype)
        images = batch + (batch > 1)  # the extra one starts the images that enter a free slot
        needed = max(needed, images * layout.image_bytes + needed_bytes(images, layout.envelope, *sizes))
    return LivePlan(pipeline, weight.device, batch, rows, prefix, needed, gaps)


def _model_gap(pipeline: LivePipeline) -> str | None:
    """Why no method of this pipeline can run on the device; None if some may."""
    live = pipeline.live
    if pipeline.verifies_ties:
        return "near-ties are verified in float32"
    if pipeline.compiled:
        return "passes are compiled by themselves (compile)"
    if len({weight.device for weight in live.body.parameters()}) > 1:
        return "the model's layers lie on several devices"
    if live.codes > MOST_TOKENS:
        return f"kernels take at most {MOST_TOKENS:,} codes, and the model has {live.codes:,}"
    return None


class LiveDrawer(DeviceDrawer):
    """Creates programs for methods on a live model."""

    def __init__(self, plan: LivePlan) -> None:
        """See `plan_live`."""
        super().__init__(plan.pipeline, LiveDeviceModels(plan.pipeline.live, plan.rows), plan.batch)
        self.plan = plan

    @property
    def prefix(self) -> int:
        return self.plan.prefix

    def program(self, method: DecodingMethod, sampling: SamplingParams) -> BatchProgram:
        if self.cuda:
            torch.cuda.empty_cache()
        if method.name in self.plan.gaps:
            return HostProgram(self.plan.pipeline, method, sampling)
        return LiveProgram(self, method, sampling)


class LiveProgram(CapturedProgram):
    """A method on a live model, as one captured program or as kernels launched one by one."""

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        """See `BatchProgram`. If the model cannot be captured, its kernels will be launched one by one."""
        self._begin(tasks)
        try:
            self._runner.capture()
        except RuntimeError:  # a layer waits for the host, or allocates memory where a graph must not
            if self._drawer.cuda:
                torch.cuda.synchronize()


class HostProgram:
    """Implements `BatchProgram` with the host loop; draws one picture after another."""

    def __init__(self, pipeline: LivePipeline, method: DecodingMethod, sampling: SamplingParams) -> None:
        self._pipeline, self._method, self._sampling = pipeline, method, sampling

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        """Draw the first picture without counting it."""
        list(self.draw_all(tasks[:1]))

    def draw_all(
        self, tasks: Sequence[ImageTask], watch: Watch | None = None
    ) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        """See `BatchProgram`."""
        for number, one in enumerate(tasks):
            yield number, draw(self._pipeline, self._method, self._sampling, one.condition, one.seed)
