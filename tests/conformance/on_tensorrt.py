"""Models on TensorRT's engine, by the TensorRT that stands in: fixtures of `conftest`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.conformance import stand_in
from tests.conformance.families import TINY
from tests.published.checkpoints import eagle_weights, save_llamagen, save_vq
from underpaint.algos.rows import SamplingParams
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.runtime.conditions import load_encoder
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.engine import LoadedDecoder
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.engines.tensorrt_engine import load_tensorrt

BUCKETS = (1, 8, 16)


def opened(name: str, folder: Path) -> LoadedDecoder:
    if not list(folder.glob(f"{name}.*.engine")):
        stand_in.build(folder, name, BUCKETS)
    return load_tensorrt(name, name, folder, stand_in.BACKEND)


@pytest.fixture
def on_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test opens runs on TensorRT's engine."""
    stand_in.stand_in(monkeypatch)
    for kind in (EngineTarget, EngineDrafter):
        monkeypatch.setattr(kind, "open", partial(_open, kind, kind.open))


def _open(
    kind: type,
    as_ever: Callable[..., object],
    name: str,
    params: SamplingParams,
    folder: Path,
    context: EngineContext | None = None,
    backend: str = stand_in.BACKEND,
    *of: str,
) -> object:
    """of: the kind of model that a target is opened as."""
    if backend == "cpu":
        return as_ever(name, params, folder, context, backend, *of)
    decoder = opened(name, folder)
    encoder = [load_encoder(decoder.config, folder, context)] if kind is EngineTarget else []
    return kind(decoder, params, *encoder)


@pytest.fixture(scope="session")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class-conditional target and its drafter, in float16 and in float32."""
    work = tmp_path_factory.mktemp("halves")
    save_llamagen(work / "c2i.pt", captions=False)
    save_vq(work / "vq.pt")
    export_checkpoint(Request("vq", work / "vq.pt"), work / "reference")
    save_file(eagle_weights(), work / "eagle.safetensors")
    pair = ("llamagen-c2i", work / "c2i.pt")
    for precision, name in (("fp16", "out"), ("fp32", "reference")):
        export_checkpoint(Request(*pair, precision, TINY), work / name)
        drafter = Request("eagle-drafter", work / "eagle.safetensors", precision, target=pair, target_options=TINY)
        export_checkpoint(drafter, work / name)
    return work
