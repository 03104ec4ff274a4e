"""The models of a server: they check and prepare requests, and encode finished pictures as files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
from PIL import Image

from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import NO_TOKEN
from underpaint.artifacts.cost_curve import engine_costs
from underpaint.artifacts.model_index import read_index
from underpaint.runtime.conditions import Condition
from underpaint.runtime.costs.machine_curve import read_stored_curve
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.engines.context import DEVICE, EngineContext
from underpaint.runtime.engines.images import Picture
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.methods import DEFAULT_METHOD
from underpaint.runtime.methods.method import DecodingMethod
from underpaint.runtime.methods.registry import METHODS, MethodConfig, build_method, resolve, usual_preset
from underpaint.runtime.models import OpenModels
from underpaint.runtime.pipeline import Pipeline
from underpaint.serve.page import code_colours
from underpaint.serve.requests import DrawRequest, ModelInfo, OutputFormat, RequestError, invalid

if TYPE_CHECKING:
    from underpaint.runtime.methods.preset_file import PresetFile

AUTO: Final = "auto"
"""The size that means the model's largest, for requests that name no size."""
_SAMPLING: Final = ("temperature", "top_k", "top_p", "guidance")
_MOST_CONDITIONS: Final = 256
"""Maximum number of prompts whose conditions are cached."""
_UNDECIDED: Final = 128
"""Grey value of cells without a token in partial pictures."""


class PreparedRequest(NamedTuple):
    """A checked request in the form that the models need.

    Attributes:
        request: The request.
        size: A key of `ServedModels.pipelines`.
        condition: The condition of the prompt.
        sampling: The sampling parameters.
        config: The decoding method and its settings.
    """

    request: DrawRequest
    size: str
    condition: Condition
    sampling: SamplingParams
    config: MethodConfig


class DeviceSettings(NamedTuple):
    """How a device draws.

    Attributes:
        name: "cuda", "cuda:1", ..., or "cpu", which is interpreted.
        forward: The implementation of the forward passes.
        draft_if_faster: Whether lossless methods are timed against plain autoregression; see `device_slots`.
    """

    name: str = "cuda"
    forward: str = "torch"
    draft_if_faster: bool = False


