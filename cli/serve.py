"""`underpaint serve`: pictures over HTTP, for any client of OpenAI's images API."""

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.device import check_device, imported
from underpaint.cli.errors import bad_input, needed
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import check_ray_gpu
from underpaint.cli.options import (
    DEVICE,
    NO_DEVICE,
    Backend,
    DeviceChoice,
    Low,
    Models,
    Preset,
    Resolution,
    check_preset,
    grouped,
    read_preset,
)

if TYPE_CHECKING:
    from underpaint.serve.models import ServedModels

_NO_LIVE = LiveOptions()
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@grouped
def serve(
    models: Models = None,
    live: LiveOptions = _NO_LIVE,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    device: DeviceChoice = NO_DEVICE,
    preset: Preset = None,
    draft_if_faster: Annotated[
        bool,
        typer.Option(
            "--draft-if-faster",
            help="With --backend device: time each lossless method and plain autoregression on its first pictures, and "
            "draw the others by the faster one.",
        ),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65_535)] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File of API keys, one per line; clients must send one. Default: no key is needed."),
    ] = None,
    slots: Annotated[
        int,
        typer.Option(
            help="Pictures that are drawn at once; with --backend device and --live they share passes.", min=1, max=256
        ),
    ] = 4,
    waiting: Annotated[
        int, typer.Option(help="Pictures that may wait for a slot; more are refused.", min=1, max=1_000_000)
    ] = 256,
    most_images: Annotated[int, typer.Option(help="Pictures that one request may ask for.", min=1, max=1000)] = 10,
    most_prompt: Annotated[int, typer.Option(help="Characters of a prompt.", min=1, max=100_000)] = 2_000,
    most_body: Annotated[int, typer.Option(help="Bytes of a request.", min=1_024, max=1 << 30)] = 65_536,
    deadline: Annotated[float, typer.Option(help="Seconds within which a request must be finished.", min=0.1)] = 600.0,
    drain: Annotated[
        float, typer.Option(help="Seconds in which a stopped server finishes what it accepted.", min=0.0, max=86_400.0)
    ] = 60.0,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Number of replicas under Ray Serve, or MIN:MAX for Ray's autoscaling. Each takes one GPU; with the "
            "backend cpu they share the cores.",
            show_default=False,
        ),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="With --ray: address of a Ray cluster; default: a local one.", show_default=False)
    ] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts into the log.")] = False,
) -> None:
    """Serve pictures over HTTP with OpenAI's images API: any method, exported or live models."""
    with needed("`underpaint serve`", "serve"):
        from underpaint.serve.app import create_app
        from underpaint.serve.engine import EngineLoop
        from underpaint.serve.guard import Keys
        from underpaint.serve.requests import Limits
        from underpaint.serve.server import BACKLOG, Server, bound_socket
    if ray is not None:
        with bad_input():
            check_ray_gpu(backend, device.device)
        with needed("`underpaint serve --ray`", "serve-ray"):
            from underpaint.serve.replica_front import ReplicaFront
            from underpaint.serve.replicas import Scale
    engine: EngineLoop | ReplicaFront
    with bad_input():
        if ray is None and ray_address is not None:
            raise ValueError("--ray-address needs --ray; add it, or leave it out")
        scale = None if ray is None else Scale.read(ray)
        limits = Limits(most_body, most_prompt, most_images, deadline, waiting)
        keys = None if api_key_file is None else Keys.read(api_key_file)
        live.check(models, resolution, low, backend, on_device=True)
        device.check(backend)
        device.check_live(live.live)
        if draft_if_faster and backend != DEVICE:
            raise ValueError("--draft-if-faster needs --backend device; add it, or leave the option out")
        if draft_if_faster and (live.live is not None or ray is not None):
            raise ValueError(
                "--draft-if-faster needs exported models in one process; leave it out, or --live and --ray"
            )
        open_models = partial(open_served, models, live, resolution, low, backend, device, preset, draft_if_faster)
        gpus = int(backend != "cpu" and device.device != "cpu")
        with ExitStack() as stack:
            bound = stack.enter_context(bound_socket(host, port))  # closed again if the models cannot be opened
            if scale is None:
                engine = EngineLoop(open_models(None), slots, limits)
            else:
                engine = ReplicaFront(open_models, scale, slots, limits, gpus, ray_address)
            stack.pop_all()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if device.device == "cpu" and live.live is None:
        typer.echo("--device cpu interprets the device's program: it is slow, for trying it", err=True)
    if keys is None and host not in _LOOPBACK:
        typer.echo(
            f"{host}: whoever reaches this machine can draw; --api-key-file lets in only who has a key", err=True
        )
    bound.listen(BACKLOG)
    typer.echo(
        f"{engine.info.name} on http://{host}:{bound.getsockname()[1]}; Ctrl-C finishes what was accepted and ends"
    )
    Server(create_app(engine, limits, keys, log_prompts), engine, drain, waiting).run_on(bound)


def open_served(
    models: Path | None,
    live: LiveOptions,
    resolution: int | None,
    low: Path | None,
    backend: str,
    device: DeviceChoice,
    preset: str | None,
    draft_if_faster: bool,
    threads: int | None,
) -> "ServedModels":
    """Open the models that the options name, on `threads` threads; None takes all cores."""
    from underpaint.runtime.engines.context import EngineContext
    from underpaint.serve.models import AUTO, DeviceSettings, ServedModels
    from underpaint.zoo.load import FOLDER

    chosen = None if preset is None else read_preset(preset)
    if live.live is not None:
        where = check_device(device.device) if backend == DEVICE else "cpu"
        opened = live.source(threads or 1, where).open(own_threads=threads is not None)
        served = ServedModels(live.live.resolve().name, {AUTO: opened}, chosen)
    else:
        settings: DeviceSettings | None = None
        if backend == DEVICE:
            settings = DeviceSettings(device.device or "cuda", device.forward or "torch", draft_if_faster)
            with imported(settings.name):
                import underpaint.serve.device_slots  # noqa: F401  so that its kernels are made for this device
        context = EngineContext(threads, pool="shared", quantization=device.quantization)
        more = chosen, live.tokenizer, context, settings
        served = ServedModels.open_folder(models or FOLDER, resolution, low, backend, *more)
    if chosen is not None:
        for pipeline in served.pipelines.values():
            check_preset(chosen, pipeline)
    return served
