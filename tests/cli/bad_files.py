"""What users hand in by mistake: text as checkpoints, archives cut short, edited manifests, logs of others."""

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.program import run_program
from tests.run_logs import edit_log, log_bytes
from underpaint.training.target import CONFIG as TARGET
from underpaint.training.tokenizer import CONFIG
from underpaint.zoo.load import FOLDER as ZOO
from underpaint.zoo.textured_prompts import TEXTURED_WORDS

COMPARED = "compare --methods eagle2 --prompts-count 1 --resolution 64"
"""The comparison whose log and figures are then damaged."""


def make_files(folder: Path) -> None:
    """Fill `folder`; commands of `bad_commands` name what is in it."""
    for make in (_plain, _folders_of_models, _checkpoints, _shards, _recorded, _plugins):
        make(folder)


def _plain(folder: Path) -> None:
    (folder / "text.txt").write_text("not what you think\n" * 20)
    for name in ("text.pt", "text.safetensors", "text.npz", "text.npy", "text.json", "text.tgz"):
        shutil.copy(folder / "text.txt", folder / name)
    (folder / "empty.json").write_text("")
    (folder / "empty.pt").write_bytes(b"")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "object.json").write_text("{}")
    (folder / "null.json").write_text("null")
    (folder / "cut.json").write_text('{"rows": [')
    (folder / "a_folder").mkdir()
    (folder / "a_folder" / "kept.txt").write_text("kept")
    (folder / "loop").symlink_to("loop")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "text.png").write_text("no picture")
    for name in ("figures.json", "picture.png", "trace.npz"):
        (folder / f"{name.partition('.')[0]}_folder.{name.partition('.')[2]}").mkdir()


