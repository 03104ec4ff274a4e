"""ONNX Runtime's providers for NVIDIA GPUs: checks whether one is usable, and sessions that never fall back to the CPU.

If a provider is not available, ONNX Runtime silently uses the CPU. So this module checks every cause before it opens a
session, and then checks which providers the session runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import pass_inputs
from underpaint.artifacts.files import user_cache_folder
from underpaint.artifacts.install import install_hint
from underpaint.runtime.engines.context import CPU, EngineError, onnx_runtime

WHEELS: Final = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-trt-rtx")
"""Distributions that install into the same folder, so that each overwrites the files of the others."""
_NO_CAPTURE: Final = "graph capture"
"""Part of ONNX Runtime's error for graphs with nodes that a CUDA graph cannot contain."""
_NO_PROFILES: Final = "associated shape profiles"
"""Part of ONNX Runtime's error if TensorRT takes only parts of a graph, whose inputs the caller cannot name."""
PASS_ROWS: Final = (1, 2)
"""The least and largest number of rows for TensorRT: one sequence, and a guidance pair."""
_USUAL_POSITIONS: Final = 16
"""The number of new positions that TensorRT optimises the engine for: a small draft tree."""
_LEAST, _USUAL, _MOST = (f"trt_profile_{which}_shapes" for which in ("min", "opt", "max"))
_PLUGIN: Final = "onnxruntime_ep_nv_tensorrt_rtx"


class Provider(NamedTuple):
    """A provider of ONNX Runtime.

    Attributes:
        name: ONNX Runtime's name of the provider.
        options: Options for the provider, in addition to the device's index.
        graphs: The option that captures passes as CUDA graphs.
        graph_id: The run option that selects a captured graph.
        behind: Fallback providers for nodes that the provider does not run, except the CPU.
        install: The command that installs the provider.
        needs: The libraries that the provider loads.
    """

    name: str
    options: Mapping[str, str]
    graphs: str
    graph_id: str
    behind: tuple[str, ...]
    install: str
    needs: str


_TENSORRT: Final = "tensorrt-ep"
_UNINSTALL: Final = f"pip uninstall -y {' '.join(WHEELS)}"
_USE_GPU_WHEEL: Final = f"{_UNINSTALL} && {install_hint('gpu')}"
_EXACT_CUDA: Final = {"use_tf32": "0"}
"""Turns off TF32, which rounds the factors of float32 products to 10 bits."""

