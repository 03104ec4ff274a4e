"""The device's forward on TensorRT: built by NVIDIA's builder, run by a TensorRT that ONNX Runtime stands in for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conformance import stand_in
from tests.runtime.device.engines import (
    GRID,
    IMAGES,
    SMALL,
    Pair,
    by_torch,
    cycle_of,
    decoded,
    exported,
    in_torch,
    method,
    models,
)
from tests.runtime.device.test_kernels import model_of
from underpaint.artifacts.decoder_graph import FEATURES, LOGITS
from underpaint.artifacts.device_graph import (
    HEAD,
    LAYERS,
    DecoderPasses,
    PassSize,
    graph_file,
    head_inputs,
    layers_inputs,
)
from underpaint.export.decoders import GraphFormat
from underpaint.export.device_engines import build_device_engines, profile
from underpaint.export.tensorrt_build import EngineBuilder
from underpaint.models.decoder import Decoder
from underpaint.runtime.device import engine_graphs
from underpaint.runtime.device.engine_forward import EngineForward, EngineGraphs
from underpaint.runtime.device.engine_graphs import TensorRTGraph
from underpaint.runtime.device.pass_sizes import passes_of
from underpaint.runtime.engines import tensorrt_engine
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import aligned
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.engines.tensorrt_files import EngineRecord
from underpaint.runtime.engines.tensorrt_runtime import TensorRTRuntime

AGAIN = "build it again"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.stand_in(monkeypatch)
    monkeypatch.setattr(engine_graphs, "current_stream", lambda: stand_in._STREAM)


def passes(batch: int, name: str = "eagle2") -> tuple[DecoderPasses, DecoderPasses]:
    target, drafter = (one.config for one in in_torch())
    return passes_of(method(name, 1), target, drafter, GRID, 2, 2, batch, torch.float32)


def on_tensorrt(model: Decoder, decoder: ElsewhereDecoder, taken: DecoderPasses, rows: int) -> EngineForward:
    """A forward by engines of these passes, of fixed shapes."""
    module = tensorrt_engine.backend_module(stand_in.BACKEND)
    graphs = []
    read = layers_inputs(model.config), head_inputs(model.config)
    for part, inputs, own in zip((LAYERS, HEAD), read, taken, strict=True):
        graph = graph_file(decoder.located.path.parent, decoder.name, part)
        profiles = [profile(inputs, rows, size).shapes for size in own]
        content = json.dumps({"graph": str(graph), "profiles": profiles, "rows": rows}).encode()
        kept = tuple(tuple(size) for size in own)
        record = EngineRecord(
            *(f"{decoder.name}.{part}", stand_in.BACKEND, "0", "", "", None, "", 0, "fp32", rows, (), kept)
        )
        runtime = TensorRTRuntime(record, module, None, stand_in.Engine(content), graph.with_suffix(".runtime"))
        graphs.append(TensorRTGraph(runtime, AGAIN))
    return EngineForward(model, 2, EngineGraphs(*graphs))


@pytest.fixture(scope="module")
def of_three() -> tuple[DecoderPasses, DecoderPasses]:
    """Read off the program before memory is the stand-in's, which has numbers in it."""
    return passes(3)


@pytest.fixture
def pair(of_three: tuple[DecoderPasses, DecoderPasses], cuda: None, tmp_path: Path) -> Pair:
    made = []
    for model, name, taken in zip(models(), ("target", "drafter"), of_three, strict=True):
        made.append(on_tensorrt(model, exported(model, tmp_path, name=name), taken, 2 * 3))
    return Pair(*made)


def test_a_decode_by_tensorrt_is_the_torch_forward_s(pair: Pair) -> None:
    """Every address is a multiple of 256, every shape a profile's, and three images are of unequal progress."""
    how = method("eagle2", 1)
    wanted, cycles = by_torch("eagle2", 1)
    assert len(set(cycles)) > 1
    enqueued = stand_in.Recorder.enqueued
    cycle = cycle_of(pair, how, 3)
    assert decoded(cycle, IMAGES) == wanted
    assert stand_in.Recorder.enqueued > enqueued


def test_a_captured_pass_reads_what_lies_at_its_addresses_when_it_is_replayed(pair: Pair) -> None:
    head, given, made = pair.target._engine.head, *(aligned((6, 6, n), torch.float32, "cpu") for n in (16, 11))
    run = head.bind({FEATURES: given}, {LOGITS: made})
    graph = stand_in.Graph()
    stand_in.Recorder.capturing = graph
    run()
    stand_in.Recorder.capturing = None
    assert not made.any()
    given.copy_(torch.randn(6, 6, 16))
    graph.replay()
    torch.testing.assert_close(made, in_torch().target.logits(given))


def test_a_pass_that_no_engine_was_built_for_is_refused(pair: Pair) -> None:
    with pytest.raises(
        EngineError, match=r"target.head: no engine for passes of 3 positions in 6 rows; build it again"
    ):
        pair.target.logits(torch.zeros(6, 3, 16))
    with pytest.raises(EngineError, match=r"layers: the engine refuses passes of 2 positions behind 8 \+ 0 in 6 rows"):
        decoded(cycle_of(pair, method("eagle2", 1), 2), (0, 1))
    given, made = (aligned((4, 6, n), torch.float32, "cpu") for n in (16, 11))
    with pytest.raises(EngineError, match=r"target.head: the engine refuses passes of 6 positions in 6 rows; build it"):
        pair.target._engine.head.bind({FEATURES: given}, {LOGITS: made})


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_nvidias_builder_takes_the_graphs(precision: str, tmp_path: Path) -> None:
    tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
    form = GraphFormat(precision)
    for model, name, taken in zip(models(), ("target", "drafter"), passes(2), strict=True):
        copied = Decoder(model.config)
        copied.load_state_dict(model.state_dict())
        decoder = exported(copied, tmp_path, form, name)
        builder = EngineBuilder(tensorrt, stand_in.BACKEND, "any")
        built = [record for _, record in build_device_engines(decoder, taken, builder, 4)]
        assert [record.model for record in built] == [f"{name}.layers", f"{name}.head"]
        assert [tuple(map(PassSize._make, record.passes)) for record in built] == list(taken)
        assert all((tmp_path / f"{record.model}.tensorrt-rtx.rows4.engine").stat().st_size > 1000 for record in built)


@pytest.mark.parametrize("family", ["chameleon", "learnt"])
def test_nvidias_builder_takes_other_families(family: str, tmp_path: Path) -> None:
    tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
    options = {
        "chameleon": {"rope": "line", "qk_norm": True, "post_norm": True},
        "learnt": {"rope": "none", "qkv_bias": True},
    }
    decoder = exported(model_of(replace(SMALL, **options[family])), tmp_path, GraphFormat("fp16"))
    one = DecoderPasses((PassSize(3, 3, 8, 0),), (PassSize(3, 3, 0, 0),))
    builder = EngineBuilder(tensorrt, stand_in.BACKEND, "any")
    assert len(list(build_device_engines(decoder, one, builder, 2))) == 2