def _model_folder(folder: Path, edit: Callable[[Path], None]) -> None:
    """The shipped models, linked, with one thing changed."""
    folder.mkdir()
    for path in ZOO.iterdir():
        if path.suffix in (".onnx", ".npz", ".safetensors"):
            (folder / path.name).symlink_to(path)
        elif path.suffix == ".json":
            shutil.copy(path, folder / path.name)
    edit(folder)


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Write what `change` returns of a JSON file, or the value itself where it returns None."""
    document = json.loads(path.read_text())
    replacement = change(document)
    path.write_text(json.dumps(document if replacement is None else replacement))


def _folders_of_models(folder: Path) -> None:
    def put(name: str, file: str, *keys: Any, value: Any) -> None:
        def change(container: Any) -> None:
            for key in keys[:-1]:
                container = container[key]
            container[keys[-1]] = value

        _model_folder(folder / name, lambda path: edit_json(path / file, change))

    def damage(file: str, content: bytes) -> Callable[[Path], None]:
        def made(at: Path) -> None:
            (at / file).unlink()
            (at / file).write_bytes(content)

        return made

    _model_folder(folder / "m_no_index", lambda path: (path / "model_index.json").unlink())
    _model_folder(folder / "m_cut_index", damage("model_index.json", b'{"format": 2, '))
    _model_folder(folder / "m_list_index", damage("model_index.json", b"[]"))
    _model_folder(folder / "m_cut_manifest", damage("target64.json", b'{"kind": "target", "sha256": '))
    _model_folder(folder / "m_no_manifest", lambda path: (path / "target64.json").unlink())
    _model_folder(folder / "m_cut_weights", damage("target.safetensors", b"short"))
    _model_folder(folder / "m_cut_graph", damage("target64.onnx", b"short"))
    _model_folder(folder / "m_cut_codebook", damage("codebook.npz", b"PK short"))
    put("m_no_models", "model_index.json", "models", value={})
    put("m_models_list", "model_index.json", "models", value=[])
    put("m_resolutions_none", "model_index.json", "resolutions", value=None)
    put("m_resolutions_empty", "model_index.json", "resolutions", value=[])
    put("m_tokenizer_none", "model_index.json", "tokenizer", value=None)
    put("m_side_text", "model_index.json", "resolutions", 0, "side", value="large")
    put("m_grid_text", "model_index.json", "resolutions", 0, "grid", value="8x8")
    put("m_target_number", "model_index.json", "resolutions", 0, "target", value=7)
    put("m_condition", "model_index.json", "condition", value="smell")
    put("m_condition_list", "model_index.json", "condition", value=["class"])
    put("m_sampling", "model_index.json", "sampling_params", value={"top_k": "five"})
    put("m_sampling_none", "model_index.json", "sampling_params", value=None)
    put("m_judge_list", "model_index.json", "judge", value=[])
    put("m_sha", "model_index.json", "models", "target64", "sha256", value="0" * 64)
    for name, key, value in (
        ("kind", "kind", "drafter"),
        ("kind_none", "kind", None),
        ("file", "file", "../../../../etc/passwd"),
        ("file_none", "file", None),
        ("bytes", "bytes", "many"),
        ("settings_none", "settings", None),
        ("settings_list", "settings", []),
        ("shapes_none", "shapes", None),
        ("weights_text", "weights", "target.safetensors"),
        ("weights_escape", "weights", {"file": "../../../../etc/passwd", "bytes": 1, "sha256": "0"}),
        ("format", "format", 1),
        ("export_list", "export", [1]),
    ):
        put(f"m_manifest_{name}", "target64.json", key, value=value)
    settings = json.loads((ZOO / "target64.json").read_text())["settings"]
    for name in settings:
        put(f"m_setting_{name}", "target64.json", "settings", name, value="many")

    def less(path: Path) -> None:
        edit_json(path / "target64.json", lambda document: document["settings"].clear())

    _model_folder(folder / "m_settings_empty", less)
    _model_folder(folder / "m_cut_grammar", damage("textured_scenes.json", b'{"concepts": '))
    _model_folder(folder / "m_no_judge_reference", lambda path: (path / "judge_reference.npz").unlink())


def _checkpoints(folder: Path) -> None:
    import torch

    def save(name: str, content: Any) -> None:
        torch.save(content, folder / name)

    def save_target(runs: str, **config: Any) -> None:
        (folder / runs / "guided").mkdir(parents=True)
        save(f"{runs}/guided/checkpoint.pt", {"config": {"kind": "target", **config}, "model": {}})

    wordless = {"decoder": asdict(replace(TARGET, grid_side=8)), "caption_dim": 8}
    save("tokenizer.pt", {"config": {"kind": "tokenizer", "vq": asdict(CONFIG)}, "model": {}})
    save("widths_text.pt", {"config": {"kind": "tokenizer", "vq": "wide"}, "model": {}})
    save("target.pt", {"config": {"kind": "target", "words": TEXTURED_WORDS, **wordless}, "model": {}})
    save_target("bare")
    save_target("wordless", grids=[8], **wordless)
    save("no_config.pt", {"model": {}})
    save("tokenizer_bare.pt", {"config": {"kind": "tokenizer"}, "model": {}})
    save("config_list.pt", {"config": [], "model": {}})
    save("config_no_kind.pt", {"config": {}, "model": {}})
    save("a_list.pt", [1, 2])
    save("a_tensor.pt", torch.zeros(3))
    (folder / "cut.pt").write_bytes((folder / "target.pt").read_bytes()[:-40])
    with zipfile.ZipFile(folder / "other_zip.pt", "w") as archive:
        archive.writestr("readme.txt", "no checkpoint")
    np.save(folder / "numbers.npy", np.zeros(3))
    np.savez(folder / "numbers.npz", a=np.zeros(3))


def _shards(folder: Path) -> None:
    for name, shard in (("up", "../../../../etc/passwd"), ("root", "/etc/passwd"), ("folder", "..")):
        shard_folder = folder / f"shards_{name}"
        shard_folder.mkdir()
        (shard_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    (folder / "shards_text").mkdir()
    (folder / "shards_text" / "model.safetensors.index.json").write_text("text")
    (folder / "shards_config").mkdir()
    shutil.copy(folder / "target.pt", folder / "shards_config" / "pytorch_model.bin")
    (folder / "shards_config" / "config.json").write_text("[]")


def _recorded(folder: Path) -> None:
    """A real comparison, trace and results, and what can go wrong with them by hand."""
    for line in (
        f"{COMPARED} --out compared",
        "trace --prompts-count 1 --resolution 64 --depths 2 --keep 8 --out real.npz",
    ):
        with pytest.MonkeyPatch.context() as patch:
            ran = run_program(line, folder, patch)
        assert (ran.code, ran.crash) == (0, ""), ran.err
    log = folder / "compared" / "drawings.jsonl"

    def edited(name: str, change: Callable[[dict[str, Any]], None], line: int = 1) -> None:
        log_folder = folder / f"log_{name}"
        log_folder.mkdir()
        edit_log(log, lambda values: change(values[line]), to=log_folder / "drawings.jsonl")

    def put(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
        return lambda record: record.__setitem__(key, value)

    edited("seconds", put("seconds", -1.0))
    edited("seconds_text", put("seconds", "long"))
    (folder / "log_seconds_nan").mkdir()
    plain = log.read_text().replace('"seconds": ', '"seconds": NaN, "was": ', 1)
    (folder / "log_seconds_nan" / "drawings.jsonl").write_text(plain)
    edited("token", lambda record: record["tokens"].__setitem__(0, 10**6))
    edited("token_negative", lambda record: record["tokens"].__setitem__(0, -1))
    edited("token_text", lambda record: record["tokens"].__setitem__(0, "a"))
    edited("tokens_few", lambda record: record["tokens"].pop())
    edited("tokens_none", put("tokens", None))
    edited("passes", put("target_nfe", 0))
    edited("passes_text", put("target_nfe", "few"))
    edited("accepted", put("accepted", [-3]))
    edited("unknown_key", put("colour", "red"))
    edited("method", put("method", "nobody"))
    edited("head", lambda record: [record.pop(key) for key in list(record) if key != "format"], line=0)
    edited("seconds_huge", put("seconds", 1e308))
    edited("few_passes", put("target_nfe", 3))
    edited("batch", put("batch", -7))
    edited("device_seconds", put("device_seconds", -5))
    edited("depths", lambda record: record["depths"].pop())
    (folder / "log_edited").mkdir()
    (folder / "log_edited" / "drawings.jsonl").write_text(log.read_text().replace('"seed": 0', '"seed": 1', 1))
    (folder / "log_cut_line").mkdir()
    lines = log.read_text().split("\n")
    (folder / "log_cut_line" / "drawings.jsonl").write_text("\n".join([lines[0], lines[1][:200], *lines[2:]]))
    edited("head_hash", put("hash", 3), line=0)
    for name, content in (("text", "text\n"), ("list", "[]\n[]\n"), ("null", "null\n"), ("binary", "\x00\xff\n")):
        (folder / f"log_{name}").mkdir()
        (folder / f"log_{name}" / "drawings.jsonl").write_bytes(content.encode("latin-1"))
    (folder / "log_folder" / "drawings.jsonl").mkdir(parents=True)
    (folder / "log_sweep").mkdir()
    (folder / "log_sweep" / "results.jsonl").write_bytes(log_bytes([{"format": 2, "hash": "0", "settings": {}}]))
    (folder / "log_sweep_text").mkdir()
    (folder / "log_sweep_text" / "results.jsonl").write_text("text\n")
    for name, change in (
        ("rows_none", put("rows", None)),
        ("rows_text", put("rows", ["a"])),
        ("settings_none", put("settings", None)),
        ("version", put("results_version", 99)),
    ):
        shutil.copy(folder / "compared" / "compare.json", folder / f"compare_{name}.json")
        edit_json(folder / f"compare_{name}.json", change)
    trace = (folder / "real.npz").read_bytes()
    (folder / "cut.npz").write_bytes(trace[: len(trace) // 2])
    curve = {"format": 3, "model": {"target": "target64", "drafter": "drafter64"}, "overhead_ms": 0.1}
    curve |= {"verify_ms": [[1, 1.0], [8, 1.5], [64, 5.0]], "draft_ms": [[1, 0.2], [16, 0.5]]}
    costs = folder / "costs.json"
    costs.write_text(json.dumps(curve))
    for name, change in (
        ("zero", lambda document: document["verify_ms"].__setitem__(0, [1, 0.0])),
        ("falling", lambda document: document["verify_ms"].reverse()),
        ("nan", lambda document: document["draft_ms"].__setitem__(0, [1, float("nan")])),
        ("text", put("verify_ms", "fast")),
        ("format", put("format", 99)),
        ("in_cycle", put("in_cycle", {})),
        ("overhead", put("overhead_ms", -1)),
        ("model", put("model", {"target": "another", "drafter": "another"})),
        ("model_text", put("model", "another")),
    ):
        shutil.copy(costs, folder / f"costs_{name}.json")
        edit_json(folder / f"costs_{name}.json", change)


def _plugins(folder: Path) -> None:
    (folder / "no_syntax.py").write_text("def (:\n")
    (folder / "no_name.py").write_text("\n\nnot_there\n")
    (folder / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "not_dataclass.py").write_text(
        "import dataclasses\nfrom underpaint.algos.accept import RULES\n"
        "RULES.register(dataclasses.replace(RULES['point'], name='no_dataclass', make=print))\n"
    )
    (folder / "promise.py").write_text(
        "import dataclasses\nfrom underpaint.algos.accept import RULES\n"
        "RULES.register(dataclasses.replace(RULES['point'], name='sworn', promise='certain'))\n"
    )
    root = Path(__file__).resolve().parents[2]
    example = (root / "docs" / "examples" / "last_first.py").read_text()
    broken = example.replace("return try_points(", "return _kept_anyway(").replace('"last_first"', '"liar"')
    broken += "\n\ndef _kept_anyway(tree, node, children, target, chance):\n"
    (folder / "liar.py").write_text(broken + "    return SiblingOutcome(children[0], target)\n")
    (folder / "verifier.py").write_text("def verify(draft, uniforms):\n    return [], 0\n\n\nnumber = 3\n")
