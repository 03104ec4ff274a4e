"""Kill -9 at the worst moment of every command that writes: nothing half-written, and the same command then works."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.cli.killed_commands import Commands, Moment
from tests.cli.program import listing
from tests.models.tiny import save_exportable, save_target, tiny_target
from tests.published.checkpoints import save_llamagen, save_vq

RENAME, SYNC = Moment("replace"), Moment("fsync")
DRAWN = "--prompts-count 2 --resolution 64"
RUNS = "trained"
PREDICT = "simulate predict --trace trace.npz --costs costs.json --compare compared/compare.json"
EXPORT = "export c2i.pt --kind llamagen-c2i --heads 2 --grid 4 --out"


class Case(NamedTuple):
    """What is killed, when, and what must be there once the same command was run again.

    kept: what the killed process leaves under its final name, which is whole: a log goes on.
    """

    line: str
    prepared: str
    killed_at: Moment
    written: tuple[str, ...]
    kept: tuple[str, ...] = ()


CASES = (
    Case('generate "a fox, an owl" --out fox.png --save-tokens', "synthetic", RENAME, ("fox.png", "fox.json")),
    Case(
        *('generate "a fox, an owl" --out fox.png --save-tokens', "synthetic", Moment("replace", 2)),
        *(("fox.png", "fox.json"), ("fox.png",)),
    ),
    Case(
        *(f"compare --methods eagle2 {DRAWN} --out x --json figures.json", "synthetic", Moment("replace", 2)),
        *(("figures.json", "x/drawings.jsonl"), ("x/drawings.jsonl", "x/*.png")),
    ),
    Case(f"trace {DRAWN} --depths 2 --keep 8 --out x.npz", "synthetic", RENAME, ("x.npz",)),
    Case("certify verifier.py:verify --cases 1 --json x.json", "", RENAME, ("x.json", "failing-case.json")),
    Case("results rank compared/compare.json --json x.json", "", RENAME, ("x.json",)),
    Case("report compared --out x.html", "synthetic", RENAME, ("x.html",)),
    Case(
        *(f"evaluate --methods ar --jobs 0 {DRAWN} --out x", "synthetic", SYNC, ("x/evaluate.json",)),
        ("x/drawings-*.jsonl", "x/pictures/*/*.png"),
    ),
    Case(
        *(f"evaluate --methods ar --jobs 0 {DRAWN} --out x", "synthetic", Moment("replace", 2), ("x/evaluate.json",)),
        ("x/drawings-*.jsonl", "x/pictures/*/*.png"),
    ),
    Case(
        *("metrics write geneval evaluated --prompts prompts.jsonl --out x", "", Moment("replace", 2)),
        *(("x/*/00000/metadata.jsonl", "x/*/00000/samples/0000.png"), ("metadata.jsonl",)),
    ),
    Case("costs --resolution 128 --export x.json", "known_curve", RENAME, ("x.json", "cache/underpaint/costs/*.json")),
    Case(
        *("costs --resolution 128 --export x.json", "known_curve", Moment("replace", 2), ("x.json",)),
        ("cache/underpaint/costs/*.json",),
    ),
    Case(f"premises {DRAWN} --json x.json", "synthetic", RENAME, ("x.json",)),
    Case("simulate tables --json x.json", "", RENAME, ("x.json",)),
    Case(
        *("simulate sweep --model flat --policies chain,eagle2 --rules chain --most-images 2 --jobs 1 --out x", ""),
        *(Moment("fsync", 2), ("x/results.jsonl", "x/report.html"), ("x/results.jsonl",)),
    ),
    Case(
        *("simulate sweep --model flat --policies chain --rules chain --most-images 2 --jobs 1 --out x", ""),
        *(RENAME, ("x/results.jsonl", "x/report.html"), ("x/results.jsonl",)),
    ),
    Case(f"{EXPORT} x", "", RENAME, ("x/target.onnx", "x/model_index.json")),
    Case(f"{EXPORT} x", "", Moment("replace", 3), ("x/target.onnx", "x/model_index.json"), ("x/*",)),
    Case(f"export target --runs {RUNS} --out x", "", RENAME, ("x/target64.onnx", "x/model_index.json")),
    Case(
        *(f"export target --runs {RUNS} --out x", "", Moment("replace", 6)),
        *(("x/target64.onnx", "x/model_index.json"), ("x/*",)),
    ),
    Case(f"{PREDICT} --json x.json", "", RENAME, ("x.json",)),
    Case("train judge --steps 3 --out x", "tiny_recipes", RENAME, ("x/checkpoint.pt",)),
    Case(
        *("train judge --steps 3 --out x", "tiny_recipes", Moment("replace", 2), ("x/checkpoint.pt",)),
        ("x/checkpoint.pt",),
    ),
    Case("train world --hours 1 --out x", "tiny_recipes", RENAME, ("x/world.json", "x/judge/checkpoint.pt")),
    Case(
        *("train world --hours 1 --out x", "tiny_recipes", Moment("replace", 3), ("x/*/checkpoint.pt",)),
        ("x/world.json", "x/*/checkpoint.pt"),
    ),
    Case("engine exported", "no_tensorrt", RENAME, ("exported/target.layers.tensorrt.engine",)),
    Case(
        *("engine exported", "no_tensorrt", Moment("replace", 2), ("exported/target.layers.tensorrt.record",)),
        ("exported/*.engine",),
    ),
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    started = Commands()
    yield started
    started.close()


@pytest.fixture(scope="module")
def files(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "verifier.py").write_text("def verify(draft, uniforms):\n    return [], 0\n")
    prompt_line = '{"tag": "colors", "include": [{"class": "fox", "count": 1}], "prompt": "a woolly fox, an owl"}\n'
    (folder / "prompts.jsonl").write_text(prompt_line)
    save_target(folder / "target.pt", tiny_target())
    save_llamagen(folder / "c2i.pt", captions=False)
    save_vq(folder / "vq.pt")
    weights = torch.load(folder / "vq.pt", weights_only=True)["model"]
    state = {"step": 3, "elapsed_seconds": 1.0, "validation": {}, "runs": []}
    torch.save({"config": {"kind": "tokenizer"}, "model": weights, "raw": weights, **state}, folder / "tokenizer.pt")
    save_exportable(folder / RUNS)
    curve = {"format": 3, "verify_ms": [[1, 2.0], [8, 5.0]], "draft_ms": [[1, 0.5], [8, 0.75]]}
    (folder / "costs.json").write_text(json.dumps(curve))
    for line, prepared in (
        (f"compare --methods ar,eagle2 {DRAWN} --out compared", "synthetic"),
        (f"trace {DRAWN} --prompts-skip 8 --depths 2 --keep 8 --out trace.npz", "synthetic"),
        ("evaluate --methods ar --jobs 0 --prompts prompts.jsonl --seeds 3 --out evaluated", "synthetic"),
        (f"{EXPORT} exported", ""),
    ):
        ran = commands.run(line, folder, prepared)
        assert ran.code == 0, ran.err
    return folder


def hidden(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.line.split(' --')[0]} {case.killed_at.turn}")
def test_a_killed_command_leaves_nothing_half_written_and_works_again(
    commands: Commands, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    work = tmp_path / "work"
    shutil.copytree(files, work)
    line = case.line
    before = listing(work)
    killed = commands.run(line, work, case.prepared, case.killed_at)
    assert killed.code == -signal.SIGKILL, killed.err
    after = listing(work)
    assert {name: after[name] for name in before if Path(name).suffix} == {
        name: state for name, state in before.items() if Path(name).suffix
    }
    new_files = [name for name in after.keys() - before.keys() if (work / name).is_file()]
    visible = [name for name in new_files if not any(part[0] == "." for part in Path(name).parts)]
    unasked = [name for name in visible if not any(Path(name).match(pattern) for pattern in case.kept)]
    assert unasked == []
    again = commands.run(line, work, case.prepared)
    assert again.code == (1 if line.startswith("certify") else 0), again.err
    for output_pattern in case.written:
        assert list(work.glob(output_pattern)), output_pattern
    assert hidden(work) == []
