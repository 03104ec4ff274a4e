"""Batches on the device: short ones are filled up, larger ones refused, and what ended tells why."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.cuda._utils import _get_device_index

from tests.runtime.device.engines import CPU, SEED, condition_of, method, models
from tests.runtime.device.engines import GRID as SMALL_GRID
from tests.runtime.device.tables import TableForward, TableHost, Tables
from underpaint.algos.accept import RULES
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import FEATURES, LOGITS
from underpaint.artifacts.device_graph import DecoderPasses
from underpaint.runtime.device import devices, drawing_plan, providers
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.devices import check_memory, open_device
from underpaint.runtime.device.drawing_plan import DevicePlan
from underpaint.runtime.device.engine_forward import EngineForward, EngineGraphs
from underpaint.runtime.device.folder import DeviceModels
from underpaint.runtime.device.forms import DeviceError
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.device.state import Envelope, needed_bytes
from underpaint.runtime.engines import tensorrt_runtime
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.tensorrt_files import EngineRecord
from underpaint.runtime.engines.tensorrt_runtime import TensorRTGraph
from underpaint.runtime.methods.trees.device import TreeForm

TABLES = Tables(0, 5, 1)
GRID = Grid(2, 3)


def runner_of(batch: int, spoilt: bool = False) -> DeviceRunner:
    target = TableForward(TABLES, False)
    target.spoilt = torch.full((batch,), float("nan")) if spoilt else None
    how = TreeForm(RULES["chain"].make(), SamplingParams(), policy=POLICIES["chain"].make(length=2))
    return DeviceRunner(target, TableForward(TABLES.near(1, 0.4), True), how, GRID, 1, batch, torch.device("cpu"))


def condition(*tokens: int) -> torch.Tensor:
    return TableForward(TABLES, False).embed(torch.tensor(tokens)[:, None])


def test_a_short_batch_is_filled_up() -> None:
    runner = runner_of(2)
    runner.begin(condition(3), [7], [4])
    (image,) = runner.finish(1)
    hosts = [TableHost(one, GRID, SamplingParams(), False, 3) for one in (TABLES, TABLES.near(1, 0.4))]
    expected = decode(*hosts, POLICIES["chain"].make(length=2), RULES["chain"].make(), sampling(7, 4))
    assert image.error is None
    assert image.tokens.tolist() == expected.tokens.tolist()
    assert image.cycles == len(expected.cycles)


def test_more_images_than_were_captured_are_refused() -> None:
    with pytest.raises(DeviceError, match="expected 1 to 2 images, as many as were captured"):
        runner_of(2).begin(condition(1, 2, 3), [0, 0, 0], [0, 1, 2])


def test_an_image_that_ended_says_why() -> None:
    runner = runner_of(1, spoilt=True)
    runner.begin(condition(1), [0], [0])
    (image,) = runner.finish(1)
    assert image.tokens is None
    assert image.error == "its logits held NaN or infinity; check the weights and their precision"


def test_plain_autoregression_needs_no_drafter() -> None:
    how = TreeForm(RULES["point"].make(), SamplingParams(temperature=1.0))
    runner = DeviceRunner(TableForward(TABLES, False), None, how, GRID, 1, 1, torch.device("cpu"))
    runner.begin(condition(2), [1], [9])
    host = TableHost(TABLES, GRID, SamplingParams(), False, 2)
    expected = decode(host, None, POLICIES["chain"].make(), RULES["point"].make(), sampling(1, 9))
    assert runner.finish(1)[0].tokens.tolist() == expected.tokens.tolist()


def test_a_device_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="no CUDA device"):
        open_device("cuda:99")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(DeviceError, match=r"capability 8.0 or newer, got 7.5"):
        open_device("cuda")


def test_the_default_device_is_the_current_one_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = list[int]()
    monkeypatch.setattr(devices, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    # What the real set_device asks of its argument; it refuses a device without an index.
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(_get_device_index(device)))
    assert open_device("cuda") == torch.device("cuda", 1)
    assert chosen == [1]


def test_the_clock_goes_on_when_a_batch_begins() -> None:
    runner = runner_of(1)
    runner.begin(condition(1), [0], [0])
    runner.finish(1)
    before = runner.clock.seconds()
    assert before > 0.0
    runner.begin(condition(1), [1], [0])
    assert runner.clock.seconds() > before


def test_a_drafter_may_have_another_precision_than_the_target() -> None:
    """At temperature 0, what is drafted is plain decoding's."""
    target, drafter = (deepcopy(one) for one in models())
    pair = DecoderForward(target.half(), 2), DecoderForward(drafter, 2)
    tokens = []
    for name in ("ar", "eagle2"):
        runner = DeviceRunner(*pair, method(name, 0), SMALL_GRID, 2, 1, CPU)
        runner.begin(condition_of(0).half(), [SEED], [0])
        (image,) = runner.finish(1)
        assert image.error is None
        tokens.append(image.tokens.tolist())
    assert tokens[0] == tokens[1]
    caches = runner.cycle.state.target_cache, runner.cycle.state.draft_cache
    assert [one.committed.dtype for one in caches] == [torch.float16, torch.float32]


