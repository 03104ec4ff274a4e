"""The engine on TensorRT passes what every engine passes, with a TensorRT that ONNX Runtime stands in for."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.conformance import stand_in
from tests.conformance.families import TINY, Family
from tests.conformance.on_tensorrt import opened
from tests.conformance.test_engine import (
    PAIR,
    TOKENS,
    test_a_draft_tree_follows_eagle_path_by_path,
    test_a_full_cache_takes_no_more,
    test_a_grid_target_scores_cells_in_any_order,
    test_a_tree_scores_like_each_of_its_paths,
    test_a_verdict_brings_true_features_and_forgets_the_draft,
    test_commits_of_accepted_nodes_continue_like_a_dense_pass,
    test_drafting_changes_no_greedy_picture,
    test_greedy_decoding_takes_what_the_reference_likes_best,
    test_rejected_nodes_never_enter_the_cache,
    test_the_guidance_pair_equals_two_separate_runs,
    tree_of,
)
from tests.conformance.test_grid_engine import Recorded
from tests.grid_model import FixedRows
from underpaint.algos.chance import sampling
from underpaint.algos.spatial.cell_rule import PooledCells
from underpaint.algos.spatial.mulo import Repair, draft_and_repair
from underpaint.algos.spatial.zipar import zipar
from underpaint.cli.app import app as underpaint
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.runtime.engines.context import EngineContext, load_decoder
from underpaint.runtime.engines.device_memory import layered
from underpaint.runtime.engines.pass_inputs import causal
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget

__all__ = [
    "test_a_draft_tree_follows_eagle_path_by_path",
    "test_a_full_cache_takes_no_more",
    "test_a_grid_target_scores_cells_in_any_order",
    "test_a_tree_scores_like_each_of_its_paths",
    "test_a_verdict_brings_true_features_and_forgets_the_draft",
    "test_commits_of_accepted_nodes_continue_like_a_dense_pass",
    "test_drafting_changes_no_greedy_picture",
    "test_greedy_decoding_takes_what_the_reference_likes_best",
    "test_rejected_nodes_never_enter_the_cache",
    "test_the_guidance_pair_equals_two_separate_runs",
]
pytestmark = pytest.mark.usefixtures("on_tensorrt")


def passes(folder: Path) -> list[np.ndarray]:
    """Distributions of a tree after a few tokens, twice, the second with the cache of the first."""
    target = EngineTarget(opened("target", folder), PAIR)
    target.prepare(target.encoder.of_ids(np.array([3])))
    target.begin()
    logits = []
    for start in (0, 5):
        run = target.engine.run(TOKENS[start : start + 5], np.arange(start, start + 5), causal(5))
        logits.append(run.logits.copy())
        target.engine.cache.commit(slice(None))
    assert target.engine.captured  # type: ignore[attr-defined]
    return logits


def test_float16_engines_keep_float16_caches(halves: Path) -> None:
    for half, full in zip(passes(halves / "out"), passes(halves / "reference"), strict=True):
        assert 0 < np.abs(half - full).max() / max(1.0, np.abs(full).max()) < 0.05


def test_a_pass_is_a_replay_and_nothing_else(halves: Path) -> None:
    target = EngineTarget(opened("target", halves / "reference"), PAIR)
    target.prepare(target.encoder.of_ids(np.array([3])))
    target.begin()
    for nodes in (3, 5, 8):  # the same graph: they fit its 8 positions
        before = stand_in.Recorder.enqueued
        target.score(tree_of(TOKENS, tuple(range(-1, nodes - 1))))
        assert stand_in.Recorder.enqueued - before == 2 * (3 if nodes == 3 else 1)  # two to warm up, at first


def test_what_cannot_be_captured_runs_all_the_same(halves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = passes(halves / "reference")
    monkeypatch.setattr(stand_in.Engine, "capturable", False)
    with pytest.raises(AssertionError, match="captured"):
        passes(halves / "reference")
    monkeypatch.setattr("underpaint.runtime.engines.tensorrt_engine.TensorRTEngine.captured", True)
    for actual_logits, expected_logits in zip(passes(halves / "reference"), expected, strict=True):
        np.testing.assert_array_equal(actual_logits, expected_logits)


def test_methods_are_compared_on_tensorrt(halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("underpaint.runtime.engines.tensorrt_files.backend_module", lambda backend: None)
    folder, methods = halves / "reference", "ar,speculative,eagle1,eagle2,adt,lantern,zipar"
    for name in ("target", "drafter"):
        opened(name, folder)
    common = [
        "compare",
        "1",
        "3",
        "--preset",
        "tuned",
        "--models",
        str(folder),
        "--temperature",
        "0",
        "--top-k",
        "0",
        "--fresh",
    ]
    common += ["--set", "lantern.k=0", "--set", "lantern.total_tokens=8", "--set", "zipar.window=2"]
    common += ["--methods", methods]
    counts = []
    for backend in ("cpu", stand_in.BACKEND):
        out = tmp_path / backend
        result = CliRunner().invoke(underpaint, [*common, "--backend", backend, "--out", str(out)])
        assert result.exit_code == 0, result.output
        comparison = json.loads((out / "compare.json").read_text())
        assert comparison["model"]["engine"] == backend
        counts.append({row["method"]: (row["target_nfe"], row["tokens_per_cycle"]) for row in comparison["rows"]})
        assert all(row["identical_share"] == 1 for row in comparison["rows"] if row["lossless"])
    assert counts[0] == counts[1]
    assert counts[0]["zipar"][0] < counts[0]["ar"][0]


def test_two_resolutions_draft_and_verify_on_tensorrt(
    halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over the whole larger image, which its engine has to be built for."""
    monkeypatch.setattr("underpaint.runtime.engines.tensorrt_files.backend_module", lambda backend: None)
    low, high = halves / "reference", tmp_path / "high"
    others = ignore_patterns("*.engine", "*.record", "target.*", "drafter.*", "model_index.json")
    copytree(low, high, ignore=others)
    pair, options = ("llamagen-c2i", halves / "c2i.pt"), replace(TINY, grid_side=8)
    export_checkpoint(Request(*pair, options=options), high)
    drafter = Request("eagle-drafter", halves / "eagle.safetensors", target=pair, target_options=options)
    export_checkpoint(drafter, high)
    for name in ("target", "drafter"):
        opened(name, low)
        opened(name, high)
    common = [
        "compare",
        "1",
        "--preset",
        "tuned",
        "--models",
        str(high),
        "--low",
        str(low),
        "--temperature",
        "0",
        "--top-k",
        "0",
    ]
    common += ["--methods", "mulo,mulo-raster", "--set", "mulo-raster.rule=exact", "--set", "mulo-raster.rows=1"]
    common += [f"--set={name}.{each}" for name in ("mulo", "mulo-raster") for each in ("resampler=bicubic", "k=none")]
    refused = CliRunner().invoke(underpaint, [*common, "--backend", stand_in.BACKEND, "--out", str(tmp_path / "no")])
    assert refused.exit_code == 2
    assert "passes over 64 cells at once, its engine over 16" in refused.output
    assert not (tmp_path / "no").exists()
    stand_in.build(high, "target", (1, 8, 64))
    counts = []
    for backend in ("cpu", stand_in.BACKEND):
        out = tmp_path / backend
        result = CliRunner().invoke(underpaint, [*common, "--backend", backend, "--out", str(out)])
        assert result.exit_code == 0, result.output
        rows = {row["method"]: row for row in json.loads((out / "compare.json").read_text())["rows"]}
        assert rows["mulo-raster"]["identical_share"] == 1
        counts.append({name: (row["target_nfe"], row["drafter_nfe"]) for name, row in rows.items()})
    assert counts[0] == counts[1]