PROVIDERS: Final[Mapping[str, Provider]] = {
    "cuda": Provider(
        "CUDAExecutionProvider",
        _EXACT_CUDA,
        "enable_cuda_graph",
        "gpu_graph_id",
        (),
        _USE_GPU_WHEEL,
        "CUDA 13 and cuDNN 9, which PyTorch's CUDA builds bring",
    ),
    _TENSORRT: Provider(
        "TensorrtExecutionProvider",
        {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1"},
        "trt_cuda_graph_enable",
        "gpu_graph_id",
        ("CUDAExecutionProvider",),
        _USE_GPU_WHEEL,
        "CUDA 13, cuDNN 9 and TensorRT 10.15 or later (libnvinfer.so.10)",
    ),
    "nv-tensorrt-rtx": Provider(
        "NvTensorRTRTXExecutionProvider",
        {},
        "enable_cuda_graph",
        "cuda_graph_annotation_id",
        (),
        "pip install onnxruntime-ep-nv-tensorrt-rtx-cu13",
        "a driver for CUDA 13 and an RTX GPU",
    ),
}
"""The providers by their `--backend` name; the suffix ":1" selects the second GPU."""
ProviderOptions: TypeAlias = Sequence[tuple[str, dict[str, str]]]
"""Providers in order, each with its options."""


def fixes_shapes(options: ProviderOptions) -> bool:
    """Return whether a session with these options accepts only the shapes of `pass_shapes`."""
    return any(_MOST in each for _, each in options)


class GpuBackend(NamedTuple):
    """A provider and the GPU that it runs on, as `--backend` names them."""

    name: str
    device: int

    @property
    def provider(self) -> Provider:
        """The provider."""
        return PROVIDERS[self.name]

    def captures(self, options: ProviderOptions) -> bool:
        """Return whether a session with these options captures passes."""
        return dict(options).get(self.provider.name, {}).get(self.provider.graphs) == "1"

    def options(self, graphs: bool, shapes: Mapping[str, str] | None = None) -> ProviderOptions:
        """Return the providers and options for a new session.

        Args:
            graphs: Whether to capture passes.
            shapes: `pass_shapes` of a decoder; None lets the provider find the shapes.
        """
        first = {"device_id": str(self.device), **self.provider.options, self.provider.graphs: str(int(graphs))}
        if self.name == _TENSORRT:
            cache = str(user_cache_folder() / "onnxruntime-tensorrt")
            first |= {"trt_engine_cache_path": cache, "trt_timing_cache_path": cache, **(shapes or {})}
        behind = {"device_id": str(self.device), **_EXACT_CUDA}
        return [(self.provider.name, first), *((name, dict(behind)) for name in self.provider.behind)]


def gpu_backend(backend: str) -> GpuBackend | None:
    """Return the provider of a backend such as "tensorrt-ep:1", or None; raise EngineError if ":1" is not an index."""
    name, colon, index = backend.partition(":")
    if name not in PROVIDERS:
        return None
    if colon and not (index.isascii() and index.isdecimal()):
        raise EngineError(f"--backend {backend}: expected the index of a GPU behind the colon, as {name}:1")
    return GpuBackend(name, int(index or 0))


def pass_shapes(config: DecoderConfig) -> dict[str, str]:
    """Return options that give ONNX Runtime's TensorRT provider the shapes of a decoder's plain passes.

    Without them, the provider rebuilds its engine at every pass that is larger than all earlier ones. A pass has
    `PASS_ROWS` rows, reads all cache slots, and has at most as many new positions as there are slots. There is one
    profile for all sizes, because ONNX Runtime uses only the first profile of an engine.
    """
    least, most = PASS_ROWS

    def shapes(rows: int, count: int) -> str:
        slots = config.capacity
        sizes = {"B": rows, "T": count, "S": slots, "S+T": slots + count, "C": config.external_cond_rows}
        return ",".join(
            f"{spec.name}:{'x'.join(str(sizes[size] if isinstance(size, str) else size) for size in spec.shape)}"
            for spec in pass_inputs(config)
        )

    usual = min(_USUAL_POSITIONS, config.capacity)
    return {_LEAST: shapes(least, 1), _USUAL: shapes(most, usual), _MOST: shapes(most, config.capacity)}


def check_provider(backend: str) -> None:
    """Check that the provider of a backend can be used here; backends without a provider always pass.

    Raises:
        EngineError: There are two wheels of ONNX Runtime, or one without the provider, or no PyTorch, or no such GPU.
            The message says what was expected, what is installed, and what to do.
    """
    gpu = gpu_backend(backend)
    if gpu is None:
        return
    conflict = wheel_conflict()
    if conflict is not None:
        raise EngineError(f"--backend {backend}: {conflict}")
    available = available_providers()
    if gpu.provider.name not in available:
        wheels = ", ".join(f"{name} {number}" for name, number in installed_wheels().items()) or "another build"
        raise EngineError(
            f"--backend {backend}: expected an ONNX Runtime with {gpu.provider.name}, got {wheels} with "
            f"{', '.join(available)}{_plugin_failure(gpu)}; install it with: {gpu.provider.install}; or pass "
            "--backend cpu"
        )
    _check_gpu(backend, gpu.device)


def _check_gpu(backend: str, index: int) -> None:
    try:
        import torch
    except ImportError as error:
        raise EngineError(
            f"--backend {backend}: its caches lie in PyTorch's memory, which is not installed ({error}); install it "
            f"with: {install_hint('gpu')}"
        ) from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise EngineError(
            f"--backend {backend}: expected a GPU, got none that PyTorch {torch.__version__} sees; check the driver "
            "(nvidia-smi) and that PyTorch is a CUDA build, or pass --backend cpu"
        )
    if index >= count:
        raise EngineError(
            f"--backend {backend}: expected a GPU from 0 to {count - 1}, got {index}; `nvidia-smi -L` lists them"
        )


def installed_wheels() -> dict[str, str]:
    """Return the installed wheels of ONNX Runtime with their versions."""
    versions = {}
    for name in WHEELS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def wheel_conflict() -> str | None:
    """Return a message with a remedy if several wheels of ONNX Runtime are installed, else None."""
    versions = installed_wheels()
    if len(versions) < 2:
        return None
    named = " and ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"expected one wheel of ONNX Runtime, got {named}, which overwrite each other's files; keep one, for a GPU "
        f"with: {_USE_GPU_WHEEL}"
    )


