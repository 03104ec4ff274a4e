"""Live models on the device runtime: its kernels draft, sample and judge, and the model's own layers run between.

A cycle is one program, which a CUDA graph captures. A model that cannot be captured has its kernels launched one by
one, and what the device has no form for is drawn by the host's loop; `Drawing.loop` says which.
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
    """Implements `device.forwards.DeviceDecoder` by a live model's own layers; rows: 1, or 2 for a guidance pair.

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
        """Position ids of cells [B, T] behind prompts [R, 1]; line tokens are cells behind the last, one a line."""
        cells, width, drawn = positions.repeat(self.rows, 1), self.config.width, positions.repeat(self.rows, 1)
        if self.line_token is not None:
            lines = (cells - self.config.cells + 1) * (width + 1) - 1
            drawn = torch.where(cells >= self.config.cells, lines, cells + cells // width)
        places = prompts + torch.where(cells < 0, cells, drawn)
        return self._live.position_ids(places.clamp(min=0), prompts)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        raise ValueError("device: expected a drafter, got a live target")

    def logits(self, features: Tensor) -> Tensor:
        return self._live.head(features).float()


class _PassCache:
    """What attention layers of `transformers` call as `past_key_values` in a pass of the device runtime."""

    is_compileable = False

    def __init__(self, attend: CachedPass | Prefill, count: int) -> None:
        self._cache, self._first, self._count = attend.cache, 0 if isinstance(attend, Prefill) else attend.first, count
        self._prompt = isinstance(attend, Prefill)

    def update(self, key: Tensor, value: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keep a layer's new keys and values [R, K, T, D]; return all that the pass reads, the new ones first."""
        committed, new = self._cache.committed[layer], (key, value)
        kept = committed if self._prompt else self._cache.slots[layer]
        for part, each in zip(kept, new, strict=True):
            part.narrow(2, self._first, self._count).copy_(each)
        if self._prompt:
            return key, value
        return torch.cat([key, committed[0]], dim=2), torch.cat([value, committed[1]], dim=2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Nothing asks for positions by it: passes bring their own."""
        return 0


class LiveDeviceModels:
    """A live model as programs of the device runtime take it; see `device.folder.DeviceModels`."""

    drafter = None

    def __init__(self, live: LiveModel, rows: int) -> None:
        body = live.body
        self.target = DecoderForward(body.decoder, rows) if isinstance(body, DecoderBody) else LiveForward(live, rows)
        self.rows, self.device = rows, next(body.parameters()).device
        self._live, self._encoder = live, LiveEncoder(live)

    @torch.no_grad()
    def embed(self, conditions: Sequence[Condition]) -> EmbeddedBatch:
        """Conditions, filled up at their beginning to the longest; LiveModelError on one that the model refuses."""
        return embed_conditions(conditions, self._encoder, self._live.embed, self.target, self.device)


@dataclass(frozen=True, slots=True)
class LivePlan:
    """What is to be drawn of a live model on a device; make one with `plan_live`.

    Attributes:
        pipeline: The model.
        device: Where it is.
        batch: Images that are drawn together.
        rows: Rows of an image: 2 under guidance, else 1.
        prefix: Condition positions at most.
        needed: Bytes of the largest program's buffers.
        gaps: By method, why the host's loop draws by it.
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
        """The device and the batch in words."""
        return f"{device_name(self.device)}, batches of {self.batch}"

    def open(self) -> LiveDrawer:
        """What draws."""
        return LiveDrawer(self)


def plan_live(
    pipeline: LivePipeline,
    methods: Sequence[DecodingMethod],
    sampling: SamplingParams,
    conditions: Sequence[Condition],
    batch: int = 1,
) -> LivePlan:
    """Find out which methods the device's kernels can draw a live model by; others are left to the host's loop.

    Args:
        pipeline: The model; it is drawn where its weights are.
        methods: What to draw by.
        sampling: How.
        conditions: All that will be drawn, which tell how long prompts are.
        batch: Images that are drawn together.

    Raises:
        DeviceError: A batch out of range.
        ValueError: A condition that the model does not take.
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
        needed = max(needed, batch * layout.image_bytes + needed_bytes(batch, layout.envelope, *sizes))
    return LivePlan(pipeline, weight.device, batch, rows, prefix, needed, gaps)


def _model_gap(pipeline: LivePipeline) -> str | None:
    """Why no method of this pipeline runs on the device; None where some may."""
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
    """Makes programs of methods on a live model."""

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
    """A method on a live model: one captured program, or its kernels one by one."""

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        """See `BatchProgram`. A model that cannot be captured is run kernel by kernel."""
        self._begin(tasks)
        try:
            self._runner.capture()
        except RuntimeError:  # a layer that waits for the host, or allocates where a graph may not
            if self._drawer.cuda:
                torch.cuda.synchronize()


class HostProgram:
    """Implements `BatchProgram` by the host's loop, one picture after another."""

    def __init__(self, pipeline: LivePipeline, method: DecodingMethod, sampling: SamplingParams) -> None:
        self._pipeline, self._method, self._sampling = pipeline, method, sampling

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        """Draw the first picture, uncounted."""
        list(self.draw_all(tasks[:1]))

    def draw_all(
        self, tasks: Sequence[ImageTask], watch: Watch | None = None
    ) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        """See `BatchProgram`."""
        for number, one in enumerate(tasks):
            yield number, draw(self._pipeline, self._method, self._sampling, one.condition, one.seed)
