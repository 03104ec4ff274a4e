"""The index of a folder of models: what it says of the shipped folder, and which folders it refuses."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts import index_writer
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.index_writer import build_index, write_index
from underpaint.artifacts.manifest import ExportRecord, Manifest, ManifestError, write
from underpaint.artifacts.model_families import PUBLISHED_SAMPLING
from underpaint.artifacts.model_index import INDEX, ModelEntry, entry_of, read_index

CONFIG = DecoderConfig(8, 1, 2, 8, 8, 4, 1, cond_ids=2, capacity=17)


def add_model(
    folder: Path, name: str, kind: str, content: bytes = b"model", export: ExportRecord | None = None, **settings: Any
) -> None:
    """Write a model file of any content, and its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(content)
    sha = hashlib.sha256(content).hexdigest()
    named = (name, kind, path.name, sha, len(content), "a test", "none", "none", settings)
    write(Manifest(*named, export=export), folder)


def small_folder(folder: Path, **changed: Any) -> Path:
    """A folder of two resolutions."""
    for side in (2, 4):
        config = replace(CONFIG, grid_side=side)
        add_model(folder, f"target{side}", "target", **asdict(replace(config, **changed)))
        add_model(folder, f"drafter{side}", "drafter", **asdict(replace(config, condition="none", drafter=True)))
    add_model(folder, "codebook", "codebook", vocab_size=8)
    add_model(folder, "vq_decoder", "image_decoder", vocab_size=8, stride=16)
    return folder


def test_a_folder_says_what_belongs_together(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    write_index(folder, family="llamagen")
    index = read_index(folder)
    assert [(entry.side, entry.target, entry.drafter) for entry in index.resolutions] == [
        (32, "target2", "drafter2"),
        (64, "target4", "drafter4"),
    ]
    assert index.resolution() is index.resolutions[-1]
    assert index.tokenizer.codebook == "codebook"
    assert index.tokenizer.vq_encoder is None
    assert (index.condition, index.family) == ("class", "llamagen")
    assert index.sampling() == SamplingParams(guidance=4.0, top_k=1000)
    assert index.models["codebook"] == ModelEntry("codebook", hashlib.sha256(b"model").hexdigest())


def test_what_is_not_told_again_stays(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    path = write_index(folder, family="one", sampling_params=SamplingParams(top_k=5))
    path.write_text(path.read_text().replace('"condition": "class"', '"condition": "ids"'))
    add_model(folder, "judge", "judge")
    write_index(folder)
    index = read_index(folder)
    assert (index.family, index.condition, index.judge) == ("one", "ids", "judge")
    assert index.sampling() == SamplingParams(top_k=5)


def test_another_target_does_not_keep_the_published_sampling_of_the_one_before(tmp_path: Path) -> None:
    folder = small_folder(tmp_path)
    changed = SamplingParams(top_k=5)
    for before, after in ((PUBLISHED_SAMPLING, SamplingParams(guidance=2.0)), (changed, changed)):
        write_index(folder, family="one", sampling_params=before)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_writer, "_sampling", lambda *_: SamplingParams(guidance=2.0))
            patch.setattr(index_writer, "entry_of", lambda manifest: replace(entry_of(manifest), sha256="another"))
            index = build_index(folder, family="two")
        assert index.sampling() == after


def test_captions_of_features_and_a_grammar_are_told_apart(tmp_path: Path) -> None:
    assert build_index(small_folder(tmp_path / "a", condition="external", prefix=120)).condition == "features"
    assert build_index(small_folder(tmp_path / "b", prefix=8)).condition == "ids"
    assert build_index(small_folder(tmp_path / "c", prefix=8), family="textured-scenes").condition == "prompt_grammar"


def test_a_resolution_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="32, 64"):
        build_index(small_folder(tmp_path)).resolution(48)


@pytest.mark.parametrize("change", ["replaced", "missing", "added"])
def test_a_mixed_folder_is_refused_with_the_remedy(tmp_path: Path, change: str) -> None:
    folder = small_folder(tmp_path)
    write_index(folder)
    if change == "replaced":
        add_model(folder, "codebook", "codebook", b"another", vocab_size=8)
    elif change == "missing":
        (folder / "codebook.json").unlink()
    else:
        add_model(folder, "judge", "judge")
    with pytest.raises(ManifestError, match=r"codebook|judge.*underpaint export"):
        read_index(folder)


def test_an_older_folder_is_refused_with_the_command(tmp_path: Path) -> None:
    small_folder(tmp_path)
    with pytest.raises(ManifestError, match=r"older format; make the folder again: `underpaint export"):
        read_index(tmp_path)
    with pytest.raises(ManifestError, match="no folder"):
        read_index(tmp_path / "absent")


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 1},
        {"family": 3, "unknown": 1},
        {"models": []},
        {"resolutions": [{"side": 1}]},
        {"resolutions": 3},
        {"sampling_params": {"top_k": -1}},
        {"condition": "poems"},
        {"judge": "nobody"},
        {"tokenizer": {"codebook": "../../codebook"}},
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    folder = small_folder(tmp_path)
    path = write_index(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(ManifestError, match=r"index\.json.*underpaint export|condition"):
        read_index(folder)


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"format": 2}'])
def test_a_file_that_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    folder = small_folder(tmp_path)
    (folder / INDEX).write_text(text)
    with pytest.raises(ManifestError, match=INDEX):
        read_index(folder)


def test_models_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "a")
    add_model(folder, "codebook2", "codebook", vocab_size=8)
    with pytest.raises(ManifestError, match="expected one codebook"):
        build_index(folder)
    with pytest.raises(ManifestError, match="numbers of codes"):
        build_index(small_folder(tmp_path / "c", vocab_size=9))
    folder = small_folder(tmp_path / "d")
    add_model(folder, "target_again", "target", **asdict(CONFIG))
    with pytest.raises(ManifestError, match="one grid"):
        build_index(folder)
