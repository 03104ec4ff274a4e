"""ONNX Runtime's providers for NVIDIA GPUs: whether one can be used here, and sessions that run on it or are refused.

ONNX Runtime itself takes the CPU, without an error, where a provider cannot be had: every reason for that is looked
for before a session is opened, and the opened session is asked what it runs on.
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
"""Distributions whose files lie in one folder: each overwrites what the others installed."""
_NO_CAPTURE: Final = "graph capture"
"""In ONNX Runtime's words where a graph has nodes that no CUDA graph holds."""
_NO_PROFILES: Final = "associated shape profiles"
"""In ONNX Runtime's words where TensorRT takes parts of a graph, whose inputs nobody outside can name."""
PASS_ROWS: Final = (1, 2)
"""Numbers of rows that TensorRT is told: one sequence, or a guidance pair."""
_USUAL_POSITIONS: Final = 16
"""New positions that TensorRT builds the fastest engine for: a small draft tree."""
_LEAST, _USUAL, _MOST = (f"trt_profile_{which}_shapes" for which in ("min", "opt", "max"))
_PLUGIN: Final = "onnxruntime_ep_nv_tensorrt_rtx"


class Provider(NamedTuple):
    """A provider of ONNX Runtime.

    Attributes:
        name: ONNX Runtime's.
        options: Passed to it, beside the device's index.
        graphs: The option that captures passes as CUDA graphs.
        graph_id: The option of a run that says which of the captured graphs it is.
        behind: Providers of the nodes that it does not take, the CPU aside.
        install: How to get it.
        needs: The libraries that it loads.
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
"""TF32 rounds the factors of float32 products to 10 bits."""

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
"""By the name that `--backend` takes; ":1" behind it names the second GPU."""
ProviderOptions: TypeAlias = Sequence[tuple[str, dict[str, str]]]
"""Providers in order, each with its options."""


def fixes_shapes(options: ProviderOptions) -> bool:
    """Whether a session that was opened with these options takes the shapes of `pass_shapes` alone."""
    return any(_MOST in each for _, each in options)


class GpuBackend(NamedTuple):
    """What `--backend` names: a provider, and the GPU that it runs on."""

    name: str
    device: int

    @property
    def provider(self) -> Provider:
        """Its provider."""
        return PROVIDERS[self.name]

    def captures(self, options: ProviderOptions) -> bool:
        """Whether a session that was opened with these options captures passes."""
        return dict(options).get(self.provider.name, {}).get(self.provider.graphs) == "1"

    def options(self, graphs: bool, shapes: Mapping[str, str] | None = None) -> ProviderOptions:
        """What a session is opened with.

        Args:
            graphs: Whether to capture passes.
            shapes: `pass_shapes` of a decoder; None leaves them to the provider.
        """
        first = {"device_id": str(self.device), **self.provider.options, self.provider.graphs: str(int(graphs))}
        if self.name == _TENSORRT:
            cache = str(user_cache_folder() / "onnxruntime-tensorrt")
            first |= {"trt_engine_cache_path": cache, "trt_timing_cache_path": cache, **(shapes or {})}
        behind = {"device_id": str(self.device), **_EXACT_CUDA}
        return [(self.provider.name, first), *((name, dict(behind)) for name in self.provider.behind)]


def gpu_backend(backend: str) -> GpuBackend | None:
    """The provider that a backend names, such as "cuda" or "tensorrt-ep:1"; None where it names no provider.

    Raises:
        EngineError: What stands behind the colon is no index.
    """
    name, colon, index = backend.partition(":")
    if name not in PROVIDERS:
        return None
    if colon and not (index.isascii() and index.isdecimal()):
        raise EngineError(f"--backend {backend}: expected the index of a GPU behind the colon, as {name}:1")
    return GpuBackend(name, int(index or 0))


def pass_shapes(config: DecoderConfig) -> dict[str, str]:
    """Options that tell ONNX Runtime's TensorRT provider the shapes of a decoder's plain passes.

    Without them the provider builds its engine anew at every pass that is larger than those before. A pass has
    `PASS_ROWS`, and at most as many new positions as the cache has slots, all of which it reads. ONNX Runtime runs an
    engine by its first profile alone, so there is one over all sizes.
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
    """Refuse a backend that names a provider which this installation or this machine lacks; others pass.

    Raises:
        EngineError: Two wheels of ONNX Runtime, one without the provider, no PyTorch, or no such GPU; it says what was
            expected, what is there, and what to do.
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
    """The installed wheels of ONNX Runtime, with their versions."""
    versions = {}
    for name in WHEELS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def wheel_conflict() -> str | None:
    """What to do about two wheels of ONNX Runtime in one environment; None where there are no two."""
    versions = installed_wheels()
    if len(versions) < 2:
        return None
    named = " and ".join(f"{name} {number}" for name, number in versions.items())
    return (
        f"expected one wheel of ONNX Runtime, got {named}, which overwrite each other's files; keep one, for a GPU "
        f"with: {_USE_GPU_WHEEL}"
    )


def available_providers() -> tuple[str, ...]:
    """The providers of this ONNX Runtime, that of an installed plug-in included."""
    runtime, plugin = onnx_runtime(), PROVIDERS["nv-tensorrt-rtx"].name
    providers = tuple(runtime.get_available_providers())
    return providers if plugin in providers or _register_plugin(runtime) is not None else (*providers, plugin)


def _register_plugin(runtime: ModuleType) -> str | None:
    """Register the plug-in's provider, once; None, or why it cannot be."""
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
    """The backends that this ONNX Runtime has providers of, the CPU first. It lists them without a GPU too."""
    providers = available_providers()
    return (CPU, *(name for name, provider in PROVIDERS.items() if provider.name in providers))


def open_on_gpu(
    path: Path, model: bytes | str, backend: GpuBackend, options: Callable[[], Any], plain: DecoderConfig | None
) -> tuple[Any, ProviderOptions]:
    """A session on a GPU's provider, and the options that it was opened with.

    Args:
        path: The graph's file, for messages.
        model: The graph, or its path.
        backend: The provider and the GPU.
        options: Makes the `onnxruntime.SessionOptions` of a session.
        plain: The decoder whose plain passes the graph makes: they are captured as CUDA graphs, and TensorRT is told
            their shapes, where the provider takes every node of the graph. None for any other graph.

    Raises:
        EngineError: The session cannot be opened, or runs on the CPU.
    """
    import torch  # noqa: F401  # its CUDA libraries are those that the provider finds

    capture, shapes = plain is not None, None if plain is None else pass_shapes(plain)
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
    own = {name: value for name, value in chosen[0][1].items() if name != "device_id"}
    options.add_provider_for_devices([devices[backend.device]], own)
    return runtime.InferenceSession(model, options, enable_fallback=0)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def provider_record(backend: str, options: ProviderOptions | None = None) -> dict[str, Any] | None:
    """A backend's providers, as JSON holds them, with a session's options; None where it names no provider."""
    gpu = gpu_backend(backend)
    if gpu is None:
        return None
    return {"wheels": installed_wheels(), "options": dict(options or gpu.options(False))}
