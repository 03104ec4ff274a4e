"""From logits to advice and figures on the command line, and what is refused on the way."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.program import listing, run_program
from tests.sim.replay.test_own_logits import model, written  # noqa: F401
from underpaint.algos.draft import POLICIES
from underpaint.algos.rows import SamplingParams
from underpaint.cli.advise import _method_of
from underpaint.cli.terminal import Format
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.methods.registry import resolve
from underpaint.runtime.pipeline import Pipeline
from underpaint.sim.advise import MethodOption
from underpaint.sim.batched.decoding import make_scheme, run_loop
from underpaint.sim.latency.run_times import run_times_of
from underpaint.sim.replay.acceptance_log import acceptance_of, read_acceptance
from underpaint.sim.replay.own_logits import trace_of_own
from underpaint.sim.replay.recording import Recorder, record_image
from underpaint.sim.replay.trace import load, replay
from underpaint.sim.report.canvas import rendered
from underpaint.sim.report.figures import speedup_tokens
from underpaint.sim.report.statistics import ratio, tokens_per_cycle
from underpaint.sim.sweep.plan import Job, all_settings_of
from underpaint.sim.synthetic.table_model import TableModel
from underpaint.zoo.load import FOLDER

MACHINES = "a100/llamagen-xl,a100/llamagen-xl/batch4,a100/llamagen-xl/batch4-fixed"
SWEEP = (
    "simulate sweep --model own-trace.npz --policies chain,eagle2,adt --rules chain,point,lantern --jobs 1 "
    f"--precision 0.3 --vary policy.depth=1,2 --vary policy.top_k=2,3 --vary rule.k=4 --machines {MACHINES} --out own"
)


def test_from_logits_to_advice_and_every_figure(
    model: TableModel,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written(model, tmp_path)

    def run(line: str) -> str:
        done = run_program(line, tmp_path, monkeypatch)
        assert done.code == 0, done.err + done.crash
        return done.out

    run("trace --from own.npz --keep 24 --out own-trace.npz")
    advised = "advise own-trace.npz --machine a100/llamagen-xl --precision 0.3 --jobs 1 --out advised"
    text = run(advised)
    assert "times as fast" in text
    log = (tmp_path / "advised" / "results.jsonl").read_bytes()
    advice = json.loads(run(f"{advised} --json -"))
    assert (tmp_path / "advised" / "results.jsonl").read_bytes() == log, "the same command goes on with what is there"
    speeds = [one["speedup"] for one in advice["candidates"]]
    assert speeds == sorted(speeds, reverse=True)
    assert {one["what"] for one in advice["changes"]} == {"bandwidth", "host", "drafter"}
    assert all(one["token_bias"] == 0.0 for one in advice["candidates"])
    bounded = json.loads(run(advised.replace("advised", "within --quality 0.3") + " --json -"))
    assert max(one["token_bias"] for one in bounded["candidates"]) <= 0.3
    run(SWEEP)
    forms = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    for turn, name in enumerate(("speedup-tokens", "pareto", "depth-width", "batch", "cycle-time", "alignment")):
        for place, (form, start) in enumerate(forms.items()):
            run(f"plot own/results.jsonl --figure {name} --out {name}.{form}")
            content = (tmp_path / f"{name}.{form}").read_bytes()
            assert content.startswith(start)
            if turn % len(forms) == place:  # each figure once, each format twice
                run(f"plot own/results.jsonl --figure {name} --out {name}.{form}")  # replaces its own file
                assert (tmp_path / f"{name}.{form}").read_bytes() == content
    run("plot own-trace.npz --figure acceptance --out acceptance.pdf")
    for _ in range(2):  # replaces its own file
        run("trace --from own-trace.npz --to acceptance.jsonl --length 3")
    for form in (Format.json, Format.csv, Format.markdown):
        text = run(f"advise acceptance.jsonl --machine h100/llamagen-xl --batch 2 --format {form.value}")
        assert "chain of" in text
        assert "times as fast" not in text, "a sentence is no row"
    for _ in range(2):
        run("advise acceptance.jsonl --machine h100/llamagen-xl --json advice.json")
    page = (tmp_path / "own" / "report.html").read_text()
    for title in ("Where a cycle&#39;s time goes", "Batch curves", "Acceptance by depth and by cell"):
        assert title in page or title.replace("&#39;", "'") in page
    lines = [json.loads(line) for line in (tmp_path / "own" / "results.jsonl").read_text().splitlines()[1:]]
    for line in lines:
        for machine, (mean, _, _) in line["speedup"].items():
            cycles = 23 / line["tokens_per_cycle"]
            plain = run_times_of(machine).plain_ms
            assert sum(line["cycle_ms"][machine]) * cycles == pytest.approx(24 * plain / mean, rel=1e-3)
            waits = line["cycle_ms"][machine][3]
            assert (waits > 0) == machine.endswith("fixed"), "only batches of a fixed size wait"


@pytest.fixture(scope="module")
def traces(model: TableModel, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A folder with the logits of a model, their trace, and the trace of a model without a drafter."""
    folder = tmp_path_factory.mktemp("traces")
    written(model, folder, draft_logits=None).rename(folder / "two.npz")
    written(model, folder)
    with pytest.MonkeyPatch.context() as patch:
        for source, out in (
            *(("own.npz", "own-trace.npz"), ("two.npz", "bare.npz"), ("two.npz", "own-trace2.npz")),
            ("own.npz", "cold.npz --temperature 0"),
        ):
            assert run_program(f"trace --from {source} --keep 24 --out {out}", folder, patch).code == 0
    return folder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("advise own-trace.npz --machine a100/nothing", "llamagen-xl"),
        ("advise own-trace.npz --machine a100/llamagen-xl,h100/llamagen-xl", "expected one machine"),
        ("advise own-trace.npz --machine a100/llamagen-xl/batch8", "its batch as --batch"),
        ("advise own-trace.npz --machine a100/llamagen-xl --quality good", "expected lossless, or a total variation"),
        ("advise own-trace.npz --machine a100/llamagen-xl --quality 1.5", "above 0 and below 1"),
        ("advise own-trace.npz --machine a100/llamagen-xl --precision 0", "--precision"),
        ("advise bare.npz --machine a100/llamagen-xl", "needs a drafter"),
        ("advise none.npz --machine a100/llamagen-xl", "none.npz"),
        ("advise none.jsonl --machine a100/llamagen-xl --seed 3", "--seed needs a trace"),
        (
            "advise own-trace.npz --machine a100/llamagen-xl --out new --json new/results.jsonl",
            "--json and the record of simulations are both new/results.jsonl",
        ),
        ("advise none.jsonl --machine a100/llamagen-xl", "expected a trace (.npz) or an acceptance log"),
        ("plot own-trace.npz --figure pareto --out a.pdf", "expected the results.jsonl of a sweep"),
        ("plot none.jsonl --figure pareto --out a.pdf", "got no file"),
        ("plot own.npz --figure acceptance --out a.pdf", "is no trace"),
        ("plot bare.npz --figure acceptance --out a.pdf", "needs a drafter"),
        ("plot own-trace.npz --figure accept --out a.pdf", "did you mean 'acceptance'"),
        ("plot own-trace.npz --figure acceptance --out a.tif", "expected a name that ends in .pdf"),
        ("trace --to a.jsonl", "needs --from"),
        ("trace --from own-trace.npz --to a.csv", "ends in .jsonl"),
        ("trace --from bare.npz --to a.jsonl", "needs a drafter"),
        ("trace --from own.npz --resolution 64 --out a.npz", "--resolution does not go with --from"),
        ("trace --from own.npz --prompts-count 2 --out a.npz", "--prompts-count does not go with --from"),
        (
            "simulate sweep --model own-trace.npz --policies eagle2 --rules point --windows sjd --out a",
            "own-trace.npz is a trace, which has rows along the drawn tokens only",
        ),
        (
            "simulate sweep --model own-trace.npz,own-trace2.npz --policies eagle2 --rules point --out a",
            "needs a drafter",
        ),
        ("advise cold.npz --machine a100/llamagen-xl --quality 0.1", "expected lossless for a trace at temperature 0"),
    ],
)
def test_bad_input_ends_with_2_and_writes_nothing(
    traces: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    before = listing(traces)
    done = run_program(line, traces, monkeypatch)
    assert done.code == 2, done.crash
    assert message in " ".join(done.err.split())
    assert listing(traces) == before


def test_greedy_decoding_is_advised_for_a_trace_at_temperature_0(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = f"advise {traces}/cold.npz --machine a100/llamagen-xl --precision 0.3 --jobs 1 --out advised"
    done = run_program(line, tmp_path, monkeypatch)
    assert done.code == 0, done.err + done.crash
    lines = [json.loads(line) for line in (tmp_path / "advised" / "results.jsonl").read_text().splitlines()[1:]]
    assert {one["rule"] for one in lines} == {"greedy"}
    assert {one["policy"] for one in lines} == {"chain_top1", "static_top_k", "eagle2", "adt"}
    assert "--temperature 0" in done.out + done.err
    assert "drafter" not in done.out.partition("what would change the answer")[2].partition("Build")[0]
    written = run_program(f"trace --from {traces}/cold.npz --to a.jsonl --length 2", tmp_path, monkeypatch)
    assert written.code == 0, written.err
    replayed = replay(load(traces / "cold.npz"), "cold")
    greedy, sampled = (acceptance_of(replayed, 2, greedy=one) for one in (True, False))
    log = read_acceptance(tmp_path / "a.jsonl")
    assert [log.reached(place).tolist() for place in (1, 2)] == [greedy.reached(place).tolist() for place in (1, 2)]
    assert log.steps.sum() != sampled.steps.sum()


@pytest.mark.parametrize(
    ("policy", "settings", "rule", "rule_settings", "temperature"),
    [
        ("adt", {"total_tokens": 59}, "point", {}, 1.0),
        ("eagle2", {"depth": 2, "top_k": 4, "total_tokens": 15}, "lantern", {"k": 4, "delta": 0.1}, 1.0),
        ("chain", {"length": 3}, "chain", {}, 1.0),
        ("chain_top1", {"length": 2}, "greedy", {}, 0.0),
        ("eagle1", {"widths": [4, 4]}, "without_replacement", {}, 1.0),
    ],
)
def test_the_advised_comparison_has_the_simulated_settings(
    policy: str, settings: dict[str, object], rule: str, rule_settings: dict[str, object], temperature: float
) -> None:
    job = Job("t", "{}", policy, json.dumps(settings), rule, json.dumps(rule_settings))
    nothing = np.ones(1)
    option = MethodOption("", {**settings, **rule_settings}, 0.0, ratio(nothing, nothing), nothing, nothing, len, job)
    words = (_method_of(option) or "").split()
    name, values = words[0], [word.partition(".")[2] for word in words if word.startswith(f"{words[0]}.")]
    assert ("--temperature" in words) == (temperature == 0.0)
    config = resolve(name, temperature, None, values).to_dict()
    made = [POLICIES[policy].make(**config["policy_settings"]), POLICIES[policy].make(**_tuples(settings))]
    assert made[0] == made[1]
    expected = all_settings_of("rule", rule) | rule_settings
    assert {key: config["rule_settings"][key] for key in expected} == expected


def _tuples(settings: dict[str, object]) -> dict[str, object]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def test_the_round_trip_of_a_shipped_model_keeps_tokens_a_pass(tmp_path: Path) -> None:
    pipeline = Pipeline.open(FOLDER, resolution=64)
    params = SamplingParams(temperature=1.0)
    codebook = pipeline.tables.codebook
    recorder = Recorder(codebook, pipeline.tables.neighbours, 3, 256)
    recordings = []
    for prompt in (
        "a woolly fox left of an outlined pumpkin, on green foliage",
        "a glossy panda left of a glossy fox, on ochre sand",
    ):
        condition = pipeline.condition(prompt)
        target, drafter = pipeline.target(condition, params).model, pipeline.drafter(params).model
        recordings.append(record_image(target, drafter, noise_of(condition, 0), 3, greedy=False))
        recorder.add_distributions(target.grid, *recordings[-1])
    tokens, distributions, drafted = (np.stack(parts) for parts in zip(*recordings, strict=True))
    with np.errstate(divide="ignore"):
        logits, draft_logits = (np.maximum(np.log(one), -60.0).astype(np.float16) for one in (distributions, drafted))
    grid = np.array(pipeline.grid)
    np.savez(
        tmp_path / "own.npz",
        tokens=tokens,
        target_logits=logits,
        draft_logits=draft_logits,
        codebook=codebook,
        grid=grid,
    )
    own_trace = trace_of_own([tmp_path / "own.npz"], SamplingParams(), None, 256)
    models = replay(recorder.trace({})), replay(own_trace)
    for policy, rule in (("eagle2", "point"), ("chain", "chain")):
        runs = [run_loop(one, make_scheme(one, policy, rule), 16, seed=5) for one in models]
        assert tokens_per_cycle(runs[1]).mean == pytest.approx(tokens_per_cycle(runs[0]).mean, rel=0.02)


def test_a_long_legend_takes_no_room_from_the_axes(recwarn: pytest.WarningsRecorder) -> None:
    def lines(count: int) -> list[dict[str, object]]:
        return [
            {"policy": "chain", "rule": "block", "model": f"a model of {place}", "tokens_per_cycle": 1.0 + place / 9}
            | {"speedup": {"m": [1.5, 1.4, 1.6]}}
            for place in range(count)
        ]

    for count in (2, 40):
        assert rendered(lambda count=count: speedup_tokens(lines(count), "m"), "svg").startswith(b"<?xml")  # type: ignore[misc]
    assert not [one for one in recwarn if "layout" in str(one.message)]
