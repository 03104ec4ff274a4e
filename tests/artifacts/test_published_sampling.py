"""Exported folders are sampled as the authors of their targets sample, and say so in their index."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.artifacts.test_model_index import CONFIG, add_model
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.index_writer import write_index
from underpaint.artifacts.manifest import ExportRecord
from underpaint.artifacts.model_index import read_index

PUBLISHED = {
    ("llamagen-c2i", "anole"): SamplingParams(guidance=4.0, top_k=2000),
    ("llamagen-t2i", "anole"): SamplingParams(guidance=7.5, top_k=1000),
    ("tar-dtok", "anole"): SamplingParams(guidance=4.0),
    ("chameleon", "anole"): SamplingParams(guidance=3.0, temperature=0.7, top_p=0.9),
    ("chameleon", "lumina"): SamplingParams(guidance=3.0, top_k=2000),
    ("tar-lm", "anole"): SamplingParams(top_k=1200, top_p=0.95),
    ("new-kind", "anole"): SamplingParams(guidance=4.0, top_k=1000),
}
"""By kind of checkpoint and layout of a Chameleon's pictures."""


@pytest.mark.parametrize(("kind", "layout"), PUBLISHED)
@pytest.mark.parametrize("guided", [True, False])
def test_a_folder_is_sampled_as_its_authors_do(tmp_path: Path, kind: str, layout: str, guided: bool) -> None:
    request = {"kind": kind, "options": {"layout": layout}}
    config = CONFIG if guided else replace(CONFIG, rope="line", condition="table", uncond_keep=None)
    add_model(tmp_path, "target", "target", export=ExportRecord(request, "", 20, ()), **asdict(config))
    write_index(tmp_path)
    expected = PUBLISHED[kind, layout]
    assert read_index(tmp_path).sampling() == (expected if guided else replace(expected, guidance=1.0))
