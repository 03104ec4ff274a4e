"""One exported tokenizer for all tests: its graphs are torch's own exporter's, which takes its time."""

from pathlib import Path

import pytest

from tests.published.checkpoints import save_vq
from underpaint.export.checkpoint import Request, export_checkpoint


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a tiny tokenizer's models."""
    work = tmp_path_factory.mktemp("tokenizer")
    save_vq(work / "vq.pt")
    export_checkpoint(Request("vq", work / "vq.pt", neighbours=24), work / "out")
    return work / "out"
