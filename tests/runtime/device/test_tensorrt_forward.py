"""The device's forward on TensorRT: built by NVIDIA's builder, run by a TensorRT that ONNX Runtime stands in for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conformance import stand_in
from tests.runtime.device.engines import (
    CPU,
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
    over,
    passed,
)
from tests.runtime.device.test_kernels import model_of
from underpaint.artifacts.decoder_graph import FEATURES, LOGITS
from underpaint.artifacts.device_graph import (
    HEAD,
    LAYERS,
    DecoderPasses,
    PassSize,
)
from underpaint.export.decoders import GraphFormat
from underpaint.export.device_engines import build_plans
from underpaint.export.tensorrt_build import EngineBuilder
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.engine_forward import EngineForward, EngineGraphs
from underpaint.runtime.device.providers import passes_of
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import aligned
from underpaint.runtime.engines.tensorrt_files import part_of, paths
from underpaint.runtime.engines.tensorrt_runtime import TensorRTGraph, open_plans

AGAIN = "build it again"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.stand_in(monkeypatch)


def passes(batch: int, name: str = "eagle2") -> tuple[DecoderPasses, DecoderPasses]:
    target, drafter = (one.config for one in in_torch())
    return passes_of(method(name, 1), target, drafter, GRID, 2, 2, batch, torch.float32)


def parts(name: str) -> tuple[str, str]:
    return part_of(name, LAYERS, device=True), part_of(name, HEAD, device=True)


def on_tensorrt(
    model: Decoder, folder: Path, name: str, decoder_passes: DecoderPasses, rows: tuple[int, int]
) -> EngineForward:
    """A forward by plans of these passes."""
    decoder = exported(model, folder, name=name)
    list(build_plans(decoder, decoder_passes, stand_in.BUILDER, rows, parts(name)))
    plans = open_plans(decoder, stand_in.BACKEND, stand_in.MODULE, CPU, True, AGAIN)  # type: ignore[arg-type]
    return over(decoder, 2, EngineGraphs(*plans, plans.layers.record.places))


@pytest.fixture(scope="module")
def of_three() -> tuple[DecoderPasses, DecoderPasses]:
    """Read off the program before memory is the stand-in's, which has numbers in it."""
    return passes(3)


@pytest.fixture
def pair(of_three: tuple[DecoderPasses, DecoderPasses], cuda: None, tmp_path: Path) -> Pair:
    both = zip(models(), ("target", "drafter"), of_three, strict=True)
    return Pair(
        *(on_tensorrt(model, tmp_path, name, decoder_passes, (4, 2 * 3)) for model, name, decoder_passes in both)
    )


def test_a_decode_by_tensorrt_is_the_torch_forward_s(pair: Pair) -> None:
    """Every address is a multiple of 256, every shape a profile's, and three images are of unequal progress."""
    how = method("eagle2", 1)
    expected, cycles = by_torch("eagle2", 1)
    assert len(set(cycles)) > 1
    enqueued = stand_in.Recorder.enqueued
    cycle = cycle_of(pair, how, 3)
    assert decoded(cycle, IMAGES) == expected
    assert stand_in.Recorder.enqueued > enqueued


def test_a_smaller_batch_is_decoded_by_the_same_plan(pair: Pair) -> None:
    expected, _ = by_torch("eagle2", 1)
    assert decoded(cycle_of(pair, method("eagle2", 1), 2), IMAGES[:2]) == expected[:2]


def test_weights_lie_on_the_device_once(pair: Pair) -> None:
    """The plans hold none; what they read is one tensor each, whatever the passes."""
    graphs = pair.target.engine
    assert isinstance(graphs.layers, TensorRTGraph)
    assert isinstance(graphs.head, TensorRTGraph)
    first, second = (
        graphs.head.bind({FEATURES: aligned((6, count, 16), torch.float32, "cpu")}, logits_of(count))
        for count in (1, 6)
    )
    addresses = {one.tensors[0]["head"].data_ptr() for one in (first, second)}
    assert len(addresses) == 1
    total = sum(each.numel() for each in graphs.layers._weights.values())
    assert total == sum(part.numel() for part in models()[0].layers.parameters()) + models()[0].norm.weight.numel()


def logits_of(count: int) -> dict[str, torch.Tensor]:
    return {LOGITS: aligned((6, count, 11), torch.float32, "cpu")}


