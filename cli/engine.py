"""`underpaint engine DIR`: TensorRT engines of an export folder, and graphs and engines for the device runtime."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from underpaint.algos.numbers import whole_number
from underpaint.cli.device import imported
from underpaint.cli.errors import bad_input
from underpaint.cli.option_values import read_names, read_numbers, settings_by_method
from underpaint.cli.options import (
    Guidance,
    MethodSettings,
    Preset,
    Temperature,
    check_preset,
    grouped,
    open_pipeline,
    read_preset,
    read_sampling,
)

if TYPE_CHECKING:
    from underpaint.export.tensorrt_build import EngineBuilder
    from underpaint.runtime.engines.tensorrt_files import EngineRecord

_MOST_ROWS: Final = 64
_ONNX: Final = "onnx"
_BUCKETS: Final = "1,8,16,32,64"


@dataclass(frozen=True, slots=True)
class ForDevice:
    """The passes that engines for `compare --backend device --forward` are built for."""

    for_device: Annotated[
        str | None,
        typer.Option(
            help="Build for `compare --backend device --forward` instead: the methods that will be drawn, with commas "
            "between.",
            show_default=False,
        ),
    ] = None
    batch: Annotated[int, typer.Option(help="With --for-device: most images of a batch.", min=1, max=256)] = 1
    preset: Preset = None
    temperature: Temperature = None
    guidance: Guidance = None
    setting: MethodSettings = None


_NOT_FOR_DEVICE = ForDevice()


@grouped
def engine(
    folder: Annotated[Path, typer.Argument(help="A folder that `underpaint export --kind` wrote.")],
    backend: Annotated[
        str,
        typer.Option(
            help="tensorrt or tensorrt-rtx; onnx writes the graphs of `compare --backend device --forward onnx`."
        ),
    ] = "tensorrt",
    model: Annotated[list[str] | None, typer.Option(help="Build this one only; repeat for more.")] = None,
    buckets: Annotated[str, typer.Option(help="Numbers of new positions, separated by commas.")] = _BUCKETS,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Fewest and most rows of a pass, such as 1,2, or one number: 1 for guidance 1, 2 for any "
            "other; default: by the models' own sampling.",
            show_default=False,
        ),
    ] = None,
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Build engines that later versions of the package run too.")
    ] = False,
    device: ForDevice = _NOT_FOR_DEVICE,
) -> None:
    """Build TensorRT engines of exported targets and drafters (needs PyTorch and a TensorRT package).

    An engine reads its weights from the models' folder. It works only with the same graph, the same version of the
    package and, if it was built with one, the same kind of GPU.
    """
    from underpaint.artifacts.files import check_folder_writable
    from underpaint.export.device_engines import build_folder
    from underpaint.export.tensorrt_build import EngineBuilder
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.engines.tensorrt_files import ANY_GPU, backend_module
    from underpaint.runtime.engines.tensorrt_runtime import gpu_name

    with bad_input():
        counts = _read_counts("--buckets", buckets)
        batches = () if rows is None else _read_counts("--rows", rows, _MOST_ROWS)
        if device.for_device is None and replace(device, setting=device.setting or None) != _NOT_FOR_DEVICE:
            raise ValueError("--batch, --set and sampling options need --for-device METHODS; add it, or leave them out")
        if device.for_device is not None and (model or rows is not None or buckets != _BUCKETS):
            raise ValueError(
                "--model, --buckets and --rows: --for-device takes the sizes from its methods; leave them out"
            )
        sized = device.for_device is not None or rows is not None or buckets != _BUCKETS
        if backend == _ONNX and (sized or version_compatible):
            raise ValueError(
                "--backend onnx writes graphs of any size: leave out --for-device, --rows, --buckets and "
                "--version-compatible"
            )
        if not folder.is_dir():
            raise NotADirectoryError(f"no folder {folder}; make one with `underpaint export --kind ... --out {folder}`")
        check_folder_writable(folder)
        if backend == _ONNX:
            _write_graphs(folder, tuple(model or ()))
            return
        try:
            gpu = gpu_name()
        except EngineError:
            if backend == "tensorrt":
                raise  # tensorrt measures kernels on its target GPU
            gpu = ANY_GPU
        builder = EngineBuilder(backend_module(backend), backend, gpu, version_compatible)
        if device.for_device is not None:
            _build_for_device(folder, builder, device)
            return
        for path, record in build_folder(folder, builder, tuple(model or ()), counts, batches):
            _tell(path, record)


def _tell(path: Path, record: "EngineRecord") -> None:
    least, most = record.rows
    rows = f"{most} row{'s' if most > 1 else ''}" if least == most else f"{least} to {most} rows"
    size = f"{record.engine_bytes / 2**20:.1f} MiB without weights"
    typer.echo(f"{path.name}: {size}, {record.precision}, {len(record.passes)} profiles of {rows}, for {record.gpu}")


def _write_graphs(folder: Path, only: tuple[str, ...]) -> None:
    """Write the device graphs of a folder's targets and drafters."""
    from underpaint.export.device_engines import write_device_graphs
    from underpaint.export.tensorrt_build import decoders_of
    from underpaint.runtime.engines.config_only import load_config_only

    for located in decoders_of(folder, only):
        for path in write_device_graphs(load_config_only(located.manifest.name, located)):
            typer.echo(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB, beside {located.manifest.name}'s weights")


def _build_for_device(folder: Path, builder: "EngineBuilder", options: ForDevice) -> None:
    """Build engines of layers and heads for the methods' passes, in batches of 1 to `options.batch` images."""
    with imported("cpu" if builder.gpu == "any" else "cuda"):
        from underpaint.runtime.device.folder import FolderModels
        from underpaint.runtime.device.forms import form_of
        from underpaint.runtime.device.providers import passes_of_methods
    from underpaint.artifacts.device_graph import HEAD, LAYERS
    from underpaint.export.device_engines import build_plans
    from underpaint.runtime.engines.tensorrt_files import part_of
    from underpaint.runtime.evaluation.comparison import build_methods, named_variants, with_baseline
    from underpaint.runtime.methods.registry import usual_preset

    names = with_baseline(read_names(options.for_device or ""))
    pipeline = open_pipeline(folder, None, None, "device", on_device=True)
    sampling = read_sampling(options.temperature, options.guidance, None, None, pipeline)
    settings = settings_by_method(options.setting or [], names)
    preset = usual_preset(pipeline) if options.preset is None else read_preset(options.preset)
    check_preset(preset, pipeline)
    methods = build_methods(pipeline, named_variants(names, settings), sampling.temperature, preset)
    models, rows = FolderModels.of(pipeline), 1 if sampling.guidance == 1.0 else 2
    forms = [form_of(method, sampling, pipeline.grid) for method in methods]
    for decoder, passes in zip(models.decoders, passes_of_methods(models, forms, options.batch, rows), strict=True):
        if passes.layers:
            parts = part_of(decoder.name, LAYERS, device=True), part_of(decoder.name, HEAD, device=True)
            for path, record in build_plans(decoder, passes, builder, (rows, rows * options.batch), parts):
                _tell(path, record)


def _read_counts(option: str, text: str, most: int | None = None) -> tuple[int, ...]:
    counts = tuple(sorted(set(read_numbers(option, text, whole_number))))
    if counts[0] < 1 or (most is not None and counts[-1] > most):
        raise ValueError(f"{option}: expected numbers from 1{f' to {most}' if most else ''}, got {text!r}")
    return counts