def available_providers() -> tuple[str, ...]:
    """Return the providers of the installed ONNX Runtime, including that of an installed plug-in."""
    runtime, plugin = onnx_runtime(), PROVIDERS["nv-tensorrt-rtx"].name
    providers = tuple(runtime.get_available_providers())
    return providers if plugin in providers or _register_plugin(runtime) is not None else (*providers, plugin)


def _register_plugin(runtime: ModuleType) -> str | None:
    """Register the provider of the plug-in, once; return None, or the reason why this failed."""
    try:
        plugin = import_module(_PLUGIN)
        name = plugin.get_ep_name()
        if not any(device.ep_name == name for device in runtime.get_ep_devices()):
            runtime.register_execution_provider_library(name, plugin.get_library_path())
    except Exception as error:  # onnxruntime's own exceptions share no base but Exception
        return _first_line(error)
    return None


def _plugin_failure(gpu: GpuBackend) -> str:
    if gpu.name != "nv-tensorrt-rtx":
        return ""
    return f" (its plug-in: {_register_plugin(onnx_runtime())})"


def machine_backends() -> tuple[str, ...]:
    """Return the backends whose providers the installed ONNX Runtime has, the CPU first, even without a GPU."""
    providers = available_providers()
    return (CPU, *(name for name, provider in PROVIDERS.items() if provider.name in providers))


def open_on_gpu(
    path: Path, model: bytes | str, backend: GpuBackend, options: Callable[[], Any], plain: DecoderConfig | None
) -> tuple[Any, ProviderOptions]:
    """Open a session on a GPU provider; return it with the options used.

    Args:
        path: The graph's file, for messages.
        model: The graph, or its path.
        backend: The provider and the GPU.
        options: Creates the `onnxruntime.SessionOptions` of a session.
        plain: The decoder, if the graph runs its plain passes, else None. If the provider takes every node of the
            graph, the passes are captured as CUDA graphs. TensorRT gets their shapes instead, and captures nothing.

    Raises:
        EngineError: The session cannot be opened, or fell back to the CPU.
    """
    import torch  # noqa: F401  # its CUDA libraries are those that the provider finds

    # The TensorRT provider keeps one graph per session, and would replay it for passes of every size.
    capture = plain is not None and backend.name != _TENSORRT
    shapes = None if plain is None else pass_shapes(plain)
    if backend.name == _TENSORRT:  # the provider creates its own folder, but not those above it
        user_cache_folder().mkdir(parents=True, exist_ok=True)
    while True:
        chosen, session_options = backend.options(capture, shapes), options()
        try:
            session = _session(model, backend, session_options, chosen)
            break
        except Exception as error:  # onnxruntime's own exceptions share no base but Exception
            if capture and _NO_CAPTURE in str(error):
                capture = False
                continue
            if shapes is not None and _NO_PROFILES in str(error):
                shapes = None
                continue
            raise EngineError(
                f"{path}: {backend.provider.name} could not load it ({_first_line(error)}); it needs "
                f"{backend.provider.needs}; install them, or pass --backend cpu"
            ) from error
    session.disable_fallback()
    got, expected = session.get_providers(), [backend.provider.name, *backend.provider.behind]
    if got[: len(expected)] != expected:
        raise EngineError(
            f"{path}: expected a session on {', '.join(expected)}, got one on {', '.join(got)}: ONNX Runtime fell back "
            f"without an error, as a library did not load (its log names it). It needs {backend.provider.needs}; "
            "install them, or pass --backend cpu"
        )
    return session, chosen


def _session(model: bytes | str, backend: GpuBackend, options: Any, chosen: ProviderOptions) -> Any:
    runtime = onnx_runtime()
    if backend.provider.name in runtime.get_available_providers():
        return runtime.InferenceSession(model, options, providers=chosen, enable_fallback=0)
    devices = [each for each in runtime.get_ep_devices() if each.ep_name == backend.provider.name]
    if backend.device >= len(devices):
        raise EngineError(f"expected a GPU that it runs on at index {backend.device}, got {len(devices)} of them")
    provider_options = {name: value for name, value in chosen[0][1].items() if name != "device_id"}
    options.add_provider_for_devices([devices[backend.device]], provider_options)
    return runtime.InferenceSession(model, options, enable_fallback=0)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def provider_record(backend: str, options: ProviderOptions | None = None) -> dict[str, Any] | None:
    """Return the wheels and session options of a backend as JSON values; None if the backend is not a provider."""
    gpu = gpu_backend(backend)
    if gpu is None:
        return None
    return {"wheels": installed_wheels(), "options": dict(options or gpu.options(False))}
