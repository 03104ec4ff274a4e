"""A session with its cache and buffers on a device passes what every engine passes.

On the CPU's provider the device is memory of its own on the host: what is bound, copied and kept is what a GPU's is.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import underpaint
from tests.conformance.conftest import Models
from tests.conformance.families import Family
from tests.conformance.test_chain import test_a_chain_is_what_its_levels_are
from tests.conformance.test_engine import (
    ONE_ROW,
    ONE_THREAD,
    PAIR,
    TOKENS,
    feed_one_by_one,
    open_drafter,
    open_target,
    test_a_drafter_says_what_it_cannot_do,
    test_a_full_cache_takes_no_more,
    test_a_grid_target_scores_cells_in_any_order,
    test_a_tree_scores_like_each_of_its_paths,
    test_a_verdict_brings_true_features_and_forgets_the_draft,
    test_commits_of_accepted_nodes_continue_like_a_dense_pass,
    test_rejected_nodes_never_enter_the_cache,
)
from underpaint.algos.accept import RULES
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.engines import onnx_engine
from underpaint.runtime.engines.context import EngineContext, EngineError, load_decoder, open_session
from underpaint.runtime.engines.device_memory import DeviceBuffers, host_inputs
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.engines.onnx_engine import HostBuffers, OnnxDecoder, OnnxEngine, load_onnx
from underpaint.runtime.engines.pass_inputs import causal
from underpaint.runtime.engines.providers import GpuBackend, ProviderOptions
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import FOLDER, locate

__all__ = [
    "test_a_chain_is_what_its_levels_are",
    "test_a_drafter_says_what_it_cannot_do",
    "test_a_full_cache_takes_no_more",
    "test_a_grid_target_scores_cells_in_any_order",
    "test_a_tree_scores_like_each_of_its_paths",
    "test_a_verdict_brings_true_features_and_forgets_the_draft",
    "test_commits_of_accepted_nodes_continue_like_a_dense_pass",
    "test_rejected_nodes_never_enter_the_cache",
]


def buffers_on_device(graph_option: str | None) -> Callable[[OnnxDecoder, int], DeviceBuffers]:
    """What opens every engine with its buffers on a device."""
    return lambda decoder, rows: DeviceBuffers(decoder.session, decoder.config, rows, "cpu", graph_option)


@pytest.fixture(autouse=True)
def _on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxDecoder, "buffers", buffers_on_device(None))


@pytest.mark.parametrize("sampler", [PAIR, SamplingParams(guidance=2.5, temperature=0), ONE_ROW], ids=str)
@pytest.mark.parametrize(
    ("policy", "rule"), [("eagle2", "point"), ("chain", "chain"), ("eagle1", "without_replacement")]
)
def test_target_and_drafter_draw_the_hosts_tokens(
    models: Models, sampler: SamplingParams, policy: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(plain: bool) -> tuple[list[int], list[list[int]]]:
        if plain:
            monkeypatch.setattr(
                OnnxDecoder, "buffers", lambda decoder, rows: HostBuffers(decoder.session, decoder.config, rows)
            )
        target, drafter = open_target(models, sampler), open_drafter(models, sampler)
        assert isinstance(target.engine._buffers, HostBuffers) == plain  # type: ignore[attr-defined]
        for seed in range(2):  # the second image in the buffers of the first
            picture = decode(target, drafter, POLICIES[policy].make(), RULES[rule].make(), sampling(seed), max_nodes=8)
        return picture.tokens.tolist(), [cycle.tree.tokens.tolist() for cycle in picture.cycles]

    assert drawn(False) == drawn(True)


@pytest.mark.parametrize("method", ["mulo", "adt"])
def test_shipped_models_draw_the_hosts_tokens(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every role: the target, the drafter, and the target in 8 bits that drafts at half the side."""

    def drawn(plain: bool) -> tuple[int, ...]:
        if plain:
            monkeypatch.setattr(
                OnnxDecoder, "buffers", lambda decoder, rows: HostBuffers(decoder.session, decoder.config, rows)
            )
        pipeline = Pipeline.open(FOLDER, resolution=128 if method == "mulo" else 64, context=ONE_THREAD)
        tokens = underpaint.draw(pipeline, "a woolly fox left of an outlined pumpkin", method, seed=3).tokens
        targets = [pipeline.high, *([pipeline.low.target(2)] if method == "mulo" else [])]
        assert [target.decoder.name for target in targets[1:]] == ["target64_int8"] * (method == "mulo")
        assert all(isinstance(target.engine._buffers, HostBuffers) == plain for target in targets)  # type: ignore[attr-defined]
        return tokens

    assert drawn(False) == drawn(True)


def test_inputs_that_the_session_reads_on_the_host_are_bound_there(models: Models) -> None:
    """ONNX Runtime copies an input of another memory once, as it is bound: later passes would read stale numbers."""

    def drawn(on_host: frozenset[str]) -> list[list[int]]:
        target, drafter = open_target(models), open_drafter(models)
        for part in (target, drafter):
            part.engine._buffers._on_host = on_host  # type: ignore[attr-defined]
        pictures = [decode(target, drafter, Eagle2(3, 3, 6), PointProposals(), sampling(seed), 8) for seed in range(2)]
        return [picture.tokens.tolist() for picture in pictures]

    names = frozenset({"top_k", "chain_levels", "tree_frontier", "tree_ranked", "tokens", "cells", "bias"})
    assert drawn(names) == drawn(frozenset())


