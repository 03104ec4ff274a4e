"""What NVIDIA's builder is given and told: no weights, fused attention, caches in place, TF32 where nothing rounds."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from benchmarks.llamagen_checkpoint import llamagen_state
from tests.published.checkpoints import HEADS, SIDE, save_llamagen
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import PassSize, layers_inputs
from underpaint.artifacts.files import user_cache_folder
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.device_engines import bare_graphs, build_folder, profile, write_device_graphs
from underpaint.export.tensorrt_build import EngineBuilder, Profile, timing_file
from underpaint.models.decoder import Decoder, initialise
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder, load_config_only
from underpaint.runtime.engines.context import EngineError
from underpaint.zoo.load import locate, manifest

tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
BACKEND = "tensorrt-rtx"
BUILDER = EngineBuilder(tensorrt, BACKEND, "any")
PLACES = 64


def decoder_of(folder: Path) -> ConfigOnlyDecoder:
    return load_config_only("target", locate("target", "target", folder))


def profiles_of(decoder: ConfigOnlyDecoder, *counts: int) -> list[Profile]:
    return [profile(layers_inputs(decoder.config), (1, 2), PassSize(count, count, PLACES)) for count in counts]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ConfigOnlyDecoder:
    work = tmp_path_factory.mktemp("engines")
    save_llamagen(work / "c2i.pt", captions=False)
    options = LoadOptions(heads=HEADS, grid_side=SIDE)
    export_checkpoint(Request("llamagen-c2i", work / "c2i.pt", options=options), work / "out")
    return decoder_of(work / "out")


def test_plans_of_any_rows_and_passes_hold_no_weights(tmp_path: Path) -> None:
    """8 MB of weights, which a plan for each number of rows held before."""
    config = DecoderConfig(dim=256, layers=4, heads=4, hidden=512, vocab_size=512, grid_side=16, prefix=1, cond_ids=11)
    model = Decoder(config)
    torch.manual_seed(0)
    initialise(model)
    torch.save({"model": llamagen_state(model)}, tmp_path / "c2i.pt")
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", "fp16", LoadOptions(4, 16)), tmp_path / "out")
    target_manifest = manifest("target", tmp_path / "out")
    assert target_manifest.weights is not None
    one, many = (
        sum(record.engine_bytes for _, record in build_folder(tmp_path / "out", BUILDER, buckets=(1,), rows=rows))
        for rows in ((2,), (1, 8))
    )
    assert one < many < target_manifest.weights.bytes
    graph, head = bare_graphs(decoder_of(tmp_path / "out"), PLACES)
    initializers = [tensor for each in (graph, head) for tensor in onnx.load_from_string(each).graph.initializer]
    assert (
        sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in initializers) < 0.05 * target_manifest.weights.bytes
    )


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Networks and configurations that are built from now on."""
    seen, build = list[tuple[Any, Any]](), tensorrt.Builder.build_serialized_network

    def noting(self: object, network: object, config: object) -> object:
        seen.append((network, config))
        return build(self, network, config)

    monkeypatch.setattr(tensorrt.Builder, "build_serialized_network", noting)
    return seen