def test_an_engine_is_not_bound_to_buffers_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    record = EngineRecord("target.device.head", "tensorrt", "10", "gpu", "", "", 0, "fp16", (2, 8), 0, ((1, 64),))
    context, accepts = SimpleNamespace(), ("set_optimization_profile_async", "set_input_shape", "set_tensor_address")
    context.__dict__.update(dict.fromkeys(accepts, lambda *_: True))
    types = {FEATURES: torch.float16, LOGITS: torch.float32}
    runtime: Any = SimpleNamespace(
        record=record, tensors=types, new_context=lambda: context, keep_compiled=lambda: None
    )
    monkeypatch.setattr(tensorrt_runtime, "current_stream", lambda: 0)
    graph = TensorRTGraph(runtime, {}, "build it again")
    with pytest.raises(EngineError, match=rf"expected {FEATURES} in torch.float16, got torch.float32; build it"):
        graph.bind({FEATURES: torch.zeros(2, 1, 16)}, {LOGITS: torch.zeros(2, 1, 11)})


def test_an_engine_needs_the_rows_of_one_image_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that enters a free slot begins in a batch of one."""
    record = EngineRecord("target", "tensorrt", "10", "gpu", "", "", 0, "fp16", (2, 8), 0, ((1, 64),))
    monkeypatch.setattr(providers, "read_record", lambda *_: record)
    located = SimpleNamespace(path=Path("engines/target.onnx"), manifest=SimpleNamespace(name="target"))
    decoder: Any = SimpleNamespace(located=located)
    passes = DecoderPasses((), ())
    providers._check_records(decoder, passes, "tensorrt", batch=4, rows=2)
    with pytest.raises(EngineError, match=r"expected passes of 2 to 8 rows.*, got 1"):
        providers._check_records(decoder, passes, "tensorrt", batch=4, rows=1)


def test_engines_that_are_open_are_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, read = list[tuple[str, ...]](), list[list[Any]]()

    def open_engines(decoders: Sequence[str], *_: Any) -> tuple[EngineGraphs, ...]:
        opened.append(tuple(decoders))
        return tuple(EngineGraphs(one, one) for one in decoders)  # type: ignore[arg-type]

    def read_models(folder: Any, encoder: Any, rows: int, device: Any, engines: Sequence[EngineGraphs], _: Any) -> Any:
        read.append([one.head for one in engines])
        forwards = [object.__new__(EngineForward) for _ in engines]
        for one, engine in zip(forwards, engines, strict=True):
            one.engine = engine
        return SimpleNamespace(target=forwards[0], drafter=forwards[1] if len(forwards) > 1 else None)

    monkeypatch.setattr(drawing_plan, "open_engines", open_engines)
    monkeypatch.setattr(DeviceModels, "read", read_models)
    pipeline: Any = SimpleNamespace(high=SimpleNamespace(encoder=None))
    folder: Any = SimpleNamespace(decoders=("target", "drafter"))
    plan = DevicePlan(pipeline, folder, torch.device("cpu"), 2, 2, 0, "tensorrt", 1)
    models: Any = plan.open().models
    both: Any = replace(plan, engine_decoders=2).open(models).models
    replace(plan, engine_decoders=1, rows=1).open(both)
    assert opened == [("target",), ("drafter",), ()]
    assert read == [["target"], ["target", "drafter"], ["target"]]


def test_the_memory_of_a_long_conditions_pass_counts() -> None:
    config = DecoderConfig(dim=16, layers=1, heads=4, hidden=16, vocab_size=11, grid_side=2, prefix=300, cond_ids=3)
    envelope = Envelope(nodes=1, levels=0, frontier=0, children=0, draft_rows=1)
    short, long = (needed_bytes(3, envelope, 4, prefix, config, None, 2, torch.float16) for prefix in (1, 300))
    assert long - short > 0.99 * 2 * 3 * 4 * 300**2 * (2 + 4 + 4)


def test_an_interpreter_that_cannot_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 makes an index of an array [1], which NumPy 2.4 refuses."""
    assert open_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(devices, "TRITON", "3.6.0")

    def fail(*_: object) -> None:
        raise RuntimeError("TypeError('only 0-dimensional arrays can be converted to Python scalars')")

    monkeypatch.setattr(devices, "launch", fail)
    message = (
        r"Triton 3.6.0's interpreter fails under NumPy .* \(TypeError.*\); install Triton 3.9 with: .*triton==3.9.0"
    )
    with pytest.raises(DeviceError, match=message):
        open_device("cpu")


def test_too_little_memory_says_how_much_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**31))
    check_memory(torch.device("cuda"), 2**29)
    with pytest.raises(DeviceError, match=r"3.0 GiB beside the weights, 3,221,225,472 bytes; the device has 1.0 free"):
        check_memory(torch.device("cuda"), 3 * 2**30)
    with pytest.raises(DeviceError, match=r"the largest that fits has 5 images; lower the batch"):
        check_memory(torch.device("cuda"), 3 * 2**30, "", 16, lambda count: count * 2**30 // 5)
