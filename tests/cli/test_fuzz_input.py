"""Settings and manifests of any content: they are taken, or refused by an error that says so; nothing else."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_index import read_index
from underpaint.runtime.conditions import parse_condition
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.methods.registry import METHODS, PRESETS, build_method, resolve
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import FOLDER

PROMPT = parse_condition("a fox, an owl", "prompt_grammar")
NUMBERS = st.one_of(
    st.integers(-3, 70).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
    st.sampled_from(["1e400", "-0", "0x3", "1_000", "٣", "", " ", ",", ":", "1:2", "1,2,3", "none", "true", "inf,nan"]),
)
TEXTS = st.one_of(NUMBERS, st.text(max_size=12), st.lists(NUMBERS, max_size=4).map(",".join))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def names_of(plain: dict[str, Any]) -> list[str]:
    """Every setting of a method's configuration."""
    parts = [plain.get(part, {}) for part in ("policy_settings", "rule_settings", "settings")]
    return sorted({name for part in parts for name in part}) or ["depth"]


@given(st.data())
@settings(max_examples=200)
def test_any_setting_is_taken_or_refused(data: st.DataObject) -> None:
    spec = data.draw(st.sampled_from(sorted(METHODS, key=lambda one: one.name)))
    temperature = data.draw(st.sampled_from([0.0, 1.0]))
    preset = data.draw(st.sampled_from(PRESETS))
    names = names_of(spec.preset(preset).at(temperature).to_dict())
    name = data.draw(st.one_of(st.sampled_from(names), st.text(max_size=8)))
    pipeline = SyntheticPipeline()
    with suppress(ValueError, OSError):
        config = resolve(spec.name, temperature, None, [f"{name}={data.draw(TEXTS)}"], preset)
        method = build_method(spec.name, config, pipeline.tables)
        method.open(pipeline, PROMPT, pipeline.sampling)


def places_in(node: Any) -> Iterator[tuple[Any, ...]]:
    """The keys to every value of a JSON text."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in children:
        yield (key,)
        yield from ((key, *below) for below in places_in(value))


def changed(container: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        container = container[key]
    if value is REMOVED:
        del container[place[-1]]
    else:
        container[place[-1]] = value


REMOVED = object()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    for path in FOLDER.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, models / path.name)
        elif path.suffix in (".onnx", ".npz", ".safetensors"):
            (models / path.name).symlink_to(path)
    return models


def mutated(data: st.DataObject, path: Path) -> None:
    """Put any value in any place of a JSON file, or take it away."""
    document = json.loads((FOLDER / path.name).read_text())
    place = data.draw(st.sampled_from(sorted(places_in(document), key=str)))
    changed(document, place, data.draw(st.one_of(VALUES, st.just(REMOVED))))
    path.write_text(json.dumps(document))


@given(st.data())
@settings(max_examples=150)
def test_any_manifest_or_index_is_read_or_refused(folder: Path, data: st.DataObject) -> None:
    names = ["model_index.json", "target64.json", "drafter64.json", "codebook.json", "vq_decoder.json", "judge.json"]
    path = folder / data.draw(st.sampled_from(names))
    try:
        mutated(data, path)
        with suppress(ManifestError):
            read_index(folder)
    finally:
        shutil.copy(FOLDER / path.name, path)


@given(st.data())
@settings(max_examples=25)
def test_any_manifest_opens_or_is_refused(folder: Path, data: st.DataObject) -> None:
    path = folder / data.draw(st.sampled_from(["target64.json", "drafter64.json", "judge.json", "vq_decoder.json"]))
    manifest = json.loads((FOLDER / path.name).read_text())
    try:
        manifest["settings"][data.draw(st.sampled_from(sorted(manifest["settings"])))] = data.draw(VALUES)
        path.write_text(json.dumps(manifest))
        with suppress(ManifestError, EngineError):
            Pipeline.open(folder, resolution=64)
    finally:
        shutil.copy(FOLDER / path.name, path)
