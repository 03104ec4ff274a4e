"""One exported tokenizer for all tests, and one export of equal modules: torch's own exporter takes its time."""

from pathlib import Path

import pytest

from tests.exported_once import graphs  # noqa: F401
from tests.published.checkpoints import save_vq
from underpaint.export.checkpoint import Request, export_checkpoint


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a tiny tokenizer's models."""
    work = tmp_path_factory.mktemp("tokenizer")
    save_vq(work / "vq.pt")
    export_checkpoint(Request("vq", work / "vq.pt", neighbours=24), work / "out")
    return work / "out"


@pytest.fixture(scope="module", autouse=True)
def _no_exact_times(rough_costs: None) -> None:
    """No test of exported models asks for times."""