def test_cells_in_any_order_read_onnxruntimes_distributions(family: Family) -> None:
    """Row fronts, then a draft of the whole image in one pass and its repair: the same feeds, distributions and
    tokens."""
    runs = []
    on_the_cpu = load_decoder("target", "target", family.folder, EngineContext(threads=1))
    for loaded in (on_the_cpu, opened("target", family.folder)):
        target = EngineTarget(loaded, PAIR)
        family.condition(target)
        fronts, repaired = Recorded(EngineGridTarget(target)), Recorded(EngineGridTarget(target))
        tokens = [zipar(fronts, 2, sampling(0)).tokens]
        codes = target.vocab_size
        drafter = FixedRows(np.full((16, codes), 1 / codes), 4, points=True)
        rule = PooledCells(np.empty((codes, 0), dtype=np.int64), 0.5 / codes)
        done = draft_and_repair(repaired, drafter, rule, Repair("local", 0, "islands", 2), 4, sampling(1))
        assert 0 < sum(int(cycle.rejected.sum()) for cycle in done.cycles) < 16
        assert target.engine.cost.positions > 16
        runs.append((tokens, done.cycles[-1].tokens, fronts, repaired))
    for actual, expected in zip(runs[1], runs[0], strict=True):
        if not isinstance(actual, Recorded):
            np.testing.assert_array_equal(actual, expected)
            continue
        assert (actual.cells, actual.tokens, actual.seen) == (expected.cells, expected.tokens, expected.seen)
        np.testing.assert_allclose(actual.distributions, expected.distributions, atol=1e-5)


def test_every_familys_engine_is_captured(family: Family) -> None:
    target = EngineTarget.open("target", PAIR, family.folder)
    family.condition(target)
    target.begin()
    assert target.engine.captured  # type: ignore[attr-defined]


def test_what_was_compiled_for_this_machine_is_compiled_once(
    halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    copytree(halves / "reference", folder, ignore=ignore_patterns("*.runtime"))
    compiled = []
    for gpu_now in (stand_in.GPU, stand_in.GPU, "another one"):
        monkeypatch.setattr(stand_in.RuntimeCache, "gpu", gpu_now)
        before = stand_in.RuntimeCache.compiled
        passes(folder)
        compiled.append(stand_in.RuntimeCache.compiled - before)
    assert compiled[0] == compiled[2] > compiled[1] == 0


def test_every_layer_begins_where_tensorrt_takes_an_address() -> None:
    """Also where a layer's numbers do not fill the space up to there; the stand-in refuses any other address."""
    for kind, layer in ((torch.float16, (1, 3, 5, 7)), (torch.float32, (2, 4, 8, 16))):
        layers = layered(3, layer, kind, "cuda")
        assert layers.shape == (3, *layer)
        assert all(each.is_contiguous() and each.data_ptr() % 256 == 0 for each in layers)