def test_attention_is_fused_over_caches_that_are_updated_in_place(
    small: ConfigOnlyDecoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    networks = spied(monkeypatch)
    graph, _ = bare_graphs(small, PLACES)
    BUILDER.build(graph, profiles_of(small, 1, 8), "layers", "fp32", tmp_path / "timing")
    ((network, _),) = networks
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = [layer.type for layer in layers]
    assert kinds.count(tensorrt.LayerType.KV_CACHE_UPDATE) == 2 * small.config.layers
    assert tensorrt.LayerType.SOFTMAX not in kinds
    attention = [layer for layer in layers if layer.type == tensorrt.LayerType.ATTENTION_INPUT]
    assert len(attention) == small.config.layers
    for layer in attention:
        layer.__class__ = tensorrt.IAttentionInputLayer
        assert layer.attention.mask.dtype == tensorrt.bool, "any tree"
        assert tuple(layer.attention.key_value_lengths.shape) == (-1,), "places behind a row's length are not read"
        assert layer.attention.causal_kind == tensorrt.CausalMaskKind.NONE


@pytest.mark.parametrize(
    ("kind", "width", "fused"), [("float16", 64, True), ("float16", 60, False), ("float32", 64, False)]
)
def test_which_attention_nvidia_fuses(kind: str, width: int, fused: bool) -> None:
    """Why heads of a half-precision cache are filled up to a multiple of 8, and float32 may decompose."""
    logger = tensorrt.Logger(tensorrt.Logger.INTERNAL_ERROR)
    builder = tensorrt.Builder(logger)
    network, config = builder.create_network(), builder.create_builder_config()
    shapes = {"query": (1, 4, 8, width), "key": (1, 2, 16, width), "value": (1, 2, 16, width)}
    inputs = [network.add_input(name, getattr(tensorrt, kind), shape) for name, shape in shapes.items()]
    softmax, causal = tensorrt.AttentionNormalizationOp.SOFTMAX, tensorrt.CausalMaskKind.NONE
    attention = network.add_attention_v2(*inputs, softmax, causal)
    attention.mask = network.add_input("sees", tensorrt.bool, (1, 1, 8, 16))
    attention.key_value_lengths = network.add_input("lengths", tensorrt.int32, (1,))
    network.mark_output(attention.get_output(0))
    assert (builder.build_serialized_network(network, config) is not None) == fused


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_stripped_plans_are_built_where_there_is_a_gpu_only(small: ConfigOnlyDecoder) -> None:
    """Why weights are inputs. A later package that builds them without a GPU ends this."""
    messages: list[str] = []

    class Logger(tensorrt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)

        def log(self, severity: object, message: str) -> None:
            messages.append(message)

    builder = tensorrt.Builder(logger := Logger())
    network, config = builder.create_network(), builder.create_builder_config()
    input_tensor = network.add_input("given", tensorrt.float32, (2, 16))
    weight = network.add_constant((16, 8), np.ones((16, 8), dtype=np.float32)).get_output(0)
    none = tensorrt.MatrixOperation.NONE
    network.mark_output(network.add_matrix_multiply(input_tensor, none, weight, none).get_output(0))
    assert builder.build_serialized_network(network, config) is not None
    for flag in ("STRIP_PLAN", "REFIT_IDENTICAL"):
        config.set_flag(getattr(tensorrt.BuilderFlag, flag))
    assert builder.build_serialized_network(network, config) is None
    assert logger is not None
    assert "CHECK(status == CUDA_SUCCESS) failed" in messages[-1]


def test_float32_is_not_rounded_by_the_builder(
    small: ConfigOnlyDecoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TF32, which keeps 10 bits of each factor, is a builder's default; no factor of half precision has more."""
    built, flag = spied(monkeypatch), tensorrt.BuilderFlag
    graph, _ = bare_graphs(small, PLACES)
    for precision, later in (("fp32", False), ("fp16", False), ("bf16", True)):
        builder = BUILDER._replace(version_compatible=later)
        builder.build(graph, profiles_of(small, 1), "layers", precision, tmp_path / "timing")
    assert [config.get_flag(flag.TF32) for _, config in built] == [False, True, True]
    compatible = (flag.VERSION_COMPATIBLE, flag.EXCLUDE_LEAN_RUNTIME)
    assert [[config.get_flag(one) for one in compatible] for _, config in built] == [[False] * 2] * 2 + [[True] * 2]


class MeasuringConfig:
    """A builder's configuration with a cache of measured kernels, which NVIDIA's package for RTX lacks."""

    def __init__(self, config: Any, gpu: str) -> None:
        self._config, self._gpu, self.taken = config, gpu, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def create_timing_cache(self, content: bytes) -> bytes | None:
        return None if content == b"damaged" else content

    def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
        if cache and not cache.startswith(self._gpu.encode()) and not ignore_mismatch:
            return False
        self.taken = cache
        return True

    def get_timing_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: self._gpu.encode() + b" measured")


def test_measured_kernels_are_taken_on_the_gpu_that_they_were_measured_on(
    small: ConfigOnlyDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie with the user's caches, by version and GPU; another GPU's are refused, whatever the file is called."""
    configs: list[MeasuringConfig] = []
    create, build = tensorrt.Builder.create_builder_config, tensorrt.Builder.build_serialized_network

    def measuring(builder: Any) -> MeasuringConfig:
        configs.append(MeasuringConfig(create(builder), gpu))
        return configs[-1]

    monkeypatch.setattr(tensorrt.Builder, "create_builder_config", measuring)
    monkeypatch.setattr(
        tensorrt.Builder,
        "build_serialized_network",
        lambda builder, network, config: build(builder, network, config._config),
    )
    native = EngineBuilder(tensorrt, "tensorrt", "X")
    graph, _ = bare_graphs(small, PLACES)
    timing = tmp_path / "cache" / "timing.cache"
    for gpu, before, expected in (
        ("X", None, b""),
        ("X", None, b"X measured"),
        ("Y", None, b""),
        ("Y", b"damaged", b""),
    ):
        if before is not None:
            timing.write_bytes(before)
        native.build(graph, profiles_of(small, 1), "layers", "fp32", timing)
        assert configs[-1].taken == expected
        assert timing.read_bytes() == f"{gpu} measured".encode()
    versions = [SimpleNamespace(__version__=version) for version in ("11.0", "11.1")]
    named = [(versions[0], "X"), (versions[0], "Y"), (versions[1], "X")]
    places = {timing_file("tensorrt", version, gpu) for version, gpu in named}  # type: ignore[arg-type]
    assert len(places) == 3
    assert {place.parent for place in places} == {user_cache_folder() / "timing"}


def test_a_graph_that_the_builder_refuses_is_named(small: ConfigOnlyDecoder, tmp_path: Path) -> None:
    """A cache whose length is free, which the cache layer does not take."""
    graph, _ = bare_graphs(small, None)
    with pytest.raises(EngineError, match=r"(?s)layers: tensorrt_rtx cannot read it: .*static sequence"):
        BUILDER.build(graph, profiles_of(small, 1), "layers", "fp32", tmp_path / "timing")


POLYGRAPHY = """
import sys
import numpy as np
import tensorrt_rtx as trt
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.backend.trt import NetworkFromOnnxBytes

_, network, _ = NetworkFromOnnxBytes(open(sys.argv[1], "rb").read())()
kinds = [network.get_layer(index).type for index in range(network.num_layers)]
assert trt.LayerType.ATTENTION_INPUT in kinds and trt.LayerType.KV_CACHE_UPDATE in kinds
rng, sizes = np.random.default_rng(0), {"R": 2, "T": 3, "P": 16}
for model in sys.argv[2:]:
    with OnnxrtRunner(SessionFromOnnx(model, providers=["cpu"])) as runner:
        feed = {}
        for name, (kind, shape) in runner.get_input_metadata().items():
            shape, kind = [sizes.get(size, size) for size in shape], np.dtype(kind)
            feed[name] = rng.standard_normal(shape).astype(kind) if kind.kind == "f" else np.ones(shape, kind)
        made = runner.infer(feed)
        assert all(np.isfinite(each).all() for each in made.values())
        print(sorted(made)[0], next(iter(made.values())).shape)
"""


def test_polygraphy_reads_the_graphs_with_tensorrt_and_runs_them(small: ConfigOnlyDecoder, tmp_path: Path) -> None:
    """NVIDIA's own tool: TensorRT's parser on what is built, ONNX Runtime on the graphs as they lie in the folder."""
    pytest.importorskip("polygraphy", reason="the extra 'dev' is not installed")
    bare = tmp_path / "layers.onnx"
    bare.write_bytes(bare_graphs(small, PLACES)[0])
    command = [sys.executable, "-c", POLYGRAPHY, str(bare), *map(str, write_device_graphs(small))]
    environment = os.environ | {"POLYGRAPHY_USE_TENSORRT_RTX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = small.config
    lines = [line for line in done.stdout.splitlines() if line.startswith(("features", "logits"))]
    assert lines == [f"features (2, 3, {config.dim})", f"logits (2, 3, {config.vocab_size})"]
