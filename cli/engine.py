"""`underpaint engine DIR`: TensorRT engines of an export folder."""

from pathlib import Path
from typing import Annotated, Final

import typer

from underpaint.cli.errors import bad_input

_MOST_ROWS: Final = 64


def engine(
    folder: Annotated[Path, typer.Argument(help="A folder that `underpaint export --kind` wrote.")],
    backend: Annotated[str, typer.Option(help="tensorrt or tensorrt-rtx.")] = "tensorrt",
    model: Annotated[list[str] | None, typer.Option(help="Build this one only; repeat for more.")] = None,
    buckets: Annotated[str, typer.Option(help="Numbers of new positions, with commas between.")] = "1,8,16,32,64",
    rows: Annotated[
        str | None,
        typer.Option(
            help="Rows of a pass, with commas between, an engine each: 1 for guidance 1, 2 for any other; default: as "
            "the models are meant to be sampled.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Build TensorRT engines of exported targets and drafters (needs PyTorch and a TensorRT package).

    An engine is tied to its graph, the package's version and, where there is one, this machine's GPU.
    """
    from underpaint.export.tensorrt_build import build_folder
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.engines.tensorrt_files import ANY_GPU
    from underpaint.runtime.engines.tensorrt_runtime import gpu_name
    from underpaint.runtime.files import check_folder_writable

    with bad_input():
        counts = _read_counts("--buckets", buckets)
        batches = () if rows is None else _read_counts("--rows", rows, _MOST_ROWS)
        if not folder.is_dir():
            raise NotADirectoryError(f"no folder {folder}; make one with `underpaint export --kind ... --out {folder}`")
        check_folder_writable(folder)
        try:
            gpu = gpu_name()
        except EngineError:
            if backend == "tensorrt":
                raise  # it measures kernels on the GPU that it builds for
            gpu = ANY_GPU
        for path, record in build_folder(folder, backend, gpu, tuple(model or ()), counts, batches):
            profiles = f"{len(record.counts)} profiles of {record.rows} row{'s' if record.rows > 1 else ''}"
            typer.echo(f"{path.name}: {record.engine_bytes / 2**20:.1f} MiB, {record.precision}, {profiles}, for {gpu}")


def _read_counts(option: str, text: str, most: int | None = None) -> tuple[int, ...]:
    try:
        counts = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as error:
        raise ValueError(f"{option}: expected numbers with commas between, got {text!r}") from error
    if counts[0] < 1 or (most is not None and counts[-1] > most):
        raise ValueError(f"{option}: expected numbers from 1{f' to {most}' if most else ''}, got {text!r}")
    return counts
