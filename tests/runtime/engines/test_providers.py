"""ONNX Runtime's providers for GPUs, on machines without one: what is refused, and what sessions are asked for."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
import torch

from tests.cli.program import run_program
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import pass_inputs
from underpaint.runtime.engines import context, providers
from underpaint.runtime.engines.context import EngineContext, EngineError, open_capturing, open_session
from underpaint.runtime.engines.onnx_engine import OnnxDecoder
from underpaint.runtime.engines.providers import (
    PASS_ROWS,
    PROVIDERS,
    GpuBackend,
    check_provider,
    gpu_backend,
    pass_shapes,
    provider_record,
)
from underpaint.runtime.evaluation.picture_judge import judge_of
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import FOLDER

FOX = '"a woolly fox left of an outlined pumpkin"'
GRAPH = FOLDER / "superres.onnx"
SIZES = DecoderConfig(
    *(16, 1, 4, 16, 11, 2), prefix=1, kv_heads=2, drafter=True, condition="none", precision="fp16", capacity=9
)
"""A drafter's: width 16, one layer, 4 query heads over 2 of keys of width 4, 9 cache slots."""
GPU_WHEEL = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
"""What the wheel for GPUs lists, on a machine without one too."""


class Runtime(SimpleNamespace):
    """ONNX Runtime as its wheel for GPUs is; sessions run on the CPU and say that they run on `got`."""

    def __init__(self, got: tuple[str, ...], available: tuple[str, ...] = GPU_WHEEL) -> None:
        super().__init__()
        self.got, self.available = got, available
        self.asked: list[list[tuple[str, dict[str, str]]]] = []
        self.refusals: list[str] = []

    def get_available_providers(self) -> list[str]:
        return list(self.available)

    def get_ep_devices(self) -> list[Any]:
        return []

    def InferenceSession(self, model: Any, options: Any, providers: Any, enable_fallback: int = 1) -> Any:
        self.asked.append(providers)
        if self.refusals:
            raise RuntimeError(self.refusals.pop(0))
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session.get_providers = lambda: list(self.got)
        assert enable_fallback == 0 or providers == ["CPUExecutionProvider"]
        return session

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)


@pytest.fixture
def gpu_wheel(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runtime]:
    """Put the wheel for GPUs on a machine of two of them."""

    def put(got: tuple[str, ...] = GPU_WHEEL[1:], available: tuple[str, ...] = GPU_WHEEL, gpus: int = 2) -> Runtime:
        runtime = Runtime(got, available)
        wheels(monkeypatch, {"onnxruntime-gpu": "1.31.1"})
        for module in (context, providers):
            monkeypatch.setattr(module, "onnx_runtime", lambda: runtime)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        return runtime

    return put


