"""Options shared by several commands. A parameter whose type is a dataclass adds its fields as options."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.algos.rows import SamplingParams

if TYPE_CHECKING:
    from underpaint.runtime.engines.context import Quantization
    from underpaint.runtime.methods.preset_file import PresetFile
    from underpaint.runtime.models import OpenModels
    from underpaint.runtime.pipeline import Pipeline

Temperature = Annotated[
    float | None,
    typer.Option(
        help="Sampling temperature; 0 always takes the likeliest token. Default: the model's own, 1 for most.",
        show_default=False,
    ),
]
Guidance = Annotated[
    float | None,
    typer.Option(help="Classifier-free guidance scale; 1 is none. Default: the model's own."),
]
TopK = Annotated[
    int | None, typer.Option(help="Sample among this many likeliest tokens; 0 keeps all. Default: the model's own.")
]
Seed = Annotated[
    int,
    typer.Option(help="Random seed: the same seed draws the same picture.", min=0, max=MOST_SEED),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Sample among the likeliest tokens of this total probability; 1 keeps all. Default: the model's own."
    ),
]
Resolution = Annotated[
    int | None,
    typer.Option(
        help="Side of the picture in pixels; default: the largest that the folder has models for. No models of 256 "
        "px ship; docs/how-to/train.md makes them.",
        show_default=False,
    ),
]
Models = Annotated[
    Path | None,
    typer.Option(
        help="Folder of models from `underpaint export`; default: the shipped models. The models decide what a "
        "prompt is: words, a class, ids, or an .npy file of features.",
        show_default=False,
    ),
]
Low = Annotated[
    Path | None,
    typer.Option(help="Folder of a smaller target with the same codes, for methods that draft at low resolution."),
]
Backend = Annotated[
    str,
    typer.Option(
        help="What runs the models: cpu (ONNX Runtime), cuda, tensorrt-ep or nv-tensorrt-rtx (ONNX Runtime on a GPU; "
        "cuda:1 is the second one), tensorrt or tensorrt-rtx (engines of `underpaint engine`); compare, generate "
        "and serve also take device: the whole cycle on a GPU."
    ),
]
Seeds = Annotated[int, typer.Option(help="Seeds per prompt, counted from 0.", min=1, max=1_000_000)]
MethodSettings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of one method, as method.name=value; repeat for more.")
]
MOST_THREADS: Final = max(256, os.cpu_count() or 1)
"""The largest number of threads or processes. More help on no machine, and each takes memory."""
Preset = Annotated[
    str | None,
    typer.Option(
        help="Settings of the methods: tuned (chosen by `underpaint tune` on the shipped models), paper, eagle-code "
        "(paper, but eagle2 grows the tree of EAGLE's released code), or a file from `underpaint tune`. Default: "
        "tuned for the shipped models and their family, paper for published and live models.",
        show_default=False,
    ),
]
USUAL_TEMPERATURE: Final = 1.0
"""The temperature for checks of settings before a model is open, if none was given."""
DEVICE: Final = "device"
"""The backend that draws whole batches with its own programs."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Options of `--backend device`: the device, and the engine of the models."""

    device: Annotated[
        str | None,
        typer.Option(
            help="With --backend device: cuda (the default), cuda:1, ..., or cpu, which interprets the same program: "
            "slow, to try it.",
            show_default=False,
        ),
    ] = None
    forward: Annotated[
        str | None,
        typer.Option(
            help="With --backend device, the engine of the models: torch (the default), tensorrt or tensorrt-rtx (on "
            "a GPU), or onnx (on the CPU); `underpaint engine` builds it.",
            show_default=False,
        ),
    ] = None
    quantization: Annotated[
        Literal["int8", "fp8"] | None,
        typer.Option(
            help="With --backend device, round the weights of all layers to int8 or fp8 (e4m3), with a scale per "
            "output channel. This changes the model's distribution; tables and records name the quantization.",
            show_default=False,
        ),
    ] = None

    def check(self, backend: str) -> None:
        """Raise ValueError if device options are given with another backend."""
        if backend != DEVICE and self != NO_DEVICE:
            raise ValueError("--device, --forward and --quantization need --backend device; add it, or leave them out")

    def check_live(self, live: object) -> None:
        """Raise ValueError if the models cannot be run as the options say. `live` is None without a live model."""
        if live is not None and self.forward not in (None, "torch"):
            raise ValueError(f"--forward: expected torch, which runs live models, got {self.forward}; leave it out")
        if self.quantization is not None and live is not None:
            raise ValueError(
                "--quantization: expected exported models, got a live one, which keeps its own weights; leave it out"
            )


NO_DEVICE: Final = DeviceChoice()


@dataclass(frozen=True, slots=True)
class DeviceOptions(DeviceChoice):
    """Options of `--backend device`, with the number of images per batch."""

    batch: Annotated[
        int | None,
        typer.Option(
            help="With --backend device, or --live of generate: images that are drawn together; default: 1.",
            show_default=False,
        ),
    ] = None

    def check(self, backend: str, *, batches: bool = False) -> None:
        """Raise ValueError if device options are given with another backend.

        Args:
            backend: Value of --backend.
            batches: Whether --batch is allowed with other backends too.
        """
        if backend != DEVICE and self != DeviceOptions(batch=self.batch if batches else None):
            raise ValueError(
                "--device, --batch, --forward and --quantization need --backend device; add it, or leave them out. To "
                "choose ONNX Runtime's GPU, write its number after a colon: --backend cuda:1"
            )


