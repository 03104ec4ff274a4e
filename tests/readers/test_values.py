"""Values that were read without a word: each is refused now, and the message names it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.readers.registry import (
    COMPARED,
    HEAD,
    LOG,
    PLAN,
    REPLAYS,
    RESULT,
    ROW,
    RUN,
    SWEEP,
    page_of,
    trace_file,
    written,
)
from tests.run_logs import log_bytes
from underpaint.artifacts.results import ResultsError, read_results
from underpaint.runtime.evaluation.drawing_log import DrawingLog
from underpaint.runtime.evaluation.replay import ReplayLog
from underpaint.sim.replay.trace import load
from underpaint.sim.sweep.run import Results

TREE = LOG[2]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("seconds", 1e308, "seconds: expected 1e-09 to 1e.09"),
        ("seconds", 0.0, "seconds: expected"),
        ("target_nfe", 2, "target_nfe: expected 3, as it has 3 cycles, got 2"),
        ("target_nfe", 4, "target_nfe: expected 3"),
        ("batch", -7, "batch: expected 1 to"),
        ("device_seconds", -5, "device_seconds: expected 0 to"),
        ("depths", (2,), "depths: expected 2, one a cycle, got 1"),
        ("nodes", (3, 1, 1), "nodes: expected 2, one a cycle, got 3"),
        ("accepted", (3, 0), "accepted: expected no more tokens than the draft tree is deep"),
        ("tokens", (1, 2, 3), "its cycles decide 4 cells, and it has 3 tokens"),
        ("kept_cells", (2, 2), "kept_cells: expected rising cells below 4"),
        ("kept_cells", (4,), "kept_cells: expected rising cells below 4"),
        ("method", "nobody", "a drawing of method 'nobody', which the run does not have"),
        ("prompt", "another", "a drawing of prompt 'another'"),
        ("seed", 7, "a drawing of seed 7"),
        ("seed", 1.0, "seed: expected a whole number, got 1.0"),
        ("colour", "red", "unknown setting 'colour'"),
    ],
)
def test_a_drawing_out_of_range_is_named_with_its_line(tmp_path: Path, field: str, value: Any, says: str) -> None:
    written("drawings.jsonl", log_bytes([HEAD, LOG[1], {**TREE, field: value}]), tmp_path)
    with pytest.raises(ValueError, match=f"drawings.jsonl is no record of a comparison.*line 3: .*{says}"):
        DrawingLog(tmp_path, RUN)


@pytest.mark.parametrize("version", [4.0, True, "4", 3, None])
def test_a_version_of_a_log_is_a_whole_number(tmp_path: Path, version: object) -> None:
    written("drawings.jsonl", log_bytes([{**HEAD, "format": version}]), tmp_path)
    with pytest.raises(ValueError, match="another version"):
        DrawingLog(tmp_path, RUN)


def put(path: tuple[Any, ...], value: Any) -> Any:
    from tests.readers.mutations import changed

    return changed(COMPARED, path, lambda _: value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("results_version",), 1.0, "version 1.0, this reads version 1; repeat the command"),
        (("results_version",), True, "version True"),
        (("results_version",), "1", "version '1'"),
        (("rows",), [], "rows: expected 1 or more of them, got 0"),
        (("rows", 1, "method"), "nobody", "'nobody' is not among the methods of the settings"),
        (("rows", 1, "method"), "ar", "'ar' has two rows"),
        (("rows", 0, "speedup"), 1e308, "rows.0..speedup: expected 1e.09 or less"),
        (("rows", 0, "speedup_low"), 2.0, "speedup_low: expected an interval, got 2.0 to 1.1"),
        (("rows", 0), {**ROW, "batch": -7}, "batch: expected 1 or more, got -7"),
        (("machine", "cores"), -4, "machine.cores: expected 1 or more, got -4"),
        (("acceptance_per_cell", "eagle2"), [[0.5], [1.0, 0.5]], "expected rows of one length, got 1 and 2 cells"),
        (("acceptance_per_cell", "eagle2"), [[0.5, 0.5, 0.5]], "expected 2 x 2 cells, as the model's grid has"),
        (("acceptance_per_cell",), {"nobody": [[0.5]]}, "there is no row of this method"),
        (("cost_curve", "verify_ms"), [[4, 1.0], [1, 2.0]], "whole numbers of nodes that rise"),
        (("cost_curve", "verify_ms", 0, 1), -1.0, "expected 0 or more, got -1.0"),
    ],
)
def test_results_that_contradict_themselves_are_refused(
    tmp_path: Path, path: tuple[Any, ...], value: Any, says: str
) -> None:
    file = written("compare.json", put(path, value), tmp_path)
    with pytest.raises(ResultsError, match=says):
        read_results(file)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_results_with_numbers_that_are_none_do_not_validate(tmp_path: Path, number: str) -> None:
    text = json.dumps(put(("rows", 0, "mean_depth"), "here")).replace('"here"', number)
    with pytest.raises(ResultsError):
        read_results(written("compare.json", text.encode(), tmp_path))


def test_a_page_of_times_that_are_0_has_no_nan_in_its_drawing(tmp_path: Path) -> None:
    still = put(("rows",), [{**ROW, "target_ms_per_cycle": 0.0}])
    text = page_of(written("compare.json", {**still, "acceptance_per_cell": {}, "cost_curve": None}, tmp_path))
    assert '<svg class="chart"' in text
    assert "nan" not in text[text.find('<svg class="chart"') : text.find("</svg>")]


def test_replays_that_were_cut_are_told_from_finished_ones(tmp_path: Path) -> None:
    path = written("replays.jsonl", log_bytes(REPLAYS), tmp_path)
    assert ReplayLog(tmp_path, RUN).finished
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert not ReplayLog(tmp_path, RUN).finished
        assert not ReplayLog(tmp_path, None).finished


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("images", 0, "images: expected 1 to"),
        ("tokens_per_cycle", -1.0, "tokens_per_cycle: expected 0 to"),
        ("speedup", {"a100/llamagen-b": [2.2, 2.3, 2.1]}, "expected an interval round 2.2"),
        ("speedup", {"nobody": [1.0, 1.0, 1.0]}, "speedup: expected a100/llamagen-b, got nobody"),
        ("policy", "nobody", "key: expected"),
        ("policy_settings", "[", "policy_settings: expected JSON"),
        ("token_bias", 3.0, "token_bias: expected"),
        ("colour", "red", "unknown setting 'colour'"),
    ],
)
def test_a_result_of_a_sweep_out_of_range_is_named_with_its_line(
    tmp_path: Path, field: str, value: Any, says: str
) -> None:
    written("results.jsonl", log_bytes([SWEEP, {**RESULT, field: value}]), tmp_path)
    with pytest.raises(ValueError, match=f"results.jsonl is no record of a sweep.*line 2: .*{says}"):
        Results(tmp_path, PLAN)


def _repeated(tokens: Any) -> Any:
    copy = tokens.copy()
    copy[..., 1] = copy[..., 0]
    return copy


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("target_probs", lambda a: a * 3, "target_probs: expected"),
        ("draft_probs", lambda a: np.minimum(a * 3, 1.0), "draft_probs: expected distributions that sum to at most 1"),
        ("draft_probs", np.zeros_like, "draft_probs: expected distributions over all their tokens to sum to 1"),
        ("target_probs", lambda a: a[..., ::-1], "target_probs: expected the likeliest tokens first"),
        ("target_tokens", lambda a: -a - 1, "target_tokens: expected 0 to 23"),
        ("target_tokens", lambda a: a + 24, "target_tokens: expected 0 to 23"),
        ("draft_tokens", _repeated, "draft_tokens: expected each token once"),
        ("tokens", lambda a: a + 24, "tokens: expected 0 to 23"),
        ("target_probs", lambda a: a + 1j, "target_probs: expected real numbers, got complex"),
        ("codebook", lambda a: a * np.nan, "codebook: expected finite numbers"),
        ("acceptance", lambda a: a * 0 + 5, "acceptance: expected -0.0001 to 1.0001, got 5"),
        ("target_entropy", lambda a: a * 0 - 3, "target_entropy: expected"),
        ("neighbour_mass", lambda a: a * 0 + 2, "neighbour_mass: expected"),
        ("tokens", lambda a: a.astype(np.float64), "tokens: expected whole numbers"),
        ("rows0_distribution_probs", lambda a: a * 3, "distribution_probs: expected"),
        ("rows0_drafts", lambda a: a - 100, "rows0_drafts: expected -1 to 23"),
        ("rows0_low_passes", lambda a: a - 5, "rows0_low_passes: expected 0 to"),
    ],
)
def test_a_trace_of_numbers_that_are_none_is_refused(tmp_path: Path, name: str, change: Any, says: str) -> None:
    path = trace_file(tmp_path)
    with np.load(path) as npz_file:
        arrays = {one: npz_file[one] for one in npz_file.files}
    np.savez(path, **{**arrays, name: change(arrays[name])})
    with pytest.raises(ValueError, match=f"is no trace .*{says}"):
        load(path)


def test_a_head_of_a_trace_is_read_by_its_types(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    with np.load(path) as npz_file:
        arrays = {one: npz_file[one] for one in npz_file.files}
    head = json.loads(str(arrays["head"]))
    for field, value, says in (
        ("format", 1.0, "expected format 1, got 1.0"),
        ("vocab_size", "24", "vocab_size: expected a whole number"),
        ("grid", [2, -3], "grid: expected 1 to 4096"),
        ("about", {"model": []}, "expected a model with its sha256"),
        ("about", {"sampler": []}, "expected a model with its sha256, a list of prompts, and its sampler"),
        ("colour", "red", "unknown setting 'colour'"),
    ):
        np.savez(path, **{**arrays, "head": np.array(json.dumps({**head, field: value}))})
        with pytest.raises(ValueError, match=f"is no trace .*{says}"):
            load(path)


def test_the_good_ones_are_read(tmp_path: Path) -> None:
    assert len(DrawingLog(written("drawings.jsonl", log_bytes(LOG), tmp_path).parent, RUN)) == 2
    assert dataclasses.is_dataclass(load(trace_file(tmp_path)))


def test_a_page_names_the_drawing_whose_tokens_are_no_codes(tmp_path: Path) -> None:
    log = [HEAD, LOG[1], {**TREE, "tokens": (1, 2, 3, 99)}]
    written("drawings.jsonl", log_bytes(log), tmp_path)
    with pytest.raises(ValueError, match="'a fox' by eagle2, seed 0, holds the token 99, and these models"):
        page_of(written("compare.json", COMPARED, tmp_path))