class ServedModels:
    """The models of a folder, one per resolution, or a live model; requests refer to them by `name`."""

    def __init__(
        self,
        name: str,
        pipelines: Mapping[str, OpenModels],
        preset: str | PresetFile | None = None,
        device: DeviceSettings | None = None,
    ) -> None:
        """Store open models.

        Args:
            name: Their name in `GET /v1/models`.
            pipelines: By size, "WIDTHxHEIGHT" or `AUTO`; the last one is used if a request names no size.
            preset: The settings that methods start from; None uses the models' usual preset.
            device: The device, if the models were opened for one; None draws on the host.

        Raises:
            ValueError: The models have no picture decoder.
        """
        self.name, self.pipelines, self.device = name, dict(pipelines), device
        self.default_size = list(self.pipelines)[-1]
        first = self.pipelines[self.default_size]
        if first.decoder is None:
            raise ValueError(f"{first.folder} holds no picture decoder; export its tokenizer into it, or serve another")
        self._preset = usual_preset(first) if preset is None else preset
        self._lock = Lock()
        self._conditions: dict[tuple[str, str], Condition] = {}
        self._opened: set[tuple[str, str, bool, bool]] = set()

    @classmethod
    def open_folder(
        cls,
        folder: Path,
        resolution: int | None = None,
        low: Path | None = None,
        backend: str = "cpu",
        preset: str | PresetFile | None = None,
        tokenizer: Path | None = None,
        context: EngineContext | None = None,
        device: DeviceSettings | None = None,
    ) -> Self:
        """Load the models of a folder: of one resolution, or of all.

        Args:
            folder: Folder of the models.
            resolution: Side of the pictures in pixels; None loads all resolutions.
            low: See `Pipeline.open`.
            backend: See `Pipeline.open`.
            preset: The settings that methods start from; None uses the models' usual preset.
            tokenizer: See `Pipeline.read_words_by`.
            context: See `Pipeline.open`.
            device: The device to draw on; backend must then be "device".

        Raises:
            ValueError, OSError: See `Pipeline.open` and `Pipeline.read_words_by`.
        """
        sides = sorted({one.side for one in read_index(folder).resolutions if one.side is not None})
        chosen: list[int | None] = [resolution] if resolution is not None or not sides else [*sides]
        pipelines: dict[str, OpenModels] = {}
        for side in chosen:
            pipeline = Pipeline.open(folder, resolution=side, low=low, backend=backend, context=context)
            if tokenizer is not None:
                pipeline.read_words_by(tokenizer)
            pipelines[pixel_size(pipeline)] = pipeline
        family = next(iter(pipelines.values())).folder_models()
        name = (family and family.index.family) or folder.resolve().name
        quantization = None if context is None else context.quantization
        return cls(name if quantization is None else f"{name}-{quantization}", pipelines, preset, device)

    @cached_property
    def code_colours(self) -> bytes:
        """See `page.code_colours`."""
        return code_colours(self.pipelines[self.default_size])

    def info(self) -> ModelInfo:
        """Public information for clients; some of the listed methods may need a model that is missing."""
        sampling = self.pipelines[self.default_size].sampling
        return ModelInfo(
            self.name,
            tuple(self.pipelines),
            self.default_size,
            tuple(spec.name for spec in METHODS),
            DEFAULT_METHOD,
            {name: getattr(sampling, name) for name in _SAMPLING},
        )

    def usual_method(self, size: str) -> DecodingMethod:
        """Return the default method, built for the models of a size."""
        pipeline = self.pipelines[size]
        config = resolve(DEFAULT_METHOD, pipeline.sampling.temperature, preset=self._preset)
        return build_method(DEFAULT_METHOD, config, pipeline.tables)

    def prepare(self, request: DrawRequest) -> PreparedRequest:
        """Check a request and read its prompt; slow for models with a text encoder.

        Raises:
            RequestError: The models cannot draw this; the message says what they expect.
        """
        size = self.default_size if request.size == AUTO else request.size
        if size not in self.pipelines:
            raise invalid(f"size: expected one of {', '.join((*self.pipelines, AUTO))}, got {size[:40]!r}", "size")
        if request.prompt.rstrip().endswith(".npy"):
            raise invalid("prompt: expected words or ids, got the name of a file; a server reads no files", "prompt")
        models = self.pipelines[size]
        parameter: str | None = None
        try:
            sampling = _sampling(request, models)
            parameter = "prompt"
            with self._lock:
                condition = self._condition(size, request.prompt)
                noise_of(condition, request.seeds[0])
                parameter = "method"
                config = resolve(request.method, sampling.temperature, preset=self._preset)
                prepared = PreparedRequest(request, size, condition, sampling, config)
                # Open the method here without drawing, so that its errors refuse the request before it waits.
                models.target(condition, config.target_sampling(sampling))
                key = (request.method, size, sampling.temperature == 0, sampling.guidance == 1.0)
                if key not in self._opened:
                    build(prepared, models).open(models, condition, sampling)
                    self._opened.add(key)
        except (ValueError, OSError) as error:
            message = str(error).replace(str(models.folder), "this model")
            if parameter is None:
                parameter = next((name for name in _SAMPLING if name in message), None)
            raise invalid(message, parameter) from error
        return prepared

    def undrafted(self, prepared: PreparedRequest) -> PreparedRequest:
        """Return the same request, drawn by plain autoregression."""
        config = resolve(BASELINE, prepared.sampling.temperature, preset=self._preset)
        return prepared._replace(request=replace(prepared.request, method=BASELINE), config=config)

    def _condition(self, size: str, prompt: str) -> Condition:
        """The condition of a prompt; recent ones are cached, because a replica checks a request before drawing it."""
        key = (size, prompt)
        condition = self._conditions.pop(key, None)
        if condition is None:
            condition = self.pipelines[size].condition(prompt)
        self._conditions[key] = condition
        if len(self._conditions) > _MOST_CONDITIONS:
            del self._conditions[next(iter(self._conditions))]
        return condition

    def encoded(self, size: str, tokens: IntArray, form: OutputFormat) -> tuple[bytes, str]:
        """Return the image file of a picture [cells], and its size in pixels; cells of `NO_TOKEN` are grey."""
        models, stream = self.pipelines[size], io.BytesIO()
        decided = tokens != NO_TOKEN
        places = np.maximum.accumulate(np.where(decided, np.arange(tokens.size), 0))
        picture = models.picture(np.maximum(tokens[places], 0))
        if not decided.all():
            picture = _greyed(picture, decided.reshape(models.grid))
        # Each format uses its own options: fast PNG, lossless WebP.
        Image.fromarray(picture).save(stream, form.upper(), compress_level=1, lossless=True, quality=95)
        return stream.getvalue(), f"{picture.shape[1]}x{picture.shape[0]}"


def build(prepared: PreparedRequest, models: OpenModels) -> DecodingMethod:
    """Build the method of a request.

    Raises:
        ValueError: A setting does not fit the models, or the method needs pass costs that were not measured.
    """
    tables = models.tables
    if prepared.config.needs_costs and models.backend != DEVICE:
        curve = read_stored_curve(models, prepared.sampling)
        if curve is None:
            raise ValueError(
                f"method '{prepared.request.method}' chooses by what passes cost, which was not measured here; run "
                "`underpaint costs` on the server's machine, or use another method"
            )
        tables = replace(tables, costs=engine_costs(curve))
    return build_method(prepared.request.method, prepared.config, tables)


def pixel_size(models: OpenModels) -> str:
    """ "WIDTHxHEIGHT" of the pictures; `AUTO` if the resolution is unknown."""
    if models.resolution is None:
        return AUTO
    return f"{models.resolution // models.grid.height * models.grid.width}x{models.resolution}"


def _sampling(request: DrawRequest, models: OpenModels) -> SamplingParams:
    defaults, codes = models.sampling, models.tables.vocab_size
    if request.top_k is not None and request.top_k > codes:
        raise RequestError(
            400,
            f"top_k: expected at most the {codes} codes of this model, got {request.top_k}",
            "invalid_value",
            "top_k",
        )
    overrides = {name: getattr(request, name) for name in _SAMPLING}
    return replace(defaults, **{name: value for name, value in overrides.items() if value is not None})


def _greyed(picture: Picture, decided: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Picture:
    """Return the picture [H, W, 3] with undecided cells [h, w] in grey; unchanged if cells are not square."""
    (height, width), (rows, columns) = picture.shape[:2], decided.shape
    side = height // rows
    if (rows * side, columns * side) != (height, width):
        return picture
    mask = np.kron(decided, np.ones((side, side), dtype=np.bool_))
    return np.where(mask[..., None], picture, np.uint8(_UNDECIDED))