def open_pipeline(
    models: Path | None,
    resolution: int | None,
    low: Path | None,
    backend: str,
    on_device: bool = False,
    quantization: "Quantization | None" = None,
) -> "Pipeline":
    """Open the models that the options name; raises as `Pipeline.open` does.

    Args:
        models: Folder of the models; None opens the shipped models.
        resolution: See `Pipeline.open`.
        low: See `Pipeline.open`.
        backend: See `Pipeline.open`.
        on_device: Whether `--backend device` is allowed.
        quantization: Quantization of the layers' weights; None keeps the weights.
    """
    from underpaint.runtime.engines.context import SHARED
    from underpaint.runtime.pipeline import BACKENDS, Pipeline
    from underpaint.zoo.load import FOLDER

    if backend == DEVICE and not on_device:
        raise ValueError(
            f"--backend device: only compare, generate and serve take it; expected one of {', '.join(BACKENDS)} here"
        )

    context = replace(SHARED, quantization=quantization)
    return Pipeline.open(models or FOLDER, resolution=resolution, low=low, backend=backend, context=context)


def checked_temperature(temperature: float | None) -> float:
    """Return the temperature, or the usual one for None, before a model is open; ValueError if out of range."""
    return SamplingParams(temperature=USUAL_TEMPERATURE if temperature is None else temperature).temperature


def read_sampling(
    temperature: float | None, guidance: float | None, top_k: int | None, top_p: float | None, pipeline: "OpenModels"
) -> SamplingParams:
    """Return the sampling settings, with the model's defaults for omitted options. ValueError if out of range."""
    shipped, codes = pipeline.sampling, pipeline.tables.vocab_size
    if top_k is not None and top_k > codes:
        raise ValueError(
            f"--top-k: this model has {codes:,} codes, so at most {codes:,} can be kept, got {top_k:,}; pass a smaller "
            "number, or 0 to keep all"
        )
    return SamplingParams(
        guidance=shipped.guidance if guidance is None else guidance,
        temperature=shipped.temperature if temperature is None else temperature,
        top_k=shipped.top_k if top_k is None else top_k,
        top_p=shipped.top_p if top_p is None else top_p,
    )


def read_preset(text: str) -> "str | PresetFile":
    """Return the preset name of `--preset`, or the preset file it names; ValueError if it is neither."""
    from underpaint.runtime.methods.registry import EAGLE_CODE, PRESETS

    if text in (*PRESETS, EAGLE_CODE):
        return text
    if not Path(text).is_file():
        raise ValueError(
            f"--preset: expected one of {', '.join(PRESETS)} or {EAGLE_CODE}, got {text!r}; or name a file that "
            "`underpaint tune` wrote"
        )
    from underpaint.runtime.methods.preset_file import read_preset_file

    return read_preset_file(Path(text))


def check_preset(preset: "str | PresetFile", pipeline: "OpenModels") -> None:
    """Raise ValueError if a preset file was made for other models than the pipeline's."""
    if not isinstance(preset, str):
        preset.check(pipeline.fingerprint(), str(pipeline.folder))


def check_costs(settings: Iterable[str], pipeline: "OpenModels") -> None:
    """Raise ValueError if a `costs=FILE` among `name=value` settings was measured with other models."""
    from underpaint.artifacts.cost_curve import read_cost_curve

    here = pipeline.fingerprint()
    for setting in settings:
        name, _, value = setting.partition("=")
        if name.strip().rpartition(".")[2] != "costs":
            continue
        measured = read_cost_curve(Path(value.strip())).model
        if here.get("quantization") != measured.get("quantization"):
            raise ValueError(
                f"{setting}: the curve was measured with other weights than --quantization {here.get('quantization')}; "
                "leave one of the two out"
            )
        for part in ("target", "drafter"):
            if None not in (measured.get(part), here.get(part)) and measured[part] != here[part]:
                raise ValueError(
                    f"{setting}: the curve was measured with another {part}, {measured[part]}, than {here[part]}; "
                    "measure one with these models"
                )


def short_hash(settings: Mapping[str, Any]) -> str:
    """Return ten hex digits that identify settings, the name of their default results folder."""
    from underpaint.artifacts.run_log import settings_hash

    return settings_hash(settings)[:10]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` in the form Typer reads: the fields of a dataclass parameter become options in its place.

    Fields are declared like options: annotated, with a default. Other parameters do not change.
    """
    parameters = signature(command).parameters
    groups: dict[str, Any] = {
        name: parameter.annotation for name, parameter in parameters.items() if is_dataclass(parameter.annotation)
    }
    fields = {name: signature(group).parameters for name, group in groups.items()}
    options = [
        option
        for name, parameter in parameters.items()
        for option in (fields[name].values() if name in groups else [parameter])
    ]

    @wraps(command)
    def called(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{option: values.pop(option) for option in fields[name]})
        command(**values)

    by_name = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in options]
    called.__dict__["__signature__"] = Signature(by_name)
    return called
