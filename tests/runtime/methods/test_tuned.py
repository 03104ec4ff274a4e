"""The preset `tuned` is the output of `underpaint tune` on the shipped models."""

import json
from pathlib import Path

import pytest

from underpaint.runtime.methods.registry import KEPT, METHODS, TUNED_ON, MethodSpec, resolve

RECORD = Path(__file__).parents[3] / "benchmarks" / "results" / "tuned-128.json"
OUTSIDE = {
    1.0: {"roofline+lantern", "zipar", "zipar-adaptive", "pjd"},
    0.0: {"roofline+lantern", "lantern++", "adt+lantern", "adt+lantern++", "sjd-sv"},
}
"""Methods that have no settings within the bound on quality; docs/explanation/scenes.md lists them."""


@pytest.mark.parametrize(("temperature", "part"), [(1.0, "sampled"), (0.0, "greedy")])
def test_tuned_settings_are_those_that_tune_chose(temperature: float, part: str) -> None:
    record = json.loads(RECORD.read_text())
    assert RECORD.name in TUNED_ON
    chosen = {name: entry[part] for name, entry in record["methods"].items() if entry[part] is not None}
    built_in = {spec.name for spec in METHODS if spec.tuned.sampled.__module__.startswith("underpaint.")}
    assert built_in - chosen.keys() == {"ar", *OUTSIDE[temperature]}
    for name, entry in chosen.items():
        config = json.loads(json.dumps(resolve(name, temperature).to_dict()))
        assert config == entry["config"], name


@pytest.mark.parametrize("spec", [spec for spec in METHODS if spec.tuned.sampled.__module__.startswith("underpaint.")])
def test_a_source_says_tuned_for_what_tuning_tries_and_kept_for_what_it_did_not_choose(spec: MethodSpec) -> None:
    preset = spec.tuned
    tried = {name.rpartition(".")[2] for config in (preset.sampled, preset.greedy) for name in config.to_tune()}
    sources = {name.strip(): source for names, source in preset.sources.items() for name in names.split(",")}
    not_tried = {"window", "draft_window"} if spec.name.startswith("mulo") else set()  # where they are None
    assert {name for name, source in sources.items() if TUNED_ON in source} <= tried | not_tried, spec.name
    kept = {temperature for temperature, names in OUTSIDE.items() if spec.name in names}
    said = " ".join(sources.values())
    assert (KEPT in said) == bool(kept), spec.name
    assert (TUNED_ON in said) == (len(kept) < 2 and bool(tried)), spec.name
