"""Every kind of file that the program reads: a good one, its reader, and what holds of whatever the reader accepts.

Another kind of file is one more `FileReader` in `READERS`.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from tests.run_logs import log_bytes
from tests.sim.replay.test_trace import field, recorded
from underpaint.artifacts.arrays import read_tensor_header
from underpaint.artifacts.cost_curve import MOST_MS, CostCurveFile, read_cost_curve
from underpaint.artifacts.manifest import Manifest, read
from underpaint.artifacts.model_index import INDEX, read_index
from underpaint.artifacts.results import read_results, with_envelope
from underpaint.artifacts.run_log import settings_hash
from underpaint.runtime.conditions import read_features
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.evaluation.drawing_log import DrawingLog, DrawnJob, stored_pictures
from underpaint.runtime.evaluation.prompt_files import FilePrompt, PromptForm, read_prompts
from underpaint.runtime.evaluation.prompt_source import PromptSource
from underpaint.runtime.evaluation.quality import load_reference
from underpaint.runtime.evaluation.replay import FINISHED, Replay, ReplayLog, TreeEvent
from underpaint.sim.certify.case import VerifierCase, case_from_dict
from underpaint.sim.replay.comparison import load_comparison
from underpaint.sim.replay.row_trace import RowTrace
from underpaint.sim.replay.trace import Trace, load, replay, save
from underpaint.sim.sweep.plan import Job, SweepPlan
from underpaint.sim.sweep.run import Results
from underpaint.zoo.load import FOLDER, SCENES, check_tables


class FileReader(NamedTuple):
    """One kind of file.

    name: of the kind. form: how its content is mutated; "sealed" are JSON lines that get checksums that fit.
        "torch" and "safetensors" are checkpoints; see `tests.readers.checkpoints`.
    make: writes a good file into an empty folder and returns its path, or the content is taken from it.
    read: the program's own entry. check: raises where what was accepted is out of its range.
    """

    name: str
    form: Literal["json", "lines", "sealed", "npz", "npy", "torch", "safetensors"]
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    check: Callable[[Any], None]


def written(name: str, content: Any, folder: Path) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def linked_models(folder: Path, *names: str) -> None:
    """The index and the manifests of the shipped models."""
    for name in names or [path.name for path in FOLDER.glob("*.json")]:
        shutil.copy(FOLDER / name, folder / name)


def _manifest(folder: Path) -> Path:
    return Path(shutil.copy(FOLDER / "target64.json", folder))


def _check_manifest(manifest: Manifest) -> None:
    assert type(manifest.format) is int
    assert all(np.isfinite(list(manifest.parity.values())))


def _index(folder: Path) -> Path:
    linked_models(folder)
    return folder / INDEX


CURVE = {
    "format": 3,
    "model": {"target": "target64", "rows": 1},
    "measured_on": {"cores": 2},
    "overhead_ms": 0.1,
    "verify_ms": [[1, 1.0], [8, 1.5]],
    "draft_ms": [[1, 0.2], [16, 0.5]],
    "in_grid": {
        "target_ms": [[1, 1.0], [4, 1.4]],
        "begin_ms": 1.1,
        "host_ms": {"step": 0.1, "cell": 0.1, "judged": 0.01},
        "low": [{"ratio": 2, "int8": True, "target_ms": [[1, 0.9]], "begin_ms": 1.0}],
        "resample_ms": {"latent/2": 2.0},
    },
    "in_cycle": {
        "plain": {"target_ms": 1.0, "host_ms": 0.1},
        "target_ms": [[1, 1.0], [4, 1.2]],
        "draft_ms": [[1, 0.2]],
        "chain_ms": [[1, 0.2], [3, 0.5]],
        "host_ms": {"sampled": {"cycle": 0.1, "level": 0.1, "node": 0.01, "pooled": 0.2}},
        "tree_ms": {"ranked": {"call": 0.1, "levels": [[1, 0.1]]}},
    },
}


def _check_curve(cost_curve: CostCurveFile) -> None:
    curves = [cost_curve.verify_ms, cost_curve.draft_ms]
    if cost_curve.in_grid is not None:
        curves += [cost_curve.in_grid.target_ms, *(one.target_ms for one in cost_curve.in_grid.low)]
    assert all(0 < ms <= MOST_MS for curve in curves for _, ms in curve)
    assert all(type(size) is int for curve in curves for size, _ in curve)
    assert 0 <= cost_curve.overhead_ms <= MOST_MS


ROW = {"method": "ar", "lossless": True, "speedup": 1.0, "speedup_low": 0.9, "speedup_high": 1.1, "target_nfe": 4.0}
ROW |= {"drafter_nfe": 0.0, "tokens_per_cycle": 1.0, "mean_depth": 0.0, "prompt_accuracy": 0.5, "images": 1}
ROW |= {"mean_nodes": 1.0, "target_ms_per_cycle": 1.0, "drafter_ms_per_cycle": 0.0, "host_ms_per_cycle": 0.1}
SAMPLER = {"guidance": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
PLAIN = {"policy": "none", "policy_settings": {}, "rule": "point", "rule_settings": {}}
SETTINGS = {"methods": {"ar": PLAIN, "eagle2": {**PLAIN, "policy": "eagle2"}}, "prompts": ["a fox"], "seeds": [0, 1]}
SETTINGS |= SAMPLER
MODEL = {"target": "t", "engine": "cpu", "sha256": {"t": "0" * 64}, "grid": [2, 2], "resolution": 64}
COMPARED = with_envelope(
    "compare",
    {"processor": "p", "cores": 2, "memory_bytes": 10**9},
    "underpaint compare",
    {
        "model": MODEL,
        "settings": SETTINGS,
        "rows": [ROW, {**ROW, "method": "eagle2", "drafter_nfe": 2.0}],
        "acceptance_per_cell": {"eagle2": [[0.5, 0.0], [1.0, 0.25]]},
        "cost_curve": {"fingerprint": "0", "verify_ms": [[1, 1.0], [4, 2.0]]},
    },
)


def _check_results(results: Mapping[str, Any]) -> None:
    assert type(results["results_version"]) is int
    assert results["machine"].get("cores") is None or results["machine"]["cores"] > 0
    for row in results["rows"]:
        assert 0 <= row["speedup"] <= 1e9
        assert row["images"] >= 1
        if row.get("speedup_low") is not None and row.get("speedup_high") is not None:
            assert row["speedup_low"] <= row["speedup_high"]
    assert {row["method"] for row in results["rows"]} >= set(results.get("acceptance_per_cell", {}))


def page_of(path: Path) -> str:
    """A page of a comparison, with pictures that are all black."""
    from underpaint.runtime.page.document import ComparisonFolder, page

    folder = ComparisonFolder.read(path.parent)
    folder.check_codes(5)
    return page(folder, lambda tokens: np.zeros((16, 16, 3), np.uint8), "", 2)


def _check_page(page: str) -> None:
    drawing = page[page.find('<svg class="chart"') : page.find("</svg>")]
    assert "nan" not in drawing
    assert "inf" not in drawing


DRAWN = [
    Drawing("ar", "a fox", 0, (1, 2, 3, 4), (0, 0, 0), (0, 0, 0), 4, 0, 1.0, 0.5, 0.0, nodes=(0, 0, 0)),
    Drawing("eagle2", "a fox", 0, (1, 2, 3, 4), (1, 0), (2, 1), 3, 4, 0.5, 0.2, 0.1, kept_cells=(1,), nodes=(3, 1)),
]
RUN = {"models": [{**SETTINGS, "model": MODEL}]}
HEAD = {"format": DrawingLog.VERSION, "hash": settings_hash(RUN), "settings": RUN}
EVENTS = (
    TreeEvent(0, (-1,), (-1,), (), 1),
    TreeEvent(1, (1, 2, 3), (-1, 0, 0), (1,), 3),
    TreeEvent(3, (3, 1), (-1, 0), (), 4),
)
REPLAY = Replay("eagle2", "a fox", 0, "tree", (1, 2, 3, 4), EVENTS, 0.0)
TOLD = {"log_likelihood": -3.0, "processor": "p", "stored": True}
TOLD |= {"reading": {"values": {"colour": "red"}, "features": [0.5], "scores": {}}}
LOG = [HEAD, *map(dataclasses.asdict, DRAWN)]
EVALUATED = [HEAD, {**LOG[1], **TOLD}, {**LOG[2], **TOLD}]
REPLAYS = [{**HEAD, "format": ReplayLog.VERSION}, dataclasses.asdict(REPLAY), {FINISHED: 1}]


def _compared_folder(changed: str, folder: Path) -> Path:
    written("compare.json", COMPARED, folder)
    written("drawings.jsonl", log_bytes(LOG), folder)
    written("replays.jsonl", log_bytes(REPLAYS), folder)
    return folder / changed


def _check_drawings(log: DrawingLog) -> None:
    for job in log:
        one = job.drawing
        assert 0 < one.seconds <= 1e9
        assert one.batch >= 1
        assert one.device_seconds is None or one.device_seconds >= 0
        assert one.method in SETTINGS["methods"]
        assert one.target_nfe == len(one.accepted or ()) + 1 or one.accepted is None
        assert all(len(listed) == len(one.accepted or ()) for listed in (one.depths, one.nodes) if listed is not None)


def _check_unchanged_drawings(log: DrawingLog) -> None:
    """Of a log whose checksums fit nothing but what was written."""
    assert list(log) == [DrawnJob(one) for one in DRAWN[: len(log)]]


def _check_replays(log: ReplayLog) -> None:
    for one in log.replays():
        assert all(token >= 0 for token in one.tokens)
        assert one.token_bias is None or 0 <= one.token_bias <= 1.00001


def _check_unchanged_replays(log: ReplayLog) -> None:
    assert log.replays() == (REPLAY,) or (log.replays() == () and not log.finished)


PLAN = SweepPlan(("field",), (), (), ("a100/llamagen-b",), {}, {})
JOB = Job("field", '{"height": 4}', "chain", "{}", "chain", "{}")
RESULT = {"key": JOB.key, **JOB.to_dict(), "images": 32, "tokens_per_cycle": 3.0, "mean_depth": 3.5}
RESULT |= {"nodes_per_pass": 4.0, "target_passes": 11.5, "drafter_passes": 39.0, "engine": "lockstep"}
RESULT |= {"speedup": {"a100/llamagen-b": [2.2, 2.1, 2.3]}, "alignment": 0.78, "token_bias": 0.0}
RESULT |= {"cycle_ms": {"a100/llamagen-b": [1.0, 0.5, 0.25, 0.0]}}


def _check_sweep(results: Results) -> None:
    for line in results.lines:
        assert Job.of(line).key == line["key"]
        assert all(low <= mean <= high for mean, low, high in line["speedup"].values())
        assert line["images"] >= 1


def _pictures_read(path: Path) -> Any:
    """The pictures of a folder whose record of drawings is at `path`."""
    for method in SETTINGS["methods"]:
        written(f"pictures/{method}/0000-seed0.png", b"png", path.parent)
    return stored_pictures(DrawingLog(path.parent, None))


def _check_pictures(pictures: Any) -> None:
    assert all(one.model == 0 and one.seed >= 0 for one in pictures)


SWEEP = {"format": Results.VERSION, "hash": settings_hash(PLAN.to_dict()), "settings": PLAN.to_dict()}


CASE = VerifierCase(3, (-1, 0, 0), "iid", ((1, 2, 3), (3, 0, 1)), ((1, 1, 1), (2, 1, 0)))
CASE_FILE = with_envelope(
    "certify-case",
    {"processor": "p"},
    "underpaint certify",
    {
        "verifier": {"target": "m:f"},
        "case": CASE.to_dict(),
        "finding": {"how": "quantiles", "total_variation": 0.1, "node": None, "fault": None, "difference": None},
    },
)


def _case(path: Path) -> VerifierCase:
    record = read_results(path)
    if record["kind"] != "certify-case":
        raise ValueError("another kind")
    return case_from_dict(record["case"])


def _check_case(case: VerifierCase) -> None:
    assert case.drafts
    for row in (case.target_row((0,)), case.draft_row((0,))):
        assert np.isfinite(row).all()
        assert row.sum() == pytest.approx(1.0)
    assert all(0 <= token < case.vocab_size for token in case.banned)


def trace_file(folder: Path) -> Path:
    trace = recorded(field(height=2, width=3, images=2), 1, keep=4, depths=2)
    rows = RowTrace({"ratio": 2}, 2, trace.tokens, trace.target_tokens, trace.target_probs, np.ones((1, 7), np.int64))
    save(dataclasses.replace(trace, rows=(rows,)), folder / "one.npz")
    return folder / "one.npz"


def _check_trace(trace: Trace) -> None:
    for tokens in (trace.tokens, trace.target_tokens, trace.draft_tokens):
        assert tokens.min() >= 0
        assert tokens.max() < trace.vocab_size
    for shares in (trace.target_probs, trace.draft_probs, trace.acceptance):
        assert shares.min() >= -1e-3
        assert shares.max() <= 1.001
    assert np.isfinite(trace.codebook).all()
    model = replay(trace)
    assert np.allclose(model.target.sum(axis=1), 1.0, atol=1e-3)
    assert model.target.min() >= -1e-6


def _reference(folder: Path) -> Path:
    halves = {f"features_{half}_64": np.arange(6, dtype=np.float32).reshape(3, 2) for half in "ab"}
    np.savez(folder / "reference.npz", accuracy=np.array(json.dumps({"64": {"prompt": 0.9}})), **halves)
    return folder / "reference.npz"


def _check_reference(reference: Any) -> None:
    assert np.isfinite(reference.features_a).all()
    assert all(0 <= share <= 1 for share in reference.accuracy.values())


def _features(folder: Path) -> Path:
    np.save(folder / "f.npy", np.ones((2, 3), np.float32))
    return folder / "f.npy"


def _check_features(features: Any) -> None:
    assert features.ndim == 2
    assert np.isfinite(features).all()


def _shape(path: Path) -> Any:
    return manifest_config(read(path).settings, "target64")


def _check_shape(config: Any) -> None:
    assert config.grid.cells <= config.capacity <= 1 << 20
    assert min(config.vocab_size, config.dim, config.layers) >= 1
    assert np.isfinite([config.rope_base, config.norm_eps]).all()


def _nothing(value: Any) -> None:
    del value


PROMPT_CONTENTS: dict[PromptForm, tuple[str, bytes]] = {
    "parti": ("parti.tsv", b"Prompt\tCategory\tChallenge\na red fox\tAnimals\tBasic\na \xc3\xa9toile\tArts\tBasic\n"),
    "dpg": (
        "dpg.csv",
        b"item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,question_natural_language\n"
        b'p1,"a fox, red",fox,1,0,entity,whole,entity - whole (fox),is there a fox?\n',
    ),
    "imagenet": ("class_index.json", b'{"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"]}'),
    "coco": (
        "captions_val2014.json",
        b'{"images": [{"id": 1}, {"id": 2}], "annotations": [{"image_id": 1, "id": 3, "caption": "a fox"},'
        b' {"image_id": 2, "id": 4, "caption": "a cat"}]}',
    ),
    "geneval": (
        "evaluation_metadata.jsonl",
        b'{"tag": "single_object", "include": [{"class": "fox", "count": 1}], "prompt": "a photo of a fox"}\n',
    ),
    "jsonl": ("prompts.jsonl", b'{"prompt": "a fox", "id": "1"}\n{"prompt": "a cat", "id": "2"}\n'),
    "text": ("prompts.txt", b"a fox\na cat\n"),
}
"""A small file of prompts in each form."""


def _prompts(form: PromptForm, path: Path) -> tuple[FilePrompt, ...]:
    return read_prompts(PromptSource.read(path), form)


def _check_prompts(prompts: tuple[FilePrompt, ...]) -> None:
    assert prompts
    assert all(one.text.strip() and one.key and "\n" not in one.text for one in prompts)
    assert len({one.key for one in prompts}) == len(prompts)


def _tensors(folder: Path) -> Path:
    from safetensors.numpy import save_file

    path = folder / "weights.safetensors"
    save_file({"a": np.ones((2, 3), dtype=np.float32), "b": np.zeros(4, dtype=np.float16)}, path)
    return path


READERS: list[FileReader] = [
    FileReader("manifest", "json", _manifest, read, _check_manifest),
    FileReader("settings of a decoder", "json", _manifest, _shape, _check_shape),
    FileReader("index of models", "json", _index, lambda path: read_index(path.parent), _nothing),
    FileReader("cost curve", "json", partial(written, "costs.json", CURVE), read_cost_curve, _check_curve),
    FileReader("results", "json", partial(written, "compare.json", COMPARED), read_results, _check_results),
    FileReader("comparison", "json", partial(written, "compare.json", COMPARED), load_comparison, _nothing),
    FileReader("page of figures", "json", partial(_compared_folder, "compare.json"), page_of, _check_page),
    FileReader("page of drawings", "sealed", partial(_compared_folder, "drawings.jsonl"), page_of, _check_page),
    FileReader("page of replays", "sealed", partial(_compared_folder, "replays.jsonl"), page_of, _check_page),
    FileReader(
        "edited drawings",
        "lines",
        partial(written, "drawings.jsonl", log_bytes(LOG)),
        lambda path: DrawingLog(path.parent, RUN),
        _check_unchanged_drawings,
    ),
    FileReader(
        "drawings",
        "sealed",
        partial(written, "drawings.jsonl", log_bytes(LOG)),
        lambda path: DrawingLog(path.parent, RUN),
        _check_drawings,
    ),
    FileReader(
        "edited replays",
        "lines",
        partial(written, "replays.jsonl", log_bytes(REPLAYS)),
        lambda path: ReplayLog(path.parent, RUN),
        _check_unchanged_replays,
    ),
    FileReader(
        "replays",
        "sealed",
        partial(written, "replays.jsonl", log_bytes(REPLAYS)),
        lambda path: ReplayLog(path.parent, RUN),
        _check_replays,
    ),
    FileReader(
        "sweep",
        "sealed",
        partial(written, "results.jsonl", log_bytes([SWEEP, RESULT])),
        lambda path: Results(path.parent, PLAN),
        _check_sweep,
    ),
    FileReader(
        "evaluated drawings",
        "sealed",
        partial(written, "drawings.jsonl", log_bytes(EVALUATED)),
        _pictures_read,
        _check_pictures,
    ),
    FileReader("certificate case", "json", partial(written, "case.json", CASE_FILE), _case, _check_case),
    FileReader("trace", "npz", trace_file, load, _check_trace),
    FileReader("real scenes", "npz", _reference, lambda path: load_reference(path, 64), _check_reference),
    FileReader("features", "npy", _features, read_features, _check_features),
    FileReader(
        "tables of words",
        "json",
        lambda folder: Path(shutil.copy(FOLDER / SCENES, folder)),
        lambda path: check_tables(path.parent),
        _nothing,
    ),
]

READERS += [
    FileReader(
        f"prompts, {form}",
        "json" if name.endswith(".json") else "npy",
        partial(written, name, content),
        partial(_prompts, form),
        _check_prompts,
    )
    for form, (name, content) in PROMPT_CONTENTS.items()
]
READERS.append(FileReader("head of safetensors", "npy", _tensors, read_tensor_header, _nothing))

REFUSED = (ValueError, EngineError, OSError)
"""What the program turns into a message and exit code 2."""
