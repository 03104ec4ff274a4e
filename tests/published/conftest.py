"""One exported tokenizer for all tests, and one export of equal modules: torch's own exporter takes its time."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file

from tests.exported_once import graphs  # noqa: F401
from tests.made_once import made_once
from tests.published.checkpoints import HEADS, SIDE, eagle_weights, save_llamagen, save_vq
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.published.options import LoadOptions


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a tiny tokenizer's models."""
    work = tmp_path_factory.mktemp("tokenizer")
    save_vq(work / "vq.pt")
    export_checkpoint(Request("vq", work / "vq.pt", neighbours=24), work / "out")
    return work / "out"


@pytest.fixture(scope="session")
def class_models(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A class-conditional target with its drafter and tokenizer, exported into one folder beside its checkpoints.

    It is one for the run: a test that changes or adds a file copies it.
    """

    def write(place: Path) -> None:
        tokenizer: Path = request.getfixturevalue("tokenizer")
        out, options = place / "out", LoadOptions(heads=HEADS, grid_side=SIDE)
        save_llamagen(place / "c2i.pt", captions=False)
        save_file(eagle_weights(), place / "eagle.safetensors")
        shutil.copytree(tokenizer, out)
        pair = ("llamagen-c2i", place / "c2i.pt")
        export_checkpoint(Request(*pair, options=options), out)
        drafter = Request("eagle-drafter", place / "eagle.safetensors", target=pair, target_options=options)
        export_checkpoint(drafter, out)

    return made_once(tmp_path_factory.getbasetemp(), "class_models", write) / "out"


@pytest.fixture(scope="module", autouse=True)
def _no_exact_times(rough_costs: None) -> None:
    """No test of exported models asks for times."""