def test_a_captured_pass_reads_what_lies_at_its_addresses_when_it_is_replayed(pair: Pair) -> None:
    head, features, logits = pair.target.engine.head, *(aligned((6, 6, n), torch.float32, "cpu") for n in (16, 11))
    run = head.bind({FEATURES: features}, {LOGITS: logits})
    graph = stand_in.Graph()
    stand_in.Recorder.capturing = graph
    run()
    stand_in.Recorder.capturing = None
    assert not logits.any()
    features.copy_(torch.randn(6, 6, 16))
    graph.replay()
    torch.testing.assert_close(logits, in_torch().target.logits(features))


def test_a_pass_that_no_engine_was_built_for_is_refused(pair: Pair) -> None:
    with pytest.raises(EngineError, match=r"device.head: no engine for passes of 3 positions in 6 rows; build it"):
        pair.target.logits(torch.zeros(6, 3, 16))
    with pytest.raises(EngineError, match=r"device.layers: no engine for passes of 2 positions in a cache of"):
        decoded(cycle_of(pair, method("eagle2", 1), 1), (0,))
    features, logits = (aligned((6, 6, n), torch.float32, "cpu") for n in (15, 11))
    with pytest.raises(EngineError, match=r"head: the engine refuses passes of 6 positions in 6 rows; build it"):
        pair.target.engine.head.bind({FEATURES: features}, {LOGITS: logits})


def test_heads_that_fused_attention_does_not_take_are_filled_up(cuda: None, tmp_path: Path) -> None:
    """Twelve numbers a head lie in sixteen places of a half-precision cache, and mean what they mean in float32."""
    model = model_of(replace(SMALL, dim=24, head_dim=12))
    expected = passed(DecoderForward(model, 2), False)
    decoder = exported(model, tmp_path, GraphFormat("fp16"))
    one = DecoderPasses((PassSize(3, 3, 24),), (PassSize(3, 3, 0),))
    list(build_plans(decoder, one, stand_in.BUILDER, (4, 4), parts("target")))
    plans = open_plans(decoder, stand_in.BACKEND, stand_in.MODULE, CPU, True, AGAIN)  # type: ignore[arg-type]
    forward = over(decoder, 2, EngineGraphs(plans.layers, plans.head, plans.layers.record.places))
    actual = passed(forward, False)
    assert (actual.slots.shape[5], actual.slots[..., 12:].any()) == (16, False)
    torch.testing.assert_close(actual.features.float(), expected.features, atol=0.03, rtol=0.03)
    torch.testing.assert_close(actual.logits, expected.logits, atol=0.05, rtol=0.05)
    torch.testing.assert_close(
        actual.slots[:, :, :, :, :3, :12].float(), expected.slots[:, :, :, :, :3], atol=0.03, rtol=0.03
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_nvidias_builder_takes_the_graphs(precision: str, tmp_path: Path) -> None:
    tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
    form = GraphFormat(precision)
    for model, name, decoder_passes in zip(models(), ("target", "drafter"), passes(2), strict=True):
        copied = Decoder(model.config)
        copied.load_state_dict(model.state_dict())
        decoder = exported(copied, tmp_path, form, name)
        builder = EngineBuilder(tensorrt, stand_in.BACKEND, "any")
        built = [record for _, record in build_plans(decoder, decoder_passes, builder, (2, 4), parts(name))]
        assert [record.model for record in built] == [f"{name}.device.layers", f"{name}.device.head"]
        assert {size[:2] for size in decoder_passes.layers} == set(built[0].passes)
        assert built[0].places == max(size.places for size in decoder_passes.layers)
        assert all(paths(tmp_path, record.model, stand_in.BACKEND).engine.stat().st_size > 1000 for record in built)


@pytest.mark.parametrize("family", ["chameleon", "learnt"])
def test_nvidias_builder_takes_other_families(family: str, tmp_path: Path) -> None:
    tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
    options = {
        "chameleon": {"rope": "line", "qk_norm": True, "post_norm": True},
        "learnt": {"rope": "none", "qkv_bias": True},
    }
    decoder = exported(model_of(replace(SMALL, **options[family])), tmp_path, GraphFormat("fp16"))
    one = DecoderPasses((PassSize(3, 3, 8),), (PassSize(3, 3, 0),))
    builder = EngineBuilder(tensorrt, stand_in.BACKEND, "any")
    assert len(list(build_plans(decoder, one, builder, (2, 2), parts("target")))) == 2
