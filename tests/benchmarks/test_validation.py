"""The page of the simulator's errors says what its records say, and protocol 1 is predicted method by method."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import protocol_predictions, validation
from benchmarks.pages import render
from benchmarks.validation import FILE, TOKENS, closed_forms, validation_figures
from tests.sim.replay.test_trace import SAMPLER, comparison, field, recorded
from underpaint.artifacts.results import merged
from underpaint.sim.replay.trace import save

RECORD = {
    "closed_forms": [{"what": "a chain", "source": "a paper", "expected": 2.0, "simulated": 2.01, "error": 0.005}],
    "rules": [{"rule": "point", "total_variation": 1e-16}],
}


def row(method: str, tokens: float, speedup: float) -> dict[str, Any]:
    measured = {"measured_tokens_per_cycle": 2.0, "measured_speedup": 1.0, "speedup": [1.0 + speedup, 0.9, 1.1]}
    return {"method": method, "tokens_error": tokens, "speedup_error": speedup, **measured}


def page_of(records: dict[str, Any]) -> str:
    return render("validation", **validation_figures(records))


def test_the_page_sums_up_its_records() -> None:
    rows = [row("eagle2", 0.01, -0.04), row("adt", -0.03, 0.08), {"method": "sjd", "reason": "no trace holds it"}]
    records = {FILE: RECORD, "protocol-predictions.json": {"rows": rows, "command": "a command"}}
    page = page_of(records)
    assert f"| {TOKENS}: protocol 1, on the models that ship | 2 | 2.0 % | 2.8 % | 3.0 % |" in page
    assert "| speedup by its machine's curve: protocol 1, on the models that ship | 2 | 6.0 % | 7.6 % | 8.0 % |" in page
    assert "| `adt` | 2.000 | -3.0 % | 1.00 | 1.08 | +8.0 % |" in page
    assert "- `sjd`: no trace holds it." in page
    assert "| a chain | a paper | 2.0000 | 2.0100 | +0.50 % |" in page


def test_the_page_says_where_the_time_of_far_rows_goes() -> None:
    near, far = row("eagle2", 0.0, 0.05), row("mulo", 0.25, 0.2)
    for one, parts in ((near, (60.0, 10.0, 10.0)), (far, (40.0, 30.0, 10.0))):
        one |= {"temperature": 1.0, "measured_low": 0.8, "measured_high": 1.15}
        one["measured_parts"] = {"target": 50.0, "drafter": 30.0, "host": 20.0}
        one["parts"] = dict(zip(("target", "drafter", "host"), parts, strict=True))
    records = {FILE: RECORD, "protocol-predictions.json": {"rows": [near, far], "command": "a command"}}
    page = page_of(records)
    heading = "| speedups | within 10 % | of the others, inside the measured interval |\n|---|---|---|\n"
    assert f"{heading}| 2 | 1 | 0 |\n" in page
    assert "| 1 | `mulo` | +20.0 % | no | 50 / 40 | 30 / 30 | 20 / 10 | number of cycles |" in page
    far["tokens_error"] = 0.0
    assert "| 20 / 10 | time of target passes |" in page_of(records)
    records["protocol-predictions.json"] |= {"measured_plain_ms": [2.5, 2.4], "curve_plain_ms": 2.0}
    assert "| 2 | 1 | 0 | 2.50 and 2.40 | 2.00 |" in page_of(records)


def test_exact_predictions_would_miss_what_lies_beyond_the_intervals() -> None:
    half_width = math.exp(0.196)  # of a standard error of 0.1, the error that the page calls far
    known = {"measured_low": 1.0 / half_width, "measured_high": half_width, "measured_parts": {"target": 1.0}}
    record = {"rows": [row(f"method {place}", 0.0, 0.0) | known for place in range(10)]}
    assert validation.measured(record, "a.json", "a record")["by_chance"] == pytest.approx(10 * 0.31731, rel=1e-4)


def test_what_was_fitted_counts_for_no_residual() -> None:
    page = page_of({FILE: RECORD, "predict-128-t1.json": {"rows": [row("eagle2", 0.0, 0.0)]}})
    fair = [one for one in validation.check_latencies() if not one.row.fitted and not one.row.reason]
    assert f"{validation.PASSES} | {len(fair)} |" in page


def test_closed_forms_are_met() -> None:
    assert max(abs(one["error"]) for one in closed_forms(40)) < 0.01


def test_each_temperature_is_predicted_from_its_own_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"ar": (1.0, 0.0, 1.0), "speculative": (2.0, 3.0, 1.5), "eagle2": (2.0, 3.0, 1.5)}
    run = json.loads(comparison(tmp_path / "compare.json", measured).read_text())
    for one in run["rows"]:
        one |= {"speedup_low": 1.4, "speedup_high": 1.6, "seconds_per_image": 0.128}
    run["settings"]["methods"]["eagle2"]["skipping"] = {"every": 3}
    record, trace, costs = (tmp_path / name for name in ("protocol.json", "trace.npz", "costs.json"))
    record.write_text(json.dumps(merged([("temperature 1", run)])))
    save(recorded(field(images=4), 4), trace)
    host = {"sampled": {"cycle": 0.1, "level": 0.0, "node": 0.0, "pooled": 0.0}}
    within = {"plain": {"target_ms": 1.0, "host_ms": 0.1}, "target_ms": [[1, 1.0], [64, 3.0]], "host_ms": host}
    within |= {"draft_ms": [[1, 0.1], [64, 0.3]], "chain_ms": []}
    curve = {"format": 3, "verify_ms": [[1, 1.0]], "draft_ms": [[1, 0.1]], "in_cycle": within}
    costs.write_text(json.dumps(curve))
    options = ["--record", str(record), "--trace", str(trace), "--costs", str(costs), "--seeds", "1"]
    protocol_predictions.main(options)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [one["method"] for one in rows] == ["speculative", "eagle2"]
    assert rows[0]["speedup_error"] == pytest.approx(rows[0]["speedup"][0] / 1.5 - 1.0)
    assert rows[0]["measured_low"] == 1.4
    assert "not verified" in rows[1]["reason"]
    curve["in_cycle"] = {**within, "target_ms": [[1, 1.0], [2, 1.5]]}
    costs.write_text(json.dumps(curve))
    protocol_predictions.main(options)
    small = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert {one["method"]: "reason" in one for one in small} == {"speculative": True, "eagle2": True}
    run["settings"] |= {**SAMPLER, "temperature": 0.0}
    record.write_text(json.dumps(merged([("temperature 0", run)])))
    with pytest.raises(SystemExit) as stopped:
        protocol_predictions.main(options)
    assert stopped.value.code == 2
    assert "expected one at temperature 0" in capsys.readouterr().err


def test_what_is_not_given_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[list[str]]()

    def ran(command: list[str], *, check: bool) -> SimpleNamespace:
        calls.append(command[3:])
        Path(command[command.index("--out") + 1]).write_text("")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(protocol_predictions.subprocess, "run", ran)
    methods = {
        "ar": {},
        **{key: {"loop": "mulo"} for key in ("mulo", "mulo (paper)")},
        **{key: {"loop": "jacobi"} for key in ("sjd", "sjd (paper)")},
    }
    settings = {"temperature": 1.0, "guidance": 1.0, "resolution": 128, "prompts": ["a", "b"], "methods": methods}
    for _ in range(2):
        paths = list(protocol_predictions._traced({"settings": settings}, tmp_path))
        assert paths == [tmp_path / "trace-1.npz", tmp_path / "drawn-1.npz"]
    shared = ["--resolution", "128", "--guidance", "1"]
    assert [" ".join(call) for call in calls] == [
        " ".join(["trace", *shared, "--methods mulo --temperature 1 --prompts-count 160 --depths 10 --prompts-skip 2"])
        + f" --out {tmp_path / 'trace-1.npz'}",
        " ".join(["trace", *shared, "--methods sjd --temperature 1 --prompts-count 16 --depths 1 --prompts-skip 2"])
        + f" --out {tmp_path / 'drawn-1.npz'}",
    ]
    monkeypatch.setattr(protocol_predictions.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    with pytest.raises(ValueError, match="underpaint trace ended with 2"):
        list(protocol_predictions._traced({"settings": settings}, tmp_path / "other"))