def wheels(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(providers, "version", version)


def test_a_backend_names_a_provider_and_a_gpu() -> None:
    assert gpu_backend("cuda") == ("cuda", 0)
    assert gpu_backend("tensorrt-ep:3") == ("tensorrt-ep", 3)
    assert [gpu_backend(name) for name in ("cpu", "tensorrt", "tensorrt-rtx", "device", "gpu")] == [None] * 5
    for wrong in ("cuda:", "cuda:x", "cuda:-1", "cuda:²"):
        with pytest.raises(EngineError, match="expected the index of a GPU behind the colon, as cuda:1"):
            gpu_backend(wrong)


@pytest.mark.parametrize("backend", PROVIDERS)
def test_a_provider_that_the_wheel_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    runtime = Runtime(("CPUExecutionProvider",), ("AzureExecutionProvider", "CPUExecutionProvider"))
    monkeypatch.setattr(providers, "onnx_runtime", lambda: runtime)
    wheels(monkeypatch, {"onnxruntime": "1.31.1"})
    expected = (
        f"--backend {backend}: expected an ONNX Runtime with {PROVIDERS[backend].name}, got onnxruntime 1.31.1 with "
        r"AzureExecutionProvider, CPUExecutionProvider.*; install it with: pip .*; or pass --backend cpu"
    )
    with pytest.raises(EngineError, match=expected):
        Pipeline.open(FOLDER, resolution=64, backend=backend)
    assert not runtime.asked


def test_two_wheels_of_one_module_are_refused(
    monkeypatch: pytest.MonkeyPatch, gpu_wheel: Callable[..., Runtime]
) -> None:
    gpu_wheel()
    check_provider("cuda")
    wheels(monkeypatch, {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"})
    expected = (
        r"--backend cuda: expected one wheel of ONNX Runtime, got onnxruntime 1\.31\.1 and onnxruntime-gpu 1\.30\.0, "
        r"which overwrite each other's files; keep one, for a GPU with: pip uninstall -y onnxruntime onnxruntime-gpu "
        r".* && pip install .*\[gpu\]'"
    )
    with pytest.raises(EngineError, match=expected):
        check_provider("cuda")
    check_provider("cpu")


def test_a_gpu_that_is_not_there_is_refused(gpu_wheel: Callable[..., Runtime]) -> None:
    gpu_wheel(gpus=2)
    check_provider("cuda:1")
    with pytest.raises(EngineError, match="--backend cuda:2: expected a GPU from 0 to 1, got 2; `nvidia-smi -L` lists"):
        check_provider("cuda:2")
    gpu_wheel(gpus=0)
    with pytest.raises(
        EngineError, match=r"--backend cuda: expected a GPU, got none that PyTorch .* sees; check the dr"
    ):
        check_provider("cuda")


@pytest.mark.parametrize(
    ("backend", "got"),
    [
        ("cuda", ("CPUExecutionProvider",)),
        ("tensorrt-ep", ("CUDAExecutionProvider", "CPUExecutionProvider")),
        ("tensorrt-ep", ("TensorrtExecutionProvider", "CPUExecutionProvider")),
    ],
)
def test_a_session_that_fell_back_is_refused(
    gpu_wheel: Callable[..., Runtime], backend: str, got: tuple[str, ...]
) -> None:
    gpu_wheel(got)
    with pytest.raises(EngineError, match=f"expected a session on .*, got one on {', '.join(got)}: ONNX Runtime fell"):
        open_session(GRAPH, EngineContext(threads=1, backend=backend))


def test_a_session_is_asked_for_its_gpu_exactly(gpu_wheel: Callable[..., Runtime]) -> None:
    runtime = gpu_wheel()
    _, opened = open_capturing(GRAPH, EngineContext(threads=1, backend="cuda:1"), plain=SIZES)
    options = {"device_id": "1", "use_tf32": "0", "enable_cuda_graph": "1"}
    assert runtime.asked == [opened] == [[("CUDAExecutionProvider", options)]]
    assert GpuBackend("cuda", 1).captures(opened)
    open_session(GRAPH, EngineContext(threads=1, backend="cuda"))
    assert runtime.asked[-1][0][1] == {"device_id": "0", "use_tf32": "0", "enable_cuda_graph": "0"}
    runtime = gpu_wheel(GPU_WHEEL)
    open_session(GRAPH, EngineContext(threads=1, backend="tensorrt-ep"))
    first, second = runtime.asked[-1]
    assert first[0] == "TensorrtExecutionProvider"
    assert first[1]["trt_cuda_graph_enable"] == "0"
    assert second == ("CUDAExecutionProvider", {"device_id": "0", "use_tf32": "0"})


def test_a_graph_that_cannot_be_captured_runs_all_the_same(gpu_wheel: Callable[..., Runtime]) -> None:
    runtime = gpu_wheel()
    runtime.refusals = ["This session cannot use the graph capture feature as requested by the user"]
    _, opened = open_capturing(GRAPH, EngineContext(threads=1, backend="cuda"), plain=SIZES)
    assert not GpuBackend("cuda", 0).captures(opened)
    assert [request[0][1]["enable_cuda_graph"] for request in runtime.asked] == ["1", "0"]
    runtime.refusals = ["libnvinfer.so.10: cannot open\nand more"]
    with pytest.raises(EngineError, match=r"could not load it \(libnvinfer.so.10: cannot open\); it needs CUDA 13"):
        open_session(GRAPH, EngineContext(threads=1, backend="cuda"))


def test_tensorrt_is_told_the_shapes_of_plain_passes(gpu_wheel: Callable[..., Runtime]) -> None:
    """One range over all rows and new positions, in which every input of the graph stands: no pass is out of it."""
    runtime, backend = gpu_wheel(GPU_WHEEL), GpuBackend("tensorrt-ep", 0)
    session, opened = open_capturing(GRAPH, EngineContext(threads=1, backend="tensorrt-ep"), plain=SIZES)
    (_, options), cuda = opened
    assert runtime.asked == [opened]
    assert cuda == ("CUDAExecutionProvider", {"device_id": "0", "use_tf32": "0"})
    assert options["trt_profile_min_shapes"] == (
        "tokens:1x1,cells:1x1,bias:1x1x10,features:1x1x16,past_key_0:1x2x4x9,past_value_0:1x2x9x4"
    )
    assert (
        options["trt_profile_opt_shapes"]
        == options["trt_profile_max_shapes"]
        == ("tokens:2x9,cells:2x9,bias:2x9x18,features:2x9x16,past_key_0:2x2x4x9,past_value_0:2x2x9x4")
    )
    wide = pass_shapes(replace(SIZES, capacity=640))
    assert "bias:2x16x656," in wide["trt_profile_opt_shapes"]
    assert "bias:2x640x1280," in wide["trt_profile_max_shapes"]
    for shapes in wide.values():
        assert [part.partition(":")[0] for part in shapes.split(",")] == [spec.name for spec in pass_inputs(SIZES)]
    assert OnnxDecoder(session, SIZES, "drafter", backend, opened).row_counts == PASS_ROWS == (1, 2)
    assert OnnxDecoder(session, SIZES, "drafter", backend, backend.options(True)).row_counts is None


def test_a_graph_that_tensorrt_takes_in_parts_is_told_no_shapes(gpu_wheel: Callable[..., Runtime]) -> None:
    runtime = gpu_wheel(GPU_WHEEL)
    runtime.refusals = ["Following input(s) has no associated shape profiles provided: layers.0/Add_output"]
    _, opened = open_capturing(GRAPH, EngineContext(threads=1, backend="tensorrt-ep"), plain=SIZES)
    assert ["trt_profile_min_shapes" in options for ((_, options), _) in runtime.asked] == [True, False]
    assert not GpuBackend("tensorrt-ep", 0).captures(opened)


def test_tensorrt_captures_nothing_and_finds_the_folder_above_its_cache(
    gpu_wheel: Callable[..., Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its one graph per session would be replayed for passes of every size."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    runtime = gpu_wheel(GPU_WHEEL)
    _, opened = open_capturing(GRAPH, EngineContext(threads=1, backend="tensorrt-ep"), plain=SIZES)
    assert runtime.asked == [opened]
    assert opened[0][1]["trt_cuda_graph_enable"] == "0"
    assert Path(opened[0][1]["trt_engine_cache_path"]).parent.is_dir()


def test_a_plug_in_provider_is_asked_for_by_its_device(
    monkeypatch: pytest.MonkeyPatch, gpu_wheel: Callable[..., Runtime]
) -> None:
    name, added = PROVIDERS["nv-tensorrt-rtx"].name, list[Any]()
    runtime = gpu_wheel((name, "CPUExecutionProvider"), ("CPUExecutionProvider",))
    devices: list[Any] = []
    plugin = SimpleNamespace(get_ep_name=lambda: name, get_library_path=lambda: "library.so")
    real = providers.import_module
    monkeypatch.setattr(providers, "import_module", lambda module: plugin if "nv_tensorrt" in module else real(module))
    runtime.get_ep_devices = lambda: devices
    runtime.register_execution_provider_library = lambda name, path: devices.append(SimpleNamespace(ep_name=name))
    check_provider("nv-tensorrt-rtx")

    class Options(SimpleNamespace):
        def add_provider_for_devices(self, chosen: list[Any], options: dict[str, str]) -> None:
            added.append((chosen, options))

    def opened(model: Any, options: Any, enable_fallback: int) -> Any:
        return SimpleNamespace(get_providers=lambda: [name, "CPUExecutionProvider"], disable_fallback=lambda: None)

    monkeypatch.setattr(context, "_options", lambda engine_context: Options())
    runtime.InferenceSession = opened  # type: ignore[method-assign]
    open_session(GRAPH, EngineContext(threads=1, backend="nv-tensorrt-rtx"))
    assert added == [(devices, {"enable_cuda_graph": "0"})]
    with pytest.raises(EngineError, match="expected a GPU that it runs on at index 1, got 1 of them"):
        open_session(GRAPH, EngineContext(threads=1, backend="nv-tensorrt-rtx:1"))


def test_records_hold_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels(monkeypatch, {"onnxruntime-gpu": "1.31.1"})
    assert provider_record("cpu") is provider_record("tensorrt") is None
    wheel = {"wheels": {"onnxruntime-gpu": "1.31.1"}}
    plain = {"device_id": "1", "use_tf32": "0", "enable_cuda_graph": "0"}
    assert json.loads(json.dumps(provider_record("cuda:1"))) == {**wheel, "options": {"CUDAExecutionProvider": plain}}
    opened = GpuBackend("tensorrt-ep", 0).options(True, pass_shapes(SIZES))
    record = provider_record("tensorrt-ep", opened)
    assert record == {**wheel, "options": dict(opened)}
    assert "features:2x9x16" in record["options"]["TensorrtExecutionProvider"]["trt_profile_max_shapes"]


def test_a_pipelines_record_says_what_ran_it(gpu_wheel: Callable[..., Runtime]) -> None:
    """Of all its sessions; the judge stays on the CPU, so that every backend has the same one."""
    runtime = gpu_wheel()
    pipeline = Pipeline.open(FOLDER, resolution=64, backend="cuda:1", context=EngineContext(threads=1))
    fingerprint = pipeline.fingerprint()
    options = {"device_id": "1", "use_tf32": "0", "enable_cuda_graph": "0"}
    assert (fingerprint["engine"], fingerprint["provider"]["options"]) == ("cuda:1", {"CUDAExecutionProvider": options})
    assert pipeline.loaded_drafter is not None
    assert runtime.asked == [[("CUDAExecutionProvider", options)]] * 3, "the target, the tokenizer, the drafter"
    assert judge_of(pipeline) is not None
    assert runtime.asked[3:] == [["CPUExecutionProvider"]]
    assert "provider" not in Pipeline.open(FOLDER, resolution=64, context=EngineContext(threads=1)).fingerprint()


@pytest.mark.parametrize(
    "command", [f"generate {FOX} --out x.png", "compare --out x", "check --invariance --json x.json"]
)
@pytest.mark.parametrize(
    ("backend", "gpus", "got", "told"),
    [
        ("nv-tensorrt-rtx", 1, GPU_WHEEL, "expected an ONNX Runtime with NvTensorRTRTXExecutionProvider"),
        ("cuda", 0, GPU_WHEEL, "expected a GPU, got none"),
        ("cuda:1", 1, GPU_WHEEL, "expected a GPU from 0 to 0, got 1"),
        ("cuda", 1, ("CPUExecutionProvider",), "ONNX Runtime fell back"),
    ],
)
def test_commands_end_before_any_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu_wheel: Callable[..., Runtime],
    command: str,
    backend: str,
    gpus: int,
    got: tuple[str, ...],
    told: str,
) -> None:
    gpu_wheel(got, gpus=gpus)
    ran = run_program(f"{command} --backend {backend}", tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, "")
    assert told in " ".join(ran.err.split())
    assert list(tmp_path.iterdir()) == []
