"""What NVIDIA's builder is told: one number of rows an engine, TF32 where it rounds nothing, measured kernels."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.published.checkpoints import HEADS, SIDE, save_llamagen
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.files import user_cache_folder
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.decoders import export_shared_target
from underpaint.export.store import Origin
from underpaint.export.tensorrt_build import build_engine, build_folder, decoder_profile, timing_file
from underpaint.models.decoder import Decoder, initialise
from underpaint.models.published.llamagen import llamagen_state
from underpaint.models.published.options import LoadOptions
from underpaint.models.text import CaptionedTarget
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.engines.tensorrt_files import Profile
from underpaint.zoo.load import manifest

tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
BACKEND = "tensorrt-rtx"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("engines")
    save_llamagen(work / "c2i.pt", captions=False)
    options = LoadOptions(heads=HEADS, grid_side=SIDE)
    export_checkpoint(Request("llamagen-c2i", work / "c2i.pt", options=options), work / "out")
    return work / "out"


def test_profiles_share_weights_and_numbers_of_rows_would_not(tmp_path: Path) -> None:
    """Why each number of rows has an engine of its own: one for both would hold, and load, the weights twice."""
    config = DecoderConfig(dim=256, layers=4, heads=4, hidden=512, vocab_size=512, grid_side=16, prefix=1, cond_ids=11)
    model = Decoder(config)
    torch.manual_seed(0)
    initialise(model)
    torch.save({"model": llamagen_state(model)}, tmp_path / "c2i.pt")
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", "fp16", LoadOptions(4, 16)), tmp_path / "out")
    ((_, one),) = build_folder(tmp_path / "out", BACKEND, buckets=(1,), rows=(2,))
    ((_, many),) = build_folder(tmp_path / "out", BACKEND, buckets=(1, 8), rows=(2,))
    assert (one.counts, many.counts) == ((1,), (1, 8))
    found = manifest("target", tmp_path / "out")
    assert found.weights is not None
    assert many.engine_bytes - one.engine_bytes < 0.5 * found.weights.bytes, "kernels of a profile"
    config = manifest_config(found.settings, "target")
    both = [decoder_profile(config, rows, 1) for rows in (1, 2)]
    content = build_engine(tmp_path / "out" / "target.onnx", both, tensorrt, "fp16", tmp_path / "timing")
    assert len(content) - one.engine_bytes > 0.9 * found.weights.bytes


def test_float32_is_not_rounded_by_the_builder(small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TF32, which keeps 10 bits of each factor, is a builder's default; no factor of half precision has more."""
    flags, build = [], tensorrt.Builder.build_serialized_network

    def spied(self: object, network: object, config: object) -> object:
        flags.append(config.get_flag(tensorrt.BuilderFlag.TF32))  # type: ignore[attr-defined]
        return build(self, network, config)

    monkeypatch.setattr(tensorrt.Builder, "build_serialized_network", spied)
    for precision in ("fp32", "fp16", "bf16"):
        build_engine(small / "target.onnx", _profiles(small), tensorrt, precision, tmp_path / "timing")
    assert flags == [False, True, True]


def _profiles(folder: Path) -> list[Profile]:
    found = manifest("target", folder)
    return [decoder_profile(manifest_config(found.settings, "target"), 2, 1)]


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
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie with the user's caches, by version and GPU; another GPU's are refused, whatever the file is called."""
    configs: list[MeasuringConfig] = []
    made, build = tensorrt.Builder.create_builder_config, tensorrt.Builder.build_serialized_network

    def measuring(builder: Any) -> MeasuringConfig:
        configs.append(MeasuringConfig(made(builder), gpu))
        return configs[-1]

    monkeypatch.setattr(tensorrt.Builder, "create_builder_config", measuring)
    monkeypatch.setattr(
        tensorrt.Builder,
        "build_serialized_network",
        lambda builder, network, given: build(builder, network, given._config),
    )
    native = SimpleNamespace(**{name: getattr(tensorrt, name) for name in dir(tensorrt) if name[0] != "_"})
    native.__name__, native.__version__ = "tensorrt", "11.0"
    timing = tmp_path / "cache" / "timing.cache"
    for gpu, before, taken in (
        ("X", None, b""),
        ("X", None, b"X measured"),
        ("Y", None, b""),
        ("Y", b"damaged", b""),
    ):
        if before is not None:
            timing.write_bytes(before)
        build_engine(small / "target.onnx", _profiles(small), native, "fp32", timing)  # type: ignore[arg-type]
        assert configs[-1].taken == taken
        assert timing.read_bytes() == f"{gpu} measured".encode()
    places = {timing_file("tensorrt", native, each) for each in ("X", "Y")}  # type: ignore[arg-type]
    native.__version__ = "11.1"
    places.add(timing_file("tensorrt", native, "X"))  # type: ignore[arg-type]
    assert len(places) == 3
    assert {place.parent for place in places} == {user_cache_folder() / "timing"}


def test_weights_of_8_bits_with_a_scale_a_row_are_widened_for_the_builder(tmp_path: Path) -> None:
    sizes = DecoderConfig(64, 1, 4, 800, 64, 8, 12, condition="external")
    target = CaptionedTarget(sizes, 8, 9)
    for part in target.parameters():
        torch.nn.init.normal_(part, std=0.1)
    (found,) = export_shared_target(target, {64: 3}, 8, tmp_path, Origin("random weights", "a test"))
    assert found.weights is not None
    config = manifest_config(found.settings, found.name)
    profile = decoder_profile(config, 2, 8)
    content = build_engine(tmp_path / found.file, [profile], tensorrt, "fp32", tmp_path / "timing")
    gate_up = 4 * 2 * 800 * 64
    assert len(content) > gate_up > found.weights.bytes