def test_what_a_session_reads_on_the_host_is_asked_of_it() -> None:
    inputs = [SimpleNamespace(name=name) for name in ("tokens", "top_k", "levels")]
    memory = [SimpleNamespace(name=name) for name in ("Cuda", "Cpu", "CudaPinned")]
    session = SimpleNamespace(get_inputs=lambda: inputs, get_input_memory_infos=lambda: memory)
    assert host_inputs(session) == {"top_k", "levels"}


def passes(folder: Path, graph_option: str | None) -> tuple[list[np.ndarray], OnnxEngine]:
    """Logits of a condition, of trees and of a path, each behind what was committed before."""
    located = locate("target", "target", folder)
    config = manifest_config(located.manifest.settings, "target")
    decoder = OnnxDecoder(open_session(located.path, ONE_THREAD), config, "target")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnnxDecoder, "buffers", buffers_on_device(graph_option))
        target = EngineTarget(decoder, PAIR)
        target.prepare(target.encoder.of_ids(np.array([3])))
        target.begin()
    engine, outputs = target.engine, []
    for start, count in ((0, 1), (1, 3), (4, 5), (9, 1), (10, 4)):
        part = slice(start, start + count)
        run = engine.run(TOKENS[part], np.arange(start, start + count), causal(count))
        outputs += [run.logits.copy(), run.features.copy()]
        engine.cache.commit(slice(None))
    assert isinstance(engine, OnnxEngine)
    return outputs, engine


@pytest.mark.parametrize("precision", ["out", "reference"], ids=["fp16", "fp32"])
def test_passes_are_padded_to_the_sizes_of_captured_graphs(halves: Path, precision: str) -> None:
    """In float16 from plain graphs, and in float32: caches are of the graph's precision."""
    exact, plain = passes(halves / precision, None)
    padded, engine = passes(halves / precision, "gpu_graph_id")
    for actual, expected in zip(padded, exact, strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-3 if precision == "out" else 1e-5)
    assert engine.memory.keys.dtype == (torch.float16 if precision == "out" else torch.float32)
    assert engine.captured
    assert not plain.captured
    assert sorted(key[0] for key in plain._bound) == [1, 3, 4, 5]
    assert sorted(key[0] for key in engine._bound) == [1, 8]
    assert len(engine._buffers._graphs) == 2  # type: ignore[union-attr]


def test_every_captured_pass_has_an_id_of_its_own_and_gives_it_back(
    halves: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines of one session have other addresses: a shared id would replay one's graph in the other."""
    entries: list[str] = []
    real = onnxruntime.RunOptions

    class Options:
        def __new__(cls) -> Any:
            options = real()
            return SimpleNamespace(
                made=options, add_run_config_entry=lambda name, value: entries.append(f"{name}={value}")
            )

    monkeypatch.setattr(onnxruntime, "RunOptions", Options)
    config = manifest_config(locate("target", "target", halves / "out").manifest.settings, "target")
    session, released = Session(), list[int]()
    session.released = released
    engines = [DeviceBuffers(session, config, 1, "cpu", "gpu_graph_id") for _ in range(2)]
    for buffers in engines:
        for capture in (True, False, True):
            buffers.bind({}, {}, capture)
    ids = [text.partition("=")[2] for text in entries]
    assert ids[1] == ids[4] == "-1"
    assert len({*ids}) == 5
    engines[0].close()
    assert released == [int(ids[0]), int(ids[2])]


class Session:
    """Counts what is released."""

    released: list[int]

    def io_binding(self) -> None:
        return None

    def release_captured_graph(self, graph: int) -> None:
        self.released.append(graph)


def test_a_condition_is_copied_once_a_picture(family: Family) -> None:
    target = open_target(family)
    target.begin()
    engine = target.engine
    if not engine.config.external_cond_rows:
        pytest.skip("its condition is made of ids")
    assert engine._cond_rows.ctypes.data in engine._buffers._settled  # type: ignore[attr-defined]
    first = feed_one_by_one(target, TOKENS[:1])[0]
    family.condition(target, absent=True)
    target.begin()
    assert np.abs(feed_one_by_one(target, TOKENS[:1])[0].probs - first.probs).max() > 1e-4


def test_a_closed_engine_runs_no_more(models: Models) -> None:
    target = open_target(models)
    target.begin()
    engine = target.engine
    target.close()
    with pytest.raises(EngineError, match="this engine is closed"):
        engine.run(TOKENS[:1], np.array([0]), causal(1))


def test_half_precision_loads_for_a_gpu_alone(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        EngineError, match=r"expected a float32 export .* got fp16; .* run it on a GPU \(--backend cuda\)"
    ):
        load_onnx("target", "target", halves / "out", ONE_THREAD)
    calls: list[tuple[bool, str]] = []

    def opened(path: Path, context: EngineContext, plain: DecoderConfig | None) -> tuple[object, ProviderOptions]:
        calls.append((plain is not None, context.backend))
        return open_session(path, ONE_THREAD), GpuBackend("cuda", 1).options(plain is not None)

    monkeypatch.setattr(onnx_engine, "open_capturing", opened)
    half = load_decoder("target", "target", halves / "out", ONE_THREAD, "cuda:1")
    whole = load_decoder("target", "target", halves / "reference", ONE_THREAD, "cuda:1")
    assert calls == [(True, "cuda:1"), (False, "cuda:1")]
    for decoder, captures in ((half, True), (whole, False)):
        assert isinstance(decoder, OnnxDecoder)
        assert decoder.gpu == ("cuda", 1)
        assert decoder.gpu.captures(decoder.options) is captures
